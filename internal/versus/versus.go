// Package versus measures a whole consumer against something else, such as a loop written by hand for one broker, in pairs
// that take turns: on a machine that others use too, only what ran side by side can be compared.
package versus

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

const pairs = 7

// Compare runs the two in turns and reports the median of the pairs' ratios, ours to the base. Both return messages a second.
// One call is all pairs, so a benchmark that does nothing else is run with -benchtime 1x.
func Compare(b *testing.B, base, ours func() float64) {
	b.Helper()
	var ratios, bases, rates []float64
	for range pairs {
		based := base()
		rate := ours()
		bases, rates, ratios = append(bases, based), append(rates, rate), append(ratios, rate/based)
	}
	b.ReportMetric(median(bases), "base-msg/s")
	b.ReportMetric(median(rates), "msg/s")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op")
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// Consume runs a consumer until n messages of the queue are acked, retried or dead-lettered. Its handler does nothing but
// return result.
func Consume(b *testing.B, q backend.Queue, p policy.Policy, concurrency, n int, result error) {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var settled atomic.Int64
	c := &consumer.Consumer{
		Queue:       q,
		Policy:      p,
		Concurrency: concurrency,
		Handler:     consumer.HandlerFunc(func(context.Context, *backend.Delivery) error { return result }),
		Logger:      slog.New(slog.DiscardHandler),
		Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			switch e.Kind {
			case consumer.Succeeded, consumer.Retried, consumer.DeadLettered:
				if settled.Add(1) == int64(n) {
					stop()
				}
			}
		}),
	}
	require.NoError(b, c.Run(ctx))
	require.Equal(b, int64(n), settled.Load(), "messages settled")
}
