package pgmq_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/internal/versus"
	"github.com/redeliver/redeliver/policy"
)

const pairMessages = 20_000

// BenchmarkConsumer compares a whole consumer with the raw loop, both with as many connections and as many messages in hand.
// Run it with -benchtime 1x: see versus.Compare.
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
				versus.Compare(b, func() float64 {
					return perSecond(b, func(p *pgxpool.Pool, q *pgmq.Queue) { bc.raw(newRaw(p, q.Name()), b, pairMessages) })
				}, func() float64 {
					return perSecond(b, func(_ *pgxpool.Pool, q *pgmq.Queue) { consume(b, q, bc.result) })
				})
			}
		})
	}
}

// BenchmarkConsumerWithBacklog compares a consumer whose queue holds half a million messages in backoff with one whose queue
// holds none, on a server of its own. Run it with -benchtime 1x: see versus.Compare.
func BenchmarkConsumerWithBacklog(b *testing.B) {
	const backlog = 500_000
	server := brokertest.Private(b)
	p := poolAt(b, server.URL(), benchPool)
	for b.Loop() {
		idle, busy := benchQueue(b, p), benchQueue(b, p)
		execute(b, p, "INSERT INTO pgmq.q_"+busy.Name()+` (vt, read_ct, message) SELECT clock_timestamp() + interval '1 h' + i * interval '1 ms', 1,
			jsonb_build_object('order', i, 'text', repeat('x', 200)) FROM generate_series(1, $1::int) i`, backlog)
		rate := func(q *pgmq.Queue) float64 {
			return timed(b, p, q, func() { consume(b, q, nil) })
		}
		versus.Compare(b, func() float64 { return rate(idle) }, func() float64 { return rate(busy) })
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

// consume handles all messages of a filled queue, which fail with result.
func consume(b *testing.B, q backend.Queue, result error) {
	b.Helper()
	hourly := policy.Policy{Name: "bench", MaxAttempts: 3, Backoff: policy.Fixed(time.Hour), Jitter: policy.FullJitter, MinDelay: time.Minute}
	versus.Consume(b, q, hourly, benchWorkers*benchBatch, pairMessages, result)
}
