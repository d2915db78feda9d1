package rabbit

import (
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// retryRecordBudget is how large the record is that a message carries while it waits for a retry.
const retryRecordBudget = 1 << 10

// counts are what a copy says of the deliveries before it.
type counts struct{ attempt, lapses, snoozes, waits int }

func countsOf(d *backend.Delivery) counts {
	return counts{d.Attempt, d.Lapses, d.Snoozes, d.DeadLetterWaits}
}

// copyOf returns the copy of a message that takes its place: to be handled again after a delay, or as a dead letter. It is as the producer sent
// it, apart from this package's headers.
func (q *Queue) copyOf(st backend.Settlement, m *Message) (*parcel, error) {
	d := st.Delivery
	c := countsOf(d)
	var failure []byte
	record := func(f backend.Failure, budget int, dead bool) {
		failure = d.Record(f, time.Now(), dead).Encode(budget)
	}
	var kept bool // the record that the message has already
	switch {
	case st.Outcome == backend.DeadLetter:
		record(*st.Failure, backend.DefaultEnvelopeBudget, true)
	case st.Outcome != backend.Retry: // a release
		kept = true
	case st.AwaitDeadLetter:
		c.waits++
		record(*st.Failure, backend.DefaultEnvelopeBudget, false)
	case st.Uncharged:
		c.snoozes++
		kept = true
	default:
		c.attempt++
		kept = st.Failure == nil
		if !kept {
			f := *st.Failure
			f.Stack = ""
			record(f, retryRecordBudget, false)
		}
	}
	p := q.copy(d, m)
	h := p.msg.Headers
	switch delay := min(st.Delay, q.opts.MaxDelay); {
	case st.Outcome == backend.DeadLetter:
		h[headerExchange] = m.Exchange // also if it is the default one: the dead letter's own says nothing to who reads it
		p.exchange, p.needs = q.top.graves, []part{gravesPart}
		if q.opts.DeadLetterExchange != "" {
			p.exchange = q.opts.DeadLetterExchange
		}
	case st.Outcome == backend.Retry && delay > 0:
		q.park(p, delay)
	default:
		p.exchange, p.needs = q.top.back, []part{backPart}
	}
	if st.Outcome != backend.DeadLetter {
		c.write(h)
	}
	if !kept {
		delete(h, backend.HeaderFailure)
		if failure != nil {
			h[backend.HeaderFailure] = string(failure)
		}
	}
	return p, q.fit(p, m)
}

// copy returns a message as the producer sent it, with the headers that copies always have.
func (q *Queue) copy(d *backend.Delivery, m *Message) *parcel {
	h := make(amqp.Table, len(m.Headers)+8)
	for name, value := range m.Headers {
		switch name {
		case headerAttempt, headerLapses, headerSnoozes, headerWaits, headerBand, headerPublish:
		default:
			if !brokers(name) {
				h[name] = value
			}
		}
	}
	h[headerEnqueued] = m.enqueued.UnixMilli()
	if m.Exchange != "" {
		h[headerExchange] = m.Exchange
	}
	if m.Expiration != "" {
		h[headerExpiration] = m.Expiration
	}
	user := m.UserId
	if user != "" && user != q.user {
		// RabbitMQ takes only the name of the user who publishes.
		h[headerUser] = user
		user = ""
	}
	return q.parcel(m.RoutingKey, amqp.Publishing{
		Headers:         h,
		UserId:          user,
		ContentType:     m.ContentType,
		ContentEncoding: m.ContentEncoding,
		DeliveryMode:    m.DeliveryMode,
		Priority:        m.Priority,
		CorrelationId:   m.CorrelationId,
		ReplyTo:         m.ReplyTo,
		MessageId:       d.ID,
		Timestamp:       m.Timestamp,
		Type:            m.Type,
		AppId:           m.AppId,
		Body:            m.Body,
	})
}

// lapsed returns the copy that takes the place of a message whose delivery ended without an outcome. It waits for a moment,
// so that the original is acked before the copy can be delivered: a consumer that died in between would leave both.
func (q *Queue) lapsed(d *delivery) (*parcel, error) {
	p := q.copy(&d.Delivery, &d.message)
	countsOf(&d.Delivery).write(p.msg.Headers)
	q.park(p, q.ladder[0].delay())
	err := q.fit(p, &d.message)
	if err != nil {
		// Without the wait it may do: at worst there will be two.
		p.exchange, p.needs = q.top.back, []part{backPart}
		p.msg.Expiration = ""
		delete(p.msg.Headers, headerBand)
		err = q.fit(p, &d.message)
	}
	return p, err
}

// park addresses a copy to the parking queue for a delay.
func (q *Queue) park(p *parcel, delay time.Duration) {
	b := q.ladder[q.ladder.index(delay)]
	p.exchange, p.needs = q.top.retry, []part{backPart, {band: b}}
	p.msg.Headers[headerBand] = b.text()
	p.msg.Expiration = strconv.FormatInt(expiration(held(delay)), 10)
}

// parcel addresses a message, with the number by which it is known again.
func (q *Queue) parcel(key string, msg amqp.Publishing) *parcel {
	p := &parcel{key: key, msg: msg, id: q.sequence.Add(1), done: make(chan struct{})}
	msg.Headers[headerPublish] = p.id
	return p
}

func (c counts) write(h amqp.Table) {
	for _, count := range [...]struct {
		name     string
		n, least int
	}{{headerAttempt, c.attempt, 2}, {headerLapses, c.lapses, 1}, {headerSnoozes, c.snoozes, 1}, {headerWaits, c.waits, 1}} {
		if count.n >= count.least {
			h[count.name] = int64(count.n)
		}
	}
}

// What RabbitMQ's own headers take. It adds them without regard to the size of a frame, and the library ends the connection
// over one that is too large.
const (
	lapseRoom = 64  // x-delivery-count, x-acquired-count
	deathRoom = 640 // x-death and those beside it, less the names that are in them
)

// fit sees to it that a copy's properties and headers fit into one frame, or the whole connection would end. Where there is no
// room for all of them it does without the failure's record, or a part of it, and without what only tells where the message
// came from: the record goes last with a dead letter, and first with what is to be handled again. In the end it does without
// the number by which a copy is known again, which is then sent alone. It keeps what the producer sent, and what is counted: a
// dead letter, of which nothing is, always fits.
func (q *Queue) fit(p *parcel, m *Message) error {
	most := int(q.frameMax.Load())
	if p.exchange == q.top.retry {
		most -= deathRoom + 6*len(q.name) + len(p.key)
	}
	limit := most - lapseRoom
	excess := headerFrameSize(p.msg) - limit
	if excess <= 0 {
		return nil
	}
	h, id := p.msg.Headers, p.msg.MessageId
	doc, _ := h[backend.HeaderFailure].(string)
	if f, err := backend.ParseFailure([]byte(doc)); err == nil {
		h[backend.HeaderFailure] = string(f.Encode(max(len(doc)-excess, 1)))
	}
	spare := []string{backend.HeaderFailure, headerExpiration, headerUser, headerEnqueued, headerExchange, headerPublish}
	if p.needs[0] == gravesPart {
		spare = []string{headerExpiration, headerUser, headerEnqueued, headerExchange, backend.HeaderFailure, headerPublish}
	}
	for _, name := range spare {
		if excess = headerFrameSize(p.msg) - limit; excess > 0 {
			delete(h, name)
		}
	}
	if excess = headerFrameSize(p.msg) - limit; excess > 0 && m.MessageId == "" {
		p.msg.MessageId = "" // drawn here
	}
	if excess = headerFrameSize(p.msg) - most; excess > 0 {
		return fmt.Errorf("%w: its properties and headers are %d bytes too large for a frame, with what has to be written beside them: "+
			"send less in headers, or raise frame_max", backend.ErrInvalidMessage, excess)
	}
	if _, numbered := h[headerPublish]; !numbered {
		p.id = 0
	}
	if _, told := h[backend.HeaderFailure]; !told && p.needs[0] == gravesPart {
		q.log.Error("rabbit: the headers of a message leave no room for the record of its failure: it is dead-lettered without",
			"message_id", id, "record", doc)
	}
	return nil
}

// defaultFrameMax is RabbitMQ's default of frame_max.
const defaultFrameMax = 128 << 10

// headerFrameSize is how large the frame is that holds a message's properties and headers.
func headerFrameSize(msg amqp.Publishing) int {
	const (
		frame  = 8  // type, channel, size, end
		header = 14 // class, weight, size of the body, which properties there are
	)
	size := frame + header
	if len(msg.Headers) > 0 {
		size += tableSize(msg.Headers)
	}
	if msg.DeliveryMode > 0 {
		size++
	}
	if msg.Priority > 0 {
		size++
	}
	if !msg.Timestamp.IsZero() {
		size += 8
	}
	for _, s := range [...]string{
		msg.ContentType, msg.ContentEncoding, msg.CorrelationId, msg.ReplyTo, msg.Expiration, msg.MessageId, msg.Type, msg.UserId, msg.AppId,
	} {
		if s != "" {
			size += 1 + len(s)
		}
	}
	return size
}

// tableSize is how many bytes a table takes on the wire.
func tableSize(t amqp.Table) int {
	size := 4
	for name, value := range t {
		size += 1 + len(name) + valueSize(value)
	}
	return size
}

func valueSize(value any) int {
	const kind = 1
	switch v := value.(type) {
	case nil:
		return kind
	case bool, int8, uint8:
		return kind + 1
	case int16, uint16:
		return kind + 2
	case int, int32, uint32, float32:
		return kind + 4
	case amqp.Decimal:
		return kind + 5
	case int64, float64, time.Time:
		return kind + 8
	case string:
		return kind + 4 + len(v)
	case []byte:
		return kind + 4 + len(v)
	case amqp.Table:
		return kind + tableSize(v)
	case []any:
		size := kind + 4
		for _, value := range v {
			size += valueSize(value)
		}
		return size
	}
	return kind
}
