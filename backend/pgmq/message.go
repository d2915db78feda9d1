package pgmq

import (
	"cmp"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/redeliver/redeliver/backend"
)

// headerForeign takes the headers of a message that are no JSON object, when something has to be written beside them.
const headerForeign = "redeliver-headers"

// Message is what backend.Delivery.Raw holds, as a *Message: the row as it was claimed.
type Message struct {
	MsgID      int64
	ReadCount  int       // deliveries so far, this one included
	EnqueuedAt time.Time // when the row was inserted in this queue
	VisibleAt  time.Time // when the lease ends, unless it was extended
	// Headers are the row's headers as they are in the database, with their JSON types and with this library's own; nil
	// if the column is NULL.
	Headers json.RawMessage

	sub     *subscription
	counts  counts
	claimed time.Time // by the server's clock
	until   time.Time // end of the lease by this process's clock; guarded by sub.mu

	// gate is held for reading by an extension and for writing by a settlement: else an extension that is under way could
	// undo a retry's delay, since a retry leaves read_ct as it is.
	gate sync.RWMutex
	// unsure is the outcome of a settlement of which nobody knows whether it took effect. Guarded by gate.
	unsure backend.Outcome
	// inTx tells that a transaction of its handler's has removed the message, as far as is known. Guarded by gate.
	inTx bool
}

// delivery is one allocation for what belongs together.
type delivery struct {
	backend.Delivery
	message Message
}

// reader reads claimed rows.
type reader struct {
	sub   *subscription
	asked time.Time // when the claim was sent
	now   time.Time // when the first row arrived
	into  []any

	id            int64
	reads         int
	enqueued      pgtype.Timestamptz // which may be infinite
	visible       time.Time
	body, headers []byte
}

// readAll reads the rows of a claim that was sent at asked.
func (s *subscription) readAll(rows pgx.Rows, asked time.Time) ([]*delivery, error) {
	r := &reader{sub: s, asked: asked}
	r.into = []any{&r.id, &r.reads, &r.enqueued, &r.visible, &r.body, &r.headers}
	var ds []*delivery
	for rows.Next() {
		if ds == nil {
			r.now = time.Now()
		}
		d, err := r.read(rows)
		if err != nil {
			return nil, err
		}
		ds = append(ds, d)
	}
	return ds, nil
}

func (r *reader) read(row pgx.Rows) (*delivery, error) {
	if err := row.Scan(r.into...); err != nil {
		return nil, err
	}
	d := new(delivery)
	m := &d.message
	m.MsgID, m.ReadCount, m.VisibleAt, m.Headers = r.id, r.reads, r.visible, r.headers
	if r.enqueued.InfinityModifier == pgtype.Finite {
		m.EnqueuedAt = r.enqueued.Time
	}
	m.sub = r.sub
	m.claimed = m.VisibleAt.Add(-r.sub.lease)
	m.until = r.asked.Add(r.sub.lease)

	d.Raw = m
	d.Body = r.body
	d.Queue = r.sub.queue.name
	d.LeasedAt, d.ReceivedAt = r.asked, r.now
	d.FirstEnqueuedAt = m.EnqueuedAt
	if !m.EnqueuedAt.IsZero() {
		d.Age = max(m.claimed.Sub(m.EnqueuedAt), 0)
	}
	if m.Headers != nil {
		d.readHeaders()
	}
	if d.ID == "" {
		d.ID = stableID(d.Queue, m)
	}
	d.Attempt = 1 + m.counts.failures
	d.Lapses = max(m.ReadCount-1-m.counts.sum(), 0)
	d.Snoozes = m.counts.snoozes
	if f := d.Failure; f != nil {
		d.DeadLetterWaits = m.counts.waits
		f.Origin = cmp.Or(f.Origin, d.Queue)
		f.MessageID = cmp.Or(f.MessageID, d.ID)
		if f.FirstEnqueuedAt.IsZero() {
			f.FirstEnqueuedAt = m.EnqueuedAt
		}
		d.FirstEnqueuedAt = f.FirstEnqueuedAt
	}
	return d, nil
}

// readHeaders parts our headers from the producer's.
func (d *delivery) readHeaders() {
	m := &d.message
	eachMember(m.Headers, func(name string, value []byte) {
		switch {
		case !backend.Reserved(name):
			shown, ok := text(value)
			if !ok {
				shown = string(value)
			}
			if d.Headers == nil {
				d.Headers = make(map[string]string)
			}
			d.Headers[name] = shown
		case name == backend.HeaderID:
			d.ID, _ = text(value)
		case name == headerCounts:
			m.counts = readCounts(value, m.ReadCount-1)
		case name == backend.HeaderFailure:
			if doc, ok := text(value); ok {
				value = []byte(doc)
			}
			if f, err := backend.ParseFailure(value); err == nil {
				d.Failure = f
			}
		}
	})
}

// stableID is the ID of a message whose producer gave it none. The time is in it because the msg_ids of an unlogged queue
// start anew after a crash.
func stableID(queue string, m *Message) string {
	b := make([]byte, 0, len(queue)+32)
	b = append(b, queue...)
	b = append(b, '-')
	b = strconv.AppendInt(b, m.MsgID, 10)
	b = append(b, '-')
	if !m.EnqueuedAt.IsZero() {
		b = strconv.AppendInt(b, m.EnqueuedAt.UnixMicro(), 36)
	}
	return string(b)
}
