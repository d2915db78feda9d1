package pgmq_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/stretchr/testify/require"
)

const (
	patience = 20 * time.Second // for what must come about
	lease    = 30 * time.Second // longer than any test
)

// pool returns a pool of connections to the test database. Options change its configuration.
func pool(tb testing.TB, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	return poolAt(tb, brokertest.Postgres(tb), options...)
}

func poolAt(tb testing.TB, url string, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(tb, err)
	config.MaxConns = 8
	for _, option := range options {
		option(config)
	}
	p, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(tb, err)
	tb.Cleanup(p.Close)
	return p
}

// queue creates a queue of a name of its own, which goes with the test.
func queue(tb testing.TB, p *pgxpool.Pool, opts pgmq.Options) *pgmq.Queue {
	tb.Helper()
	q, err := pgmq.Open(p, fmt.Sprintf("t%d", rand.Uint64()), opts)
	require.NoError(tb, err)
	require.NoError(tb, q.Create(context.Background()))
	tb.Cleanup(func() {
		require.NoError(tb, q.Close(context.Background()))
		drop(tb, p, q.Name())
		drop(tb, p, q.Name()+"_dlq")
	})
	return q
}

func drop(tb testing.TB, p *pgxpool.Pool, name string) {
	tb.Helper()
	_, err := p.Exec(context.Background(), "SELECT pgmq.drop_queue($1) WHERE to_regclass('pgmq.q_' || $1) IS NOT NULL", name)
	require.NoError(tb, err)
}

func subscribe(tb testing.TB, q *pgmq.Queue) backend.Subscription {
	tb.Helper()
	return subscribeFor(tb, q, lease)
}

func subscribeFor(tb testing.TB, q *pgmq.Queue, lease time.Duration) backend.Subscription {
	tb.Helper()
	sub, err := q.Subscribe(context.Background(), backend.SubscribeOptions{Lease: lease})
	require.NoError(tb, err)
	return sub
}

// publish sends one message for each body.
func publish(tb testing.TB, q *pgmq.Queue, bodies ...string) {
	tb.Helper()
	var msgs []backend.Message
	for _, body := range bodies {
		msgs = append(msgs, backend.Message{Body: []byte(body)})
	}
	require.NoError(tb, q.Publish(context.Background(), msgs...))
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
	discard = backend.Settlement{Outcome: backend.Discard}
)

func retry(delay time.Duration) backend.Settlement {
	return backend.Settlement{Outcome: backend.Retry, Delay: delay, Failure: &backend.Failure{Reason: "error", Error: "boom", Attempts: 1}}
}

func deadLetter(text string) backend.Settlement {
	return backend.Settlement{Outcome: backend.DeadLetter, Failure: &backend.Failure{Reason: "exhausted", Error: text, Attempts: 1}}
}

// count returns how many rows a table has.
func count(tb testing.TB, p *pgxpool.Pool, table string) (n int) {
	tb.Helper()
	require.NoError(tb, p.QueryRow(context.Background(), "SELECT count(*) FROM pgmq."+table).Scan(&n))
	return n
}

// scalar returns what a query for one value returns.
func scalar[T any](tb testing.TB, p *pgxpool.Pool, sql string, args ...any) (v T) {
	tb.Helper()
	require.NoError(tb, p.QueryRow(context.Background(), sql, args...).Scan(&v))
	return v
}

func execute(tb testing.TB, p *pgxpool.Pool, sql string, args ...any) {
	tb.Helper()
	_, err := p.Exec(context.Background(), sql, args...)
	require.NoError(tb, err)
}
