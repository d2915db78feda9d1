package rabbit

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// Stats implements backend.Statser. It connects for each call. Waiting is what is in the parking queues that this Queue
// has used or declared; those that only others use are left out, see Parked. RabbitMQ does not tell a client what consumers
// hold, nor how long messages have been due.
func (q *Queue) Stats(ctx context.Context) (backend.Stats, error) {
	var st backend.Stats
	err := q.visit(ctx, func(v *visit) error {
		count := func(name string, to *int64) error {
			return v.do(func(ch *amqp.Channel) error {
				found, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
				if err != nil {
					return fmt.Errorf("look at queue %q: %w", name, q.explain(err))
				}
				*to += int64(found.Messages)
				return nil
			})
		}
		if err := count(q.name, &st.Ready); err != nil {
			return err
		}
		if err := count(q.dead, &st.Dead); err != nil {
			return err
		}
		for _, b := range q.top.known() {
			if err := count(q.top.parking(b), &st.Waiting); err != nil && code(err) != amqp.NotFound {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return backend.Stats{}, q.errorf("stats", err)
	}
	return st, nil
}

// Parking is a parking queue and what it holds.
type Parking struct {
	Name     string
	Longest  time.Duration // the longest delay that waits in it
	Messages int           // how many wait in it; not those that are due and that the work queue does not take
}

// Parked returns the parking queues that the work queue has, whoever declared them, in the order of their delays. It is for
// a look by hand without RabbitMQ's own tools, not for monitoring: AMQP lists nothing, so it asks for each of the 209 queues
// that there could be, and the broker logs an error for each that there is not.
func (q *Queue) Parked(ctx context.Context) ([]Parking, error) {
	var there []Parking
	err := q.visit(ctx, func(v *visit) error {
		for _, b := range newLadder(len(mantissas), MaxDelay) {
			p := Parking{Name: q.top.parking(b), Longest: b.delay()}
			found, err := found(v.do(func(ch *amqp.Channel) error {
				is, err := ch.QueueDeclarePassive(p.Name, true, false, false, false, nil)
				p.Messages = is.Messages
				return err
			}))
			if err != nil {
				return fmt.Errorf("look at queue %q: %w", p.Name, q.explain(err))
			}
			if found {
				there = append(there, p)
			}
		}
		return nil
	})
	if err != nil {
		return nil, q.errorf("parked", err)
	}
	return there, nil
}
