package policy_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
)

type sample struct {
	min, max   time.Duration
	mean, sd   float64
	atMin      float64 // share of draws that are exactly the least
	atMax      float64
	delays     []time.Duration
	differents int
}

// measure decides the same failure for messages with fixed, distinct IDs, so
// that a test of the spread gives the same result each time.
func measure(p policy.Policy, f policy.Failure, messages int) sample {
	s := sample{min: maxDuration}
	distinct := map[time.Duration]bool{}
	var sum, squares float64
	for i := range messages {
		f.MessageID = fmt.Sprintf("0197a3f2-6c1e-7b5a-9d24-%012x", i)
		d := p.Decide(f).Delay
		s.delays = append(s.delays, d)
		s.min, s.max = min(s.min, d), max(s.max, d)
		distinct[d] = true
		sum += float64(d)
	}
	s.mean = sum / float64(messages)
	for _, d := range s.delays {
		squares += (float64(d) - s.mean) * (float64(d) - s.mean)
		if d == s.min {
			s.atMin += 1 / float64(messages)
		}
		if d == s.max {
			s.atMax += 1 / float64(messages)
		}
	}
	s.sd = math.Sqrt(squares / float64(messages))
	s.differents = len(distinct)
	return s
}

func TestRangeOfEachJitter(t *testing.T) {
	const d = 8 * time.Second // the delay after attempt 4
	for _, tt := range []struct {
		jitter policy.Jitter
		lo, hi time.Duration
	}{
		{policy.NoJitter, d, d},
		{policy.FullJitter, 0, d},
		{policy.EqualJitter, d / 2, d},
		{policy.Proportional(0.15), d * 85 / 100, d * 115 / 100},
		{policy.Proportional(1), 0, 2 * d},
		{policy.Proportional(0), d, d},
		{policy.Additive(0.15), d, d * 115 / 100},
		{policy.Additive(1), d, 2 * d},
		{policy.Additive(0), d, d},
		{policy.DecorrelatedJitter, time.Second, 12 * time.Second},
		// What is not valid.
		{policy.Proportional(-0.1), d, d},
		{policy.Proportional(math.NaN()), d, d},
		{policy.Proportional(math.Inf(-1)), d, d},
		{policy.Proportional(300000), 0, 2 * d},
		{policy.Proportional(math.Inf(1)), 0, 2 * d},
		{policy.Additive(-0.1), d, d},
		{policy.Additive(1.5), d, 2 * d},
		{policy.Jitter{Kind: policy.JitterFull, Fraction: math.NaN()}, 0, d},
		{policy.Jitter{Kind: 99, Fraction: 0.5}, d, d},
	} {
		p := policy.Policy{MaxAttempts: 10, Backoff: policy.Exponential{Base: time.Second}, Jitter: tt.jitter}
		f := policy.Failure{Attempt: 4}
		p.Rand = policy.NewRand(fixedSource(0))
		require.Equal(t, tt.lo, p.Decide(f).Delay, "%+v", tt.jitter)
		p.Rand = policy.NewRand(fixedSource(math.MaxUint64))
		require.Equal(t, tt.hi, p.Decide(f).Delay, "%+v", tt.jitter)
		p.Rand = nil

		seen := measure(p, f, 4000)
		width := float64(tt.hi - tt.lo)
		require.GreaterOrEqual(t, seen.min, tt.lo, "%+v", tt.jitter)
		require.LessOrEqual(t, seen.max, tt.hi, "%+v", tt.jitter)
		require.InDelta(t, float64(tt.lo)+width/2, seen.mean, 0.02*width, "%+v", tt.jitter)
		require.InDelta(t, width/math.Sqrt(12), seen.sd, 0.02*width, "uniform: %+v", tt.jitter)
	}
}

func TestDecorrelatedStartsAroundTheFirstDelay(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Exponential{Base: time.Second, Max: time.Minute}, Jitter: policy.DecorrelatedJitter}
	for n, hi := range map[int]time.Duration{1: 3, 2: 3, 3: 6, 4: 12, 5: 24, 6: 48, 7: 60, 99: 60} {
		for u, want := range map[uint64]time.Duration{0: time.Second, math.MaxUint64: hi * time.Second} {
			p.Rand = policy.NewRand(fixedSource(u))
			require.Equal(t, want, p.Decide(policy.Failure{Attempt: n}).Delay, "attempt %d", n)
		}
	}
}

func TestDecorrelatedOnADescendingCurve(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Steps{time.Minute, 5 * time.Second}, Jitter: policy.DecorrelatedJitter}
	seen := measure(p, policy.Failure{Attempt: 3}, 2000)
	require.InDelta(t, 15*time.Second, seen.min, float64(time.Second))
	require.InDelta(t, time.Minute, seen.max, float64(time.Second))
}

func TestDelaysAtTheCapStillSpread(t *testing.T) {
	const most = 30 * time.Second
	for _, tt := range []struct {
		jitter policy.Jitter
		lo     time.Duration
	}{
		{policy.FullJitter, 0},
		{policy.EqualJitter, most / 2},
		{policy.DecorrelatedJitter, time.Second},
		{policy.Proportional(0.5), 10 * time.Second},
		{policy.Proportional(1), 0},
		{policy.Additive(0.5), 20 * time.Second},
		{policy.Additive(1), 15 * time.Second},
	} {
		for _, n := range []int{10, 40, 64, 10_000, math.MaxInt} {
			p := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Exponential{Base: time.Second, Max: most}, Jitter: tt.jitter}
			seen := measure(p, policy.Failure{Attempt: n}, 1000)
			require.LessOrEqual(t, seen.max, most, "%+v", tt.jitter)
			require.GreaterOrEqual(t, seen.min, tt.lo, "%+v", tt.jitter)
			require.Less(t, seen.atMax, 0.05, "%+v", tt.jitter)
			require.Equal(t, 1000, seen.differents, "%+v", tt.jitter)
			require.InDelta(t, float64(most-tt.lo)/math.Sqrt(12), seen.sd, 0.03*float64(most-tt.lo), "%+v", tt.jitter)
		}
	}
}

func TestUncappedSaturatedDelaysStillSpread(t *testing.T) {
	for _, jitter := range allJitters()[1:] {
		p := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Exponential{Base: time.Second}, Jitter: jitter}
		seen := measure(p, policy.Failure{Attempt: math.MaxInt}, 1000)
		require.GreaterOrEqual(t, seen.min, time.Duration(0), "%+v", jitter)
		require.Less(t, seen.atMax, 0.05, "%+v", jitter)
		require.Greater(t, seen.sd, 0.02*float64(maxDuration), "%+v", jitter)
	}
}

// Just below the cap the jitter must not lose its width bit by bit: a range
// cut at the cap would.
func TestDelaysJustBelowTheCapKeepTheirWidth(t *testing.T) {
	for _, share := range []time.Duration{60, 70, 80, 90, 95, 99, 100} {
		p := policy.Policy{MaxAttempts: 10, Backoff: policy.Fixed(share * time.Second), MaxDelay: 100 * time.Second, Jitter: policy.Proportional(0.5)}
		seen := measure(p, policy.Failure{Attempt: 1}, 1000)
		require.Greater(t, seen.max-seen.min, 57*time.Second, "%d %% of the cap", share)
		require.LessOrEqual(t, seen.max, 100*time.Second)
	}
}

func TestWidthGrowsWithTheDelay(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Exponential{Base: time.Second}}
	for _, jitter := range []policy.Jitter{policy.FullJitter, policy.EqualJitter, policy.Proportional(0.1), policy.Additive(0.1)} {
		p.Jitter = jitter
		first, tenth := measure(p, policy.Failure{Attempt: 1}, 2000), measure(p, policy.Failure{Attempt: 10}, 2000)
		require.InEpsilon(t, 512, float64(tenth.max-tenth.min)/float64(first.max-first.min), 0.1, "%+v", jitter)
	}
}

func TestFloorRaisesTheLowerEnd(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Fixed(10 * time.Second), Jitter: policy.FullJitter, MinDelay: 4 * time.Second}
	seen := measure(p, policy.Failure{Attempt: 1}, 1000)
	require.GreaterOrEqual(t, seen.min, 4*time.Second)
	require.LessOrEqual(t, seen.max, 10*time.Second)
	require.Less(t, seen.atMin, 0.05, "no bunching at the floor")
	require.InDelta(t, 7*time.Second, seen.mean, float64(100*time.Millisecond))
}

func TestFloorAboveTheWholeRangeStillSpreads(t *testing.T) {
	for _, tt := range []struct {
		jitter policy.Jitter
		curve  time.Duration
		max    time.Duration
		hi     time.Duration
	}{
		{policy.FullJitter, time.Second, 0, 11 * time.Second},
		{policy.FullJitter, 10 * time.Second, 0, 20 * time.Second}, // just reaches the floor
		{policy.EqualJitter, time.Second, 0, 10500 * time.Millisecond},
		{policy.FullJitter, time.Second, 10400 * time.Millisecond, 10400 * time.Millisecond},
		{policy.NoJitter, time.Second, 0, 10 * time.Second},
		{policy.FullJitter, time.Second, 10 * time.Second, 10 * time.Second}, // nowhere to go
	} {
		p := policy.Policy{MaxAttempts: 100, Backoff: policy.Fixed(tt.curve), Jitter: tt.jitter, MinDelay: 10 * time.Second, MaxDelay: tt.max}
		require.NoError(t, p.Validate())
		seen := measure(p, policy.Failure{Attempt: 1}, 1000)
		require.GreaterOrEqual(t, seen.min, 10*time.Second)
		require.LessOrEqual(t, seen.max, tt.hi)
		require.InDelta(t, tt.hi, seen.max, float64(20*time.Millisecond))
		if tt.hi > 10*time.Second {
			require.Less(t, seen.atMin, 0.05)
		}
	}
}

func TestCapWinsOverAnUnvalidatedFloor(t *testing.T) {
	for _, jitter := range allJitters() {
		p := policy.Policy{MaxAttempts: 100, Backoff: policy.Fixed(time.Second), Jitter: jitter, MinDelay: time.Hour, MaxDelay: time.Minute}
		require.Error(t, p.Validate())
		require.Equal(t, time.Minute, p.Decide(policy.Failure{Attempt: 1}).Delay)
	}
}

func TestUserCurveJoinsInTheCap(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: quadratic{time.Minute}, Jitter: policy.Additive(0.5)}
	seen := measure(p, policy.Failure{Attempt: 50}, 1000)
	require.LessOrEqual(t, seen.max, time.Minute)
	require.Less(t, seen.atMax, 0.05)
}

// quadratic is a curve as a user may write it.
type quadratic struct{ max time.Duration }

func (q quadratic) Delay(n int) time.Duration {
	if n > 1000 {
		return q.max
	}
	return min(time.Duration(n*n)*time.Second, q.max)
}

func (q quadratic) Cap() time.Duration { return q.max }
