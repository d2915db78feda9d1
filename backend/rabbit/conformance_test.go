package rabbit_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/conformance"
	"github.com/redeliver/redeliver/internal/brokertest"
)

func TestConformance(t *testing.T) {
	url := brokertest.Rabbit(t)
	for _, kind := range []rabbit.Type{rabbit.Quorum, rabbit.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			h := conformance.Harness{
				Name:  "rabbit, " + string(kind),
				Slack: 5 * time.Second, // the machine may be busy; how soon a message is there is measured elsewhere
			}
			h.Open = func(ctx context.Context, name string) (*conformance.Fixture, error) {
				return fixture(ctx, t, url, kind, name, name, name+"_dlq")
			}
			h.OpenWithoutQueue = func(ctx context.Context, name string) (*conformance.Fixture, error) {
				return fixture(ctx, t, url, kind, name, name+"_dlq")
			}
			h.OpenWithoutDeadLetters = func(ctx context.Context, name string) (*conformance.Fixture, error) {
				return fixture(ctx, t, url, kind, name, name)
			}
			conformance.Run(t, h)
		})
	}
}

// fixture opens a queue, having declared the queues that it is told to.
func fixture(ctx context.Context, t *testing.T, url string, kind rabbit.Type, name string, queues ...string) (*conformance.Fixture, error) {
	dead := name + "_dlq"
	opts := rabbit.Options{Type: kind}
	q, err := rabbit.Open(url, name, opts)
	if err != nil {
		return nil, err
	}
	// A dead-letter queue that is read as a queue needs one for its own failures.
	graves, err := rabbit.Open(url, dead, rabbit.Options{DeadLetterQueue: name})
	if err != nil {
		return nil, err
	}
	declare := func(names ...string) {
		onChannel(t, url, func(ch *amqp.Channel) {
			for _, name := range names {
				_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": string(kind)})
				require.NoError(t, err)
			}
		})
	}
	declare(queues...)
	return &conformance.Fixture{
		Queue:       q,
		DeadLetters: graves,
		Reopen:      func(context.Context) (backend.Queue, error) { return rabbit.Open(url, name, opts) },
		Crash:       rabbit.Crash,
		BreakDeadLetters: func(ctx context.Context) (func(context.Context) error, error) {
			deleteQueue(t, url, dead)
			return func(context.Context) error {
				declare(dead)
				return nil
			}, nil
		},
		Close: func(ctx context.Context) error {
			for _, q := range []*rabbit.Queue{q, graves} {
				if err := q.Close(ctx); err != nil {
					return err
				}
			}
			remove(t, url, q, graves)
			return nil
		},
	}, nil
}
