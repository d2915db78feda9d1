package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

// TestAnyHistoryKeepsTheContract runs random histories of calls and checks each result against what package backend
// promises, written down a second time below in the plainest way: a list that is searched from end to end.
func TestAnyHistoryKeepsTheContract(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 50, 100).Draw(rt, "steps")
		var err error
		synctest.Test(t, func(t *testing.T) { err = newHistory().run(steps) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// step is one call, drawn ahead of the history so that it can be shrunk and repeated.
type step struct {
	Do      string
	Pick    int // which consumer or delivery, modulo how many there are
	Max     int
	Group   string
	Outcome backend.Outcome
	Flag    string
	Delay   time.Duration
}

func drawStep(t *rapid.T) step {
	s := step{
		Do: rapid.SampledFrom([]string{
			"pass", // what shrinking turns a step into that does not matter
			"publish", "publish", "receive", "receive", "receive", "settle", "settle", "settle", "settle",
			"extend", "sleep", "sleep", "close", "crash", "refuse",
		}).Draw(t, "do"),
		Pick:    rapid.IntRange(0, 99).Draw(t, "pick"),
		Max:     rapid.IntRange(1, 4).Draw(t, "max"),
		Group:   rapid.SampledFrom([]string{"", "", "g", "h"}).Draw(t, "group"),
		Outcome: backend.Outcome(rapid.IntRange(int(backend.Ack), int(backend.Release)).Draw(t, "outcome")),
		Delay:   time.Duration(rapid.SampledFrom([]int{0, 1, 30, 60, 90, 3600}).Draw(t, "seconds")) * time.Second,
	}
	if s.Outcome == backend.Retry {
		s.Flag = rapid.SampledFrom([]string{"", "uncharged", "await"}).Draw(t, "flag")
	}
	return s
}

// message is what the contract says about one message.
type message struct {
	id, group                       string
	failures, lapses, snoozes, wait int
	due                             time.Time
	leaseEnd                        time.Time         // zero while nobody holds it
	holder                          *backend.Delivery // the delivery that holds it
	consumer                        int               // who received it, or nobody if that crashed
	dead                            bool
}

const nobody = -1

type history struct {
	queue      *memory.Queue
	subs       []backend.Subscription
	refused    bool
	messages   []*message // in the order of publishing; without those that were acked or discarded
	deliveries []*backend.Delivery
	consumers  []int // of each delivery
	settled    map[*backend.Delivery]bool
	sent       int
}

func newHistory() *history {
	h := &history{queue: memory.New("orders", memory.Options{}), settled: make(map[*backend.Delivery]bool)}
	for range 2 {
		h.subs = append(h.subs, h.subscribe())
	}
	return h
}

func (h *history) subscribe() backend.Subscription {
	sub, err := h.queue.Subscribe(context.Background(), backend.SubscribeOptions{MaxInFlight: 100, Lease: lease})
	if err != nil {
		panic(err)
	}
	return sub
}

func (h *history) run(steps []step) error {
	for i, s := range steps {
		if err := h.do(s); err != nil {
			return fmt.Errorf("step %d, %+v: %w", i, s, err)
		}
		if err := h.compareStats(); err != nil {
			return fmt.Errorf("after step %d, %+v: %w", i, s, err)
		}
	}
	return h.drain()
}

// lapse does to the model what time has done by now.
func (h *history) lapse() time.Time {
	now := time.Now()
	for _, m := range h.messages {
		if m.holder != nil && !m.leaseEnd.After(now) {
			m.lapses++
			m.due, m.holder = m.leaseEnd, nil
		}
	}
	return now
}

// available returns the messages that may be received now.
func (h *history) available(now time.Time) []*message {
	var found []*message
	groups := make(map[string]bool)
	for _, m := range h.messages {
		if m.dead || groups[m.group] {
			continue
		}
		if m.group != "" {
			groups[m.group] = true
		}
		if m.holder == nil && !m.due.After(now) {
			found = append(found, m)
		}
	}
	slices.SortStableFunc(found, func(a, b *message) int { return a.due.Compare(b.due) })
	return found
}

func (h *history) holding(d *backend.Delivery) *message {
	for _, m := range h.messages {
		if m.holder == d {
			return m
		}
	}
	return nil
}

func (h *history) do(s step) error {
	ctx := context.Background()
	consumer := s.Pick % len(h.subs)
	switch s.Do {
	case "publish":
		h.sent++
		m := &message{id: strconv.Itoa(h.sent), group: s.Group, due: time.Now()}
		h.messages = append(h.messages, m)
		return h.queue.Publish(ctx, backend.Message{ID: m.id, Group: m.group})

	case "sleep":
		time.Sleep(s.Delay)

	case "refuse":
		h.refused = !h.refused
		if h.refused {
			h.queue.DeadLetters().Refuse(errors.New("full"))
		} else {
			h.queue.DeadLetters().Refuse(nil)
		}

	case "close":
		h.lapse()
		if err := h.subs[consumer].Close(ctx); err != nil {
			return err
		}
		for _, m := range h.messages {
			if m.holder != nil && m.consumer == consumer {
				m.holder = nil
			}
		}
		h.subs[consumer] = h.subscribe()

	case "crash":
		h.subs[consumer].(*memory.Subscription).Crash()
		for _, m := range h.messages {
			if m.holder != nil && m.consumer == consumer {
				m.consumer = nobody
			}
		}
		h.subs[consumer] = h.subscribe()

	case "receive":
		return h.receive(consumer, s.Max)

	case "settle", "extend":
		if len(h.deliveries) == 0 {
			return nil
		}
		// The newest are the likeliest to be held still.
		i := len(h.deliveries) - 1 - s.Pick*s.Pick/100%len(h.deliveries)
		return h.end(h.deliveries[i], h.subs[h.consumers[i]], s)
	}
	return nil
}

func (h *history) receive(consumer, limit int) error {
	now := h.lapse()
	want := h.available(now)
	want = want[:min(len(want), limit)]
	const patience = 100 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if len(want) == 0 {
		// Whatever comes due in the meantime wakes the call.
		deadline := now.Add(patience)
		for _, at := range h.events() {
			if at.Before(deadline) {
				deadline = at
			}
		}
		got, err := h.subs[consumer].Receive(ctx, limit)
		start := now
		now = h.lapse()
		// At the very end either answer is right.
		timedOut := errors.Is(err, context.DeadlineExceeded) && now.Equal(start.Add(patience))
		if want = h.available(now); len(want) == 0 || timedOut {
			if !errors.Is(err, context.DeadlineExceeded) || len(got) > 0 {
				return fmt.Errorf("received %d messages where none is due, error %v", len(got), err)
			}
			return nil
		}
		if !now.Equal(deadline) {
			return fmt.Errorf("woke %v after a message came due", now.Sub(deadline))
		}
		want = want[:min(len(want), limit)]
		return h.compare(got, err, want, consumer, now)
	}
	got, err := h.subs[consumer].Receive(ctx, limit)
	if !time.Now().Equal(now) {
		return errors.New("Receive waited though a message was due")
	}
	return h.compare(got, err, want, consumer, now)
}

// events returns the times at which a message becomes available, of those that are not.
func (h *history) events() []time.Time {
	var times []time.Time
	groups := make(map[string]bool)
	for _, m := range h.messages {
		if m.dead || groups[m.group] {
			continue
		}
		if m.group != "" {
			groups[m.group] = true
		}
		if m.holder != nil {
			times = append(times, m.leaseEnd)
		} else {
			times = append(times, m.due)
		}
	}
	return times
}

func (h *history) compare(got []*backend.Delivery, err error, want []*message, consumer int, now time.Time) error {
	if err != nil {
		return fmt.Errorf("Receive: %w", err)
	}
	if len(got) != len(want) {
		return fmt.Errorf("received %d messages, want %d", len(got), len(want))
	}
	for i, m := range want {
		d := got[i]
		if d.ID != m.id || d.Group != m.group {
			return fmt.Errorf("received message %q of group %q, want %q of %q", d.ID, d.Group, m.id, m.group)
		}
		counts := [...]int{d.Attempt, d.Lapses, d.Snoozes, d.DeadLetterWaits}
		if expect := [...]int{1 + m.failures, m.lapses, m.snoozes, m.wait}; counts != expect {
			return fmt.Errorf("message %q: attempt, lapses, snoozes, waits are %v, want %v", m.id, counts, expect)
		}
		m.holder, m.leaseEnd, m.consumer = d, now.Add(lease), consumer
		h.deliveries = append(h.deliveries, d)
		h.consumers = append(h.consumers, consumer)
	}
	return nil
}

// end settles or extends a delivery, which may have been lost or settled long ago.
func (h *history) end(d *backend.Delivery, sub backend.Subscription, s step) error {
	now := h.lapse()
	m := h.holding(d)
	var want error
	switch {
	case h.settled[d]:
		want = backend.ErrSettled
	case m == nil:
		want = backend.ErrLeaseLost
	}
	if s.Do == "extend" {
		if err := sub.Extend(context.Background(), []*backend.Delivery{d}); !errors.Is(err, want) {
			return fmt.Errorf("Extend: %v, want %v", err, want)
		}
		if want == nil {
			m.leaseEnd = now.Add(lease)
		}
		return nil
	}
	end := backend.Settlement{Delivery: d, Outcome: s.Outcome, Failure: &backend.Failure{Reason: "error"}}
	if s.Outcome == backend.Retry {
		end.Delay, end.Uncharged, end.AwaitDeadLetter = s.Delay, s.Flag == "uncharged", s.Flag == "await"
	}
	err := sub.Settle(context.Background(), []backend.Settlement{end})
	if want == nil && h.refused && s.Outcome == backend.DeadLetter {
		if err == nil || d.Settled() {
			return errors.New("dead-lettered into a queue that refuses")
		}
		return nil
	}
	if !errors.Is(err, want) {
		return fmt.Errorf("Settle: %v, want %v", err, want)
	}
	if want != nil {
		return nil
	}
	h.settled[d] = true
	m.holder = nil
	switch s.Outcome {
	case backend.Ack, backend.Discard:
		h.messages = slices.DeleteFunc(h.messages, func(other *message) bool { return other == m })
	case backend.DeadLetter:
		m.dead = true
	case backend.Retry:
		m.due = now.Add(s.Delay)
		switch s.Flag {
		case "uncharged":
			m.snoozes++
		case "await":
			m.wait++
		default:
			m.failures++
		}
	}
	return nil
}

func (h *history) compareStats() error {
	now := h.lapse()
	var want backend.Stats
	ready := h.available(now)
	want.Ready = int64(len(ready))
	if len(ready) > 0 {
		want.OldestDue = now.Sub(ready[0].due)
	}
	for _, m := range h.messages {
		switch {
		case m.dead:
			want.Dead++
		case m.holder != nil:
			want.Leased++
		default:
			want.Waiting++
		}
	}
	want.Waiting -= want.Ready
	got, err := h.queue.Stats(context.Background())
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("stats are %+v, want %+v", got, want)
	}
	return nil
}

// drain receives all that is left, from the queue and its dead-letter queue, and finds each message once.
func (h *history) drain() error {
	left := make(map[string]bool)
	for _, m := range h.messages {
		left[m.id] = m.dead
	}
	for _, queue := range []*memory.Queue{h.queue, h.queue.DeadLetters()} {
		dead := queue.Name() != h.queue.Name()
		sub, err := queue.Subscribe(context.Background(), backend.SubscribeOptions{Lease: lease})
		if err != nil {
			return err
		}
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
			batch, err := sub.Receive(ctx, 10)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			for _, d := range batch {
				if wasDead, ok := left[d.ID]; !ok || wasDead != dead {
					return fmt.Errorf("message %q came out of %q, where it should not be", d.ID, queue.Name())
				}
				if dead && (d.Failure == nil || d.Failure.MessageID != d.ID || d.Failure.DeadLetteredAt.IsZero()) {
					return fmt.Errorf("dead letter %q has the envelope %+v", d.ID, d.Failure)
				}
				delete(left, d.ID)
				if err := sub.Settle(context.Background(), []backend.Settlement{{Delivery: d, Outcome: backend.Ack}}); err != nil {
					return err
				}
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("messages were lost: %v", left)
	}
	return nil
}
