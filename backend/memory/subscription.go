package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// Subscription receives from a queue. It is safe for concurrent use.
type Subscription struct {
	queue *Queue
	lease time.Duration

	closed bool // guarded by the store's mutex
}

// Raw is what Delivery.Raw points to: the stored message.
type Raw struct {
	// Headers are all headers as the queue stores them: the user's, and backend.HeaderFailure with the envelope if the
	// message has failed before. They are a copy.
	Headers map[string]string

	entry   *entry
	receipt uint64
}

// Receive waits for messages that are due and returns up to max of them, the longest due first. A max below 1 counts as 1.
func (s *Subscription) Receive(ctx context.Context, max int) ([]*backend.Delivery, error) {
	for {
		batch, again, err := s.receive(ctx, max)
		if err != nil {
			return nil, fmt.Errorf("memory: receive from %q: %w", s.queue.Name(), err)
		}
		if batch != nil {
			return batch, nil
		}
		again.wait(ctx)
	}
}

// receive takes what is due or, if nothing is, tells what to wait for.
func (s *Subscription) receive(ctx context.Context, limit int) ([]*backend.Delivery, waiter, error) {
	st := s.queue.store
	st.mu.Lock()
	defer st.mu.Unlock()
	if s.closed {
		return nil, waiter{}, backend.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, waiter{}, err
	}
	now := time.Now()
	st.advance(now)
	var batch []*backend.Delivery
	for len(st.ready) > 0 && len(batch) < max(limit, 1) {
		batch = append(batch, st.claim(s, now))
	}
	st.rouse()
	if batch == nil {
		return nil, st.waiter(now), nil
	}
	return batch, waiter{}, nil
}

// Settle ends the deliveries, as backend.Subscription says. It fails whole if ctx has ended, as it would with a broker that
// is asked over a network, and with backend.ErrClosed.
func (s *Subscription) Settle(ctx context.Context, batch []backend.Settlement) error {
	return s.each(ctx, "settle", len(batch), func(i int, now time.Time) error {
		return s.settle(batch[i], now)
	})
}

func (s *Subscription) settle(end backend.Settlement, now time.Time) (err error) {
	if err := end.Validate(); err != nil {
		return err
	}
	d := end.Delivery
	if err := d.BeginSettle(); err != nil {
		return err
	}
	defer func() { d.EndSettle(err) }()
	e, err := s.held(d)
	if err != nil {
		return err
	}
	st := s.queue.store
	switch end.Outcome {
	case backend.Ack, backend.Discard:
		st.remove(e)
	case backend.Release:
		st.giveBack(e, e.due, now)
	case backend.DeadLetter:
		return st.deadLetter(e, d.Record(*end.Failure, now, true), now)
	case backend.Retry:
		switch {
		case end.AwaitDeadLetter:
			e.deadLetterWaits++
		case end.Uncharged:
			e.snoozes++
		default:
			e.failures++
		}
		if end.Failure != nil && (end.AwaitDeadLetter || !end.Uncharged) {
			e.failure = encode(d.Record(*end.Failure, now, false))
		}
		st.giveBack(e, now.Add(max(end.Delay, 0)), now)
	}
	return nil
}

// Extend renews the leases, as backend.Subscription says.
func (s *Subscription) Extend(ctx context.Context, batch []*backend.Delivery) error {
	return s.each(ctx, "extend", len(batch), func(i int, now time.Time) error {
		d := batch[i]
		if d == nil {
			return errors.New("no delivery")
		}
		if d.Settled() {
			return fmt.Errorf("message %q: %w", d.ID, backend.ErrSettled)
		}
		e, err := s.held(d)
		if err != nil {
			return err
		}
		s.queue.store.leased.move(e, now.Add(s.lease))
		return nil
	})
}

// each calls do for every item of a batch, under the lock and with what time has brought about done.
func (s *Subscription) each(ctx context.Context, what string, size int, do func(i int, now time.Time) error) error {
	st := s.queue.store
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: %s in %q: %w", what, st.name, err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if s.closed {
		return fmt.Errorf("memory: %s in %q: %w", what, st.name, backend.ErrClosed)
	}
	now := time.Now()
	st.advance(now)
	errs := make([]error, size)
	for i := range errs {
		if err := do(i, now); err != nil {
			errs[i] = fmt.Errorf("memory: %s in %q: %w", what, st.name, err)
		}
	}
	st.rouse()
	return backend.NewBatchError(errs)
}

// held returns the entry that d holds. Each claim of an entry has a receipt of its own, so one that lapsed and was claimed
// again is not held by its former delivery.
func (s *Subscription) held(d *backend.Delivery) (*entry, error) {
	raw, ok := d.Raw.(*Raw)
	if !ok || raw.entry == nil || raw.entry.store != s.queue.store {
		return nil, fmt.Errorf("message %q was not received from this queue", d.ID)
	}
	if raw.entry.receipt != raw.receipt {
		return nil, fmt.Errorf("message %q: %w", d.ID, backend.ErrLeaseLost)
	}
	return raw.entry, nil
}

// Close gives back at once and uncharged what was received here and not settled. It never fails.
func (s *Subscription) Close(context.Context) error {
	st := s.queue.store
	st.mu.Lock()
	defer st.mu.Unlock()
	s.end(true)
	return nil
}

// Crash abandons the subscription as a killed process would: nothing is given back, what it holds comes back with a lapse
// when its lease has run out, and every later call fails with backend.ErrClosed.
func (s *Subscription) Crash() {
	st := s.queue.store
	st.mu.Lock()
	defer st.mu.Unlock()
	s.end(false)
}

func (s *Subscription) end(giveBack bool) {
	if s.closed {
		return
	}
	s.closed = true
	delete(s.queue.subs, s)
	st := s.queue.store
	now := time.Now()
	st.advance(now)
	if giveBack {
		st.giveBackAll(s, now)
	}
	st.wakeAll()
}
