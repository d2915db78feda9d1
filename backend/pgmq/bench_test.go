package pgmq_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

const (
	benchWorkers = 4
	benchBatch   = 100
)

// raw is the SQL that one would write by hand for the fastest loop: claim a batch, settle the batch. A subscription does the
// same with parsed headers, counts and records, and is measured against it.
type raw struct {
	pool                               *pgxpool.Pool
	claim, archive, retry, delay, bury string
}

func newRaw(p *pgxpool.Pool, queue string) raw {
	const fence = `m.msg_id = t.id AND m.read_ct = t.rc AND m.msg_id = ANY($1)`
	return raw{
		pool: p,
		claim: fmt.Sprintf(`UPDATE pgmq.q_%[1]s m SET vt = clock_timestamp() + interval '30 s', read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
			WHERE m.msg_id = ANY(ARRAY(SELECT msg_id FROM pgmq.q_%[1]s WHERE vt <= statement_timestamp() ORDER BY vt LIMIT $1 FOR UPDATE SKIP LOCKED))
			RETURNING m.msg_id, m.read_ct, m.message, m.headers`, queue),
		archive: fmt.Sprintf(`WITH d AS (DELETE FROM pgmq.q_%[1]s m USING unnest($1::bigint[], $2::int[]) t(id, rc) WHERE %[2]s
			RETURNING m.msg_id, m.vt, m.read_ct, m.enqueued_at, m.last_read_at, m.message, m.headers)
			INSERT INTO pgmq.a_%[1]s (msg_id, vt, read_ct, enqueued_at, last_read_at, message, headers)
			SELECT msg_id, vt, read_ct, enqueued_at, last_read_at, message, headers FROM d`, queue, fence),
		retry: fmt.Sprintf(`UPDATE pgmq.q_%s m SET vt = clock_timestamp() + t.d * interval '1 microsecond', headers = coalesce(headers, '{}') || t.doc
			FROM ROWS FROM (unnest($1::bigint[]), unnest($2::int[]), unnest($3::bigint[]), jsonb_array_elements($4::text::jsonb)) t(id, rc, d, doc) WHERE %s`, queue, fence),
		delay: fmt.Sprintf(`UPDATE pgmq.q_%s m SET vt = clock_timestamp() + t.d * interval '1 microsecond'
			FROM unnest($1::bigint[], $2::int[], $3::bigint[]) t(id, rc, d) WHERE %s`, queue, fence),
		bury: fmt.Sprintf(`WITH d AS (DELETE FROM pgmq.q_%[1]s m USING ROWS FROM (unnest($1::bigint[]), unnest($2::int[]), jsonb_array_elements($3::text::jsonb)) t(id, rc, doc)
			WHERE %[2]s RETURNING m.message, coalesce(m.headers, '{}') || t.doc AS headers)
			INSERT INTO pgmq.q_%[1]s_dlq (vt, message, headers) SELECT clock_timestamp(), message, headers FROM d`, queue, fence),
	}
}

// work claims and settles until n messages are done.
func (r raw) work(tb testing.TB, n int, settle func(ctx context.Context, ids []int64, reads []int32) error) {
	ctx := context.Background()
	var done atomic.Int64
	parallel(benchWorkers, func() {
		for done.Load() < int64(n) {
			var ids []int64
			var reads []int32
			rows, err := r.pool.Query(ctx, r.claim, min(benchBatch, n))
			require.NoError(tb, err)
			for rows.Next() {
				var id int64
				var read int32
				var body, headers []byte
				require.NoError(tb, rows.Scan(&id, &read, &body, &headers))
				ids, reads = append(ids, id), append(reads, read)
			}
			require.NoError(tb, rows.Err())
			if len(ids) == 0 {
				continue
			}
			order := make([]int, len(ids))
			for i := range order {
				order[i] = i
			}
			slices.SortFunc(order, func(a, b int) int { return int(ids[a] - ids[b]) })
			sortedIDs, sortedReads := make([]int64, len(ids)), make([]int32, len(ids))
			for i, from := range order {
				sortedIDs[i], sortedReads[i] = ids[from], reads[from]
			}
			require.NoError(tb, settle(ctx, sortedIDs, sortedReads))
			done.Add(int64(len(ids)))
		}
	})
}

func (r raw) workArchive(tb testing.TB, n int) {
	r.work(tb, n, func(ctx context.Context, ids []int64, reads []int32) error {
		_, err := r.pool.Exec(ctx, r.archive, ids, reads)
		return err
	})
}

// workRetry delays each message and writes beside it how often it has failed, and how: what a retry has to keep. The record is
// each message's own, as in earnest it is, for they fail differently.
func (r raw) workRetry(tb testing.TB, n int) {
	r.work(tb, n, func(ctx context.Context, ids []int64, reads []int32) error {
		_, err := r.pool.Exec(ctx, r.retry, ids, reads, hourly(ids), documents(reads, `{"redeliver-counts": {"failures": `,
			`}, "redeliver-failure": {"v": 1, "reason": "error", "error": "connection refused", "error_type": "*errors.errorString", "attempts": `,
			`, "first_failed_at": "2026-01-01T00:00:00.000Z"}}`))
		return err
	})
}

// documents is a JSON array of an object for each message, with its read count where the parts meet.
func documents(reads []int32, parts ...string) string {
	doc := []byte{'['}
	for i, n := range reads {
		if i > 0 {
			doc = append(doc, ',')
		}
		for j, part := range parts {
			if j > 0 {
				doc = strconv.AppendInt(doc, int64(n), 10)
			}
			doc = append(doc, part...)
		}
	}
	return string(append(doc, ']'))
}

// workDelay delays each message and keeps nothing.
func (r raw) workDelay(tb testing.TB, n int) {
	r.work(tb, n, func(ctx context.Context, ids []int64, reads []int32) error {
		_, err := r.pool.Exec(ctx, r.delay, ids, reads, hourly(ids))
		return err
	})
}

// hourly returns delays of about an hour, in microseconds.
func hourly(ids []int64) []int64 {
	delays := make([]int64, len(ids))
	for i := range delays {
		delays[i] = time.Hour.Microseconds() + int64(i)
	}
	return delays
}

func (r raw) workDeadLetter(tb testing.TB, n int) {
	before, after, _ := strings.Cut(`{"redeliver-failure": `+string(benchFailure.Encode(0))+`}`, `"attempts":1`)
	r.work(tb, n, func(ctx context.Context, ids []int64, reads []int32) error {
		_, err := r.pool.Exec(ctx, r.bury, ids, reads, documents(reads, before+`"attempts":`, after))
		return err
	})
}

var benchFailure = backend.Failure{
	Reason: "exhausted", Error: `post "https://payments.example.com/v1/charges": dial tcp 10.1.2.3:443: connect: connection refused`,
	ErrorType: "*net.OpError", Attempts: 1, Policy: "payments", Consumer: "worker-7f9c",
}

// workQueue receives and settles through a subscription until n messages are done.
func workQueue(tb testing.TB, sub backend.Subscription, n int, s backend.Settlement) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var done atomic.Int64
	parallel(benchWorkers, func() {
		for {
			ds, err := sub.Receive(ctx, min(benchBatch, n))
			if ctx.Err() != nil {
				return
			}
			require.NoError(tb, err)
			batch := make([]backend.Settlement, len(ds))
			for i, d := range ds {
				batch[i] = s
				batch[i].Delivery = d
			}
			require.NoError(tb, sub.Settle(context.Background(), batch))
			if done.Add(int64(len(ds))) >= int64(n) {
				cancel()
			}
		}
	})
}

func parallel(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

// fill sends n messages as a foreign producer does, or with our ID.
func fill(tb testing.TB, p *pgxpool.Pool, queue string, n int) {
	execute(tb, p, "INSERT INTO pgmq.q_"+queue+` (vt, message, headers) SELECT clock_timestamp(),
		jsonb_build_object('order', i, 'text', repeat('x', 200)), jsonb_build_object('redeliver-id', 'ID-' || i, 'tenant', 'a') FROM generate_series(1, $1::int) i`, n)
	execute(tb, p, "ANALYZE pgmq.q_"+queue)
}

// BenchmarkSettle handles one message an op: received and acked, retried in an hour, or dead-lettered; by the raw loop and by
// a subscription, with the same number of workers and the same batches.
func BenchmarkSettle(b *testing.B) {
	for _, bc := range []struct {
		name       string
		settlement backend.Settlement
		raw        func(raw, testing.TB, int)
	}{
		{"ack", ack, raw.workArchive},
		{"retry", backend.Settlement{Outcome: backend.Retry, Delay: time.Hour, Failure: &benchFailure}, raw.workRetry},
		{"snooze", backend.Settlement{Outcome: backend.Retry, Uncharged: true, Delay: time.Hour}, raw.workRetry},
		{"dead-letter", backend.Settlement{Outcome: backend.DeadLetter, Failure: &benchFailure}, raw.workDeadLetter},
	} {
		b.Run(bc.name+"/raw", func(b *testing.B) {
			p := pool(b)
			q := queue(b, p, pgmq.Options{})
			fill(b, p, q.Name(), b.N)
			r := newRaw(p, q.Name())
			b.ResetTimer()
			bc.raw(r, b, b.N)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
		b.Run(bc.name+"/subscription", func(b *testing.B) {
			p := pool(b)
			q := queue(b, p, pgmq.Options{})
			fill(b, p, q.Name(), b.N)
			sub := subscribe(b, q)
			b.ResetTimer()
			workQueue(b, sub, b.N, bc.settlement)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
