package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// A handler that kills its process does so at each delivery, and each time all that the process holds lapses with it.
func TestPoisonMessageDoesNotTakeItsNeighboursWithIt(t *testing.T) {
	for _, mix := range []struct{ concurrency, prefetch, healthy int }{{10, 0, 9}, {10, 50, 59}, {60, 0, 59}, {1, 5, 20}, {1, 0, 5}} {
		t.Run(fmt.Sprintf("concurrency %d, prefetch %d, %d healthy", mix.concurrency, mix.prefetch, mix.healthy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				publish(t, q, backend.Message{ID: "poison", Body: []byte("x")})
				for i := range mix.healthy {
					publish(t, q, backend.Message{ID: fmt.Sprint(i), Body: []byte("x")})
				}
				events := &recorder{}
				process := func() (crashed bool) {
					handle := q.Open()
					var once sync.Once
					ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
					defer stop()
					c := &consumer.Consumer{
						Queue: handle, Concurrency: mix.concurrency, Prefetch: mix.prefetch, Observer: events, Grace: -1,
						Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)},
						Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
							if d.ID == "poison" {
								once.Do(func() { crashed = true; handle.Crash() })
								<-ctx.Done()
								return ctx.Err()
							}
							time.Sleep(400 * time.Millisecond)
							return ctx.Err()
						}),
					}
					_ = c.Run(ctx)
					return crashed
				}
				crashes := 0
				for process() {
					crashes++
				}
				require.Equal(t, policy.DefaultMaxLapses+1, crashes)
				dead := deadLetters(t, q)
				require.Len(t, dead, 1)
				require.Equal(t, "poison", dead[0].ID)
				require.Equal(t, "abandoned", dead[0].Failure.Reason)
				require.Equal(t, mix.healthy, events.count(consumer.Succeeded))
			})
		})
	}
}

// A suspect that takes its time does not hold the others up for longer than two leases.
func TestSlowSuspectHoldsUpTheOthersForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, backend.Message{ID: "suspect", Body: []byte("x")})
		lapse(t, q, policy.DefaultMaxLapses/2)
		began := time.Now()
		var mu sync.Mutex
		handled := make(map[string]time.Duration)
		stop := start(t, &consumer.Consumer{
			Queue: q, Lease: time.Minute,
			Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)},
			Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
				if d.ID == "suspect" {
					time.Sleep(20 * time.Minute)
				}
				mu.Lock()
				defer mu.Unlock()
				handled[d.ID] = time.Since(began)
				return nil
			}),
		})
		time.Sleep(time.Second)
		publish(t, q, backend.Message{ID: "other", Body: []byte("x")})
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.LessOrEqual(t, handled["other"], 2*time.Minute)
		require.GreaterOrEqual(t, handled["other"], time.Minute, "it ran beside the suspect")
		require.Equal(t, 20*time.Minute, handled["suspect"])
	})
}

// Shutdown releases a suspect that waits for its turn.
func TestShutdownReleasesAWaitingSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, backend.Message{ID: "suspect", Body: []byte("x")})
		lapse(t, q, policy.DefaultMaxLapses/2)
		publish(t, q, backend.Message{ID: "slow", Body: []byte("x")})
		first, err := q.Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Hour})
		require.NoError(t, err)
		taken, err := first.Receive(t.Context(), 1)
		require.NoError(t, err)
		events := &recorder{}
		stop := start(t, &consumer.Consumer{
			Queue: q, Lease: time.Minute, Observer: events,
			Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)},
			Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
				time.Sleep(10 * time.Second)
				return nil
			}),
		})
		time.Sleep(time.Second)
		// Now that the other message is being handled, the suspect arrives.
		require.NoError(t, first.Settle(t.Context(), []backend.Settlement{{Delivery: taken[0], Outcome: backend.Release}}))
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, 1, events.count(consumer.Succeeded))
		require.Equal(t, 1, events.count(consumer.Released))
		require.NoError(t, first.Close(t.Context()))
		again := held(t, q)[0]
		require.Equal(t, "suspect", again.ID)
		require.Equal(t, policy.DefaultMaxLapses/2, again.Lapses)
	})
}

// lapse lets the message in q lapse n times.
func lapse(t *testing.T, q *memory.Queue, n int) {
	t.Helper()
	for range n {
		handle := q.Open()
		sub, err := handle.Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Second})
		require.NoError(t, err)
		_, err = sub.Receive(t.Context(), 1)
		require.NoError(t, err)
		handle.Crash()
		time.Sleep(2 * time.Second)
	}
}
