package pgmq

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// Deliveries that were settled behind the subscription's back, or given up, are not remembered for ever.
func TestWhatIsNotHeldAnyMoreIsForgotten(t *testing.T) {
	p, err := pgxpool.New(t.Context(), brokertest.Postgres(t))
	require.NoError(t, err)
	defer p.Close()
	q, err := Open(p, "what_is_not_held_any_more_is_forgotten", Options{})
	require.NoError(t, err)
	require.NoError(t, q.Create(t.Context()))
	defer func() {
		require.NoError(t, q.Close(t.Context()))
		for _, name := range []string{q.name, q.dead} {
			require.NoError(t, q.exec(t.Context(), "SELECT pgmq.drop_queue($1::text)", name))
		}
	}()
	for name, lease := range map[string]time.Duration{"settled": time.Hour, "lapsed": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			const messages, batch = 2000, 50
			require.NoError(t, q.exec(t.Context(), `INSERT INTO pgmq."q_`+q.name+`" (vt, message) SELECT now(), '1' FROM generate_series(1, $1::int)`, messages))
			opened, err := q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
			require.NoError(t, err)
			s := opened.(*subscription)
			for n := 0; n < messages; {
				ds, err := s.Receive(t.Context(), batch)
				require.NoError(t, err)
				n += len(ds)
				if name == "settled" {
					for _, d := range ds {
						d.MarkSettled()
					}
				}
				s.mu.Lock()
				held := len(s.held)
				s.mu.Unlock()
				require.LessOrEqual(t, held, 2*leastSweep+batch)
			}
			require.NoError(t, q.exec(t.Context(), `DELETE FROM pgmq."q_`+q.name+`"`))
			require.NoError(t, s.Close(t.Context()))
		})
	}
}

func TestParallelFollowsThePool(t *testing.T) {
	for conns, want := range map[int32]int{1: 1, 4: 1, 8: 2, 15: 3, 100: 4} {
		config, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/nothing")
		require.NoError(t, err)
		config.MaxConns = conns
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		q, err := Open(p, "orders", Options{})
		require.NoError(t, err)
		require.Equal(t, want, q.Limits().Parallel)
		q, err = Open(p, "orders", Options{Parallel: 9})
		require.NoError(t, err)
		require.Equal(t, 9, q.Limits().Parallel)
		p.Close()
	}
}
