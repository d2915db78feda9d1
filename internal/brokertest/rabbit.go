package brokertest

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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
