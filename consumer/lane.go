package consumer

import (
	"context"
	"errors"
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
}

// lane settles in batches, as in a group commit: what gathered while the last batch was under way goes out next.
type lane struct {
	r       *run
	timeout time.Duration // of one call

	mu      sync.Mutex
	pending []*item
	wake    chan struct{} // holds a token while items may be pending
	full    chan struct{} // holds a token once a batch is full
}

func newLane(r *run, timeout time.Duration) *lane {
	return &lane{r: r, timeout: timeout, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
}

func (l *lane) add(it *item) {
	l.mu.Lock()
	l.pending = append(l.pending, it)
	full := len(l.pending) >= l.r.limits.SettleBatch
	l.mu.Unlock()
	signal(l.wake)
	if full {
		signal(l.full)
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// run settles until ctx ends. Several may run at once.
func (l *lane) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		gather(l.waiting)
		if linger := l.r.limits.SettleLinger; linger > 0 && l.waiting() < l.r.limits.SettleBatch {
			timer := time.NewTimer(linger)
			select {
			case <-timer.C:
			case <-l.full:
			}
			timer.Stop()
		}
		if batch := l.take(); len(batch) > 0 {
			l.settle(batch)
		}
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
	if len(l.pending) > 0 {
		signal(l.wake)
	} else {
		l.pending = nil
	}
	return batch
}

func (l *lane) settle(items []*item) {
	batch := make([]backend.Settlement, len(items))
	for i, it := range items {
		batch[i] = it.settlement
	}
	ctx, cancel := context.WithTimeout(l.r.base, l.timeout)
	defer cancel()
	err := l.r.sub.Settle(ctx, batch)
	for i, it := range items {
		l.settled(it, backend.ErrorAt(err, i))
	}
}

func (l *lane) settled(it *item, err error) {
	j := it.job
	switch {
	case err == nil:
		l.r.observe(it.event)
		j.end(it.settlement.Outcome)
	case errors.Is(err, backend.ErrLeaseLost):
		l.r.observe(Event{Kind: LeaseLost, Delivery: j.d, Duration: it.event.Duration, Err: err})
		j.end(0)
	case errors.Is(err, backend.ErrSettled):
		l.failed(it, err, true)
		j.end(0)
	default:
		l.again(it, err)
	}
}

func (l *lane) failed(it *item, err error, gaveUp bool) {
	l.r.observe(Event{
		Kind: SettleFailed, Delivery: it.job.d, Reason: it.event.Reason, Decision: it.event.Decision,
		Duration: it.event.Duration, Err: err, GaveUp: gaveUp,
	})
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
	left := r.lease
	if r.limits.LeaseExpires {
		left = time.Until(r.keeper.leaseUntil(j))
	}
	wait := min(settleBackoff<<min(it.tries-1, 10), maxSettleWait)
	if it.settlement.Outcome == backend.DeadLetter && (it.tries >= deadLetterTries || left-wait-l.timeout < r.lease/4) {
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
	time.AfterFunc(wait, func() { l.add(it) })
}

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
