package pgmq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

const (
	pairs        = 7
	pairMessages = 20_000
)

// BenchmarkConsumer compares a whole consumer with the raw loop, in pairs that take turns, both with as many connections and
// as many messages in hand. It reports the median of the pairs' ratios. One op is all pairs: run it with -benchtime 1x.
func BenchmarkConsumer(b *testing.B) {
	for _, bc := range []struct {
		name   string
		result error // of the handler
		raw    func(raw, testing.TB, int)
	}{
		{"success", nil, raw.workArchive},
		{"retry", errors.New("connection refused"), raw.workRetry},
		{"retry-against-delay-alone", errors.New("connection refused"), raw.workDelay},
		{"dead-letter", policy.Permanent(errors.New("connection refused")), raw.workDeadLetter},
	} {
		b.Run(bc.name, func(b *testing.B) {
			for b.Loop() {
				var ratios, raws, consumers []float64
				for range pairs {
					raw := perSecond(b, func(p *pgxpool.Pool, q *pgmq.Queue) { bc.raw(newRaw(p, q.Name()), b, pairMessages) })
					ours := perSecond(b, func(_ *pgxpool.Pool, q *pgmq.Queue) { consume(b, q, pairMessages, bc.result) })
					raws, consumers, ratios = append(raws, raw), append(consumers, ours), append(ratios, ours/raw)
				}
				b.ReportMetric(median(raws), "raw-msg/s")
				b.ReportMetric(median(consumers), "msg/s")
				b.ReportMetric(median(ratios), "ratio")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkConsumerWithBacklog compares a consumer whose queue holds half a million messages in backoff with one whose queue
// holds none, in pairs that take turns, on a server of its own. One op is all pairs: run it with -benchtime 1x.
func BenchmarkConsumerWithBacklog(b *testing.B) {
	const backlog = 500_000
	server := brokertest.Private(b)
	p := poolAt(b, server.URL(), benchPool)
	for b.Loop() {
		idle, busy := benchQueue(b, p), benchQueue(b, p)
		execute(b, p, "INSERT INTO pgmq.q_"+busy.Name()+` (vt, read_ct, message) SELECT clock_timestamp() + interval '1 h' + i * interval '1 ms', 1,
			jsonb_build_object('order', i, 'text', repeat('x', 200)) FROM generate_series(1, $1::int) i`, backlog)
		rate := func(q *pgmq.Queue) float64 {
			return timed(b, p, q, func() { consume(b, q, pairMessages, nil) })
		}
		var ratios []float64
		for range pairs {
			none := rate(idle)
			ratios = append(ratios, rate(busy)/none)
		}
		b.ReportMetric(median(ratios), "ratio")
		b.ReportMetric(0, "ns/op")
	}
}

func benchPool(config *pgxpool.Config) { config.MaxConns = benchWorkers }

// benchQueue creates a queue for a benchmark of the consumer. Its tables stay until they are dropped.
func benchQueue(b *testing.B, p *pgxpool.Pool) *pgmq.Queue {
	b.Helper()
	q, err := pgmq.Open(p, fmt.Sprintf("bench%d", rand.Uint64()), pgmq.Options{Parallel: benchWorkers})
	require.NoError(b, err)
	require.NoError(b, q.Create(b.Context()))
	return q
}

// timed fills a queue and tells how many messages a second work handles. What an earlier call left behind is cleaned up.
func timed(b *testing.B, p *pgxpool.Pool, q *pgmq.Queue, work func()) float64 {
	b.Helper()
	execute(b, p, "TRUNCATE pgmq.a_"+q.Name())
	execute(b, p, "VACUUM pgmq.q_"+q.Name())
	fill(b, p, q.Name(), pairMessages)
	execute(b, p, "CHECKPOINT")
	start := time.Now()
	work()
	return pairMessages / time.Since(start).Seconds()
}

// perSecond is timed with a queue of its own, which goes at once: a dozen used queues would be in the way of the next pair.
func perSecond(b *testing.B, work func(*pgxpool.Pool, *pgmq.Queue)) float64 {
	b.Helper()
	p := pool(b, benchPool)
	defer p.Close()
	q := benchQueue(b, p)
	defer drop(b, p, q.Name()+"_dlq")
	defer drop(b, p, q.Name())
	return timed(b, p, q, func() { work(p, q) })
}

// consume runs a consumer until n messages are settled.
func consume(b *testing.B, q backend.Queue, n int, result error) {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	var settled atomic.Int64
	c := &consumer.Consumer{
		Queue:       q,
		Policy:      policy.Policy{Name: "bench", MaxAttempts: 3, Backoff: policy.Fixed(time.Hour), Jitter: policy.FullJitter, MinDelay: time.Minute},
		Concurrency: benchWorkers * benchBatch,
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
	require.Equal(b, int64(n), settled.Load(), fmt.Sprintf("messages settled of %d", n))
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
