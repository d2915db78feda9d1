package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

const patience = 20 * time.Second // for what must come about

// onChannel runs f with a channel of a connection of the test's own.
func onChannel(tb testing.TB, url string, f func(*amqp.Channel)) {
	tb.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(tb, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(tb, err)
	f(ch)
}

func deleteQueue(tb testing.TB, url string, names ...string) {
	tb.Helper()
	onChannel(tb, url, func(ch *amqp.Channel) {
		for _, name := range names {
			_, err := ch.QueueDelete(name, false, false, false)
			require.NoError(tb, err)
		}
	})
}

// remove deletes all that queues have made.
func remove(tb testing.TB, url string, queues ...*rabbit.Queue) {
	tb.Helper()
	onChannel(tb, url, func(ch *amqp.Channel) {
		for _, q := range queues {
			for _, name := range append(q.Known(), q.Name(), q.Name()+"_dlq") {
				_, err := ch.QueueDelete(name, false, false, false)
				require.NoError(tb, err)
			}
			for _, suffix := range []string{".retry", ".retry.return", ".retry.dead"} {
				require.NoError(tb, ch.ExchangeDelete(q.Name()+suffix, false, false))
			}
		}
	})
}

// queue creates a queue of a name of its own, which goes with the test.
func queue(tb testing.TB, opts rabbit.Options) *rabbit.Queue {
	tb.Helper()
	return queueAt(tb, brokertest.Rabbit(tb), opts)
}

func queueAt(tb testing.TB, url string, opts rabbit.Options) *rabbit.Queue {
	tb.Helper()
	q, err := rabbit.Open(url, fmt.Sprintf("t%d", rand.Uint64()), opts)
	require.NoError(tb, err)
	require.NoError(tb, q.Create(context.Background()))
	tb.Cleanup(func() {
		require.NoError(tb, q.Close(context.Background()))
		remove(tb, url, q)
	})
	return q
}

func subscribe(tb testing.TB, q *rabbit.Queue) backend.Subscription {
	tb.Helper()
	sub, err := q.Subscribe(context.Background(), backend.SubscribeOptions{MaxInFlight: 100})
	require.NoError(tb, err)
	return sub
}

// receive takes n messages.
func receive(tb testing.TB, sub backend.Subscription, n int) []*backend.Delivery {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var got []*backend.Delivery
	for len(got) < n {
		ds, err := sub.Receive(ctx, n-len(got))
		require.NoError(tb, err, "after %d of %d messages", len(got), n)
		got = append(got, ds...)
	}
	return got
}

var errTimeout = context.DeadlineExceeded

// receiveFor receives once, for a time.
func receiveFor(sub backend.Subscription, within time.Duration) ([]*backend.Delivery, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return sub.Receive(ctx, 100)
}

func receiveOne(tb testing.TB, sub backend.Subscription) *backend.Delivery {
	tb.Helper()
	return receive(tb, sub, 1)[0]
}

func settle(sub backend.Subscription, d *backend.Delivery, s backend.Settlement) error {
	s.Delivery = d
	return sub.Settle(context.Background(), []backend.Settlement{s})
}

var (
	ack     = backend.Settlement{Outcome: backend.Ack}
	release = backend.Settlement{Outcome: backend.Release}
)

func retry(delay time.Duration) backend.Settlement {
	return backend.Settlement{Outcome: backend.Retry, Delay: delay, Failure: &backend.Failure{Reason: "error", Error: "boom", Attempts: 1}}
}

func deadLetter(text string) backend.Settlement {
	return backend.Settlement{Outcome: backend.DeadLetter, Failure: &backend.Failure{Reason: "exhausted", Error: text, Attempts: 1}}
}

var errBoom = errors.New("boom")
