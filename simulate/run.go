package simulate

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redeliver/redeliver/budget"
	"github.com/redeliver/redeliver/policy"
)

// A Load is what the dependency had to do in one step of time.
type Load struct {
	At      time.Duration // when the step begins
	Calls   int           // calls made in it, all of them
	Down    int           // of these, calls that failed because of the outage
	Refused int           // of these, calls beyond the capacity
	Backlog int           // messages that were due and found no consumer, at the end of the step
}

// A Result is what came of a scenario.
type Result struct {
	Scenario Scenario // with its defaults filled in

	Calls        int // attempts of all messages
	Succeeded    int // messages
	DeadLettered int // messages
	Discarded    int // messages, where a rule says so
	Down         int // calls that failed because of the outage
	Refused      int // calls beyond the capacity

	// Peak is the largest number of calls in one step after the outage, or
	// ever where there is none; PeakAt is when that step begins.
	Peak   int
	PeakAt time.Duration

	// Drained is when the last message had ended.
	Drained time.Duration

	// Load is the load over time, from 0 until Drained.
	Load []Load
}

// DeadShare is the share of the messages that were dead-lettered.
func (r *Result) DeadShare() float64 { return float64(r.DeadLettered) / float64(r.Scenario.Messages) }

// PeakRate is Peak in calls a second.
func (r *Result) PeakRate() float64 { return float64(r.Peak) / r.Scenario.Step.Seconds() }

// AfterOutage is how long it took from the end of the outage until the last
// message had ended. 0 where all had ended before.
func (r *Result) AfterOutage() time.Duration {
	return max(r.Drained-r.Scenario.Outage.End(), 0)
}

// Run plays the scenario. It fails if the policy or the scenario is not valid,
// and if messages never end: a policy without limits whose capacity is 0.
func Run(p policy.Policy, s Scenario) (*Result, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := s.complete(); err != nil {
		return nil, err
	}
	w := &world{policy: p, scenario: s, idle: s.Consumers, messages: make([]message, s.Messages)}
	w.result.Scenario = s
	w.dependency.rate = s.Capacity
	if s.Budget != nil {
		w.budget = s.Budget()
	}
	random := rand.New(rand.NewPCG(s.Seed, 0))
	slot := s.Over / time.Duration(s.Messages)
	for i := range w.messages {
		m := &w.messages[i]
		m.id = fmt.Sprintf("%x-%d", s.Seed, i)
		m.attempt = 1
		m.arrived = time.Duration(float64(s.Over) * float64(i) / float64(s.Messages))
		if slot > 0 {
			m.arrived += time.Duration(random.Int64N(int64(slot)))
		}
	}
	if err := w.run(); err != nil {
		return nil, err
	}
	w.peak()
	return &w.result, nil
}

type message struct {
	id      string
	attempt int
	arrived time.Duration
}

// An event is that a message becomes due, or that its call ends.
type event struct {
	at     time.Duration
	number int // events at one time happen in the order in which they were planned
	msg    *message
	kind   kind
}

type kind uint8

const (
	due kind = iota
	succeeded
	failed
)

// events is a heap, the next one first.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// A world is a simulation under way.
type world struct {
	policy     policy.Policy
	scenario   Scenario
	messages   []message
	next       int // message to arrive
	planned    events
	number     int
	ready      fifo
	idle       int // consumers
	dependency bucket
	budget     *budget.Bucket // nil is none
	result     Result
}

func (w *world) run() error {
	for {
		e, ok := w.advance()
		if !ok {
			return nil
		}
		if step := int(e.at / w.scenario.Step); step >= len(w.result.Load) {
			if step >= maxSteps {
				return fmt.Errorf("simulate: after %v messages are still retried: bound the policy with MaxAttempts or MaxAge, or choose a longer Step than %v",
					e.at, w.scenario.Step)
			}
			for len(w.result.Load) <= step {
				w.result.Load = append(w.result.Load, Load{
					At: time.Duration(len(w.result.Load)) * w.scenario.Step, Backlog: w.ready.len(),
				})
			}
		}
		switch e.kind {
		case due:
			w.ready.push(e.msg)
		case succeeded:
			w.idle++
			if w.budget != nil {
				w.budget.Succeeded()
			}
			w.result.Succeeded++
			w.result.Drained = e.at
		case failed:
			w.idle++
			w.fail(e.at, e.msg)
		}
		for w.idle > 0 && w.ready.len() > 0 {
			w.call(e.at, w.ready.pop())
		}
		w.result.Load[len(w.result.Load)-1].Backlog = w.ready.len()
	}
}

// advance returns the next event: a planned one, or an arrival that is earlier.
func (w *world) advance() (event, bool) {
	if w.next < len(w.messages) {
		m := &w.messages[w.next]
		if len(w.planned) == 0 || m.arrived <= w.planned[0].at {
			w.next++
			return event{at: m.arrived, msg: m, kind: due}, true
		}
	}
	if len(w.planned) == 0 {
		return event{}, false
	}
	return heap.Pop(&w.planned).(event), true
}

func (w *world) plan(at time.Duration, m *message, k kind) {
	w.number++
	heap.Push(&w.planned, event{at: at, number: w.number, msg: m, kind: k})
}

// call begins a message's call of the dependency.
func (w *world) call(at time.Duration, m *message) {
	w.idle--
	w.result.Calls++
	load := &w.result.Load[len(w.result.Load)-1]
	load.Calls++
	switch {
	case w.scenario.Outage.during(at):
		load.Down++
		w.result.Down++
	case !w.dependency.take(at):
		load.Refused++
		w.result.Refused++
	default:
		w.plan(at+w.scenario.Work, m, succeeded)
		return
	}
	w.plan(at+w.scenario.Fail, m, failed)
}

// fail asks the policy about a call that failed.
func (w *world) fail(at time.Duration, m *message) {
	d := w.policy.Decide(policy.Failure{
		Attempt: m.attempt, Err: w.scenario.Err, MessageID: m.id, Age: at - m.arrived,
	})
	switch d.Action {
	case policy.ActionRetry:
		if !d.Uncharged {
			m.attempt++
		}
		wait := d.Delay
		if w.budget != nil && !d.Uncharged {
			wait = w.budget.Spend(budget.Retry{
				MessageID: m.id, Attempt: m.attempt - 1, Wait: wait,
				Left: max(w.policy.MaxAge-(at-m.arrived), 0), Hold: w.scenario.Limits.MaxDelay,
			})
		}
		w.plan(at+w.scenario.Limits.Applied(wait), m, due)
		return
	case policy.ActionDeadLetter:
		w.result.DeadLettered++
	default:
		w.result.Discarded++
	}
	w.result.Drained = at
}

func (w *world) peak() {
	for _, l := range w.result.Load {
		if l.At >= w.scenario.Outage.End() && l.Calls > w.result.Peak {
			w.result.Peak, w.result.PeakAt = l.Calls, l.At
		}
	}
}

// A bucket refuses calls beyond a rate, with bursts of a tenth of a second.
type bucket struct {
	rate float64
	free time.Duration // when a call could be served without any burst
}

func (b *bucket) take(at time.Duration) bool {
	if b.rate == 0 {
		return true
	}
	each := time.Duration(float64(time.Second) / b.rate)
	burst := max(100*time.Millisecond, each)
	if b.free-at >= burst {
		return false
	}
	b.free = max(b.free, at) + each
	return true
}

// A fifo is a queue of messages. What was taken is dropped when it is half.
type fifo struct {
	all  []*message
	head int
}

func (q *fifo) len() int        { return len(q.all) - q.head }
func (q *fifo) push(m *message) { q.all = append(q.all, m) }
func (q *fifo) pop() *message {
	m := q.all[q.head]
	q.head++
	if q.head*2 > len(q.all) {
		q.all = append(q.all[:0], q.all[q.head:]...)
		q.head = 0
	}
	return m
}
