package pgmq_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

func TestTuneSetsStorageParametersBesideConsumers(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	execute(t, p, "ALTER TABLE pgmq.q_"+q.Name()+" SET (autovacuum_vacuum_threshold = 7)")
	publish(t, q, `1`, `2`)
	sub := subscribe(t, q)
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))
	// A consumer's transaction is open: neither waits for the other.
	require.NoError(t, pgmq.InTx(func(ctx context.Context, _ pgx.Tx, _ *backend.Delivery) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		require.NoError(t, q.Tune(ctx))
		return q.Tune(ctx)
	})(t.Context(), receiveOne(t, sub)))
	options := func(table string) []string {
		return scalar[[]string](t, p, "SELECT reloptions FROM pg_class WHERE oid = ('pgmq.' || $1)::regclass", table)
	}
	tuned := []string{"fillfactor=70", "autovacuum_vacuum_scale_factor=0.01", "autovacuum_analyze_scale_factor=0.05"}
	require.ElementsMatch(t, append(tuned, "autovacuum_vacuum_threshold=7"), options("q_"+q.Name()))
	require.ElementsMatch(t, tuned, options("q_"+q.Name()+"_dlq"))
	require.Len(t, options("a_"+q.Name()), 3)
	require.Contains(t, options("a_"+q.Name()), "autovacuum_vacuum_insert_scale_factor=0.05")
}

func TestPartitionsAreTunedAndCounted(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	execute(t, p, fmt.Sprintf(`DROP TABLE pgmq.q_%[1]s;
		CREATE TABLE pgmq.q_%[1]s (msg_id bigint GENERATED ALWAYS AS IDENTITY, read_ct int DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL,
			vt timestamptz NOT NULL, message jsonb, headers jsonb) PARTITION BY RANGE (msg_id);
		CREATE TABLE pgmq.q_%[1]s_p0 PARTITION OF pgmq.q_%[1]s FOR VALUES FROM (0) TO (3);
		CREATE TABLE pgmq.q_%[1]s_p1 PARTITION OF pgmq.q_%[1]s FOR VALUES FROM (3) TO (10000)`, q.Name()))
	t.Cleanup(func() { execute(t, p, "DROP TABLE pgmq.q_"+q.Name()) })
	require.NoError(t, q.Tune(t.Context()))
	require.Equal(t, 2, scalar[int](t, p, "SELECT count(*) FROM pg_class WHERE relname ~ ('^q_' || $1 || '_p.$') AND 'fillfactor=70' = ANY(reloptions)", q.Name()))
	publish(t, q, `1`, `2`, `3`, `4`)
	awaitDepth(t, q, pgmq.Depth{Queued: 4})
}

// awaitDepth waits for the server's statistics, which follow by up to ten seconds.
func awaitDepth(t *testing.T, q *pgmq.Queue, want pgmq.Depth) {
	t.Helper()
	var got pgmq.Depth
	defer func() {
		if t.Failed() {
			t.Logf("the depth is %+v", got)
		}
	}()
	await(t, fmt.Sprintf("a depth of %+v", want), func() bool {
		var err error
		got, err = q.Depth(t.Context())
		require.NoError(t, err)
		got.Lag = 0
		return got == want
	})
}

func TestDepth(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	depth, err := q.Depth(t.Context())
	require.NoError(t, err)
	require.Equal(t, pgmq.Depth{}, depth)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+` (vt, message) VALUES (now() - interval '1 h', '1'), (now(), '2'), ('-infinity', '3'), (now() + interval '1 h', '4')`)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+`_dlq (vt, message) VALUES (now(), '1'), ('infinity', '2')`)
	depth, err = q.Depth(t.Context())
	require.NoError(t, err)
	require.InDelta(t, time.Hour, depth.Lag, float64(patience), "it is exact at once")
	awaitDepth(t, q, pgmq.Depth{Queued: 4, Dead: 2})
	sub := subscribe(t, q)
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))
	awaitDepth(t, q, pgmq.Depth{Queued: 3, Dead: 2, Archived: 1})
}

func TestPurgeArchive(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	archive := "a_" + q.Name()
	execute(t, p, "INSERT INTO pgmq."+archive+" (msg_id, vt, archived_at) SELECT i, now(), now() - CASE WHEN i > 2500 THEN interval '59 min' ELSE interval '61 min' END FROM generate_series(1, 2600) i")
	n, err := q.PurgeArchive(t.Context(), 24*time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = q.PurgeArchive(t.Context(), time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 2500, n)
	require.Equal(t, 100, count(t, p, archive))
	require.Equal(t, 2501, scalar[int](t, p, "SELECT min(msg_id) FROM pgmq."+archive))
	n, err = q.PurgeArchive(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 100, n)

	_, err = q.PurgeArchive(t.Context(), -1)
	require.ErrorContains(t, err, "the age is -1ns")
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = q.PurgeArchive(ended, 0)
	require.ErrorIs(t, err, context.Canceled)
	missing, err := pgmq.Open(p, "missing", pgmq.Options{})
	require.NoError(t, err)
	_, err = missing.PurgeArchive(t.Context(), 0)
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
}

// What stays in the archive must not be read: it is large.
func TestAPurgeReadsWhatItDeletes(t *testing.T) {
	var sent spy
	p := pool(t, sent.trace)
	q := queue(t, p, pgmq.Options{})
	execute(t, p, "INSERT INTO pgmq.a_"+q.Name()+" (msg_id, vt, archived_at) SELECT i, now(), now() - i * interval '1 s' FROM generate_series(1, 20000) i")
	execute(t, p, "ANALYZE pgmq.a_"+q.Name())
	n, err := q.PurgeArchive(t.Context(), 19500*time.Second)
	require.NoError(t, err)
	require.InDelta(t, 500, n, 60)
	statement := sent.find(t, "DELETE FROM pgmq.\"a_")
	plan := explain(t, p, statement.SQL, statement.Args...)
	require.NotContains(t, plan, "Seq Scan on a_", plan)
	require.NotContains(t, plan, "Sort", plan)
	require.Contains(t, plan, "archived_at_idx_"+q.Name(), plan)
}

// BenchmarkClaimAfterRetries takes one message an op from each of three queues in turn, in which 20,000 others wait: a fresh
// one, and two after 200,000 retries, with and without Tune. What counts are the ratios.
func BenchmarkClaimAfterRetries(b *testing.B) {
	const waiting, retries = 20_000, 200_000
	p := pool(b)
	names := []string{"fresh", "tuned", "untuned"}
	queues := make([]*pgmq.Queue, len(names))
	subs := make([]backend.Subscription, len(names))
	for i, name := range names {
		q := queue(b, p, pgmq.Options{})
		if name == "tuned" {
			require.NoError(b, q.Tune(b.Context()))
		}
		fill(b, p, q.Name(), waiting)
		queues[i], subs[i] = q, subscribeFor(b, q, time.Hour)
		if name != "fresh" {
			workQueue(b, subs[i], retries, backend.Settlement{Outcome: backend.Retry, Failure: &benchFailure})
		}
		workQueue(b, subs[i], waiting, backend.Settlement{Outcome: backend.Retry, Delay: time.Hour, Failure: &benchFailure})
	}
	times := make([][]time.Duration, len(names))
	for b.Loop() {
		for i, q := range queues {
			publish(b, q, `1`)
			began := time.Now()
			d := receiveOne(b, subs[i])
			times[i] = append(times[i], time.Since(began))
			require.NoError(b, settle(subs[i], d, ack))
		}
	}
	for i, name := range names {
		b.ReportMetric(scalar[float64](b, p, "SELECT pg_total_relation_size('pgmq.q_"+queues[i].Name()+"') / 1e6"), name+"-MB")
		slices.Sort(times[i])
		n := len(times[i])
		b.ReportMetric(float64(times[i][n/2].Microseconds()), name+"-p50-us")
		b.ReportMetric(float64(times[i][n*99/100].Microseconds()), name+"-p99-us")
	}
}

// BenchmarkDepth asks a queue of a million messages, of which one in ten is due.
func BenchmarkDepth(b *testing.B) {
	p := pool(b)
	q := queue(b, p, pgmq.Options{})
	execute(b, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message) SELECT now() + (i - 100000) * interval '1 ms', '1' FROM generate_series(1, 1000000) i")
	execute(b, p, "ANALYZE pgmq.q_"+q.Name())
	b.Run("Depth", func(b *testing.B) {
		for b.Loop() {
			_, err := q.Depth(b.Context())
			require.NoError(b, err)
		}
	})
	b.Run("Stats", func(b *testing.B) {
		for b.Loop() {
			_, err := q.Stats(b.Context())
			require.NoError(b, err)
		}
	})
}
