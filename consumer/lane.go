package consumer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// item is a settlement on its way to the broker, with the event that tells of its success.
type item struct {
	job        *job
	settlement backend.Settlement
	event      Event
	tries      int
	err        error // of the last try
}

// lane settles in batches, as in a group commit: what gathered while the last batch was under way goes out next. Beside a
// batch that is under way only full ones are sent.
type lane struct {
	r       *run
	timeout time.Duration // of one call

	mu      sync.Mutex
	pending []*item
	calls   int
	closed  bool
	full    chan struct{} // holds a token once a batch is full
}

func newLane(r *run, timeout time.Duration) *lane {
	return &lane{r: r, timeout: timeout, full: make(chan struct{}, 1)}
}

func (l *lane) add(it *item) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.giveUp(it)
		return
	}
	defer l.mu.Unlock()
	l.pending = append(l.pending, it)
	if len(l.pending) >= l.r.limits.SettleBatch {
		signal(l.full)
	}
	l.start()
}

// start makes a call if it is time for one. It is called with l.mu held.
func (l *lane) start() {
	n := len(l.pending)
	if n == 0 || l.calls > 0 && (n < l.r.limits.SettleBatch || l.calls >= l.r.limits.Parallel) {
		return
	}
	l.calls++
	l.r.service.Go(l.call)
}

func (l *lane) call() {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls--
		l.start()
	}()
	gather(l.waiting)
	if linger := l.r.limits.SettleLinger; linger > 0 && l.waiting() < l.r.limits.SettleBatch {
		timer := time.NewTimer(linger)
		select {
		case <-timer.C:
		case <-l.full:
		}
		timer.Stop()
	}
	if l == l.r.deaths {
		for _, it := range l.late() {
			l.r.park(it, errTooLate)
		}
	}
	if batch := l.take(); len(batch) > 0 {
		l.settle(batch)
	}
}

func (l *lane) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending)
}

func (l *lane) take() []*item {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.pending), l.r.limits.SettleBatch)
	batch := l.pending[:n:n]
	l.pending = l.pending[n:]
	if len(l.pending) == 0 {
		l.pending = nil
	}
	if len(l.pending) < l.r.limits.SettleBatch {
		select {
		case <-l.full: // no batch is full any more
		default:
		}
	}
	l.start()
	return batch
}

func (l *lane) settle(items []*item) {
	batch := make([]backend.Settlement, len(items))
	for i, it := range items {
		batch[i] = it.settlement
	}
	ctx, cancel := context.WithTimeout(l.r.base, l.timeout)
	defer cancel()
	l.conclude(items, 0, l.r.sub.Settle(ctx, batch))
}

// conclude ends the items of a call that has returned err, from the one at next on.
func (l *lane) conclude(items []*item, next int, err error) {
	failed := 0
	defer func() {
		if next < len(items) {
			// An observer has ended the goroutine, which must not cost the others their end.
			l.r.service.Go(func() { l.conclude(items, next, err) })
		}
	}()
	for next < len(items) {
		i := next
		next++
		if !l.settled(items[i], backend.ErrorAt(err, i)) {
			failed++
		}
	}
	if failed > 0 {
		// One line for the batch: an outage concerns all that is in hand, several times over.
		l.r.logger.WarnContext(l.r.base, "redeliver: settling failed", "queue", l.r.name, "messages", failed, "of", len(items),
			"error", backend.Truncate(l.r.text(err), maxLoggedError))
	}
}

// settled ends an item, and reports whether the call made an end of it, good or bad.
func (l *lane) settled(it *item, err error) bool {
	j := it.job
	switch {
	case err == nil:
		defer j.end(it.settlement.Outcome)
		l.r.observe(&it.event)
	case errors.Is(err, backend.ErrLeaseLost):
		defer j.end(0)
		l.r.observe(&Event{Kind: LeaseLost, Delivery: j.d, Duration: it.event.Duration, Err: err})
	case errors.Is(err, backend.ErrSettled), errors.Is(err, backend.ErrClosed):
		// A subscription that was closed has given back what it held.
		defer j.end(0)
		l.failed(it, err, true)
	default:
		l.again(it, err)
		return false
	}
	return true
}

func (l *lane) failed(it *item, err error, gaveUp bool) {
	l.r.observe(&Event{
		Kind: SettleFailed, Delivery: it.job.d, Reason: it.event.Reason, Decision: it.event.Decision,
		Duration: it.event.Duration, Err: err, GaveUp: gaveUp,
	})
}

// close gives up what is pending and all that is added from now on, for Run is about to return.
func (l *lane) close() {
	l.mu.Lock()
	pending := l.pending
	l.pending, l.closed = nil, true
	l.mu.Unlock()
	for _, it := range pending {
		l.giveUp(it)
	}
}

func (l *lane) giveUp(it *item) {
	if it.err == nil {
		it.err = ErrShutdown
	}
	l.failed(it, it.err, true)
}

const (
	deadLetterTries = 3
	settleBackoff   = 50 * time.Millisecond
	maxSettleWait   = 5 * time.Second
)

// again decides on a settlement that failed: another try while the lease lasts, a wait in the queue for a dead letter that
// does not get through, or, when nothing else is left, the broker's own redelivery.
func (l *lane) again(it *item, err error) {
	r, j := l.r, it.job
	it.tries++
	it.err = err
	left := r.keeper.left(j)
	wait := min(settleBackoff<<min(it.tries-1, 10), maxSettleWait)
	if it.settlement.Outcome == backend.DeadLetter && (it.tries >= deadLetterTries || left-wait-l.timeout < r.reserve()) {
		l.failed(it, err, false)
		r.park(it, err)
		return
	}
	if left <= wait {
		l.failed(it, err, true)
		j.end(0)
		return
	}
	l.failed(it, err, false)
	r.service.Go(func() {
		sleep(r.serving, wait)
		l.add(it)
	})
}

// reserve is the part of a lease that is kept for parking a dead letter.
func (r *run) reserve() time.Duration { return r.lease / 4 }

// late takes out the dead letters that stand behind others that hang, when one more call that hangs could cost their lease.
// Those whose lease is over have nothing to lose.
func (l *lane) late() (late []*item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = slices.DeleteFunc(l.pending, func(it *item) bool {
		left := l.r.keeper.left(it.job)
		if left <= 0 || left-l.timeout >= l.r.reserve() {
			return false
		}
		late = append(late, it)
		return true
	})
	return late
}

var errTooLate = errors.New("consumer: the dead-letter queue takes too long for the lease")

// parking spaces the tries to reach a dead-letter queue that does not take a message.
var parking = policy.Policy{
	MaxAttempts: policy.Unlimited,
	Backoff:     policy.Exponential{Base: 2 * time.Second, Max: 5 * time.Minute},
	Jitter:      policy.EqualJitter,
}

// park lets a message that has failed for good wait in its queue until its dead-letter queue may take it.
func (r *run) park(it *item, why error) {
	d := it.job.d
	decision := parking.Decide(policy.Failure{Attempt: d.DeadLetterWaits + 1, Err: why, MessageID: d.ID})
	it.tries = 0
	it.settlement = backend.Settlement{
		Delivery: d, Outcome: backend.Retry, Delay: decision.Delay, AwaitDeadLetter: true, Failure: it.settlement.Failure,
	}
	it.event.Kind, it.event.Err = Parked, why
	it.event.Delay, it.event.Applied = decision.Delay, r.limits.Applied(decision.Delay)
	r.acks.add(it)
}
