// Rabbit handles the orders of the quickstart out of a queue of RabbitMQ, with a policy whose waits double, so that one
// sees them do it. It takes about ten seconds.
//
//	go run ./examples/rabbit -url amqp://guest:guest@localhost/
//
// Without -url it takes REDELIVER_RABBIT_URL. "make brokers" brings a RabbitMQ up and prints that line. At the end it shows
// what a dead letter tells, and which queues are left; docs/rabbitmq.md tells more about those. Stop the program half way and
// run it again, and the messages that waited for their retry are there still.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/examples/internal/kitchen"
	"github.com/redeliver/redeliver/policy"
)

// doubling waits for about 0.25 s, 0.5 s, 1 s, 2 s and 4 s, and after the sixth failure sends to the dead-letter queue.
var doubling = policy.Policy{
	Name:        "doubling",
	MaxAttempts: 6,
	Backoff:     policy.Exponential{Base: 250 * time.Millisecond, Max: 30 * time.Second},
	Jitter:      policy.Proportional(0.1),
}

// patience is when all must have ended. Nothing else holds the example up, short of a broker that stops.
const patience = 20 * time.Second

func main() {
	url := flag.String("url", os.Getenv("REDELIVER_RABBIT_URL"), "`URL` of a RabbitMQ, as in amqp://user:password@host/")
	name := flag.String("queue", "redeliver_example", "`name` of the queue, which is created if need be")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *url, *name); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, url, name string) error {
	if url == "" {
		return errors.New("no RabbitMQ: give -url, or set REDELIVER_RABBIT_URL")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	orders, err := rabbit.Open(url, name, rabbit.Options{})
	if err != nil {
		return err
	}
	defer orders.Close(ctx)
	if err := orders.Create(ctx); err != nil {
		return err
	}
	// Not needed, since what is missing is declared when a retry needs it; but then that takes longer.
	if err := orders.Declare(ctx, doubling); err != nil {
		return err
	}
	if err := kitchen.Serve(ctx, w, orders, doubling); err != nil {
		return err
	}
	if err := printDeadLetters(w, url, name+"_dlq"); err != nil {
		return err
	}
	return printParkingQueues(ctx, w, orders)
}

// printDeadLetters shows that a dead letter needs no library to be read, and takes those that it shows out of the queue: to look and
// give back would count as a delivery that failed.
func printDeadLetters(w io.Writer, url, queue string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nWhat %s holds:\n", queue)
	for {
		letter, ok, err := ch.Get(queue, false)
		if err != nil || !ok {
			return err
		}
		fmt.Fprintf(w, "\nA message with the routing key %q, the body %s and the headers\n", letter.RoutingKey, letter.Body)
		for _, name := range slices.Sorted(maps.Keys(letter.Headers)) {
			if name != backend.HeaderFailure {
				fmt.Fprintf(w, "%s: %v\n", name, letter.Headers[name])
			}
		}
		fmt.Fprintf(w, "%s: ", backend.HeaderFailure)
		envelope, _ := letter.Headers[backend.HeaderFailure].(string)
		if err := kitchen.PrintEnvelope(w, []byte(envelope)); err != nil {
			return err
		}
		if err := letter.Ack(false); err != nil {
			return err
		}
	}
}

// printParkingQueues tells what the retries have left in the broker, and how to be rid of it.
func printParkingQueues(ctx context.Context, w io.Writer, orders *rabbit.Queue) error {
	parked, err := orders.Parked(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThe policy can use %d parking queues, and what the errors asked for used others. They are there for the next retry:\n\n",
		len(orders.ParkingQueues(doubling)))
	for _, p := range parked {
		fmt.Fprintf(w, "%-36s  up to %-8v  %d waiting\n", p.Name, p.Longest, p.Messages)
	}
	fmt.Fprintf(w, "\nOne that is empty may be deleted at any time, when no consumer runs:\n\n")
	for _, p := range parked {
		fmt.Fprintf(w, "rabbitmqctl delete_queue %s\n", p.Name)
	}
	return nil
}
