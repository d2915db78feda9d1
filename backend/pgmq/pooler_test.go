package pgmq_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
	"github.com/redeliver/redeliver/policy"
)

// A pooler in transaction mode that nobody told of is met once, and costs nothing but a warning.
func TestAPoolerIsMetOnce(t *testing.T) {
	p := pool(t)
	pooled := poolAt(t, brokertest.Pooler(t, brokertest.Postgres(t)))
	var out logs
	plain := queue(t, p, pgmq.Options{})
	q, err := pgmq.Open(pooled, plain.Name(), pgmq.Options{Logger: out.logger(), PollInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	sub := subscribe(t, q)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for range 20 {
				err := q.Publish(ctx, backend.Message{Body: []byte(`1`)})
				var ds []*backend.Delivery
				if err == nil {
					ds, err = sub.Receive(ctx, 1)
				}
				for _, d := range ds {
					err = errors.Join(err, settle(sub, d, ack))
				}
				if err != nil {
					t.Error(err)
					cancel()
					return
				}
			}
		})
	}
	work.Wait()
	require.Equal(t, 160, count(t, p, "a_"+q.Name()))
	require.Equal(t, 1, strings.Count(out.String(), "WARN"), out.String())
	require.Contains(t, out.String(), "QueryExecModeCacheDescribe")
	require.NoError(t, q.Close(t.Context()))
}

// A handler's transaction keeps its session at the pooler; the pool has been told of it.
func TestTransactionalHandlersBehindAPooler(t *testing.T) {
	const messages = 100
	p := pool(t)
	plain := queue(t, p, pgmq.Options{})
	table := effects(t, p, plain)
	pooled := poolAt(t, brokertest.Pooler(t, brokertest.Postgres(t)), func(c *pgxpool.Config) {
		c.MaxConns = 16
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	})
	q, err := pgmq.Open(pooled, plain.Name(), pgmq.Options{PollInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	publish(t, q, slices.Repeat([]string{`1`}, messages)...)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var succeeded atomic.Int32
	c := &consumer.Consumer{
		Queue: q, Concurrency: 8, Policy: policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(10 * time.Millisecond)}, Logger: new(logs).logger(),
		Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
			if d.Attempt == 1 {
				return take(table, fail)(ctx, d)
			}
			return take(table, succeed)(ctx, d)
		}),
		Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			if e.Kind == consumer.Succeeded && succeeded.Add(1) == messages {
				stop()
			}
		}),
	}
	require.NoError(t, c.Run(ctx))
	require.Equal(t, messages, scalar[int](t, p, "SELECT count(*) FROM "+table))
	require.Equal(t, messages, count(t, p, "a_"+q.Name()))
	require.NoError(t, q.Close(t.Context()))
}
