package brokertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend/rabbit"
)

// Rabbit returns the URL of a RabbitMQ, the one that REDELIVER_RABBIT_URL names.
// Without the variable the test is skipped, or fails where brokers are required; a
// server that is named and does not take us in always fails it.
func Rabbit(tb testing.TB) string {
	tb.Helper()
	url := os.Getenv("REDELIVER_RABBIT_URL")
	if url == "" {
		missing(tb, "no RabbitMQ: REDELIVER_RABBIT_URL is not set; run make test, or export what make brokers prints")
	}
	if err := tried(url); err != nil {
		tb.Fatalf("REDELIVER_RABBIT_URL: %v", err)
	}
	return url
}

// RemoveRabbitQueue deletes, when the test has ended, a work queue and all that was
// made for it.
func RemoveRabbitQueue(tb testing.TB, url, name string) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := removeRabbitQueue(url, name); err != nil {
			tb.Errorf("cannot remove the queue %s: %v", name, err)
		}
	})
}

func removeRabbitQueue(url, name string) error {
	work, err := rabbit.Open(url, name, rabbit.Options{})
	if err != nil {
		return err
	}
	parked, err := work.Parked(context.Background())
	if err := errors.Join(err, work.Close(context.Background())); err != nil {
		return err
	}
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	queues := []string{name, name + "_dlq"}
	for _, p := range parked {
		queues = append(queues, p.Name)
	}
	for _, queue := range queues {
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			return err
		}
	}
	for _, suffix := range []string{".retry", ".retry.return", ".retry.dead"} {
		if err := ch.ExchangeDelete(name+suffix, false, false); err != nil {
			return err
		}
	}
	return nil
}

var trials sync.Map // of URL to the func() error that dials it once

// tried dials the server once in a process.
func tried(url string) error {
	once, _ := trials.LoadOrStore(url, sync.OnceValue(func() error {
		return dialRabbit(url)
	}))
	return once.(func() error)()
}

// dialRabbit tells whether the server takes a connection.
func dialRabbit(url string) error {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(10 * time.Second)})
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("closing a connection that was just opened: %w", err)
	}
	return nil
}
