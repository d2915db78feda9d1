package rabbit

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// Stats implements backend.Statser. It connects for each call. Waiting is what is in the parking queues that this Queue
// has used or declared; RabbitMQ does not tell a client of others, nor what consumers hold, nor how long messages have been due.
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
