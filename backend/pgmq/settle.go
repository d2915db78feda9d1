package pgmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/internal/jsontext"
)

// retryErrorBytes is how much of an error's text a message carries while it waits for a retry.
const retryErrorBytes = 256

// way is what a settlement does to a row. Each way is a statement of its own, so that no outcome depends on another.
type way int

const (
	remove way = iota // from the queue, to the archive or for good
	back              // to the queue, after a delay
	bury              // to the dead-letter queue
	ways
)

// item is a settlement under way.
type item struct {
	delivery *backend.Delivery
	message  *Message
	outcome  backend.Outcome
	index    int // in the caller's batch
	delay    time.Duration
	from, to int // of what is merged into the message's headers, in its draft's docs
}

// draft is what a batch of settlements is to write.
type draft struct {
	items [ways][]item
	docs  []byte // for the headers, one JSON object after the other
	array []byte // those of one statement, as a JSON array
}

// newDraft returns a draft, one that was used before if there is one: made anew for each batch, their tens of kilobytes kept the
// garbage collector busier than all else did. A sync.Pool would not do, since each garbage collection empties it.
func (s *subscription) newDraft() *draft {
	select {
	case d := <-s.drafts:
		return d
	default:
		return new(draft)
	}
}

// keptDraft bounds, in bytes, the draft that is kept for the next batch.
const keptDraft = 1 << 20

// recycle takes a draft back, to be used again.
func (s *subscription) recycle(d *draft) {
	if cap(d.docs) > keptDraft || cap(d.array) > keptDraft {
		return
	}
	for i, items := range d.items {
		clear(items)
		d.items[i] = items[:0]
	}
	d.docs = d.docs[:0]
	select {
	case s.drafts <- d:
	default:
	}
}

// Settle implements backend.Subscription. Each of the three ways out of the queue (archived or deleted, back, dead-lettered)
// is one statement for up to 200 deliveries. A Discard ends as an Ack does: in the archive, or deleted with
// Options.DeleteOnSuccess. When a statement is refused because of one item's data, the items are settled one by one.
func (s *subscription) Settle(ctx context.Context, batch []backend.Settlement) error {
	if err := s.enter("settle"); err != nil {
		return err
	}
	defer s.work.Done()
	draft := s.newDraft()
	defer s.recycle(draft)
	errs := make([]error, len(batch))
	for i, st := range batch {
		m, err := s.own(st)
		if err == nil {
			err = st.Delivery.BeginSettle()
		}
		if err != nil {
			errs[i] = s.queue.errorf("settle", err)
			continue
		}
		m.gate.Lock()
		draft.add(st, m, i)
	}
	s.apply(ctx, draft, errs)
	return backend.NewBatchError(errs)
}

// own returns the message of a settlement, if it came from here.
func (s *subscription) own(st backend.Settlement) (*Message, error) {
	if err := st.Validate(); err != nil {
		return nil, err
	}
	m, ok := st.Delivery.Raw.(*Message)
	if !ok || m.sub != s {
		return nil, fmt.Errorf("message %q: this subscription did not deliver it: settle it where it was received", st.Delivery.ID)
	}
	return m, nil
}

// add works out what a settlement writes. The counts are absolute, so that settling again after an unknown outcome counts
// once.
func (dr *draft) add(st backend.Settlement, m *Message, index int) {
	d, counts := st.Delivery, m.counts
	it := item{delivery: d, message: m, outcome: st.Outcome, index: index, delay: max(st.Delay, 0), from: len(dr.docs)}
	// By the server's clock, as the other times in the record.
	now := m.claimed.Add(time.Since(d.ReceivedAt))
	way := back
	switch {
	case st.Outcome == backend.DeadLetter:
		way = bury
		dr.docs = append(dr.docs, `{"`+backend.HeaderID+`":`...)
		dr.docs = jsontext.AppendString(dr.docs, d.ID)
		dr.record(d.Record(*st.Failure, now, true), backend.DefaultEnvelopeBudget)
	case st.Outcome == backend.Release:
		counts.releases++
		dr.count(counts)
	case st.Outcome != backend.Retry:
		way = remove
	case st.AwaitDeadLetter:
		counts.waits++
		dr.count(counts)
		dr.record(d.Record(*st.Failure, now, false), backend.DefaultEnvelopeBudget)
	case st.Uncharged:
		counts.snoozes++
		dr.count(counts)
	default:
		counts.failures++
		dr.count(counts)
		if st.Failure != nil {
			dr.record(retryRecord(d.Record(*st.Failure, now, false), d, m), 1) // the smallest budget that there is
		}
	}
	if way != remove {
		dr.docs = append(dr.docs, '}')
	}
	it.to = len(dr.docs)
	dr.items[way] = append(dr.items[way], it)
}

func (d *draft) count(c counts) {
	d.docs = append(d.docs, `{"`+headerCounts+`":`...)
	d.docs = c.appendTo(d.docs)
}

func (d *draft) record(f backend.Failure, budget int) {
	d.docs = append(d.docs, `,"`+backend.HeaderFailure+`":`...)
	d.docs = f.AppendEncode(d.docs, budget)
}

// retryRecord is the record of a failure that is not the last: why the message waits, and what is written once. The database
// parses and writes each byte of it with every retry, and that is what a retry costs most, so it leaves out what the row
// tells anyway and what the next failure will tell anew.
func retryRecord(f backend.Failure, d *backend.Delivery, m *Message) backend.Failure {
	f.Error = backend.Truncate(f.Error, retryErrorBytes)
	f.Stack, f.Policy, f.Consumer = "", "", ""
	if f.Origin == d.Queue {
		f.Origin = ""
	}
	if f.MessageID == d.ID {
		f.MessageID = ""
	}
	if f.FirstEnqueuedAt.Equal(m.EnqueuedAt) {
		f.FirstEnqueuedAt = time.Time{}
	}
	return f
}

// apply carries out the settlements and ends each: its error, if any, goes to errs.
func (s *subscription) apply(ctx context.Context, draft *draft, errs []error) {
	s.disentangle(ctx, draft, errs)
	for w, items := range draft.items {
		slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.message.MsgID, b.message.MsgID) })
		for chunk := range slices.Chunk(items, settleBatch) {
			s.applyAll(ctx, draft, way(w), chunk, errs)
		}
	}
}

// applyAll carries out settlements of one way in one statement, or each in one of its own if that is refused.
func (s *subscription) applyAll(ctx context.Context, draft *draft, w way, items []item, errs []error) {
	done, err := s.execute(ctx, draft, w, items)
	if err != nil && len(items) > 1 && refusesData(err) {
		for i := range items {
			s.applyAll(ctx, draft, w, items[i:i+1], errs)
		}
		return
	}
	var lost []item
	for i, it := range items {
		switch {
		case err != nil:
			if unknown(err) {
				it.message.unsure = it.outcome
			}
			s.finish(it, s.failed(err), errs)
		case done[i]:
			s.finish(it, nil, errs)
		default:
			lost = append(lost, it)
		}
	}
	if err == nil && w == back {
		s.wake(items, done)
	}
	if lost != nil {
		s.missing(ctx, lost, errs)
	}
}

// execute runs the statement of a way and tells which items it found.
func (s *subscription) execute(ctx context.Context, draft *draft, w way, items []item) (done []bool, err error) {
	args, sql := fenceOf(items), s.sql.remove
	switch w {
	case back:
		delays := make([]int64, len(items))
		for i, it := range items {
			delays[i] = micros(it.delay)
		}
		args, sql = append(args, delays, draft.headers(items, s.queue.plansKept)), s.sql.back
	case bury:
		args, sql = append(args, draft.headers(items, s.queue.plansKept)), s.sql.bury
	}
	return query(ctx, s.queue, marks(len(items)), sql, args...)
}

// fenceOf returns the first two arguments of every statement: which messages, and which delivery of each.
func fenceOf(items []item) []any {
	ids := make([]int64, len(items))
	reads := make([]int32, len(items))
	for i, it := range items {
		ids[i], reads[i] = it.message.MsgID, int32(it.message.ReadCount)
	}
	return []any{ids, reads}
}

// headers returns what is merged into each item's headers, as one JSON array: a text array would be copied twice more on its
// way. It is a string, or where pgx knows the parameter's type the bytes as they are, which last until the next call.
func (d *draft) headers(items []item, typed bool) any {
	d.array = append(d.array[:0], '[')
	for i, it := range items {
		if i > 0 {
			d.array = append(d.array, ',')
		}
		d.array = append(d.array, d.docs[it.from:it.to]...)
	}
	d.array = append(d.array, ']')
	if typed {
		return d.array
	}
	return string(d.array)
}

// failed is the error of items whose statement failed.
func (s *subscription) failed(err error) error {
	if unknown(err) {
		return fmt.Errorf("%w: the connection ended before the server answered: %w", backend.ErrUnknown, err)
	}
	return s.queue.explain(err)
}

var errGone = fmt.Errorf("%w: another consumer has claimed the message since, or it was removed from the queue", backend.ErrLeaseLost)

// missing ends items whose rows were not there as they were claimed. That is a lost lease, unless an earlier settlement of
// the same delivery may have done it.
func (s *subscription) missing(ctx context.Context, items []item, errs []error) {
	var unsure []item
	for _, it := range items {
		if it.message.unsure == 0 {
			s.finish(it, errGone, errs)
		} else {
			unsure = append(unsure, it)
		}
	}
	if unsure == nil {
		return
	}
	ids := make([]int64, len(unsure))
	for i, it := range unsure {
		ids[i] = it.message.MsgID
	}
	present, err := query(ctx, s.queue, marks(len(unsure)), s.sql.present, ids)
	for i, it := range unsure {
		removed := it.message.unsure != backend.Retry && it.message.unsure != backend.Release
		switch {
		case err != nil:
			s.finish(it, fmt.Errorf("%w: an earlier call may have taken effect, and looking for the message failed: %w", backend.ErrUnknown, err), errs)
		case !removed:
			s.finish(it, fmt.Errorf("%w: an earlier call may have taken effect, and another consumer has had the message since", backend.ErrUnknown), errs)
		case present[i]:
			s.finish(it, errGone, errs)
		default:
			s.finish(it, nil, errs) // the earlier call removed it
		}
	}
}

// finish ends the settlement of one item.
func (s *subscription) finish(it item, err error, errs []error) {
	// In this order: an extension that finds the gate open must find the delivery settled, or it undoes a retry's delay.
	it.delivery.EndSettle(err)
	it.message.gate.Unlock()
	lost := errors.Is(err, backend.ErrLeaseLost)
	if lost {
		it.delivery.MarkLost()
	}
	if lost || err == nil {
		s.release(it.message)
	}
	if err != nil {
		errs[it.index] = s.queue.errorf(it.outcome.String(), fmt.Errorf("message %q (msg_id %d): %w", it.delivery.ID, it.message.MsgID, err))
	}
}

// release forgets a delivery that is not held any more.
func (s *subscription) release(m *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, m)
}

// wake sets the alarm for the first of the items that come back.
func (s *subscription) wake(items []item, done []bool) {
	first := time.Duration(-1)
	for i, it := range items {
		if done[i] && (first < 0 || it.delay < first) {
			first = it.delay
		}
	}
	if first >= 0 {
		s.queue.wake(first)
	}
}

// giveBack releases deliveries that nobody will settle.
func (s *subscription) giveBack(ctx context.Context, ds []*delivery) error {
	draft := s.newDraft()
	defer s.recycle(draft)
	for _, d := range ds {
		if d.BeginSettle() != nil {
			continue
		}
		d.message.gate.Lock()
		draft.add(backend.Settlement{Delivery: &d.Delivery, Outcome: backend.Release}, &d.message, len(draft.items[back]))
	}
	errs := make([]error, len(draft.items[back]))
	known := make([]bool, len(errs)) // that they are held
	for _, it := range draft.items[back] {
		known[it.index] = it.message.unsure == 0
	}
	s.apply(ctx, draft, errs)
	var failed []error
	for _, it := range draft.items[back] {
		it.delivery.MarkLost()
		if err := errs[it.index]; err != nil && known[it.index] && !errors.Is(err, backend.ErrLeaseLost) {
			failed = append(failed, err)
		}
	}
	if failed == nil {
		return nil
	}
	return fmt.Errorf("%d of %d messages were not given back and return when their lease ends: %w", len(failed), len(errs), failed[0])
}
