package consumer_test

import (
	"context"
	"errors"
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

// recorder collects events.
type recorder struct {
	mu     sync.Mutex
	events []consumer.Event
}

func (r *recorder) Observe(_ context.Context, e consumer.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) kinds() (kinds []consumer.Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (r *recorder) count(k consumer.Kind) (n int) {
	for _, kind := range r.kinds() {
		if kind == k {
			n++
		}
	}
	return n
}

// start runs c in the background; the returned function shuts it down and returns Run's error.
func start(t *testing.T, c *consumer.Consumer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

func publish(t *testing.T, q *memory.Queue, msgs ...backend.Message) {
	t.Helper()
	require.NoError(t, q.Publish(t.Context(), msgs...))
}

// deadLetters returns what is in q's dead-letter queue at this moment.
func deadLetters(t *testing.T, q *memory.Queue) []*backend.Delivery {
	t.Helper()
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	if stats.Dead == 0 {
		return nil
	}
	sub, err := q.DeadLetters().Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1000, Lease: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Close(t.Context())) }()
	dead, err := sub.Receive(t.Context(), 1000)
	require.NoError(t, err)
	return dead
}

func TestFailuresAreRetriedAfterThePolicysDelaysAndThenDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policy.Policy{Name: "five", MaxAttempts: 5, Backoff: policy.Exponential{Base: 5 * time.Second, Max: 300 * time.Second}}
		q := memory.New("orders", memory.Options{})
		var attempts []int
		var last []bool
		var at []time.Time
		events := &recorder{}
		stop := start(t, &consumer.Consumer{
			Queue: q, Policy: p, Observer: events,
			Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
				attempts, last, at = append(attempts, d.Attempt), append(last, d.Last), append(at, time.Now())
				return errors.New("declined")
			}),
		})
		publish(t, q, backend.Message{ID: "m", Body: []byte("x")})
		time.Sleep(time.Hour)
		require.NoError(t, stop())

		require.Equal(t, []int{1, 2, 3, 4, 5}, attempts)
		require.Equal(t, []bool{false, false, false, false, true}, last)
		for i, want := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second} {
			require.Equal(t, want, at[i+1].Sub(at[i]))
		}
		require.Equal(t, 4, events.count(consumer.Retried))
		require.Equal(t, 1, events.count(consumer.DeadLettered))
		dead := deadLetters(t, q)
		require.Len(t, dead, 1)
		f := dead[0].Failure
		require.Equal(t, "exhausted", f.Reason)
		require.Equal(t, "declined", f.Error)
		require.Equal(t, "*errors.errorString", f.ErrorType)
		require.Equal(t, 5, f.Attempts)
		require.Equal(t, "orders", f.Origin)
		require.Equal(t, "m", f.MessageID)
		require.Equal(t, "five", f.Policy)
	})
}
