package endurance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

var lateness = policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Second), Jitter: policy.EqualJitter}

// sender is a queue that a test can also send to.
type sender interface {
	backend.Queue
	backend.Publisher
}

// latenessQueues makes an empty queue of each broker, which goes with the test.
var latenessQueues = map[string]func(tb testing.TB) sender{
	"pgmq": func(tb testing.TB) sender {
		pool := connect(tb, brokertest.Postgres(tb))
		name := names(tb, "lateness")
		queue := fill(tb, pool, name, 0)
		drop(tb, pool, name)
		return queue
	},
	"rabbit": func(tb testing.TB) sender {
		url := brokertest.Rabbit(tb)
		queue, err := rabbit.Open(url, names(tb, "lateness"), rabbit.Options{})
		require.NoError(tb, err)
		require.NoError(tb, queue.Create(tb.Context()))
		require.NoError(tb, queue.Declare(tb.Context(), lateness))
		tb.Cleanup(func() {
			require.NoError(tb, queue.Close(context.Background()))
			conn, err := amqp.Dial(url)
			require.NoError(tb, err)
			defer conn.Close()
			ch, err := conn.Channel()
			require.NoError(tb, err)
			for _, name := range append(queue.ParkingQueues(lateness), queue.Name(), queue.Name()+"_dlq") {
				_, err := ch.QueueDelete(name, false, false, false)
				require.NoError(tb, err)
			}
			for _, suffix := range []string{".retry", ".retry.return", ".retry.dead"} {
				require.NoError(tb, ch.ExchangeDelete(queue.Name()+suffix, false, false))
			}
		})
		return queue
	},
}

// Retries come back within moments of their due time, and never before.
func TestRetriesAreInTime(t *testing.T) {
	for name, open := range latenessQueues {
		t.Run(name, func(t *testing.T) {
			late := retryLateness(t, open(t), 100)
			require.GreaterOrEqual(t, slices.Min(late), time.Duration(0), "a retry came early")
			require.Less(t, slices.Max(late), 5*time.Second)
		})
	}
}

// BenchmarkRetryLateness measures how long after its due time a retry reaches its handler, with a message due every few
// milliseconds and nothing else to do.
func BenchmarkRetryLateness(b *testing.B) {
	for name, open := range latenessQueues {
		b.Run(name, func(b *testing.B) {
			queue := open(b)
			for b.Loop() {
				late := retryLateness(b, queue, 100)
				slices.Sort(late)
				b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "p50-ms")
				b.ReportMetric(float64(late[len(late)*99/100].Microseconds())/1000, "p99-ms")
				b.ReportMetric(float64(late[0].Microseconds())/1000, "min-ms")
			}
		})
	}
}

// retryLateness lets n messages fail once each, with waits of up to a second, and returns by how much each came late.
func retryLateness(tb testing.TB, queue sender, n int) []time.Duration {
	tb.Helper()
	batch := make([]backend.Message, n)
	for i := range batch {
		batch[i] = backend.Message{Body: []byte(`{"n": 1}`)}
	}
	require.NoError(tb, queue.Publish(tb.Context(), batch...))

	var mu sync.Mutex
	due := make(map[string]time.Time) // of the first failure at first, then of the retry
	var late []time.Duration
	done := make(chan struct{})
	c := &consumer.Consumer{
		Queue: queue, Concurrency: 10, Lease: lease,
		Policy: lateness,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if d.Attempt == 1 {
				due[d.ID] = now
				return errors.New("once")
			}
			late = append(late, now.Sub(due[d.ID]))
			if len(late) == n {
				close(done)
			}
			return nil
		}),
		// The wait counts from the settlement. Counted from the failure, as here, what is early shows, and what is late
		// includes the settlement.
		Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			if e.Kind == consumer.Retried {
				mu.Lock()
				defer mu.Unlock()
				due[e.Delivery.ID] = due[e.Delivery.ID].Add(e.Delay)
			}
		}),
	}
	ctx, stop := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		tb.Fatal("retries are missing")
	}
	stop()
	require.NoError(tb, <-ended)
	return late
}
