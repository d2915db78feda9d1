// Quickstart handles six orders, some of which fail, without a broker: the queue lives in memory. It takes a few seconds.
//
//	go run ./examples/quickstart
//
// The handler and its retry policy are in examples/internal/kitchen.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/examples/internal/kitchen"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer) error {
	orders := memory.New("orders", memory.Options{})
	if err := kitchen.Serve(ctx, w, orders, kitchen.Patience); err != nil {
		return err
	}
	return printDeadLetters(ctx, w, orders)
}

// printDeadLetters reads the dead-letter queue, which is a queue like any other, and leaves the messages in it.
func printDeadLetters(ctx context.Context, w io.Writer, orders *memory.Queue) error {
	stats, err := orders.Stats(ctx)
	if err != nil || stats.Dead == 0 {
		return err
	}
	sub, err := orders.DeadLetters().Subscribe(ctx, backend.SubscribeOptions{MaxInFlight: 100, Lease: time.Minute})
	if err != nil {
		return err
	}
	defer sub.Close(ctx) // gives back what was received
	letters, err := sub.Receive(ctx, 100)
	if err != nil {
		return err
	}
	for _, d := range letters {
		fmt.Fprintf(w, "\nIn the queue %s, with the body %s and the header redeliver-failure:\n", d.Queue, d.Body)
		stored := d.Raw.(*memory.Raw)
		if err := kitchen.PrintEnvelope(w, []byte(stored.Headers[backend.HeaderFailure])); err != nil {
			return err
		}
	}
	return nil
}
