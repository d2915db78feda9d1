// Package kitchen is what the examples have in common: a few orders, a handler that fails at some of them in different
// ways, and a time line that shows what became of each.
package kitchen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// Patience is the retry policy: waits of about 0.4 s, 0.8 s and 1.5 s, and after the fourth failure the dead-letter queue.
var Patience = policy.Policy{
	Name:        "patience",
	MaxAttempts: 4,
	Backoff:     policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second},
	Jitter:      policy.EqualJitter,
}

// Order is the body of a message.
type Order struct {
	Pizza string `json:"pizza"`
}

// Menu is all that can be ordered.
var Menu = []string{"marinara", "margherita", "calzone", "focaccia", "hawaii", "liquorice"}

// Orders returns an order for each pizza on the menu, in its order. Each call makes other IDs.
func Orders() []backend.Message {
	var orders []backend.Message
	for _, pizza := range Menu {
		body, err := json.Marshal(Order{pizza})
		if err != nil {
			panic(err) // a struct of one string
		}
		orders = append(orders, backend.Message{ID: backend.NewID(), Body: body})
	}
	return orders
}

// Bake handles an order. It remembers nothing between the attempts: how often a message was tried comes with its delivery.
func Bake(_ context.Context, o Order, d *backend.Delivery) error {
	switch o.Pizza {
	case "margherita":
		// A fault that passes: any error is retried, with a longer wait each time.
		if d.Attempt < 3 {
			return errors.New("the oven is cold")
		}
	case "calzone":
		// Somebody else says when to come back, as an HTTP server does with 429 and Retry-After.
		if d.Attempt == 1 {
			return policy.RetryAfter(1500*time.Millisecond, errors.New("the cheese arrives in 1.5 s"))
		}
	case "focaccia":
		// Nothing is wrong, it is only too early: the message comes back and no attempt is charged.
		if d.Snoozes == 0 {
			return policy.Snooze(time.Second)
		}
	case "hawaii":
		// Poison: it fails whenever it is tried, and ends in the dead-letter queue.
		return errors.New("the pineapple is missing")
	case "liquorice":
		// No retry would help: it goes to the dead-letter queue at once.
		return policy.Permanent(errors.New("not on the menu"))
	}
	return nil
}

// Queue is a queue that can send, as those of our backends can.
type Queue interface {
	backend.Queue
	backend.Publisher
}

// Serve sends one order for each pizza on the menu and handles them, with the given policy, until each is baked or dead. It
// prints the time line.
func Serve(ctx context.Context, w io.Writer, queue Queue, p policy.Policy) error {
	served, cancel := context.WithCancel(ctx)
	defer cancel()

	orders := Orders()
	line := newTimeline(w, orders, cancel)
	if err := queue.Publish(ctx, orders...); err != nil {
		return err
	}

	c := &consumer.Consumer{
		Queue:    queue,
		Policy:   p,
		Handler:  line.watch(consumer.JSON(Bake)),
		Observer: line,
		Logger:   slog.New(slog.DiscardHandler), // by default each dead letter is an error in slog.Default
	}
	if err := c.Run(served); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stopped before all orders were served: %w", err)
	}
	return nil
}

// PrintEnvelope prints the record that a dead letter carries in its header redeliver-failure.
func PrintEnvelope(w io.Writer, envelope []byte) error {
	var text bytes.Buffer
	if err := json.Indent(&text, envelope, "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, text.String())
	return err
}
