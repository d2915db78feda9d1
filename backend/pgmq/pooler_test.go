package pgmq_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
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
