package rabbit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// Headers that this package writes on the copies that it publishes.
const (
	headerAttempt    = "redeliver-attempt"    // int64: the number of the attempt that the copy's delivery is
	headerLapses     = "redeliver-lapses"     // int64
	headerSnoozes    = "redeliver-snoozes"    // int64
	headerWaits      = "redeliver-waits"      // int64: waits for the dead-letter queue
	headerBand       = "redeliver-band"       // string: names the parking queue
	headerPublish    = "redeliver-publish"    // int64: the number of the publishing
	headerEnqueued   = "redeliver-enqueued"   // int64: when the producer sent the message, in ms since 1970
	headerExchange   = "redeliver-exchange"   // string: where the producer published it
	headerExpiration = "redeliver-expiration" // string: the property that the producer set
	headerUser       = "redeliver-user-id"    // string: the property that the producer set
)

// Message is what backend.Delivery.Raw holds, as a *Message: RabbitMQ's own delivery. Exchange, Expiration and UserId are those that the
// producer published with, also in a copy; the headers are as they were delivered, this package's own included.
//
// Its methods Ack, Nack and Reject settle this one delivery, after which a Settle by others does nothing.
type Message struct {
	amqp.Delivery

	sub      *subscription
	session  *session
	tag      uint64
	acked    bool      // is being acked; guarded by the session's mu
	enqueued time.Time // by the producer's clock; the receipt of the first delivery where the producer did not say

	// unsure is the copy of an earlier settlement of which nobody knows yet what became of it, and unsureOf that settlement's
	// outcome. Guarded by BeginSettle.
	unsure   *parcel
	unsureOf backend.Settlement
}

// delivery is one allocation for what belongs together.
type delivery struct {
	backend.Delivery
	message Message
}

// acknowledger settles a delivery whose handler uses the broker's own message.
type acknowledger struct{ d *delivery }

func (a acknowledger) Ack(_ uint64, multiple bool) error {
	return a.settle(multiple, ack)
}

func (a acknowledger) Nack(_ uint64, multiple, requeue bool) error {
	return a.settle(multiple, func(ch *amqp.Channel, tag uint64) error { return ch.Nack(tag, false, requeue) })
}

func (a acknowledger) Reject(_ uint64, requeue bool) error {
	return a.settle(false, func(ch *amqp.Channel, tag uint64) error { return ch.Reject(tag, requeue) })
}

func (a acknowledger) settle(multiple bool, f func(*amqp.Channel, uint64) error) error {
	d := a.d
	if multiple {
		return fmt.Errorf("rabbit: message %q of queue %q: other deliveries are not this one's to settle: set multiple to false", d.ID, d.Queue)
	}
	if err := d.BeginSettle(); err != nil {
		return fmt.Errorf("rabbit: %w", err)
	}
	err := d.message.session.end(context.Background(), &d.message, f)
	d.EndSettle(err)
	return err
}

// read makes a delivery of what the broker delivered.
func (s *subscription) read(ss *session, raw amqp.Delivery, now time.Time) *delivery {
	d := &delivery{message: Message{Delivery: raw, sub: s, session: ss, tag: raw.DeliveryTag}}
	m := &d.message
	m.Acknowledger = acknowledger{d}
	d.Raw = m
	d.Queue = s.queue.name
	d.ID = raw.MessageId
	d.Body = bytes.Clone(raw.Body) // raw goes on in copies, whatever the handler does to its own
	d.Attempt = 1
	if raw.Exchange == s.queue.top.back {
		m.Exchange = "" // the default one, unless a header names another
	}
	waits := 0
	for name, value := range raw.Headers {
		if !backend.Reserved(name) {
			if !brokers(name) {
				if d.Headers == nil {
					d.Headers = make(map[string]string, len(raw.Headers))
				}
				d.Headers[name] = text(value)
			}
			continue
		}
		switch name {
		case headerAttempt:
			d.Attempt = max(count(value), 1)
		case headerLapses:
			d.Lapses = count(value)
		case headerSnoozes:
			d.Snoozes = count(value)
		case headerWaits:
			waits = count(value)
		case headerExchange:
			setText(&m.Exchange, value)
		case headerExpiration:
			setText(&m.Expiration, value)
		case headerUser:
			setText(&m.UserId, value)
		case headerEnqueued:
			if ms, ok := value.(int64); ok && ms > 0 {
				m.enqueued = time.UnixMilli(ms)
			}
		case backend.HeaderFailure:
			if doc, ok := bytesOf(value); ok {
				// What cannot be read is no record of ours.
				d.Failure, _ = backend.ParseFailure(doc)
			}
		}
	}
	if d.ID == "" {
		d.ID = backend.NewID()
	}
	if d.Failure != nil {
		d.DeadLetterWaits = waits
	}
	if m.enqueued.IsZero() {
		m.enqueued = raw.Timestamp
	}
	if m.enqueued.IsZero() || m.enqueued.After(now) {
		m.enqueued = now
	}
	d.FirstEnqueuedAt = m.enqueued
	if d.Failure != nil && !d.Failure.FirstEnqueuedAt.IsZero() {
		d.FirstEnqueuedAt = d.Failure.FirstEnqueuedAt
	}
	return d
}

// receive notes that the delivery is handed to a consumer.
func (d *delivery) receive(now time.Time) {
	d.ReceivedAt = now
	d.Age = max(now.Sub(d.message.enqueued), 0)
}

// brokers reports whether a header is RabbitMQ's own: written by it, or an instruction that was carried out when the
// message was first published. Copies leave them out, and handlers do not see them.
func brokers(name string) bool {
	switch name {
	case "CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count":
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// count reads a number of times in whatever type it comes, from 0 to mostCounted. What is no number is 0.
func count(value any) int {
	var n int64
	switch v := value.(type) {
	case int:
		n = int64(v)
	case int8:
		n = int64(v)
	case int16:
		n = int64(v)
	case int32:
		n = int64(v)
	case int64:
		n = v
	case uint8:
		n = int64(v)
	case uint16:
		n = int64(v)
	case uint32:
		n = int64(v)
	case float32:
		return count(float64(v))
	case float64:
		if v > 0 {
			n = int64(min(v, mostCounted))
		}
	case string:
		n, _ = strconv.ParseInt(v, 10, 64) // the nearest that fits, or 0
	case []byte:
		n, _ = strconv.ParseInt(string(v), 10, 64)
	}
	return int(min(max(n, 0), mostCounted))
}

// mostCounted leaves room to count on.
const mostCounted = 1 << 30

func bytesOf(value any) ([]byte, bool) {
	switch v := value.(type) {
	case string:
		return []byte(v), true
	case []byte:
		return v, true
	}
	return nil, false
}

func setText(to *string, value any) {
	if s, ok := value.(string); ok {
		*to = s
	}
}

// text shows the value of a header as text.
func text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp.Decimal:
		return decimal(v)
	case amqp.Table, []any:
		doc, err := json.Marshal(plain(value))
		if err != nil {
			return fmt.Sprint(value)
		}
		return string(doc)
	}
	return fmt.Sprint(value) // the integers
}

// decimal writes a number with as many digits after the point as its scale says.
func decimal(d amqp.Decimal) string {
	digits := strconv.FormatInt(int64(d.Value), 10)
	sign := ""
	if d.Value < 0 {
		sign, digits = "-", digits[1:]
	}
	if d.Scale == 0 {
		return sign + digits
	}
	if missing := int(d.Scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(d.Scale)
	return sign + digits[:point] + "." + digits[point:]
}

// plain replaces in a table or array what JSON has no form for.
func plain(value any) any {
	switch v := value.(type) {
	case amqp.Table:
		m := make(map[string]any, len(v))
		for name, value := range v {
			m[name] = plain(value)
		}
		return m
	case []any:
		list := make([]any, len(v))
		for i, value := range v {
			list[i] = plain(value)
		}
		return list
	case nil, bool, string, int, int8, int16, int32, int64, uint8, uint16, uint32:
		return v
	case float32, float64:
		if f, err := strconv.ParseFloat(text(v), 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return v
		}
	}
	return text(value)
}
