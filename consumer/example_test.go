package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	queue := memory.New("payments", memory.Options{})
	if err := queue.Publish(ctx, backend.Message{ID: "p-1", Body: []byte("42.00 EUR")}); err != nil {
		fmt.Println(err)
	}

	c := &consumer.Consumer{
		Queue: queue,
		Policy: policy.Policy{
			MaxAttempts: 8,
			Backoff:     policy.Exponential{Base: 5 * time.Millisecond, Max: 30 * time.Second},
			Jitter:      policy.FullJitter,
		},
		Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
			fmt.Printf("attempt %d: charge %s\n", d.Attempt, d.Body)
			if d.Attempt < 3 {
				return errors.New("gateway timeout")
			}
			cancel() // done with the example
			return nil
		}),
	}
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// attempt 1: charge 42.00 EUR
	// attempt 2: charge 42.00 EUR
	// attempt 3: charge 42.00 EUR
}

func ExampleJSON() {
	type payment struct{ Amount int }

	handler := consumer.JSON(func(ctx context.Context, p payment, d *backend.Delivery) error {
		fmt.Println("charge", p.Amount)
		return nil
	})

	// The consumer calls it so. A unit test of a handler may do the same.
	for _, body := range []string{`{"Amount": 42}`, `{"Amount": "a lot"}`} {
		err := handler.Handle(context.Background(), &backend.Delivery{Message: backend.Message{Body: []byte(body)}})
		fmt.Println(err, errors.Is(err, policy.ErrPermanent))
	}
	// Output:
	// charge 42
	// <nil> false
	// consumer: body does not decode into consumer_test.payment: string for int at byte 18 of 19, field "Amount" true
}

// An Observer feeds metrics. Kind and Reason come from small fixed sets, so they may label a counter.
func ExampleObserver() {
	ctx, cancel := context.WithCancel(context.Background())
	queue := memory.New("payments", memory.Options{})
	if err := queue.Publish(ctx, backend.Message{ID: "p-1"}); err != nil {
		fmt.Println(err)
	}

	c := &consumer.Consumer{
		Queue:  queue,
		Policy: policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Millisecond)},
		Handler: consumer.HandlerFunc(func(context.Context, *backend.Delivery) error {
			return errors.New("card declined")
		}),
		Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			fmt.Printf("redeliver_events_total{queue=%q,kind=%q,reason=%q} += 1\n", e.Queue, e.Kind, e.Reason)
			if e.Kind == consumer.DeadLettered {
				cancel() // done with the example
			}
		}),
		Logger: slog.New(slog.DiscardHandler),
	}
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// redeliver_events_total{queue="payments",kind="received",reason=""} += 1
	// redeliver_events_total{queue="payments",kind="retried",reason="error"} += 1
	// redeliver_events_total{queue="payments",kind="received",reason=""} += 1
	// redeliver_events_total{queue="payments",kind="dead_lettered",reason="exhausted"} += 1
}
