// Payments charges 400 cards through a gateway that is down for half a minute and throttles some of the calls, and prints what
// the plan of the retry policy predicts next to what happened. No broker is needed: the queue lives in memory.
//
//	go run ./examples/payments
//
// It takes some six seconds: time runs ten times as fast as the figures say. The policy's delays and the gateway's outage are
// divided by ten, and what is measured is multiplied by it again.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// Payments is the policy: at most eight attempts, and waits of up to half a second, a second, and so on to half a minute.
func Payments(speed time.Duration) policy.Policy {
	return policy.Policy{
		Name:        "payments",
		MaxAttempts: 8,
		Backoff:     policy.Exponential{Base: 500 * time.Millisecond / speed, Max: 30 * time.Second / speed},
		Jitter:      policy.FullJitter,
	}
}

// Payment is the body of a message.
type Payment struct {
	Card   string `json:"card"`
	Amount int    `json:"amount"` // in cents
}

// charge is the handler: it says what an error means, and the policy decides.
func charge(client *http.Client) func(context.Context, Payment, *backend.Delivery) error {
	return func(ctx context.Context, p Payment, d *backend.Delivery) error {
		if p.Amount <= 0 {
			return policy.Permanent(errors.New("the amount must be positive"))
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://gateway.example/charges/"+p.Card, strings.NewReader(fmt.Sprint(p.Amount)))
		if err != nil {
			return policy.Permanent(err)
		}
		req.Header.Set("Idempotency-Key", d.ID) // a message may be handled twice
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return classify.Response(resp) // 503 is retried, 429 as well and not before its Retry-After
	}
}

// The payments: most meet the outage, some are throttled once, and some can never succeed.
const (
	ordinary  = 300
	throttled = 60
	invalid   = 40

	outage     = 30 * time.Second
	retryAfter = 10 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, 10); err != nil {
		log.Fatal(err)
	}
}

// run charges the cards. Time passes at the speed: 1 is as the figures say.
func run(ctx context.Context, w io.Writer, speed time.Duration) error {
	plan, err := analysis.New(Payments(1), analysis.Conditions{})
	if err != nil {
		return err
	}

	var payments []backend.Message
	for i := range ordinary + throttled + invalid {
		p := Payment{Card: "ordinary", Amount: 500}
		switch {
		case i >= ordinary+throttled:
			p.Amount = -5
		case i >= ordinary:
			p.Card = "throttled"
		}
		body, err := json.Marshal(p)
		if err != nil {
			return err
		}
		payments = append(payments, backend.Message{ID: fmt.Sprintf("payment-%d", i+1), Body: body})
	}
	queue := memory.New("payments", memory.Options{})
	if err := queue.Publish(ctx, payments...); err != nil {
		return err
	}

	served, cancel := context.WithCancel(ctx)
	defer cancel()
	book := newLedger(len(payments), speed, cancel)
	gateway := &gateway{upAt: time.Now().Add(outage / speed), retryAfter: retryAfter / speed}
	c := &consumer.Consumer{
		Queue:       queue,
		Policy:      Payments(speed),
		Handler:     book.watch(consumer.JSON(charge(&http.Client{Transport: gateway}))),
		Concurrency: 50,
		Observer:    book,
		Logger:      slog.New(slog.DiscardHandler), // by default each dead letter is an error in slog.Default
	}
	if err := c.Run(served); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stopped before all payments had ended: %w", err)
	}
	book.print(w, plan)
	return nil
}
