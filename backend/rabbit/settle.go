package rabbit

import (
	"context"
	"errors"
	"fmt"

	"github.com/redeliver/redeliver/backend"
)

// item is a settlement under way.
type item struct {
	backend.Settlement
	message *Message
	index   int // in the caller's batch
	parcel  *parcel
}

// Settle implements backend.Subscription. An ack is sent, and nothing tells whether the broker received it. A retry, a dead
// letter and a release are each a copy, which the broker confirms before the original is acked; the copies of a batch are
// confirmed together. On quorum queues from RabbitMQ 4.3 on a release is a nack.
//
// When a copy was not confirmed in time and its connection still lasts, settling the delivery again with the same outcome
// waits for that copy, and sends no other.
func (s *subscription) Settle(ctx context.Context, batch []backend.Settlement) error {
	if err := s.enter("settle"); err != nil {
		return err
	}
	defer s.work.Done()
	errs := make([]error, len(batch))
	var items []*item
	for i, st := range batch {
		it, err := s.begin(st, i)
		if err != nil {
			errs[i] = s.queue.errorf("settle", err)
			continue
		}
		items = append(items, it)
	}
	s.settle(ctx, items, errs)
	return backend.NewBatchError(errs)
}

// begin claims a delivery for a settlement.
func (s *subscription) begin(st backend.Settlement, index int) (*item, error) {
	if err := st.Validate(); err != nil {
		return nil, err
	}
	m, err := s.own(st.Delivery)
	if err == nil {
		err = st.Delivery.BeginSettle()
	}
	if err != nil {
		return nil, err
	}
	return &item{Settlement: st, message: m, index: index}, nil
}

// settle ends each item: its error, if any, goes to errs.
func (s *subscription) settle(ctx context.Context, items []*item, errs []error) {
	var acks, copies []*item
	for _, it := range items {
		m := it.message
		switch {
		case it.Outcome == backend.Ack || it.Outcome == backend.Discard:
			acks = append(acks, it)
		case it.Outcome == backend.Release && m.session.nack && m.unsure == nil:
			s.finish(it, m.session.end(ctx, m, nack), errs)
		case m.session.gone() != nil:
			s.finish(it, m.session.gone(), errs)
		default:
			copies = append(copies, it)
		}
	}
	s.acknowledge(ctx, acks, func(it *item, err error) { s.finish(it, err, errs) })
	copies = s.move(ctx, copies, errs)
	if len(copies) > 0 {
		// No queue took these: somebody has deleted what was declared.
		s.queue.top.forget()
		for _, it := range s.move(ctx, copies, errs) {
			s.finish(it, it.parcel.err, errs)
		}
	}
}

// move publishes the copies of items and acks the originals of those that the broker has confirmed. It ends the items, except
// for those whose copies were unroutable.
func (s *subscription) move(ctx context.Context, items []*item, errs []error) (unroutable []*item) {
	if len(items) == 0 {
		return nil
	}
	q := s.queue
	var needs []part
	ready := items[:0]
	for _, it := range items {
		if s.resume(it) {
			ready = append(ready, it)
			continue
		}
		var err error
		if it.parcel, err = q.copyOf(it.Settlement, it.message); err != nil {
			s.finish(it, err, errs)
			continue
		}
		needs = append(needs, it.parcel.needs...)
		ready = append(ready, it)
	}
	missing := q.ensure(ctx, needs...)
	items, ready = ready, nil
	var copies, graves []*parcel
	for _, it := range items {
		if it.message.unsure != it.parcel {
			if err := it.parcel.lack(missing); err != nil {
				s.finish(it, err, errs)
				continue
			}
			if it.Outcome == backend.DeadLetter {
				graves = append(graves, it.parcel)
			} else {
				copies = append(copies, it.parcel)
			}
		}
		ready = append(ready, it)
	}
	q.copies.post(copies)
	q.graves.post(graves)
	var done []*item // confirmed
	flush := func() {
		s.acknowledge(ctx, done, func(it *item, err error) {
			switch {
			case err == nil:
			case ctx.Err() != nil && !errors.Is(err, backend.ErrLeaseLost):
				// It can be settled again, which must not send another copy.
				it.message.unsure, it.message.unsureOf = it.parcel, it.Settlement
				err = fmt.Errorf("%w: the copy is there, and the message is too: %w", backend.ErrUnknown, err)
			default:
				// Not wrapped: it says that nothing has changed.
				err = fmt.Errorf("%w: the copy is there, and the message may be too: %v", backend.ErrUnknown, err)
			}
			s.finish(it, err, errs)
		})
		done = nil
	}
	for _, it := range ready {
		if !it.parcel.settled() {
			flush()
		}
		err := s.confirmed(ctx, it)
		if _, is := errors.AsType[*unroutableError](err); is && !q.opts.NoDeclare {
			unroutable = append(unroutable, it)
			continue
		}
		if err == nil {
			done = append(done, it)
			continue
		}
		s.finish(it, err, errs)
	}
	flush()
	return unroutable
}

// acknowledge acks the originals of items, and calls f for each with the outcome.
func (s *subscription) acknowledge(ctx context.Context, items []*item, f func(*item, error)) {
	for len(items) > 0 {
		// Nearly always all came by the same channel.
		ss := items[0].message.session
		var these, others []*item
		var ms []*Message
		for _, it := range items {
			if it.message.session == ss {
				these, ms = append(these, it), append(ms, it.message)
			} else {
				others = append(others, it)
			}
		}
		for i, err := range ss.acknowledge(ctx, ms) {
			f(these[i], err)
		}
		items = others
	}
}

// resume reports whether an item's copy is on its way already, from an earlier settlement.
func (s *subscription) resume(it *item) bool {
	m := it.message
	p := m.unsure
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		if p.err == nil {
			it.parcel = p // it got there after all, and there must not be another, whatever the outcome is now
			return true
		}
	default:
		if m.unsureOf.Outcome == it.Outcome && m.unsureOf.AwaitDeadLetter == it.AwaitDeadLetter {
			it.parcel = p
			return true
		}
	}
	m.unsure = nil
	return false
}

// confirmed waits until the broker has an item's copy.
func (s *subscription) confirmed(ctx context.Context, it *item) error {
	lane := s.queue.copies
	if it.Outcome == backend.DeadLetter {
		lane = s.queue.graves
	}
	m := it.message
	err := m.confirmed(ctx, lane, it.parcel)
	if m.unsure != nil {
		m.unsureOf = it.Settlement
	}
	return err
}

// confirmed waits until the broker has a copy that was posted to a lane. One of which that is not known in time is the one
// that the message is unsure of, so that no other follows it.
func (m *Message) confirmed(ctx context.Context, l *lane, p *parcel) error {
	var err error
	if m.unsure == p {
		err = p.later(ctx)
	} else {
		err = l.await(ctx, p)
	}
	m.unsure = nil
	if errors.Is(err, backend.ErrUnknown) && !p.ended() {
		m.unsure = p
	}
	return err
}

// finish ends the settlement of one item.
func (s *subscription) finish(it *item, err error, errs []error) {
	d := it.Delivery
	d.EndSettle(err)
	if err == nil {
		return
	}
	if errors.Is(err, backend.ErrLeaseLost) {
		d.MarkLost()
	}
	errs[it.index] = s.queue.errorf(it.Outcome.String(), fmt.Errorf("message %q: %w", d.ID, err))
}

// giveBack releases deliveries that nobody will settle.
func (s *subscription) giveBack(ctx context.Context, ds []*delivery) error {
	var items []*item
	for _, d := range ds {
		st := backend.Settlement{Delivery: &d.Delivery, Outcome: backend.Release}
		if it, err := s.begin(st, len(items)); err == nil {
			items = append(items, it)
		}
	}
	errs := make([]error, len(items))
	s.settle(ctx, items, errs)
	var failed []error
	for i, err := range errs {
		switch {
		case err == nil:
			items[i].Delivery.MarkLost()
		case !errors.Is(err, backend.ErrLeaseLost):
			failed = append(failed, err)
		}
	}
	if failed == nil {
		return nil
	}
	return fmt.Errorf("%d of %d messages were not given back, and come back when the connection ends: %w", len(failed), len(items), failed[0])
}
