package memory_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

// isLost reports whether the backend told that the lease of d is gone. It wants a synctest bubble.
func isLost(d *backend.Delivery) bool {
	var lost atomic.Bool
	d.OnLost(func() { lost.Store(true) })
	synctest.Wait()
	return lost.Load()
}

func TestLapsedLeaseBringsTheMessageBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "1")
		sub := subscribe(t, q)
		start := time.Now()
		for lapses := range 3 {
			d := receive(t, sub)
			require.Equal(t, time.Duration(lapses)*lease, time.Since(start))
			require.Equal(t, lapses, d.Lapses)
			require.Equal(t, 1, d.Attempt)
		}
	})
}

func TestExtendKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "1")
		sub := subscribe(t, q)
		d := receive(t, sub)
		for range 5 {
			time.Sleep(lease - time.Second)
			require.NoError(t, sub.Extend(t.Context(), []*backend.Delivery{d}))
		}
		time.Sleep(lease - time.Second)
		receiveNothing(t, subscribe(t, q))
		require.False(t, isLost(d))
		start := time.Now()
		again := receive(t, sub)
		require.Equal(t, 1, again.Lapses)
		require.Less(t, time.Since(start), time.Second)
		require.True(t, isLost(d))
	})
}

func TestLostLeaseSettlesNothing(t *testing.T) {
	outcomes := []backend.Settlement{
		{Outcome: backend.Ack},
		{Outcome: backend.Retry, Delay: time.Hour},
		{Outcome: backend.DeadLetter, Failure: &backend.Failure{}},
		{Outcome: backend.Discard},
		{Outcome: backend.Release},
	}
	for _, settlement := range outcomes {
		t.Run(settlement.Outcome.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				publish(t, q, "1")
				slow, quick := subscribe(t, q), subscribe(t, q)
				settlement.Delivery = receive(t, slow)
				time.Sleep(lease)
				require.ErrorIs(t, slow.Settle(t.Context(), []backend.Settlement{settlement}), backend.ErrLeaseLost)

				held := receive(t, quick)
				err := slow.Settle(t.Context(), []backend.Settlement{settlement})
				require.ErrorIs(t, err, backend.ErrLeaseLost)
				require.ErrorContains(t, err, `message "1"`)
				require.ErrorIs(t, slow.Extend(t.Context(), []*backend.Delivery{settlement.Delivery}), backend.ErrLeaseLost)

				// The new holder's lease is what it was, and its settlement holds.
				time.Sleep(lease - 2*time.Nanosecond)
				receiveNothing(t, slow)
				settle(t, quick, backend.Settlement{Delivery: held, Outcome: backend.Ack})
				require.ErrorIs(t, slow.Settle(t.Context(), []backend.Settlement{settlement}), backend.ErrLeaseLost)
				stats, err := q.Stats(t.Context())
				require.NoError(t, err)
				require.Zero(t, stats)
			})
		})
	}
}

func TestCloseGivesBackAtOnce(t *testing.T) {
	for name, end := range map[string]func(*memory.Queue, *memory.Subscription) error{
		"subscription": func(_ *memory.Queue, sub *memory.Subscription) error {
			return errors.Join(sub.Close(context.Background()), sub.Close(context.Background()))
		},
		"queue": func(q *memory.Queue, _ *memory.Subscription) error {
			return errors.Join(q.Close(context.Background()), q.Close(context.Background()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				publish(t, q, "1", "2", "3")
				sub := subscribe(t, q)
				one, two := receive(t, sub), receive(t, sub)
				settle(t, sub, backend.Settlement{Delivery: two, Outcome: backend.Ack})
				other := subscribe(t, q.Open())
				require.Equal(t, "3", receive(t, other).ID)

				start := time.Now()
				require.NoError(t, end(q, sub))
				d := receive(t, other)
				require.Equal(t, "1", d.ID)
				require.Equal(t, 1, d.Attempt)
				require.Zero(t, d.Lapses)
				require.Equal(t, start, time.Now())
				require.True(t, isLost(one))

				_, err := sub.Receive(t.Context(), 1)
				require.ErrorIs(t, err, backend.ErrClosed)
				require.ErrorIs(t, sub.Settle(t.Context(), []backend.Settlement{{Delivery: one, Outcome: backend.Ack}}), backend.ErrClosed)
				require.ErrorIs(t, sub.Extend(t.Context(), []*backend.Delivery{one}), backend.ErrClosed)
			})
		})
	}
}

func TestClosedHandle(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	other := q.Open()
	publish(t, q, "1")
	require.NoError(t, q.Close(t.Context()))
	require.ErrorIs(t, q.Publish(t.Context(), backend.Message{}), backend.ErrClosed)
	_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
	require.ErrorIs(t, err, backend.ErrClosed)
	_, err = q.Stats(t.Context())
	require.ErrorIs(t, err, backend.ErrClosed)
	require.Equal(t, "1", receive(t, subscribe(t, other)).ID)
	require.NotNil(t, subscribe(t, q.Open()))
}

func TestCloseEndsReceive(t *testing.T) {
	for name, end := range map[string]func(*memory.Queue, *memory.Subscription){
		"close":       func(_ *memory.Queue, sub *memory.Subscription) { sub.Close(context.Background()) },
		"crash":       func(_ *memory.Queue, sub *memory.Subscription) { sub.Crash() },
		"close queue": func(q *memory.Queue, _ *memory.Subscription) { q.Close(context.Background()) },
		"crash queue": func(q *memory.Queue, _ *memory.Subscription) { q.Crash() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				sub := subscribe(t, q)
				ended := make(chan error)
				go func() {
					_, err := sub.Receive(t.Context(), 1)
					ended <- err
				}()
				synctest.Wait()
				end(q, sub)
				require.ErrorIs(t, <-ended, backend.ErrClosed)
			})
		})
	}
}

func TestCrashLeavesTheLeaseToLapse(t *testing.T) {
	for name, crash := range map[string]func(*memory.Queue, *memory.Subscription){
		"subscription": func(_ *memory.Queue, sub *memory.Subscription) { sub.Crash() },
		"queue":        func(q *memory.Queue, _ *memory.Subscription) { q.Crash() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				publish(t, q, "1")
				sub, other := subscribe(t, q), subscribe(t, q.Open())
				d := receive(t, sub)
				start := time.Now()
				crash(q, sub)
				require.NoError(t, sub.Close(t.Context()), "closing what has crashed gives nothing back")
				require.ErrorIs(t, sub.Settle(t.Context(), []backend.Settlement{{Delivery: d, Outcome: backend.Ack}}), backend.ErrClosed)
				again := receive(t, other)
				require.Equal(t, lease, time.Since(start))
				require.Equal(t, 1, again.Lapses)
				require.Equal(t, 1, again.Attempt)
			})
		})
	}
}

func TestSubscribeRefusesWhatCannotWork(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1})
	require.ErrorContains(t, err, "SubscribeOptions.Lease")

	q.DeadLetters().Refuse(backend.ErrQueueNotFound)
	_, err = q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, `"orders_dlq"`)
	findings, err := q.Check(t.Context(), backend.Needs{})
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.True(t, findings[0].Fatal)
	require.Contains(t, findings[0].Text, `"orders_dlq"`)
	require.ErrorIs(t, findings[0], backend.ErrQueueNotFound)

	q.DeadLetters().Refuse(nil)
	findings, err = q.Check(t.Context(), backend.Needs{})
	require.NoError(t, err)
	require.Empty(t, findings)

	q.Refuse(backend.ErrQueueNotFound)
	_, err = q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorIs(t, q.Publish(t.Context(), backend.Message{}), backend.ErrQueueNotFound)

	// A full dead-letter queue is no reason not to start: it may have room when it is needed.
	q.Refuse(nil)
	q.DeadLetters().Refuse(errors.New("full"))
	subscribe(t, q)

	findings, err = memory.New("orders", memory.Options{NoDeadLetter: true}).Check(t.Context(), backend.Needs{})
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.False(t, findings[0].Fatal)
	require.Panics(t, func() { memory.New("", memory.Options{}) })
}
