package policy_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
)

var errDown = errors.New("connection refused")

// steady has delays that a test can tell at sight: 1s, 2s, 4s, up to 1m.
func steady() policy.Policy {
	return policy.Policy{
		MaxAttempts: 5,
		Backoff:     policy.Exponential{Base: time.Second, Max: time.Minute},
	}
}

func outcome(d policy.Decision) string { return fmt.Sprintf("%v %v", d.Action, d.Reason) }

func TestLastAttemptIsDeadLettered(t *testing.T) {
	p := steady()
	var waited []time.Duration
	var last []int
	for n := 1; ; n++ {
		if p.IsLast(n) {
			last = append(last, n)
		}
		d := p.Decide(policy.Failure{Attempt: n, Err: errDown})
		if d.Action != policy.ActionRetry {
			require.Equal(t, "dead-letter exhausted", outcome(d))
			require.Zero(t, d.Delay)
			require.Equal(t, 5, n)
			break
		}
		require.Equal(t, "retry error", outcome(d))
		waited = append(waited, d.Delay)
	}
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}, waited)
	require.Equal(t, []int{5}, last)
}

func TestFiveSecondsDoubledGiveOrTake15Percent(t *testing.T) {
	p := policy.Policy{
		MaxAttempts: 5,
		Backoff:     policy.Exponential{Base: 5 * time.Second, Max: 300 * time.Second},
		Jitter:      policy.Proportional(0.15),
	}
	require.NoError(t, p.Validate())
	for i := range 1000 {
		f := policy.Failure{Err: errDown, MessageID: fmt.Sprint("order-", i)}
		for n, nominal := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second} {
			f.Attempt = n + 1
			d := p.Decide(f)
			require.Equal(t, policy.ActionRetry, d.Action)
			require.InDelta(t, nominal, d.Delay, 0.15*float64(nominal))
		}
		f.Attempt = 5
		require.Equal(t, "dead-letter exhausted", outcome(p.Decide(f)))
	}
}

func TestHalfASecondDoubledThreeRetries(t *testing.T) {
	p := policy.Policy{MaxAttempts: 4, Backoff: policy.Exponential{Base: 500 * time.Millisecond}}
	require.NoError(t, p.Validate())
	for n, want := range []time.Duration{500, 1000, 2000} {
		require.Equal(t, want*time.Millisecond, p.Decide(policy.Failure{Attempt: n + 1, Err: errDown}).Delay)
	}
	require.Equal(t, "dead-letter exhausted", outcome(p.Decide(policy.Failure{Attempt: 4, Err: errDown})))
}

func TestPaymentsExample(t *testing.T) {
	require.NoError(t, payments.Validate())
	for n := 1; n < 8; n++ {
		ceiling := min(500*time.Millisecond<<(n-1), 30*time.Second)
		d := payments.Decide(policy.Failure{Attempt: n, Err: errDown, MessageID: someID})
		require.Equal(t, "retry error", outcome(d))
		require.LessOrEqual(t, d.Delay, ceiling)
	}
	require.Equal(t, "dead-letter exhausted", outcome(payments.Decide(policy.Failure{Attempt: 8, Err: errDown})))
}

func TestMaxAttempts(t *testing.T) {
	p := steady()

	p.MaxAttempts = 1
	require.Equal(t, "dead-letter exhausted", outcome(p.Decide(policy.Failure{Attempt: 1, Err: errDown})))
	require.True(t, p.IsLast(1))

	p.MaxAttempts = policy.Unlimited
	for _, n := range []int{1, math.MaxInt32, math.MaxInt - 1, math.MaxInt} {
		require.Equal(t, "retry error", outcome(p.Decide(policy.Failure{Attempt: n, Err: errDown})))
		require.False(t, p.IsLast(n))
	}
}

func TestAttemptsBelowOneAreTheFirst(t *testing.T) {
	p := steady()
	for _, n := range []int{0, -1, math.MinInt} {
		require.Equal(t, p.Decide(policy.Failure{Attempt: 1}), p.Decide(policy.Failure{Attempt: n}))
		require.False(t, p.IsLast(n))
	}
	p.MaxAttempts = 1
	require.True(t, p.IsLast(0))
}

func TestAgeAloneCanBeTheLimit(t *testing.T) {
	p := policy.Policy{MaxAge: time.Hour, Backoff: policy.Fixed(time.Minute)}
	require.NoError(t, p.Validate())
	age := time.Duration(0)
	n := 1
	for ; ; n++ {
		d := p.Decide(policy.Failure{Attempt: n, Err: errDown, Age: age})
		require.False(t, p.IsLast(n))
		if d.Action != policy.ActionRetry {
			require.Equal(t, "dead-letter expired", outcome(d))
			break
		}
		age += d.Delay
	}
	require.Equal(t, time.Hour, age)
	require.Equal(t, 61, n)
}

func TestRetryPastTheMaximumAgeIsGivenUpNow(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, MaxAge: time.Hour, Backoff: policy.Fixed(10 * time.Minute)}
	for _, tt := range []struct {
		age  time.Duration
		want string
	}{
		{0, "retry error"},
		{-time.Hour, "retry error"},
		{50 * time.Minute, "retry error"},
		{50*time.Minute + 1, "dead-letter expired"},
		{59 * time.Minute, "dead-letter expired"},
		{time.Hour, "dead-letter expired"},
		{maxDuration, "dead-letter expired"},
	} {
		d := p.Decide(policy.Failure{Attempt: 1, Err: errDown, Age: tt.age})
		require.Equal(t, tt.want, outcome(d), "age %v", tt.age)
		if d.Action != policy.ActionRetry {
			require.Zero(t, d.Delay)
		}
	}

	// An immediate retry at that very age would not run past it, but the
	// message has used its time up.
	p.Backoff = policy.Immediate{Attempts: 1, Then: p.Backoff}
	require.Equal(t, "retry error", outcome(p.Decide(policy.Failure{Age: time.Hour - 1})))
	require.Equal(t, "dead-letter expired", outcome(p.Decide(policy.Failure{Age: time.Hour})))
}

// The age counts from the enqueue, whatever part of it the handler ran for:
// Decide knows no other clock.
func TestMaxAgeIncludesTheTimeThatHandlersRan(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, MaxAge: time.Hour, Backoff: policy.Fixed(time.Minute)}
	enqueued := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	clock := enqueued.Add(5 * time.Minute)
	const run = 14 * time.Minute
	failures := 0
	for {
		clock = clock.Add(run)
		failures++
		d := p.Decide(policy.Failure{Attempt: failures, Err: errDown, Age: clock.Sub(enqueued)})
		if d.Action != policy.ActionRetry {
			require.Equal(t, policy.ReasonExpired, d.Reason)
			break
		}
		clock = clock.Add(d.Delay)
	}
	// Failed at 19m, 34m, 49m and 64m.
	require.Equal(t, 4, failures)
}

func TestOrderOfLimits(t *testing.T) {
	p := steady()
	p.MaxAge = time.Hour
	p.MaxSnoozes = 1
	last := policy.Failure{Attempt: 5, Age: 2 * time.Hour, Snoozes: 1, Cause: policy.ReasonTimeout}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{policy.Discard(errDown), "discard discarded"},
		{policy.Permanent(errDown), "dead-letter permanent"},
		{policy.Snooze(time.Second), "dead-letter snooze_limit"},
		{policy.RetryAfter(time.Second, errDown), "dead-letter exhausted"},
		{errDown, "dead-letter exhausted"},
		{nil, "dead-letter exhausted"},
	} {
		last.Err = tt.err
		require.Equal(t, tt.want, outcome(p.Decide(last)), "%v", tt.err)
	}
	last.Attempt = 4
	last.Err = errDown
	require.Equal(t, "dead-letter expired", outcome(p.Decide(last)))
	last.Snoozes = 0
	last.Err = policy.Snooze(time.Second)
	require.Equal(t, "dead-letter expired", outcome(p.Decide(last)))
}

func TestCauseIsTheReasonOfAPlainRetry(t *testing.T) {
	p := steady()
	for cause, want := range map[policy.Reason]policy.Reason{
		"":                      policy.ReasonError,
		policy.ReasonError:      policy.ReasonError,
		policy.ReasonTimeout:    policy.ReasonTimeout,
		policy.ReasonPanic:      policy.ReasonPanic,
		policy.ReasonDiscarded:  policy.ReasonError,
		"order 4711 not found ": policy.ReasonError,
	} {
		d := p.Decide(policy.Failure{Attempt: 1, Cause: cause})
		require.Equal(t, policy.ActionRetry, d.Action)
		require.Equal(t, want, d.Reason)
	}
}

func TestSnoozesAreNotCharged(t *testing.T) {
	p := steady()
	f := policy.Failure{Attempt: 1, Err: policy.Snooze(time.Second)}
	for ; f.Snoozes < 1200; f.Snoozes++ {
		d := p.Decide(f)
		require.Equal(t, "retry snoozed", outcome(d))
		require.True(t, d.Uncharged)
		require.Equal(t, time.Second, d.Delay)
	}
	f.Err = errDown
	d := p.Decide(f)
	require.Equal(t, "retry error", outcome(d))
	require.False(t, d.Uncharged)
	require.Equal(t, time.Second, d.Delay, "the delay after attempt 1")
}

func TestSnoozesAreBounded(t *testing.T) {
	p := steady()
	snooze := func(p policy.Policy, before int) string {
		return outcome(p.Decide(policy.Failure{Attempt: 1, Err: policy.Snooze(time.Second), Snoozes: before}))
	}
	require.Equal(t, "retry snoozed", snooze(p, policy.DefaultMaxSnoozes-1))
	require.Equal(t, "dead-letter snooze_limit", snooze(p, policy.DefaultMaxSnoozes))
	p.MaxSnoozes = 3
	require.Equal(t, "retry snoozed", snooze(p, -1))
	require.Equal(t, "retry snoozed", snooze(p, 2))
	require.Equal(t, "dead-letter snooze_limit", snooze(p, 3))
	require.Equal(t, "dead-letter snooze_limit", snooze(p, math.MaxInt))
	p.MaxSnoozes = policy.Unlimited
	require.Equal(t, "retry snoozed", snooze(p, math.MaxInt))
}

func TestSnoozeIsPossibleOnTheLastAttempt(t *testing.T) {
	d := steady().Decide(policy.Failure{Attempt: 5, Err: policy.Snooze(time.Second)})
	require.Equal(t, "retry snoozed", outcome(d))
}

func TestSnoozeWaitsWhatItSays(t *testing.T) {
	p := steady()
	p.MinDelay = 10 * time.Second
	p.Jitter = policy.FullJitter
	snooze := func(d time.Duration) time.Duration {
		return p.Decide(policy.Failure{Attempt: 1, Err: policy.Snooze(d), MessageID: someID}).Delay
	}
	require.Equal(t, time.Second, snooze(time.Second), "no floor")
	require.Equal(t, time.Hour, snooze(time.Hour), "no cap")
	require.Equal(t, 24*time.Hour, snooze(maxDuration), "the default of MaxRetryAfter")
	p.MaxRetryAfter = time.Minute
	require.Equal(t, time.Minute, snooze(time.Hour))
}

func TestSnoozeWithoutALengthDoesNotSpin(t *testing.T) {
	p := steady()
	p.Backoff = policy.Immediate{Attempts: 3, Then: policy.Fixed(time.Minute)}
	for _, err := range []error{policy.Snooze(0), policy.Snooze(-time.Hour), policy.ErrSnooze} {
		for _, n := range []int{1, 3, 4} {
			d := p.Decide(policy.Failure{Attempt: n, Err: err})
			require.Equal(t, "retry snoozed", outcome(d))
			require.Equal(t, time.Minute, d.Delay)
		}
	}
	p.MaxRetryAfter = time.Second
	require.Equal(t, time.Second, p.Decide(policy.Failure{Attempt: 1, Err: policy.ErrSnooze}).Delay)
}

func TestAdmit(t *testing.T) {
	p := steady()
	p.MaxAge = 1 // plays no part
	for _, tt := range []struct {
		lapses, attempts int // maxima
		receipt          policy.Receipt
		want             string
	}{
		{0, 1, policy.Receipt{Attempt: 1}, ""},
		{0, 1, policy.Receipt{Attempt: 2}, "dead-letter exhausted"},
		{0, 1, policy.Receipt{Attempt: 33}, "dead-letter exhausted"},
		{0, 5, policy.Receipt{Attempt: 5}, ""},
		{0, 5, policy.Receipt{Attempt: 0, Lapses: -1}, ""},
		{0, 5, policy.Receipt{Attempt: 1, Lapses: 10}, ""},
		{0, 5, policy.Receipt{Attempt: 1, Lapses: 11}, "dead-letter abandoned"},
		{3, 5, policy.Receipt{Attempt: 1, Lapses: 3}, ""},
		{3, 5, policy.Receipt{Attempt: 1, Lapses: 4}, "dead-letter abandoned"},
		{3, 5, policy.Receipt{Attempt: 6, Lapses: 4}, "dead-letter abandoned"},
		{policy.NoLapses, 5, policy.Receipt{Attempt: 1}, ""},
		{policy.NoLapses, 5, policy.Receipt{Attempt: 1, Lapses: 1}, "dead-letter abandoned"},
		{policy.Unlimited, policy.Unlimited, policy.Receipt{Attempt: math.MaxInt, Lapses: math.MaxInt}, ""},
	} {
		p.MaxLapses, p.MaxAttempts = tt.lapses, tt.attempts
		d, ok := p.Admit(tt.receipt)
		if tt.want == "" {
			require.True(t, ok, "%+v", tt)
			require.Zero(t, d, "%+v", tt)
			continue
		}
		require.False(t, ok, "%+v", tt)
		require.Equal(t, tt.want, outcome(d), "%+v", tt)
	}
}

// A consumer that dies with a message at work is told apart from a handler
// that fails, even where one attempt is all there is.
func TestCrashIsNoFailure(t *testing.T) {
	once := policy.Policy{MaxAttempts: 1, MaxLapses: policy.NoLapses, Backoff: policy.Fixed(time.Second)}
	require.NoError(t, once.Validate())
	d, ok := once.Admit(policy.Receipt{Attempt: 1, Lapses: 1})
	require.False(t, ok)
	require.Equal(t, policy.ReasonAbandoned, d.Reason)

	once.MaxLapses = 1
	_, ok = once.Admit(policy.Receipt{Attempt: 1, Lapses: 1})
	require.True(t, ok)
}

func TestRetryAfterIsAFloor(t *testing.T) {
	p := steady()
	retry := func(n int, hint time.Duration) time.Duration {
		d := p.Decide(policy.Failure{Attempt: n, Err: policy.RetryAfter(hint, errDown), MessageID: someID})
		require.Equal(t, "retry retry_after", outcome(d))
		return d.Delay
	}
	require.Equal(t, 30*time.Second, retry(1, 30*time.Second), "longer than the policy's")
	require.Equal(t, 8*time.Second, retry(4, time.Second), "shorter than the policy's")
	require.Equal(t, time.Hour, retry(1, time.Hour), "above the cap of a minute")
	require.Equal(t, 24*time.Hour, retry(1, 9223372036*time.Second), "above the maximum")
	require.Equal(t, 2*time.Second, retry(2, 0))
	require.Equal(t, 2*time.Second, retry(2, -time.Hour))

	p.MaxRetryAfter = time.Hour
	require.Equal(t, time.Hour, retry(1, maxDuration))

	p.Jitter = policy.Additive(1)
	require.Equal(t, time.Hour, retry(1, maxDuration), "clamped exactly, jitter or not")

	p.MaxRetryAfter = time.Second
	p.Jitter = policy.NoJitter
	require.Equal(t, 8*time.Second, retry(4, time.Hour), "the maximum bounds the hint, not the policy's delay")
}

func TestHugeRetryAfterHeader(t *testing.T) {
	p := steady()
	p.MaxRetryAfter = time.Hour
	for _, header := range []string{"9999999999", "9223372037", "9223372036854775807", "99999999999999999999"} {
		hint, ok := policy.ParseRetryAfter(header, time.Now())
		require.True(t, ok)
		f := policy.Failure{Attempt: 1, Err: policy.RetryAfter(hint, errDown)}
		p.MaxAge = 0
		require.Equal(t, time.Hour, p.Decide(f).Delay, header)
		p.MaxAge = 30 * time.Minute
		require.Equal(t, "dead-letter expired", outcome(p.Decide(f)), header)
	}
}

func TestJitterOnlyProlongsRetryAfter(t *testing.T) {
	const hint = 30 * time.Second
	for _, tt := range []struct {
		jitter policy.Jitter
		width  time.Duration // on a delay of 8s
	}{
		{policy.NoJitter, 0},
		{policy.FullJitter, 8 * time.Second},
		{policy.EqualJitter, 4 * time.Second},
		{policy.Proportional(0.25), 4 * time.Second},
		{policy.Additive(0.25), 2 * time.Second},
		{policy.DecorrelatedJitter, 11 * time.Second}, // 1s to 12s
	} {
		p := steady()
		p.Jitter = tt.jitter
		seen := measure(p, policy.Failure{Attempt: 4, Err: policy.RetryAfter(hint, errDown)}, 2000)
		require.GreaterOrEqual(t, seen.min, hint, "%+v", tt)
		require.LessOrEqual(t, seen.max, hint+tt.width, "%+v", tt)
		require.InDelta(t, tt.width, seen.max-seen.min, 0.01*float64(tt.width), "%+v", tt)
		require.InDelta(t, hint+tt.width/2, seen.mean, 0.05*float64(tt.width), "%+v", tt)
	}
}

// Where the policy would retry at once there is no range to take the spread
// from, and a server that says "in 30 seconds" needs one all the same.
func TestRetryAfterOnAnImmediateAttemptSpreads(t *testing.T) {
	p := steady()
	p.Backoff = policy.Immediate{Attempts: 3, Then: p.Backoff}
	p.Jitter = policy.FullJitter
	for n := 1; n <= 3; n++ {
		f := policy.Failure{Attempt: n, Err: policy.RetryAfter(30*time.Second, errDown)}
		seen := measure(p, f, 1000)
		require.GreaterOrEqual(t, seen.min, 30*time.Second)
		require.LessOrEqual(t, seen.max, 31*time.Second, "the first range that there is")
		require.Greater(t, seen.max-seen.min, 900*time.Millisecond)

		f.Err = policy.RetryAfter(0, errDown)
		require.Zero(t, measure(p, f, 100).max)
	}
}

func TestHintSaturates(t *testing.T) {
	p := policy.Policy{
		MaxAttempts:   policy.Unlimited,
		MaxRetryAfter: maxDuration,
		Backoff:       policy.Exponential{Base: time.Second},
		Jitter:        policy.FullJitter,
	}
	f := policy.Failure{Attempt: math.MaxInt, Err: policy.RetryAfter(maxDuration, errDown)}
	seen := measure(p, f, 100)
	require.Equal(t, maxDuration, seen.min)
}

func TestImmediateRetriesHaveNoFloorAndNoJitter(t *testing.T) {
	p := policy.Policy{
		MaxAttempts: 10,
		Backoff:     policy.Immediate{Attempts: 2, Then: policy.Exponential{Base: time.Second}},
		Jitter:      policy.DecorrelatedJitter,
		MinDelay:    500 * time.Millisecond,
	}
	require.NoError(t, p.Validate())
	for n, want := range [][2]time.Duration{
		{0, 0}, {0, 0},
		{time.Second, 3 * time.Second}, {time.Second, 3 * time.Second}, {time.Second, 6 * time.Second},
	} {
		seen := measure(p, policy.Failure{Attempt: n + 1}, 1000)
		require.InDelta(t, want[0], seen.min, 0.01*float64(want[1]), "attempt %d", n+1)
		require.InDelta(t, want[1], seen.max, 0.01*float64(want[1]), "attempt %d", n+1)
		require.GreaterOrEqual(t, seen.min, want[0])
		require.LessOrEqual(t, seen.max, want[1])
	}
}

func TestCapHoldsOverAnyCurve(t *testing.T) {
	fibonacci := policy.Func(func(n int) time.Duration {
		a, b := time.Duration(1), time.Duration(1)
		for range min(n, 200) {
			a, b = b, a+b // overflows from 91 on
		}
		return a * time.Millisecond
	})
	polynomial := policy.Func(func(n int) time.Duration {
		return time.Duration(math.Pow(float64(n), 3) * float64(time.Second))
	})
	for name, curve := range map[string]policy.Backoff{
		"exponential": policy.Exponential{Base: time.Second},
		"linear":      policy.Linear{Base: time.Second, Step: time.Hour},
		"fixed":       policy.Fixed(time.Hour),
		"steps":       policy.Steps{time.Second, maxDuration},
		"fibonacci":   fibonacci,
		"polynomial":  polynomial,
		"negative":    policy.Func(func(int) time.Duration { return -5 * time.Second }),
		"least":       policy.Func(func(int) time.Duration { return math.MinInt64 }),
		"largest":     policy.Func(func(int) time.Duration { return math.MaxInt64 }),
	} {
		for _, jitter := range allJitters() {
			p := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: curve, Jitter: jitter, MaxDelay: time.Minute, MinDelay: time.Millisecond}
			for n := 1; n <= 2000; n += 1 + n/100 {
				d := p.Decide(policy.Failure{Attempt: n}).Delay
				require.GreaterOrEqual(t, d, p.MinDelay, "%s, %v", name, jitter)
				require.LessOrEqual(t, d, p.MaxDelay, "%s, %v", name, jitter)
			}
			require.LessOrEqual(t, p.Decide(policy.Failure{Attempt: math.MaxInt}).Delay, p.MaxDelay)
		}
	}
}

func TestNegativeDelayOfACurveIsToldInTheExplanation(t *testing.T) {
	for _, raw := range []time.Duration{-5 * time.Second, math.MinInt64} {
		p := steady()
		p.Backoff = policy.Func(func(int) time.Duration { return raw })
		d := p.Decide(policy.Failure{Attempt: 1})
		require.Zero(t, d.Delay, "0 and not the cap")
		require.Contains(t, d.Explain(), raw.String()+" taken as 0s")
		p.MinDelay = time.Second
		require.Equal(t, time.Second, p.Decide(policy.Failure{Attempt: 1}).Delay, "the floor")
	}
}

func TestLowerOfTwoCapsHolds(t *testing.T) {
	for _, tt := range []struct{ curve, policy, want time.Duration }{
		{time.Minute, time.Hour, time.Minute},
		{time.Hour, time.Minute, time.Minute},
		{0, time.Minute, time.Minute},
		{time.Minute, 0, time.Minute},
		{-1, time.Minute, time.Minute},
		{time.Minute, -1, time.Minute},
	} {
		for _, curve := range []policy.Backoff{
			policy.Exponential{Base: time.Second, Max: tt.curve},
			&policy.Exponential{Base: time.Second, Max: tt.curve},
			policy.Linear{Base: time.Second, Step: time.Second, Max: tt.curve},
			policy.Immediate{Attempts: 1, Then: policy.Exponential{Base: time.Second, Max: tt.curve}},
		} {
			p := policy.Policy{MaxAttempts: 1000, Backoff: curve, MaxDelay: tt.policy, Jitter: policy.Additive(0.5)}
			seen := measure(p, policy.Failure{Attempt: 999}, 200)
			require.LessOrEqual(t, seen.max, tt.want)
			require.Greater(t, seen.max, tt.want*98/100)
			require.InDelta(t, tt.want*2/3, seen.min, 0.02*float64(tt.want))
		}
	}
}

func TestUnvalidatedPoliciesEnd(t *testing.T) {
	for _, p := range []policy.Policy{
		{},
		{MaxAttempts: -1},
		{MaxAttempts: math.MinInt, MaxAge: -1},
	} {
		require.Error(t, p.Validate())
		f := policy.Failure{Attempt: 1}
		for ; ; f.Attempt++ {
			d := p.Decide(f)
			if d.Action != policy.ActionRetry {
				require.Equal(t, "dead-letter exhausted", outcome(d))
				break
			}
			require.GreaterOrEqual(t, d.Delay, time.Second, "a hot loop")
		}
		require.Equal(t, 10, f.Attempt)
	}

	d := policy.Policy{MaxAttempts: -1, MaxAge: time.Hour}.Decide(policy.Failure{Attempt: 1000})
	require.Equal(t, "retry error", outcome(d), "with a MaxAge there is a limit")
}

func TestInjectedSourceDecides(t *testing.T) {
	p := payments
	least, most := fixedSource(0), fixedSource(math.MaxUint64)
	f := policy.Failure{Attempt: 3, MessageID: someID}

	p.Rand = policy.NewRand(least)
	require.Zero(t, p.Decide(f).Delay)
	p.Rand = policy.NewRand(most)
	require.Equal(t, 2*time.Second, p.Decide(f).Delay)

	p.Rand = policy.NewRand(nil)
	require.Nil(t, p.Rand)
	require.Equal(t, payments.Decide(f), p.Decide(f))
	p.Rand = new(policy.Rand)
	require.Equal(t, payments.Decide(f), p.Decide(f))
}

type fixedSource uint64

func (s fixedSource) Uint64() uint64 { return uint64(s) }

func TestSaturatedDelayWithTheLargestDrawIsTheLargestDuration(t *testing.T) {
	for _, jitter := range allJitters() {
		for _, u := range []uint64{0, 1, 1 << 63, math.MaxUint64} {
			p := policy.Policy{
				MaxAttempts: policy.Unlimited,
				Backoff:     policy.Exponential{Base: time.Second},
				Jitter:      jitter,
				Rand:        policy.NewRand(fixedSource(u)),
			}
			for n := 1; n <= 10_000; n += 7 {
				d := p.Decide(policy.Failure{Attempt: n}).Delay
				require.GreaterOrEqual(t, d, time.Duration(0))
				if u == math.MaxUint64 && n > 35 {
					require.Greater(t, d, maxDuration-2, "%+v", jitter)
				}
			}
		}
	}
}

func TestSeededSourceIsReproducible(t *testing.T) {
	run := func() (ds []time.Duration) {
		p := payments
		p.Rand = policy.NewRand(rand.NewPCG(1, 2))
		for range 100 {
			ds = append(ds, p.Decide(policy.Failure{Attempt: 3, MessageID: "the same"}).Delay)
		}
		return ds
	}
	first := run()
	require.Equal(t, first, run())
	require.NotEqual(t, first[0], first[1])
}

func TestReasonsAreAFixedSet(t *testing.T) {
	all := policy.Reasons()
	require.Len(t, all, 11)
	known := map[policy.Reason]bool{}
	for _, r := range all {
		require.Regexp(t, `^[a-z_]+$`, string(r))
		require.False(t, known[r], "twice")
		known[r] = true
	}
	all[0] = "changed"
	require.Equal(t, policy.ReasonError, policy.Reasons()[0])

	seen := map[policy.Reason]bool{}
	p := steady()
	p.MaxAge = time.Hour
	p.MaxSnoozes = 5000
	for i := range 10_000 {
		id := fmt.Sprint("message ", i)
		errs := []error{
			errors.New(id), policy.Permanent(errors.New(id)), policy.Discard(errors.New(id)),
			policy.Snooze(time.Duration(i)), policy.RetryAfter(time.Duration(i), errors.New(id)),
		}
		causes := []policy.Reason{"", policy.ReasonTimeout, policy.ReasonPanic, policy.Reason(id)}
		d := p.Decide(policy.Failure{
			Attempt: i % 7, Err: errs[i%len(errs)], Cause: causes[i/5%len(causes)],
			MessageID: id, Age: time.Duration(i%11) * 10 * time.Minute, Snoozes: i,
		})
		seen[d.Reason] = true
		if d, ok := p.Admit(policy.Receipt{Attempt: i % 13, Lapses: i % 17}); !ok {
			seen[d.Reason] = true
		}
	}
	require.Equal(t, known, seen, "every reason occurs, and no other")
}
