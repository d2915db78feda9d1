package endurance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// PostgreSQL is restarted, and killed, while a consumer works. The consumer goes on by itself and nothing is lost.
func TestConsumerOutlivesItsDatabase(t *testing.T) {
	server := brokertest.Private(t)
	pool := connect(t, server.URL())
	const messages = 3000
	queue := fill(t, pool, "restart", messages)

	var mu sync.Mutex
	handled := make(map[string]int)
	total := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(handled)
	}
	c := &consumer.Consumer{
		Queue: queue, Policy: patient, Concurrency: 20, Lease: lease,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			if d.Attempt < 3 && perMille(d) < 300 {
				return errors.New("by chance")
			}
			mu.Lock()
			defer mu.Unlock()
			handled[d.ID]++
			return nil
		}),
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()

	for i, disturb := range []func(){server.Restart, server.Kill, server.Restart} {
		want := (i + 1) * messages / 6
		require.Eventually(t, func() bool { return total() >= want }, time.Minute, time.Millisecond)
		disturb()
		if i == 1 {
			server.Start()
		}
	}
	left := func() int {
		var n int
		// The pool's connections may be of before the last restart.
		if err := pool.QueryRow(t.Context(), fmt.Sprintf("SELECT count(*) FROM %s", table("q_", "restart"))).Scan(&n); err != nil {
			return -1
		}
		return n
	}
	require.Eventually(t, func() bool { return left() == 0 }, 2*time.Minute, 50*time.Millisecond)
	require.Len(t, handled, messages)
	require.Equal(t, messages, count(t, pool, "SELECT count(*) FROM "+table("a_", "restart")))
	require.Zero(t, count(t, pool, "SELECT count(*) FROM "+table("q_", "restart_dlq")))

	select {
	case err := <-ended:
		require.NoError(t, err, "Run ended by itself")
	default:
	}
	stop()
	require.NoError(t, <-ended)
}
