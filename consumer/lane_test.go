package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func TestNoMoreCallsSettleAtOnceThanTheBrokerWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.Parallel, l.SettleBatch = 3, 2 }
		var calls, most atomic.Int64
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			most.Store(max(most.Load(), calls.Add(1)))
			defer calls.Add(-1)
			time.Sleep(time.Second)
			return next(ctx, batch)
		}
		events := &recorder{}
		c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
			time.Sleep(time.Second)
			return nil
		})
		c.Concurrency = 20
		for i := range 20 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, 20, events.count(consumer.Succeeded))
		require.EqualValues(t, 3, most.Load(), "as many as are worth while, and no more")
	})
}

// What stands behind a full batch is full itself, and waits for nothing either.
func TestFullBatchesDoNotLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.SettleLinger, l.SettleBatch = time.Second, 2 }
		var calls list[time.Duration]
		began := time.Now().Add(time.Minute)
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			calls.add(time.Since(began))
			time.Sleep(5 * time.Second)
			return next(ctx, batch)
		}
		for i := range 6 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(time.Minute)
			return nil
		})
		c.SettleTimeout = time.Minute
		stop := start(t, c)
		time.Sleep(2 * time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []time.Duration{0, 5 * time.Second, 10 * time.Second}, calls.all())
	})
}

func TestEachTryIsToldBeforeTheMessageIsParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.DeadLetters().Refuse(errNetwork)
		events := &recorder{}
		stop := start(t, consume(q, three, events, byID(oneIsPermanent)))
		publish(t, q.Queue, message("dead"))
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, []consumer.Kind{
			consumer.Received, consumer.SettleFailed, consumer.SettleFailed, consumer.SettleFailed, consumer.Parked,
		}, events.kinds("dead"))
		for _, e := range events.of(consumer.SettleFailed) {
			require.False(t, e.GaveUp)
			require.ErrorIs(t, e.Err, errNetwork)
		}
	})
}

// Nobody handles it, so nothing renews its lease while it is on its way to a dead-letter queue that hangs.
func TestWhatIsRefusedAtReceiptIsNotExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		publish(t, q.Queue, message("dead"))
		lapse(t, q.Queue, policy.DefaultMaxLapses+1)
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			if batch[0].Outcome == backend.DeadLetter {
				return hangs(ctx)
			}
			return next(ctx, batch)
		}
		events, seen := &recorder{}, &journal{}
		c := consume(q, three, events, seen.wrap(succeed))
		c.Lease = 30 * time.Second
		began := time.Now()
		stop := start(t, c)
		time.Sleep(16 * time.Second)
		require.NoError(t, stop())
		require.Empty(t, seen.all())
		require.Equal(t, 1, events.count(consumer.Parked))
		require.Greater(t, events.when(consumer.Parked)[0].Sub(began), 10*time.Second, "a heartbeat was due before")
		require.Empty(t, q.extensions("dead"))
	})
}

// An extension that arrives after a release would keep the message from others for a whole lease.
func TestAReleaseWaitsForTheHeartbeatUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onExtend = func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error {
			time.Sleep(3 * time.Second)
			return next(ctx, batch)
		}
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(14 * time.Second)
			return nil
		})
		c.Lease, c.Concurrency, c.Prefetch = 30*time.Second, 1, 1
		publish(t, q.Queue, message("first"), message("waits"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(11 * time.Second)
		require.NoError(t, stop())
		require.Equal(t, []backend.Outcome{backend.Release}, q.outcomes("waits"))
		require.Equal(t, began.Add(13*time.Second), q.settled("waits")[0].at)
		require.Len(t, q.extensions("waits"), 1, "and no other follows")
	})
}
