package rabbit_test

import (
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/policy"
)

func open(tb testing.TB, opts rabbit.Options) *rabbit.Queue {
	tb.Helper()
	q, err := rabbit.Open("amqp://127.0.0.1/", "orders", opts)
	require.NoError(tb, err)
	return q
}

// The names are those of queues in other people's brokers.
func TestTheLadderStaysAsItIs(t *testing.T) {
	all := open(t, rabbit.Options{}).Known()
	require.Len(t, all, 209)
	require.Equal(t, []string{"orders.retry.v1.10ms", "orders.retry.v1.11ms", "orders.retry.v1.12ms"}, all[:3])
	i := slices.Index(all, "orders.retry.v1.1s")
	require.Equal(t, []string{
		"orders.retry.v1.1s", "orders.retry.v1.1100ms", "orders.retry.v1.1210ms", "orders.retry.v1.1330ms", "orders.retry.v1.1470ms", "orders.retry.v1.1620ms",
		"orders.retry.v1.1780ms", "orders.retry.v1.1960ms", "orders.retry.v1.2150ms", "orders.retry.v1.2370ms", "orders.retry.v1.2610ms", "orders.retry.v1.2870ms",
		"orders.retry.v1.3160ms", "orders.retry.v1.3480ms", "orders.retry.v1.3830ms", "orders.retry.v1.4220ms", "orders.retry.v1.4640ms", "orders.retry.v1.5110ms",
		"orders.retry.v1.5620ms", "orders.retry.v1.6190ms", "orders.retry.v1.6810ms", "orders.retry.v1.7500ms", "orders.retry.v1.8250ms", "orders.retry.v1.9090ms",
		"orders.retry.v1.10s",
	}, all[i:i+25])
	require.Equal(t, "orders.retry.v1.4294800s", all[len(all)-1], "the longest delay")
}

func TestACoarserLadderIsAPartOfTheFinest(t *testing.T) {
	finest := open(t, rabbit.Options{}).Known()
	for _, n := range []int{1, 2, 3, 4, 6, 8, 12, 24} {
		q := open(t, rabbit.Options{BandsPerDecade: n})
		for _, name := range q.Known() {
			require.Contains(t, finest, name)
		}
		require.InDelta(t, math.Pow(10, 1/float64(n))-1, q.Limits().Stretch, 0.02*float64(24/n), "%d a decade", n)
	}
	require.Equal(t, []string{
		"orders.retry.v1.10ms", "orders.retry.v1.100ms", "orders.retry.v1.1s", "orders.retry.v1.10s", "orders.retry.v1.100s", "orders.retry.v1.1000s", "orders.retry.v1.10000s",
	}, open(t, rabbit.Options{BandsPerDecade: 1, MaxDelay: time.Hour}).Known())
}

func TestABandHoldsItsDelays(t *testing.T) {
	q := open(t, rabbit.Options{})
	for _, c := range []struct {
		delay time.Duration
		band  string
	}{
		{1, "10ms"},
		{10 * time.Millisecond, "10ms"},
		{10*time.Millisecond + 1, "11ms"},
		{time.Second - 1, "1s"},
		{time.Second, "1s"},
		{time.Second + 1, "1100ms"},
		{1100 * time.Millisecond, "1100ms"},
		{time.Hour, "3830s"},
		{24 * time.Hour, "90900s"},
		{rabbit.MaxDelay, "4294800s"},
		{math.MaxInt64, "4294800s"},
	} {
		require.Equal(t, c.band, q.Band(c.delay), "%v", c.delay)
	}
	// Nothing waits longer than its delay requires, by more than is said.
	stretch := q.Limits().Stretch
	for d := 100 * time.Millisecond; d < rabbit.MaxDelay; d += d / 97 {
		limit := q.BandLimit(d)
		require.GreaterOrEqual(t, limit, d)
		require.LessOrEqual(t, float64(limit), float64(d)*(1+stretch), "%v", d)
	}
}

// RabbitMQ wants whole milliseconds in decimal digits, counts them from the beginning of the one in which a message came, and takes
// 2^32-1 of them at most. A hundredth, 50 ms at most, is for its clock.
func TestExpirations(t *testing.T) {
	for delay, want := range map[time.Duration]string{
		1:                                     "2",
		400 * time.Microsecond:                "2",
		time.Millisecond:                      "3",
		1500*time.Millisecond + 700_000:       "1517",
		time.Second:                           "1011",
		5 * time.Second:                       "5051",
		24 * time.Hour:                        "86400051",
		rabbit.MaxDelay:                       "4294800051",
		1234567*time.Second + time.Nanosecond: "1234567052",
	} {
		require.Equal(t, want, rabbit.Expiration(delay), "%v", delay)
	}
}

func TestTheQueuesOfAPolicyAreFewAndKnown(t *testing.T) {
	q := open(t, rabbit.Options{})
	name := func(bands ...string) []string {
		for i := range bands {
			bands[i] = "orders.retry.v1." + bands[i]
		}
		return bands
	}
	require.Equal(t, name("1s", "2150ms", "4220ms", "8250ms"), q.ParkingQueues(
		policy.Policy{MaxAttempts: 5, Backoff: policy.Exponential{Base: time.Second}}))
	require.Equal(t, name("1s"), q.ParkingQueues(policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(time.Second)}))
	require.Equal(t, name("825ms", "909ms", "1s", "1100ms", "1210ms"), q.ParkingQueues(
		policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Second), Jitter: policy.Proportional(0.2)}))
	require.Empty(t, q.ParkingQueues(policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(time.Second)}))
	require.Empty(t, q.ParkingQueues())
	require.Equal(t, name("10s"), q.ParkingQueues(
		policy.Policy{MaxAttempts: 3, Backoff: policy.Immediate{Attempts: 1, Then: policy.Fixed(10 * time.Second)}}), "no delay, no parking")

	// Every delay that the policy decides on has its queue.
	require.Equal(t, name("1s", "61900ms"), q.ParkingQueues(
		policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(time.Hour), Rules: []policy.Rule{
			{Match: policy.Is(io.EOF), MaxAttempts: 2, Backoff: policy.Fixed(time.Second)},
			{Match: policy.Is(io.ErrUnexpectedEOF), MaxAttempts: 2, Backoff: policy.Fixed(time.Minute)},
			{Match: policy.Is(io.ErrClosedPipe), Action: policy.ActionDeadLetter},
		}}), "the rules' delays too")

	p := policy.Policy{MaxAttempts: 8, Backoff: policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second}, Jitter: policy.EqualJitter}
	names := q.ParkingQueues(p)
	require.LessOrEqual(t, len(names), 51)
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		for n := 1; n < 8; n++ {
			d := p.Decide(policy.Failure{Attempt: n, Err: errBoom, MessageID: id})
			require.Contains(t, names, "orders.retry.v1."+q.Band(d.Delay))
		}
	}
	require.Len(t, q.ParkingQueues(
		policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Second)},
		policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Minute)}), 2)
}
