package rabbit_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// waits is what became of messages that were parked.
type waits struct {
	mu     sync.Mutex
	begun  map[string]time.Time // when the settlement was called
	parked map[string]time.Time // when it was confirmed
	back   map[string]time.Time
}

// park receives n messages and then parks each for its delay, so that no fresh message stands before those that come back.
// It notes which do until ctx ends.
func park(ctx context.Context, tb testing.TB, q *rabbit.Queue, delays map[string]time.Duration) *waits {
	tb.Helper()
	w := &waits{begun: make(map[string]time.Time), parked: make(map[string]time.Time), back: make(map[string]time.Time)}
	names := make([]string, 0, len(delays))
	for id := range delays {
		names = append(names, id)
	}
	slices.Sort(names)
	publish(tb, q, names...)
	sub, err := q.Subscribe(ctx, backend.SubscribeOptions{MaxInFlight: len(delays)})
	require.NoError(tb, err)
	var fresh []*backend.Delivery
	for len(fresh) < len(delays) {
		ds, err := sub.Receive(ctx, 500)
		require.NoError(tb, err)
		fresh = append(fresh, ds...)
	}
	go func() {
		for {
			ds, err := sub.Receive(ctx, 500)
			if err != nil {
				return
			}
			now := time.Now()
			w.mu.Lock()
			for _, d := range ds {
				w.back[d.ID] = now
			}
			w.mu.Unlock()
			if err := sub.Settle(ctx, all(ack, ds)); err != nil {
				return
			}
		}
	}()
	for ds := range slices.Chunk(fresh, 100) {
		batch := all(retry(0), ds)
		begun := time.Now()
		for i := range batch {
			batch[i].Delay = delays[ds[i].ID]
		}
		require.NoError(tb, sub.Settle(ctx, batch))
		now := time.Now()
		w.mu.Lock()
		for _, d := range ds {
			w.begun[d.ID], w.parked[d.ID] = begun, now
		}
		w.mu.Unlock()
	}
	return w
}

// came is how many of the messages with these delays up to longest are back.
func (w *waits) came(delays map[string]time.Duration, longest time.Duration) (n, of int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, delay := range delays {
		if delay <= longest {
			of++
			if !w.back[id].IsZero() {
				n++
			}
		}
	}
	return n, of
}

// mixed is n delays from 100 ms to an hour, as many between one and two seconds as between one and two minutes.
func mixed(n int) map[string]time.Duration {
	delays := make(map[string]time.Duration, n)
	for i := range n {
		// Neighbours among the messages have delays far apart.
		at := math.Mod(float64(i)*math.Phi, 1)
		delays[fmt.Sprintf("m%05d", i)] = time.Duration(float64(100*time.Millisecond) * math.Pow(36_000, at))
	}
	return delays
}

// Ten thousand messages wait, for as long as one delays from 100 ms to an hour. Those that come due meanwhile are in time.
func TestManyWithDelaysOfAllLengthsAreInTime(t *testing.T) {
	t.Parallel()
	const (
		longest = 5 * time.Second // of those that are waited for
		slack   = 5 * time.Second // the machine may be busy; without bands a message waits behind one of an hour
	)
	q := queue(t, rabbit.Options{})
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	delays := mixed(10_000)
	w := park(ctx, t, q, delays)
	require.Eventually(t, func() bool {
		n, of := w.came(delays, longest)
		return n == of
	}, time.Minute, 10*time.Millisecond)
	limits := q.Limits()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Greater(t, len(w.back), 3000)
	for id, back := range w.back {
		delay := delays[id]
		require.GreaterOrEqual(t, back.Sub(w.begun[id]), delay, "%s is early", id)
		most := limits.Granularity + time.Duration(limits.Stretch*float64(delay)) + slack
		require.LessOrEqual(t, back.Sub(w.parked[id])-delay, most, "%s, to wait for %v, is late", id, delay)
	}
}

// A second is a second, also while ten thousand messages wait for an hour.
func TestASecondIsNotBehindTenThousandHours(t *testing.T) {
	t.Parallel()
	q := queue(t, rabbit.Options{})
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	delays := make(map[string]time.Duration)
	for _, id := range ids(10_000) {
		delays[id] = time.Hour
	}
	w := park(ctx, t, q, delays)
	n, _ := w.came(delays, time.Hour)
	require.Zero(t, n)

	other, err := rabbit.Open(brokertest.Rabbit(t), q.Name(), rabbit.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close(context.Background())) }()
	stop() // whoever noted what comes back
	require.NoError(t, q.Close(t.Context()))
	sub := subscribe(t, other)
	var took []time.Duration
	for i := range 5 {
		publish(t, other, fmt.Sprintf("short%d", i))
		d := receiveOne(t, sub)
		begun := time.Now()
		require.NoError(t, settle(sub, d, retry(time.Second)))
		require.Equal(t, d.ID, receiveOne(t, sub).ID)
		took = append(took, time.Since(begun))
		require.GreaterOrEqual(t, took[i], time.Second)
	}
	require.Less(t, slices.Min(took), 2*time.Second, "even the fastest of %v: the machine may be busy now and then", took)
}

// What is parked for long is not waited for. Its own expiration is its delay, its queue lets nothing out before that, and
// none that stands before it stays for longer than Limits says.
func TestLongDelaysAreParkedToTheMillisecond(t *testing.T) {
	url := brokertest.Rabbit(t)
	q := queue(t, rabbit.Options{})
	sub := subscribe(t, q)
	stretch := q.Limits().Stretch
	for _, delay := range []time.Duration{
		20 * time.Second, time.Minute + time.Nanosecond, 10*time.Minute - time.Millisecond, 59*time.Minute + 1234567890, time.Hour, 24 * time.Hour, rabbit.MaxDelay,
	} {
		publish(t, q, delay.String())
		require.NoError(t, settle(sub, receiveOne(t, sub), retry(delay)))
		parking := q.Name() + ".retry.v1." + q.Band(delay)
		onChannel(t, url, func(ch *amqp.Channel) {
			parked, found, err := ch.Get(parking, true)
			require.NoError(t, err)
			require.True(t, found, "%v is not in %s", delay, parking)
			require.Equal(t, delay.String(), parked.MessageId)
			ms, err := strconv.ParseInt(parked.Expiration, 10, 64)
			require.NoError(t, err)
			expires := time.Duration(ms) * time.Millisecond
			require.GreaterOrEqual(t, expires, delay)
			require.LessOrEqual(t, expires, delay+2*time.Millisecond)
			of, err := rabbit.Open(url, parking, rabbit.Options{})
			require.NoError(t, err)
			_, arguments, err := of.Probe(t.Context())
			require.NoError(t, err)
			ttl := time.Duration(arguments["x-message-ttl"].(int64)) * time.Millisecond
			require.GreaterOrEqual(t, ttl, expires)
			require.LessOrEqual(t, float64(ttl), float64(expires)*(1+stretch))
		})
	}
}
