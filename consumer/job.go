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
	lost       error         // why the lease is gone; nil while it is held
	extending  chan struct{} // closed when the extension that is under way has ended; nil if there is none
	running    bool          // the handler was called

	denied    bool // a permit, by the breaker
	governing *governing
	item      item
	ended     chan struct{}  // closed at the end if somebody watches
	ctx       handlerContext // from the start of the handler
	finished  atomic.Bool    // the outcome is decided; what the handler returns later changes nothing
	parts     atomic.Int32   // what still keeps the delivery's place: its settlement, and a handler that has not returned
}

// run handles the delivery.
func (j *job) run() {
	r := j.r
	j.govern()
	if j.refused() {
		return
	}
	if b := r.c.Breaker; b != nil {
		if !b.TryAcquirePermit() {
			j.denied = true
			j.release()
			return
		}
	}
	j.d.Last = j.governing.isLast(j.d.Attempt)
	j.ctx.r, j.ctx.began = r, time.Now()
	j.parts.Add(1)
	defer j.part()
	if !r.keeper.start(j) {
		// The lease went while the delivery waited for its turn.
		r.recordOutcome(backend.ErrLeaseLost)
		j.finish(backend.ErrLeaseLost)
		return
	}
	defer j.ctx.end()
	protect(
		func() error { return r.c.Handler.Handle(&j.ctx, j.d) },
		func(err error) {
			r.recordOutcome(err)
			j.finish(err)
		})
}

// govern finds the policy for the delivery, once: which it is the user's own function may say.
func (j *job) govern() *governing {
	if j.governing == nil {
		j.governing = j.r.grant(j.r.govern(j.d), j.d)
		j.item.event.Wish = j.governing.wish
	}
	return j.governing
}

// refused settles a delivery that must not be handled: one that waits for its dead-letter queue, or that has used up what
// its policy allows.
func (j *job) refused() bool {
	d := j.d
	switch {
	case d.DeadLetterWaits > 0:
		j.bury()
		return true
	case d.Attempt <= 1 && d.Lapses == 0:
		return false // the road of nearly all
	default:
		return j.turnedAway()
	}
}

// bury dead-letters a delivery that has failed for good before.
func (j *job) bury() {
	j.finished.Store(true)
	j.r.keeper.remove(j)
	d := j.d
	f := d.Failure
	if f == nil {
		f = &backend.Failure{
			Reason: string(policy.ReasonError), Error: "consumer: the record of the failure was lost while the message waited for its dead-letter queue",
			Attempts: d.Attempt - 1, Lapses: d.Lapses, Policy: j.governing.name, Consumer: j.r.host,
		}
	}
	e := &j.item.event
	e.Kind, e.Reason, e.Err = DeadLettered, policy.Reason(f.Reason), errors.New(f.Error)
	if !slices.Contains(policy.Reasons(), e.Reason) {
		// It came with the message, and whoever can write there must not invent labels of metrics.
		e.Reason = policy.ReasonError
	}
	j.settle(backend.Settlement{Outcome: backend.DeadLetter, Failure: f})
}

// turnedAway dead-letters a delivery that its policy does not admit.
func (j *job) turnedAway() bool {
	d := j.d
	decision, ok := j.governing.admit(d, j.r.limits.CountsReceives)
	if ok {
		return false
	}
	j.finished.Store(true)
	j.r.keeper.remove(j)
	f := &backend.Failure{Reason: string(decision.Reason), Attempts: d.Attempt - 1, Lapses: d.Lapses, Policy: j.governing.name, Consumer: j.r.host}
	if prev := d.Failure; prev != nil && prev.DeadLetteredAt.IsZero() && prev.Error != "" {
		f.Error, f.ErrorType, f.Stack = prev.Error, prev.ErrorType, prev.Stack
	} else {
		_, f.Error, _ = strings.Cut(decision.Explain(), ": ")
	}
	e := &j.item.event
	e.Kind, e.Reason, e.Decision, e.Err = DeadLettered, decision.Reason, decision, errors.New(f.Error)
	j.settle(backend.Settlement{Outcome: backend.DeadLetter, Failure: f})
	return true
}

// finish decides the outcome from what the handler returned, once.
func (j *job) finish(err error) {
	if j.finished.Swap(true) {
		return
	}
	r := j.r
	// Before the heartbeat is awaited: what happens during that wait is not the handler's.
	j.item.event.Duration = time.Since(j.ctx.began)
	cause := j.ctx.cause()
	extending, lost := r.keeper.detach(j)
	if extending == nil {
		j.conclude(err, cause, lost)
		return
	}
	// Elsewhere, since the handler has returned and its place is another's.
	r.service.Go(func() {
		<-extending
		j.conclude(err, cause, r.keeper.lost(j))
	})
}

// conclude sends the outcome on its way.
func (j *job) conclude(err, cause, lost error) {
	r, d, e := j.r, j.d, &j.item.event
	e.Err = err
	if b := r.c.Budget; b != nil && err == nil {
		b.Succeeded()
	}
	switch {
	case d.Settled():
		e.Kind, e.Delivery = Succeeded, d
		r.observe(e)
		j.end(backend.Ack)
	case err == nil:
		// Also after a lost lease: the backend's fence tells whether the success still counts.
		e.Kind = Succeeded
		j.settle(backend.Settlement{Outcome: backend.Ack})
	case lost != nil:
		e.Kind, e.Delivery, e.Err = LeaseLost, d, lost
		r.observe(e)
		j.end(0)
	case errors.Is(cause, ErrShutdown) && (errors.Is(err, context.Canceled) || errors.Is(err, ErrShutdown)):
		e.Kind = Released
		j.settle(backend.Settlement{Outcome: backend.Release})
	default:
		j.fail(err, cause)
	}
}

// fail settles as the policy decides.
func (j *job) fail(err, cause error) {
	r, d, e := j.r, j.d, &j.item.event
	kind := policy.ReasonError
	var stack string
	if panicked, ok := errors.AsType[*PanicError](err); ok {
		kind, stack = policy.ReasonPanic, panicked.Stack
	} else if timeout, ok := errors.AsType[*TimeoutError](cause); ok {
		kind = policy.ReasonTimeout
		if err != cause {
			err = &TimeoutError{Timeout: timeout.Timeout, Err: err}
		}
	}
	age := d.Age + time.Since(d.ReceivedAt)
	r.rule(&e.Decision, j.governing, policy.Failure{
		Attempt: d.Attempt, Err: err, Cause: kind, MessageID: d.ID, Snoozes: d.Snoozes, Age: age,
	})
	e.Err, e.Reason = err, e.Decision.Reason
	s := backend.Settlement{Failure: &backend.Failure{
		Reason: string(e.Reason), Error: r.text(err), ErrorType: errorType(err), Stack: r.redact(stack),
		Attempts: d.Attempt, Lapses: d.Lapses, Policy: j.governing.name, Consumer: r.host,
	}}
	switch e.Decision.Action {
	case policy.ActionRetry:
		e.Kind, e.Delay = Retried, e.Decision.Delay
		if e.Decision.Uncharged {
			e.Kind, s.Uncharged, s.Failure = Snoozed, true, nil
		} else {
			e.Delay = r.ration(d, &j.governing.policy, e.Delay, age)
			e.Stretched = e.Delay - e.Decision.Delay
		}
		e.Applied = r.limits.Applied(e.Delay)
		s.Outcome, s.Delay = backend.Retry, e.Delay
	case policy.ActionDiscard:
		e.Kind, s.Outcome, s.Failure = Discarded, backend.Discard, nil
	default:
		e.Kind, s.Outcome = DeadLettered, backend.DeadLetter
	}
	j.settle(s)
}

// force decides for a handler that was cancelled and does not return.
func (j *job) force() {
	cause := j.ctx.cause()
	if cause == nil {
		return
	}
	j.finish(cause)
	j.r.logger.WarnContext(j.r.base, "redeliver: a handler does not return although it was cancelled, and keeps its place",
		"queue", j.r.name, "message_id", j.d.ID, "running", time.Since(j.ctx.began), "handlers", j.r.dispatch.handlers(), "concurrency", j.r.concurrency)
}

// release gives back a delivery whose handler was not called.
func (j *job) release() {
	if j.finished.Swap(true) {
		return
	}
	j.r.keeper.remove(j)
	j.item.event.Kind = Released
	j.settle(backend.Settlement{Outcome: backend.Release})
}

// settle sends the settlement on its way; the item's event tells of it once the broker has confirmed it.
func (j *job) settle(s backend.Settlement) {
	s.Delivery, j.item.event.Delivery = j.d, j.d
	lane := j.r.acks
	if s.Outcome == backend.DeadLetter {
		lane = j.r.deaths
	}
	j.item.job, j.item.settlement = j, s
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
		j.r.endProbe(j.denied)
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
