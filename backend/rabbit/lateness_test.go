package rabbit_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

const many = 10_000

// delayMany lets n messages fail once, and returns when each is due. Their IDs are those of ids(n).
func delayMany(t *testing.T, q *rabbit.Queue, sub backend.Subscription, n int, delay func() time.Duration) (delays map[string]time.Duration, due map[string]time.Time) {
	t.Helper()
	for chunk := range slices.Chunk(ids(n), 1000) {
		publish(t, q, chunk...)
	}
	delays, due = make(map[string]time.Duration), make(map[string]time.Time)
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				mu.Lock()
				left := n - len(due)
				mu.Unlock()
				if left == 0 {
					cancel()
					return
				}
				ds, err := sub.Receive(ctx, min(left, 100))
				cancel()
				var batch []backend.Settlement
				mu.Lock()
				for _, d := range ds {
					st := retry(delay())
					st.Delivery = d
					delays[d.ID], due[d.ID] = st.Delay, time.Now().Add(st.Delay)
					batch = append(batch, st)
				}
				left = n - len(due)
				mu.Unlock()
				if err != nil && left > 0 || sub.Settle(t.Context(), batch) != nil {
					t.Errorf("after %d of %d messages: %v", n-left, n, err)
					return
				}
			}
		})
	}
	workers.Wait()
	require.False(t, t.Failed())
	return delays, due
}

// A retry after a second is back in time however many wait for an hour, and wherever those stand.
func TestAShortWaitIsNotBehindManyLongOnes(t *testing.T) {
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	delayMany(t, q, sub, many, func() time.Duration { return time.Hour })
	publish(t, q, "short")
	begun := time.Now()
	require.NoError(t, settle(sub, receiveOne(t, sub), retry(time.Second)))
	d := receiveOne(t, sub)
	took := time.Since(begun)
	require.Equal(t, "short", d.ID)
	require.GreaterOrEqual(t, took, time.Second)
	require.Less(t, took, 10*time.Second, "though the machine is busy")
	t.Logf("a retry after 1 s was back after %v while %d messages wait for an hour", took, many)
	require.NoError(t, settle(sub, d, ack))
}

// Ten thousand waits of all lengths, in no order: none ends early, nor later than by the width of its band.
func TestManyMixedWaitsEndInTime(t *testing.T) {
	const slack = 5 * time.Second // for a busy machine; a wait behind the longest would be twice as late
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	// From 4 s, by when all are parked, to 20 s.
	delays, due := delayMany(t, q, sub, many, func() time.Duration {
		return time.Duration(float64(4*time.Second) * math.Pow(5, rand.Float64()))
	})
	stretch := q.Limits().Stretch
	late := make([]time.Duration, 0, many)
	for len(late) < many {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		ds, err := sub.Receive(ctx, 100)
		cancel()
		require.NoError(t, err, "after %d", len(late))
		now := time.Now()
		batch := make([]backend.Settlement, len(ds))
		for i, d := range ds {
			by := now.Sub(due[d.ID])
			// A broker that brings its clock into line runs fast by a hundredth, of which 50 ms are made up for.
			fast := max(delays[d.ID]/100-50*time.Millisecond, 0)
			require.GreaterOrEqual(t, by, -fast, "%s is early", d.ID)
			require.LessOrEqual(t, by, time.Duration(stretch*float64(delays[d.ID]))+slack, "%s, after a wait of %v", d.ID, delays[d.ID])
			late = append(late, by)
			batch[i] = ack
			batch[i].Delivery = d
		}
		require.NoError(t, sub.Settle(t.Context(), batch))
	}
	slices.Sort(late)
	t.Logf("late by %v in the middle, %v at 99 %%, %v at most", late[many/2], late[many*99/100], late[many-1])
}

// Nobody waits an hour to see that a message comes back then: what the broker holds says when.
func TestTheBrokerHoldsTheExactDelay(t *testing.T) {
	url := brokertest.Rabbit(t)
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	for _, delay := range []time.Duration{42 * time.Second, 10 * time.Minute, time.Hour, 24 * time.Hour} {
		publish(t, q, delay.String())
		require.NoError(t, settle(sub, receiveOne(t, sub), retry(delay)))
		onChannel(t, url, func(ch *amqp.Channel) {
			parked, ok, err := ch.Get(q.Name()+".retry.v1."+q.Band(delay), true)
			require.NoError(t, err)
			require.True(t, ok, "%v", delay)
			require.Equal(t, delay.String(), parked.MessageId)
			require.Equal(t, rabbit.Expiration(delay), parked.Expiration)
			require.LessOrEqual(t, delay, q.BandLimit(delay), "the queue lets it go no sooner")
		})
	}
}
