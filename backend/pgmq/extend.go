package pgmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// Extend implements backend.Subscription. A delivery that is settled or being settled fails with backend.ErrSettled: its row
// may wait for a retry by now, or be locked by its handler's transaction.
func (s *subscription) Extend(ctx context.Context, batch []*backend.Delivery) error {
	if err := s.enter("extend"); err != nil {
		return err
	}
	defer s.work.Done()
	errs := make([]error, len(batch))
	items := make([]item, 0, len(batch))
	for i, d := range batch {
		m, err := s.extendable(d)
		if err != nil {
			errs[i] = s.queue.errorf("extend", err)
			continue
		}
		items = append(items, item{delivery: d, message: m, index: i})
	}
	slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.message.MsgID, b.message.MsgID) })
	for chunk := range slices.Chunk(items, settleBatch) {
		s.prolong(ctx, chunk, errs)
	}
	return backend.NewBatchError(errs)
}

// extendable returns the message of a delivery whose lease may be extended, with its gate locked for reading.
func (s *subscription) extendable(d *backend.Delivery) (*Message, error) {
	if d == nil {
		return nil, errors.New("the delivery is nil")
	}
	m, ok := d.Raw.(*Message)
	if !ok || m.sub != s {
		return nil, fmt.Errorf("message %q: this subscription did not deliver it: extend it where it was received", d.ID)
	}
	if !m.gate.TryRLock() {
		return nil, fmt.Errorf("message %q (msg_id %d): %w", d.ID, m.MsgID, backend.ErrSettled)
	}
	var err error
	switch {
	case d.Settled(), m.inTx:
		err = fmt.Errorf("message %q (msg_id %d): %w", d.ID, m.MsgID, backend.ErrSettled)
	case m.unsure != 0:
		err = fmt.Errorf("message %q (msg_id %d): %w: whether its %s took effect is not known", d.ID, m.MsgID, backend.ErrUnknown, m.unsure)
	}
	if err != nil {
		m.gate.RUnlock()
		return nil, err
	}
	return m, nil
}

// prolong extends the leases of one statement's items and unlocks their gates.
func (s *subscription) prolong(ctx context.Context, items []item, errs []error) {
	until := time.Now().Add(s.lease)
	done, err := query(ctx, s.queue, marks(len(items)), s.sql.extend, append(fenceOf(items), micros(s.lease))...)
	for i, it := range items {
		it.message.gate.RUnlock()
		itemErr := err
		switch {
		case err != nil:
			itemErr = s.failed(err)
		case done[i]:
			s.mu.Lock()
			it.message.until = until
			s.mu.Unlock()
			continue
		default:
			itemErr = errGone
			it.delivery.MarkLost()
			s.release(it.message)
		}
		errs[it.index] = s.queue.errorf("extend", fmt.Errorf("message %q (msg_id %d): %w", it.delivery.ID, it.message.MsgID, itemErr))
	}
}
