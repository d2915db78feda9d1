package endurance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

// Retries come back within moments of their due time, and never before.
func TestRetriesAreInTime(t *testing.T) {
	for name, queue := range lateQueues {
		t.Run(name, func(t *testing.T) {
			lateness := retryLateness(t, queue, 100)
			require.GreaterOrEqual(t, slices.Min(lateness), time.Duration(0), "a retry came early")
			require.Less(t, slices.Max(lateness), 5*time.Second)
		})
	}
}

// BenchmarkRetryLateness measures how long after its due time a retry reaches its handler, with a message due every few
// milliseconds and nothing else to do.
func BenchmarkRetryLateness(b *testing.B) {
	for name, queue := range lateQueues {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				lateness := retryLateness(b, queue, 100)
				slices.Sort(lateness)
				b.ReportMetric(float64(lateness[len(lateness)/2].Microseconds())/1000, "p50-ms")
				b.ReportMetric(float64(lateness[len(lateness)*99/100].Microseconds())/1000, "p99-ms")
				b.ReportMetric(float64(lateness[0].Microseconds())/1000, "min-ms")
			}
		})
	}
}

// lateQueues make a queue that holds some messages, on each broker.
var lateQueues = map[string]func(testing.TB, int) backend.Queue{"pgmq": latePGMQ, "rabbit": lateRabbit}

func latePGMQ(tb testing.TB, messages int) backend.Queue {
	pool := connect(tb, brokertest.Postgres(tb))
	name := names(tb, "lateness")
	queue := fill(tb, pool, name, messages)
	drop(tb, pool, name)
	return queue
}

func lateRabbit(tb testing.TB, messages int) backend.Queue {
	url, name := brokertest.Rabbit(tb), names(tb, "lateness")
	queue := openRabbit(tb, url, name, rabbit.Options{})
	require.NoError(tb, queue.Create(tb.Context()))
	require.NoError(tb, queue.Declare(tb.Context(), lateOnce))
	brokertest.RemoveRabbitQueue(tb, url, name)
	require.NoError(tb, queue.Publish(tb.Context(), numbered(messages)...))
	return queue
}

// lateOnce waits for half a second to a second.
var lateOnce = policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Second), Jitter: policy.EqualJitter}

// retryLateness lets n messages fail once each, with waits of up to a second, and returns by how much each came late.
func retryLateness(tb testing.TB, open func(testing.TB, int) backend.Queue, n int) []time.Duration {
	tb.Helper()
	queue := open(tb, n)
	var mu sync.Mutex
	due := make(map[string]time.Time) // of the first failure at first, then of the retry
	var lateness []time.Duration
	done := make(chan struct{})
	c := &consumer.Consumer{
		Queue: queue, Concurrency: 10, Lease: lease,
		Policy: lateOnce,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if d.Attempt == 1 {
				due[d.ID] = now
				return errors.New("once")
			}
			lateness = append(lateness, now.Sub(due[d.ID]))
			if len(lateness) == n {
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
	return lateness
}
