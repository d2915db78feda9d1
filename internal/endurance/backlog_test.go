package endurance

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// A million messages in backoff are rows in the database and nothing to the consumer.
func TestAMillionMessagesInBackoff(t *testing.T) {
	const backlog = 1_000_000
	pool := connect(t, brokertest.Postgres(t))
	open := func(waiting int) *pgmq.Queue {
		name := names(t, "backlog")
		queue := fill(t, pool, name, 0)
		drop(t, pool, name)
		_, err := pool.Exec(t.Context(), fmt.Sprintf(
			`INSERT INTO %s (vt, read_ct, message, headers)
			 SELECT clock_timestamp() + interval '1 hour' + i * interval '1 ms', 1, '{"n": 1}', '{"redeliver-counts": {"failures": 1}}'
			 FROM generate_series(1, %d) i`, table("q_", name), waiting))
		require.NoError(t, err)
		return queue
	}
	calm, busy := open(0), open(backlog)
	t.Run("cost the consumer no memory", func(t *testing.T) { consumeBehind(t, busy, backlog) })
	t.Run("cost a claim nothing", func(t *testing.T) { compareClaims(t, calm, busy) })
}

// consumeBehind has new messages handled while the backlog waits.
func consumeBehind(t *testing.T, queue *pgmq.Queue, backlog int64) {
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
	require.Less(t, int64(after)-int64(before), backlog)
}

// compareClaims takes messages from two queues in turns. A machine that is busy with something else may be so in the turns
// of one alone: one comparison of several has to come out.
func compareClaims(t *testing.T, calm, busy *pgmq.Queue) {
	t.Helper()
	const comparisons, rounds, batch, atMost = 5, 60, 10, 1.25
	subs := make([]backend.Subscription, 2)
	for i, queue := range []*pgmq.Queue{calm, busy} {
		require.NoError(t, queue.Publish(t.Context(), numbered(comparisons*rounds*batch)...))
		sub, err := queue.Subscribe(t.Context(), backend.SubscribeOptions{Lease: time.Minute})
		require.NoError(t, err)
		defer queue.Close(t.Context())
		subs[i] = sub
	}
	var ratios []float64
	for range comparisons {
		took := make([][]time.Duration, 2)
		for range rounds {
			for i, sub := range subs {
				start := time.Now()
				ds, err := sub.Receive(t.Context(), batch)
				took[i] = append(took[i], time.Since(start))
				require.NoError(t, err)
				acks := make([]backend.Settlement, len(ds))
				for j, d := range ds {
					acks[j] = backend.Settlement{Delivery: d, Outcome: backend.Ack}
				}
				require.NoError(t, sub.Settle(t.Context(), acks))
			}
		}
		medians := make([]float64, 2)
		for i := range took {
			slices.Sort(took[i])
			medians[i] = took[i][rounds/2].Seconds()
		}
		ratios = append(ratios, medians[1]/medians[0])
		t.Logf("a claim of %d takes %.2f ms, and %.2f ms behind the backlog", batch, 1000*medians[0], 1000*medians[1])
		if medians[1] <= atMost*medians[0] {
			return
		}
	}
	t.Errorf("claims take %.2f times as long behind the backlog, more than %v", ratios, atMost)
}
