package consumer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// job is a delivery on its way through the consumer.
type job struct {
	r       *run
	d       *backend.Delivery
	probing bool // holds the probe token of a breaker that is not closed

	// Guarded by keeper.mu.
	leaseUntil time.Time
	lost       error                   // why the lease is gone; nil while it is held
	extending  chan struct{}           // closed when the extension that is under way has ended; nil if there is none
	cancel     context.CancelCauseFunc // of the running handler
	deadline   time.Time               // of the running handler

	permitted bool // by the breaker
	governing *governing
	item      item
	ended     chan struct{}   // closed at the end if somebody watches
	ctx       context.Context // of the handler
	started   time.Time
	finished  atomic.Bool  // the outcome is decided; what the handler returns later changes nothing
	parts     atomic.Int32 // what still keeps the delivery's place: its settlement, and a handler that has not returned
}

// run handles the delivery. It has one of the dispatch's running places and gives it back.
func (j *job) run() {
	r := j.r
	j.governing = r.govern(j.d)
	if j.refused() {
		r.dispatch.returned()
		return
	}
	if b := r.c.Breaker; b != nil {
		if !b.TryAcquirePermit() {
			r.dispatch.returned()
			j.release()
			return
		}
		j.permitted = true
	}
	j.d.Last = j.governing.policy.IsLast(j.d.Attempt)

	held, cancel := context.WithCancelCause(r.handlers)
	defer cancel(nil)
	ctx, stop := context.WithTimeoutCause(held, r.timeout, r.timedOut)
	defer stop()
	j.ctx, j.started = ctx, time.Now()
	j.parts.Add(1)
	if !r.keeper.start(j, cancel) {
		// The lease went while the delivery waited for its turn.
		r.recordOutcome(backend.ErrLeaseLost)
		r.dispatch.returned()
		j.finish(backend.ErrLeaseLost)
		j.part()
		return
	}
	protect(
		func() error { return r.c.Handler.Handle(ctx, j.d) },
		func(err error) {
			r.recordOutcome(err)
			r.dispatch.returned()
			j.finish(err)
			j.part()
		})
}

// refused settles a delivery that must not be handled: one that waits for its dead-letter queue, or that has used up what
// its policy allows.
func (j *job) refused() bool {
	d := j.d
	if d.DeadLetterWaits > 0 {
		j.finished.Store(true)
		j.r.keeper.remove(j)
		f := d.Failure
		if f == nil {
			f = &backend.Failure{
				Reason: string(policy.ReasonError), Error: "consumer: the record of the failure was lost while the message waited for its dead-letter queue",
				Attempts: d.Attempt - 1, Lapses: d.Lapses, Policy: j.governing.name, Consumer: j.r.host,
			}
		}
		reason := policy.Reason(f.Reason)
		if !slices.Contains(policy.Reasons(), reason) {
			// It came with the message, and whoever can write there must not invent labels of metrics.
			reason = policy.ReasonError
		}
		j.settle(
			backend.Settlement{Outcome: backend.DeadLetter, Failure: f},
			Event{Kind: DeadLettered, Reason: reason, Err: errors.New(f.Error)})
		return true
	}
	receipt := policy.Receipt{Attempt: d.Attempt, Lapses: d.Lapses}
	if j.r.limits.CountsReceives {
		// One number stands for failures and lapses there, so only what exceeds both maxima together is surely too much.
		receipt.Attempt = max(1, d.Attempt-j.governing.policy.LapseLimit())
	}
	decision, ok := j.governing.policy.Admit(receipt)
	if ok {
		return false
	}
	j.finished.Store(true)
	j.r.keeper.remove(j)
	f := backend.Failure{Reason: string(decision.Reason), Attempts: d.Attempt - 1, Lapses: d.Lapses, Policy: j.governing.name, Consumer: j.r.host}
	if prev := d.Failure; prev != nil && prev.DeadLetteredAt.IsZero() && prev.Error != "" {
		f.Error, f.ErrorType, f.Stack = prev.Error, prev.ErrorType, prev.Stack
	} else {
		_, f.Error, _ = strings.Cut(decision.Explain(), ": ")
	}
	j.settle(
		backend.Settlement{Outcome: backend.DeadLetter, Failure: &f},
		Event{Kind: DeadLettered, Reason: decision.Reason, Decision: decision, Err: errors.New(f.Error)})
	return true
}

// finish decides the outcome from what the handler returned, once.
func (j *job) finish(err error) {
	if j.finished.Swap(true) {
		return
	}
	r, d := j.r, j.d
	// Before the heartbeat is awaited: what happens during that wait is not the handler's.
	e := Event{Duration: time.Since(j.started), Err: err}
	cause := context.Cause(j.ctx)
	lost := r.keeper.remove(j)
	switch {
	case d.Settled():
		e.Kind, e.Delivery = Succeeded, d
		r.observe(e)
		j.end(backend.Ack)
	case err == nil:
		// Also after a lost lease: the backend's fence tells whether the success still counts.
		e.Kind = Succeeded
		j.settle(backend.Settlement{Outcome: backend.Ack}, e)
	case lost != nil:
		e.Kind, e.Delivery, e.Err = LeaseLost, d, lost
		r.observe(e)
		j.end(0)
	case errors.Is(cause, ErrShutdown) && (errors.Is(err, context.Canceled) || errors.Is(err, ErrShutdown)):
		e.Kind = Released
		j.settle(backend.Settlement{Outcome: backend.Release}, e)
	default:
		j.fail(err, cause, e)
	}
}

func (j *job) fail(err, cause error, e Event) {
	r, d := j.r, j.d
	kind := policy.ReasonError
	var stack string
	var timeout *TimeoutError
	var panicked *PanicError
	switch {
	case errors.As(err, &panicked):
		kind, stack = policy.ReasonPanic, panicked.Stack
	case errors.As(cause, &timeout):
		kind = policy.ReasonTimeout
		if err != cause {
			err = &TimeoutError{Timeout: timeout.Timeout, Err: err}
		}
	}
	failure := policy.Failure{
		Attempt: d.Attempt, Err: err, Cause: kind, MessageID: d.ID, Snoozes: d.Snoozes,
		Age: d.Age + time.Since(d.ReceivedAt),
	}
	decision := r.decide(j.governing.policy, failure)
	e.Err, e.Reason, e.Decision = err, decision.Reason, decision
	record := &backend.Failure{
		Reason: string(decision.Reason), Error: r.text(err), ErrorType: errorType(err), Stack: r.redact(stack),
		Attempts: d.Attempt, Lapses: d.Lapses, Policy: j.governing.name, Consumer: r.host,
	}
	switch decision.Action {
	case policy.ActionRetry:
		e.Kind, e.Delay, e.Applied = Retried, decision.Delay, r.limits.Applied(decision.Delay)
		s := backend.Settlement{Outcome: backend.Retry, Delay: decision.Delay, Failure: record}
		if decision.Uncharged {
			e.Kind, s.Uncharged, s.Failure = Snoozed, true, nil
		}
		j.settle(s, e)
	case policy.ActionDiscard:
		e.Kind = Discarded
		j.settle(backend.Settlement{Outcome: backend.Discard}, e)
	default:
		e.Kind = DeadLettered
		j.settle(backend.Settlement{Outcome: backend.DeadLetter, Failure: record}, e)
	}
}

// force decides for a handler that was cancelled and does not return.
func (j *job) force() {
	cause := context.Cause(j.ctx)
	if cause == nil {
		return
	}
	j.finish(cause)
	j.r.logger.WarnContext(j.r.base, "redeliver: a handler does not return although it was cancelled, and keeps its place",
		"queue", j.r.name, "message_id", j.d.ID, "running", time.Since(j.started), "handlers", j.r.dispatch.handlers(), "concurrency", j.r.concurrency)
}

// release gives back a delivery whose handler was not called.
func (j *job) release() {
	if j.finished.Swap(true) {
		return
	}
	j.r.keeper.remove(j)
	j.settle(backend.Settlement{Outcome: backend.Release}, Event{Kind: Released})
}

// settle sends the settlement on its way; e tells of it once the broker has confirmed it.
func (j *job) settle(s backend.Settlement, e Event) {
	s.Delivery, e.Delivery = j.d, j.d
	lane := j.r.acks
	if s.Outcome == backend.DeadLetter {
		lane = j.r.deaths
	}
	j.item = item{job: j, settlement: s, event: e}
	lane.add(&j.item)
}

// watch returns a channel that is closed when the delivery is settled or left to the broker. It is called before the job is
// dispatched.
func (j *job) watch() <-chan struct{} {
	j.ended = make(chan struct{})
	return j.ended
}

// end tells that the delivery is settled, or left to the broker with outcome 0.
func (j *job) end(outcome backend.Outcome) {
	if j.ended != nil {
		defer close(j.ended)
	}
	j.r.dispatch.ended(j, outcome)
	if j.probing {
		j.r.endProbe(j.permitted)
	}
	j.part()
}

func (j *job) part() {
	if j.parts.Add(-1) == 0 {
		j.r.room.give(1)
	}
}

// recordOutcome gives back the breaker's permit.
func (r *run) recordOutcome(err error) {
	b := r.c.Breaker
	if b == nil {
		return
	}
	if err == nil || errors.Is(err, policy.ErrPermanent) || errors.Is(err, policy.ErrDiscard) || errors.Is(err, policy.ErrSnooze) {
		b.RecordSuccess()
		return
	}
	b.RecordError(err)
}
