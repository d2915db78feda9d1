package pgmq_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// Handlers that hold every connection of the pool for several leases do not lose their leases.
func TestHandlersMayHoldTheWholePool(t *testing.T) {
	p := pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
	q := queue(t, p, pgmq.Options{})
	publish(t, q, `1`, `2`, `3`, `4`, `5`, `6`)
	const lease = 2 * time.Second
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	succeeded := make(chan struct{}, 6)
	c := &consumer.Consumer{
		Queue: q, Lease: lease, Concurrency: 6, Policy: policy.Policy{MaxAttempts: 1, MaxLapses: policy.NoLapses, Backoff: policy.Fixed(time.Second)},
		Handler: consumer.HandlerFunc(func(ctx context.Context, _ *backend.Delivery) error {
			_, err := p.Exec(ctx, `SELECT pg_sleep($1)`, (2 * lease).Seconds())
			return err
		}),
		Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			if e.Kind == consumer.Succeeded {
				succeeded <- struct{}{}
			}
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for range 6 {
		select {
		case <-succeeded:
		case <-time.After(time.Minute):
			t.Fatal("messages are not handled while handlers hold the pool")
		}
	}
	stop()
	require.NoError(t, <-ended)
	require.Zero(t, count(t, p, "q_"+q.Name()+"_dlq"))
}
