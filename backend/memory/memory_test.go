package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

const lease = time.Minute

func subscribe(t testing.TB, q *memory.Queue) *memory.Subscription {
	t.Helper()
	sub, err := q.Subscribe(context.Background(), backend.SubscribeOptions{MaxInFlight: 100, Lease: lease})
	require.NoError(t, err)
	return sub.(*memory.Subscription)
}

func publish(t testing.TB, q *memory.Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, q.Publish(context.Background(), backend.Message{ID: id, Body: []byte(id)}))
	}
}

// receive waits for one delivery, with a bound that ends the test where it would hang.
func receive(t testing.TB, sub backend.Subscription) *backend.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 100*24*time.Hour)
	defer cancel()
	batch, err := sub.Receive(ctx, 1)
	require.NoError(t, err)
	require.Len(t, batch, 1)
	return batch[0]
}

// receiveNothing asserts that nothing is due now. It wants a synctest bubble, where the wait is virtual.
func receiveNothing(t testing.TB, sub backend.Subscription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	batch, err := sub.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, batch)
}

func settle(t testing.TB, sub backend.Subscription, s backend.Settlement) {
	t.Helper()
	require.NoError(t, sub.Settle(context.Background(), []backend.Settlement{s}))
}

func TestDayOfBackoffTakesMilliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "one")
		sub := subscribe(t, q)
		start := time.Now()
		var waited time.Duration
		for attempt := 1; waited < 24*time.Hour; attempt++ {
			d := receive(t, sub)
			require.Equal(t, attempt, d.Attempt)
			require.Equal(t, waited, time.Since(start))
			require.Equal(t, waited, d.Age)
			delay := time.Second << attempt
			settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Retry, Delay: delay})
			waited += delay
		}
		d := receive(t, sub)
		settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Ack})
		receiveNothing(t, sub)
	})
}
