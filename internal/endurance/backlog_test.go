package endurance

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// A million messages in backoff are rows in the database and nothing in the process.
func TestBacklogCostsTheConsumerNoMemory(t *testing.T) {
	pool := connect(t, brokertest.Postgres(t))
	name := names(t, "backlog")
	queue := fill(t, pool, name, 0)
	drop(t, pool, name)
	const backlog = 1_000_000
	_, err := pool.Exec(t.Context(), fmt.Sprintf(
		`INSERT INTO %s (vt, read_ct, message, headers)
		 SELECT clock_timestamp() + interval '1 hour' + i * interval '1 ms', 1, '{"n": 1}', '{"redeliver-counts": {"failures": 1}}'
		 FROM generate_series(1, %d) i`, table("q_", name), backlog))
	require.NoError(t, err)

	handled := make(chan string, 100)
	c := &consumer.Consumer{
		Queue: queue, Policy: patient, Concurrency: 10, Lease: lease,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			handled <- d.ID
			return nil
		}),
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for i := range 20 {
		id := fmt.Sprintf("due%d", i)
		require.NoError(t, queue.Publish(ctx, backend.Message{ID: id, Body: []byte(`1`)}))
		select {
		case got := <-handled:
			require.Equal(t, id, got)
		case <-time.After(10 * time.Second):
			t.Fatal("a due message is not found behind the backlog")
		}
	}
	after := heap()
	stop()
	require.NoError(t, <-ended)
	// One byte a waiting message would be a million.
	require.Less(t, int64(after)-int64(before), int64(backlog))
}
