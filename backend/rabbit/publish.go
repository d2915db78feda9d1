package rabbit

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// Publish implements backend.Publisher. The messages are sent to the queue through the default exchange, persistent, each
// confirmed by itself: when it fails, some may have been sent. IDs and the names of headers have 255 bytes at most, and
// all headers of a message have to fit into one frame, 128 KiB by RabbitMQ's default, with 2 KiB to spare for what is written beside
// them later. Groups are refused, since this backend keeps no order;
// so are the headers CC and BCC, which mean other queues to RabbitMQ.
func (q *Queue) Publish(ctx context.Context, msgs ...backend.Message) error {
	if q.isClosed() {
		return q.errorf("publish", backend.ErrClosed)
	}
	parcels := make([]*parcel, len(msgs))
	now := time.Now()
	for i, m := range msgs {
		if m.ID == "" {
			m.ID = backend.NewID()
		}
		if err := check(m); err != nil {
			return q.errorf("publish", err)
		}
		headers := amqp.Table{headerEnqueued: now.UnixMilli()}
		for name, value := range m.Headers {
			headers[name] = value
		}
		p := q.parcel(q.name, amqp.Publishing{
			MessageId: m.ID, Headers: headers, Body: m.Body, DeliveryMode: amqp.Persistent, Timestamp: now,
		})
		if size, limit := headerFrameSize(p.msg), int(q.frameMax.Load())-reserve; size > limit {
			return q.errorf("publish", fmt.Errorf("%w: message %q: its properties and headers are %d bytes too large for a frame of %d, "+
				"of which copies need %d: send less in headers, or raise frame_max", backend.ErrInvalidMessage, m.ID, size-limit, limit+reserve, reserve))
		}
		parcels[i] = p
	}
	for i, err := range q.copies.publish(ctx, parcels) {
		if _, is := errors.AsType[*unroutableError](err); is {
			err = fmt.Errorf("%w: call Queue.Create, or declare the queue by other means: %w", backend.ErrQueueNotFound, err)
		}
		if err != nil {
			return q.errorf("publish", fmt.Errorf("message %q (number %d of the call): %w", msgs[i].ID, i, err))
		}
	}
	return nil
}

// reserve is how much of a frame Publish leaves for what retries and dead letters carry beside a message's own headers.
const reserve = 2 << 10

// check refuses what AMQP cannot carry, or RabbitMQ would not give back as it was.
func check(m backend.Message) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if len(m.ID) > maxShortString {
		return fmt.Errorf("%w: the ID %.40q... has %d bytes: at most %d are possible", backend.ErrInvalidMessage, m.ID, len(m.ID), maxShortString)
	}
	if m.Group != "" {
		return fmt.Errorf("%w: message %q: Group is set, and this backend keeps no order: leave it empty", backend.ErrInvalidMessage, m.ID)
	}
	for name := range m.Headers {
		if len(name) > maxShortString {
			return fmt.Errorf("%w: message %q: the name of header %.40q... has %d bytes: at most %d are possible",
				backend.ErrInvalidMessage, m.ID, name, len(name), maxShortString)
		}
		if brokers(name) {
			return fmt.Errorf("%w: message %q: header %q is RabbitMQ's own: choose another name", backend.ErrInvalidMessage, m.ID, name)
		}
	}
	return nil
}
