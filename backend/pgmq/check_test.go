package pgmq_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

// logs is a logger's output, safe for concurrent use.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// database creates a database of the test's own, without the extension, and returns its address.
func database(tb testing.TB, p *pgxpool.Pool) string {
	tb.Helper()
	name := fmt.Sprintf("redeliver_%d", rand.Uint64())
	execute(tb, p, "CREATE DATABASE "+name)
	tb.Cleanup(func() { execute(tb, p, "DROP DATABASE "+name+" WITH (FORCE)") })
	address, err := url.Parse(brokertest.Postgres(tb))
	require.NoError(tb, err)
	address.Path = "/" + name
	return address.String()
}

func codes(tb testing.TB, q *pgmq.Queue) []string {
	tb.Helper()
	findings, err := q.Check(context.Background(), backend.Needs{})
	require.NoError(tb, err)
	var codes []string
	for _, f := range findings {
		require.NotEmpty(tb, f.Text)
		code := f.Code
		if f.Fatal {
			code += "!"
		}
		codes = append(codes, code)
	}
	return codes
}

func TestADatabaseWithoutPGMQ(t *testing.T) {
	fresh := poolAt(t, database(t, pool(t)))
	q, err := pgmq.Open(fresh, "orders", pgmq.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"extension_missing!"}, codes(t, q))
	_, err = q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, "CREATE EXTENSION pgmq")
	c := &consumer.Consumer{
		Queue: q, Policy: policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(time.Second)},
		Handler: consumer.HandlerFunc(func(context.Context, *backend.Delivery) error { return nil }),
	}
	err = c.Run(t.Context())
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, "CREATE EXTENSION pgmq")
	var finding backend.Finding
	require.ErrorAs(t, err, &finding)
	require.Equal(t, "extension_missing", finding.Code)
	for _, err := range []error{q.Create(t.Context()), q.Publish(t.Context(), backend.Message{Body: []byte(`1`)})} {
		require.ErrorIs(t, err, backend.ErrQueueNotFound)
		require.ErrorContains(t, err, "PGMQ")
	}

	execute(t, fresh, "CREATE EXTENSION pgmq")
	require.NoError(t, q.Create(t.Context()))
	require.Empty(t, codes(t, q))
	fresh.Close()
}

func TestQueuesThatDoNotExist(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	refused := func(code string) error {
		t.Helper()
		require.Equal(t, []string{code}, codes(t, q))
		_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
		require.Error(t, err)
		return err
	}
	drop(t, p, q.Name()+"_dlq")
	err := refused("dead_letter_queue_not_found!")
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, `"`+q.Name()+`_dlq"`)
	require.ErrorContains(t, err, "Queue.Create")

	require.NoError(t, q.Create(t.Context()))
	drop(t, p, q.Name())
	err = refused("queue_not_found!")
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, `"`+q.Name()+`"`)

	require.NoError(t, q.Create(t.Context()))
	execute(t, p, "DROP TABLE pgmq.a_"+q.Name())
	err = refused("archive_not_found!")
	require.NotErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, "DeleteOnSuccess")
	deleting, err := pgmq.Open(p, q.Name(), pgmq.Options{DeleteOnSuccess: true})
	require.NoError(t, err)
	require.Empty(t, codes(t, deleting))
	execute(t, p, "SELECT pgmq.create($1::text)", q.Name())
}

func TestALeaseMustBeGiven(t *testing.T) {
	q := queue(t, pool(t), pgmq.Options{})
	for _, lease := range []time.Duration{0, -1, time.Microsecond} {
		_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
		require.ErrorContains(t, err, "SubscribeOptions.Lease")
	}
}

// Tables keep the columns of the version that made them, whatever version is installed.
func TestTablesOfOtherVersions(t *testing.T) {
	p := pool(t)
	for name, change := range map[string]string{
		"before 1.10":           "ALTER TABLE pgmq.q_%[1]s DROP COLUMN last_read_at; ALTER TABLE pgmq.a_%[1]s DROP COLUMN last_read_at",
		"archive before 1.10":   "ALTER TABLE pgmq.a_%[1]s DROP COLUMN last_read_at",
		"upgraded to 1.10":      "ALTER TABLE pgmq.q_%[1]s DROP COLUMN last_read_at; ALTER TABLE pgmq.q_%[1]s ADD COLUMN last_read_at timestamptz",
		"archive before 1.5":    "ALTER TABLE pgmq.a_%[1]s DROP COLUMN headers",
		"a later one":           "ALTER TABLE pgmq.q_%[1]s ADD COLUMN novelty jsonb; ALTER TABLE pgmq.a_%[1]s ADD COLUMN novelty text DEFAULT 'x' NOT NULL",
		"without index on vt":   "DROP INDEX pgmq.q_%[1]s_vt_idx",
		"index on vt is second": "DROP INDEX pgmq.q_%[1]s_vt_idx; CREATE INDEX ON pgmq.q_%[1]s (read_ct, vt)",
	} {
		t.Run(name, func(t *testing.T) {
			var out logs
			q := queue(t, p, pgmq.Options{Logger: out.logger()})
			execute(t, p, fmt.Sprintf(change, q.Name()))
			sub := subscribe(t, q)
			if bytes.Contains([]byte(name), []byte("index")) {
				require.Equal(t, []string{"no_vt_index"}, codes(t, q))
			} else {
				require.Empty(t, codes(t, q))
			}
			require.Empty(t, out.String())
			require.NoError(t, q.Publish(t.Context(), backend.Message{ID: "m", Body: []byte(`1`), Headers: map[string]string{"a": "b"}}))
			require.NoError(t, settle(sub, receiveOne(t, sub), retry(time.Millisecond)))
			d := receiveOne(t, sub)
			require.Equal(t, 2, d.Attempt)
			require.Equal(t, map[string]string{"a": "b"}, d.Headers)
			require.NoError(t, settle(sub, d, ack))
			require.Equal(t, 1, count(t, p, "a_"+q.Name()))
			publish(t, q, `2`)
			require.NoError(t, settle(sub, receiveOne(t, sub), deadLetter("x")))
		})
	}
}

// An upgrade adds columns while a consumer runs.
func TestAnUpgradeBeneathASubscription(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	change := func(what string) {
		for _, table := range []string{"q_", "a_"} {
			execute(t, p, "ALTER TABLE pgmq."+table+q.Name()+" "+what)
		}
	}
	change("DROP COLUMN last_read_at")
	sub := subscribe(t, q)
	for range 2 {
		publish(t, q, `1`)
		require.NoError(t, settle(sub, receiveOne(t, sub), retry(0)))
		require.NoError(t, settle(sub, receiveOne(t, sub), ack))
		change("ADD COLUMN IF NOT EXISTS last_read_at timestamptz")
	}
	require.Equal(t, 2, count(t, p, "a_"+q.Name()))
}

func TestTablesWithoutHeadersAreRefused(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	execute(t, p, "ALTER TABLE pgmq.q_"+q.Name()+" DROP COLUMN headers")
	require.Equal(t, []string{"column_missing!"}, codes(t, q))
	_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
	require.ErrorContains(t, err, "ALTER EXTENSION pgmq UPDATE")
	require.ErrorContains(t, q.Create(t.Context()), "ALTER EXTENSION pgmq UPDATE")
	require.ErrorContains(t, q.Publish(t.Context(), backend.Message{Body: []byte(`1`)}), "ALTER EXTENSION pgmq UPDATE")
}

func TestUnloggedQueuesWork(t *testing.T) {
	p := pool(t)
	var out logs
	q := queue(t, p, pgmq.Options{Logger: out.logger()})
	drop(t, p, q.Name())
	execute(t, p, "SELECT pgmq.create_unlogged($1::text)", q.Name())
	require.Equal(t, []string{"unlogged"}, codes(t, q))
	sub := subscribe(t, q)
	require.Empty(t, out.String(), "a warning is for Check to tell")
	publish(t, q, `1`)
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))
}

// Check and Subscribe both look; the consumer, which asks both, tells a warning once.
func TestAConsumerWarnsOnce(t *testing.T) {
	p := pool(t)
	var out logs
	q := queue(t, p, pgmq.Options{Logger: out.logger()})
	execute(t, p, "DROP INDEX pgmq.q_"+q.Name()+"_vt_idx")
	publish(t, q, `1`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := &consumer.Consumer{
		Queue: q, Policy: policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(time.Second)}, Logger: out.logger(),
		Handler: consumer.HandlerFunc(func(context.Context, *backend.Delivery) error { stop(); return nil }),
	}
	require.NoError(t, c.Run(ctx))
	require.Equal(t, 1, strings.Count(out.String(), "CREATE INDEX ON pgmq.q_"+q.Name()+" (vt)"), out.String())
}

func TestAPartitionedQueueWorks(t *testing.T) {
	p := pool(t)
	var out logs
	q := queue(t, p, pgmq.Options{Logger: out.logger()})
	// As pgmq.create_partitioned makes it: no primary key and no index on vt.
	execute(t, p, fmt.Sprintf(`DROP TABLE pgmq.q_%[1]s;
		CREATE TABLE pgmq.q_%[1]s (msg_id bigint GENERATED ALWAYS AS IDENTITY, read_ct int DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL,
			last_read_at timestamptz, vt timestamptz NOT NULL, message jsonb, headers jsonb) PARTITION BY RANGE (msg_id);
		CREATE TABLE pgmq.q_%[1]s_p0 PARTITION OF pgmq.q_%[1]s FOR VALUES FROM (0) TO (3);
		CREATE TABLE pgmq.q_%[1]s_p1 PARTITION OF pgmq.q_%[1]s FOR VALUES FROM (3) TO (10000);
		CREATE INDEX ON pgmq.q_%[1]s (msg_id)`, q.Name()))
	require.Equal(t, []string{"no_vt_index", "partitioned"}, codes(t, q))
	sub := subscribe(t, q)
	publish(t, q, `1`, `2`, `3`, `4`)
	ds := receive(t, sub, 4)
	require.NoError(t, settle(sub, ds[0], retry(0)))
	require.NoError(t, settle(sub, ds[1], ack))
	require.NoError(t, settle(sub, ds[2], deadLetter("x")))
	require.NoError(t, sub.Extend(t.Context(), ds[3:]))
	require.Equal(t, "1", string(receiveOne(t, sub).Body))
	execute(t, p, "CREATE INDEX ON pgmq.q_"+q.Name()+" (vt)")
	require.Equal(t, []string{"partitioned"}, codes(t, q))
	require.NoError(t, q.Close(t.Context()))
	execute(t, p, "DROP TABLE pgmq.q_"+q.Name())
}

func TestMissingRights(t *testing.T) {
	p := pool(t)
	role := fmt.Sprintf("redeliver_%d", rand.Uint64())
	execute(t, p, "CREATE ROLE "+role)
	t.Cleanup(func() { execute(t, p, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	limited := pool(t, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
	})
	full := queue(t, p, pgmq.Options{})
	q, err := pgmq.Open(limited, full.Name(), pgmq.Options{})
	require.NoError(t, err)
	refused := func(code, says string) {
		t.Helper()
		require.Equal(t, []string{code}, codes(t, q))
		_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
		require.ErrorContains(t, err, says)
	}
	grant := func(what string) { execute(t, p, "GRANT "+what+" TO "+role) }
	refused("privilege_missing!", "GRANT USAGE ON SCHEMA pgmq")
	grant("USAGE ON SCHEMA pgmq")
	grant("ALL ON pgmq.q_" + q.Name())
	grant("ALL ON pgmq.q_" + q.Name() + "_dlq")
	refused("privilege_missing!", "GRANT INSERT ON pgmq.a_"+q.Name())
	grant("INSERT ON pgmq.a_" + q.Name())
	execute(t, p, "REVOKE DELETE, UPDATE ON pgmq.q_"+q.Name()+" FROM "+role)
	refused("privilege_missing!", "GRANT UPDATE, DELETE ON pgmq.q_"+q.Name())
	grant("DELETE ON pgmq.q_" + q.Name())
	grant("UPDATE (vt, read_ct, last_read_at, headers) ON pgmq.q_" + q.Name())
	require.Empty(t, codes(t, q))

	sub := subscribe(t, q)
	publish(t, full, `1`, `2`, `3`)
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))
	require.NoError(t, settle(sub, receiveOne(t, sub), retry(time.Hour)))
	d := receiveOne(t, sub)
	execute(t, p, "REVOKE INSERT ON pgmq.q_"+q.Name()+"_dlq FROM "+role)
	err = settle(sub, d, deadLetter("x"))
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "42501", pg.Code)
	require.ErrorContains(t, err, "grant the database user")
	require.Equal(t, 2, count(t, p, "q_"+q.Name()))
	execute(t, p, "REVOKE SELECT ON pgmq.q_"+q.Name()+" FROM "+role)
	_, err = sub.Receive(t.Context(), 1)
	require.ErrorContains(t, err, "grant the database user")
	grant("SELECT ON pgmq.q_" + q.Name())
	grant("INSERT ON pgmq.q_" + q.Name() + "_dlq")
	require.NoError(t, settle(sub, d, deadLetter("x")))
	require.NoError(t, q.Close(t.Context()))
	limited.Close()
}

// After a failover a connection may lead to a standby; the next one leads to the primary.
func TestAServerThatTakesNoWritesIsWaitedFor(t *testing.T) {
	var readOnly atomic.Bool
	p := pool(t)
	moving := pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, fmt.Sprintf("SET default_transaction_read_only = %v", readOnly.Load()))
			return err
		}
	})
	writable := queue(t, p, pgmq.Options{})
	var out logs
	q, err := pgmq.Open(moving, writable.Name(), pgmq.Options{Logger: out.logger(), PollInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	readOnly.Store(true)
	sub := subscribe(t, q)
	got := make(chan *backend.Delivery)
	go func() { got <- receiveOne(t, sub) }()
	publish(t, writable, `1`)
	await(t, "a warning", func() bool { return bytes.Contains([]byte(out.String()), []byte("target_session_attrs=read-write")) })
	readOnly.Store(false)
	require.NoError(t, settle(sub, <-got, ack))
	require.NoError(t, q.Close(t.Context()))
}

func TestStats(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, backend.Stats{}, stats)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+` (vt, message) VALUES (now() - interval '1 h', '1'), (now(), '2'), ('-infinity', '3'),
		(now() + interval '1 h', '4'), ('infinity', '5')`)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+`_dlq (vt, message) VALUES (now(), '1'), ('infinity', '2')`)
	stats, err = q.Stats(t.Context())
	require.NoError(t, err)
	require.InDelta(t, time.Hour, stats.OldestDue, float64(patience))
	stats.OldestDue = 0
	require.Equal(t, backend.Stats{Ready: 3, Waiting: 2, Dead: 2}, stats)
}
