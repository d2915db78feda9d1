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
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

// Retries come back within moments of their due time, and never before.
func TestRetriesAreInTime(t *testing.T) {
	lateness := retryLateness(t, 100)
	require.GreaterOrEqual(t, slices.Min(lateness), time.Duration(0), "a retry came early")
	require.Less(t, slices.Max(lateness), 5*time.Second)
}

// BenchmarkRetryLateness measures how long after its due time a retry reaches its handler, with a message due every few
// milliseconds and nothing else to do.
func BenchmarkRetryLateness(b *testing.B) {
	for b.Loop() {
		lateness := retryLateness(b, 100)
		slices.Sort(lateness)
		b.ReportMetric(float64(lateness[len(lateness)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(lateness[len(lateness)*99/100].Microseconds())/1000, "p99-ms")
		b.ReportMetric(float64(lateness[0].Microseconds())/1000, "min-ms")
	}
}

// retryLateness lets n messages fail once each, with waits of up to a second, and returns by how much each came late.
func retryLateness(tb testing.TB, n int) []time.Duration {
	tb.Helper()
	pool := connect(tb, brokertest.Postgres(tb))
	name := names(tb, "lateness")
	queue := fill(tb, pool, name, n)
	drop(tb, pool, name)

	var mu sync.Mutex
	due := make(map[string]time.Time) // of the first failure at first, then of the retry
	var lateness []time.Duration
	done := make(chan struct{})
	c := &consumer.Consumer{
		Queue: queue, Concurrency: 10, Lease: lease,
		Policy: policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Second), Jitter: policy.EqualJitter},
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
