package policy_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
)

func TestMaxBackoffAndMaxWait(t *testing.T) {
	s := time.Second
	exponential := policy.Exponential{Base: s}
	own := policy.Func(func(n int) time.Duration { return time.Duration(n%50) * s })
	for _, tt := range []struct {
		policy        policy.Policy
		backoff, wait time.Duration
	}{
		{policy.Policy{MaxAttempts: 1, Backoff: exponential}, 0, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential}, 8 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential, MaxRetryAfter: s}, 8 * s, 8 * s},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential, Jitter: policy.FullJitter}, 8 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential, Jitter: policy.Additive(1)}, 16 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential, Jitter: policy.Additive(1), MaxDelay: 10 * s}, 10 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential, Jitter: policy.DecorrelatedJitter}, 12 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential, MinDelay: time.Minute}, time.Minute, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: exponential, MaxAge: 5 * s}, 5 * s, 5 * s},
		{policy.Policy{MaxAge: 48 * time.Hour, Backoff: exponential}, 48 * time.Hour, 48 * time.Hour},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: exponential}, maxDuration, maxDuration},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Linear{Base: s, Step: s, Max: time.Hour}}, time.Hour, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 4, Backoff: policy.Steps{time.Minute, s, 2 * s, time.Hour}}, time.Minute, 24 * time.Hour},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Steps{time.Minute, s}}, time.Minute, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 2, Backoff: policy.Steps{s, time.Minute}, Jitter: policy.DecorrelatedJitter}, 3 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 9, Backoff: policy.Steps{s, time.Minute}, Jitter: policy.DecorrelatedJitter}, 3 * time.Minute, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 3, Backoff: policy.Immediate{Attempts: 2, Then: exponential}}, 0, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: policy.Immediate{Attempts: 2, Then: exponential}}, 2 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 40, Backoff: own}, 39 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 1000, Backoff: own}, 49 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: own}, maxDuration, maxDuration},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: own, MaxDelay: time.Hour}, time.Hour, 24 * time.Hour},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: quadratic{time.Hour}}, time.Hour, 24 * time.Hour},
		{policy.Policy{}, 256 * s, 24 * time.Hour},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Steps(nil)}, 5 * time.Minute, 24 * time.Hour},
		{policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Func(nil)}, 5 * time.Minute, 24 * time.Hour},
		{policy.Policy{MaxAttempts: 5, Backoff: policy.Steps(nil), MinDelay: 48 * time.Hour}, 5 * time.Minute, 24 * time.Hour},
	} {
		require.Equal(t, tt.backoff, tt.policy.MaxBackoff(), "%+v", tt.policy)
		require.Equal(t, tt.wait, tt.policy.MaxWait(), "%+v", tt.policy)
	}
}

func TestLapseLimit(t *testing.T) {
	for lapses, want := range map[int]int{
		0: policy.DefaultMaxLapses, 3: 3, policy.NoLapses: 0, policy.Unlimited: policy.Unlimited, -2: policy.DefaultMaxLapses,
	} {
		require.Equal(t, want, policy.Policy{MaxLapses: lapses}.LapseLimit())
	}
}

func TestExplain(t *testing.T) {
	p := payments
	p.MaxAge = time.Hour
	f := func(change func(*policy.Failure)) policy.Decision {
		f := policy.Failure{Attempt: 3, Err: fmt.Errorf("secret: %w", errDown), MessageID: "secret"}
		change(&f)
		return p.Decide(f)
	}
	admit := func(r policy.Receipt) policy.Decision {
		d, _ := p.Admit(r)
		return d
	}
	plain := func(*policy.Failure) {}
	marked := func(err error) func(*policy.Failure) { return func(f *policy.Failure) { f.Err = err } }
	const retry = "retry in 281.837576ms: "

	require.Equal(t, retry+"attempt 3 of 8 failed; exponential backoff 2s, full jitter from 0s to 2s", f(plain).Explain())
	require.Equal(t, retry+"attempt 3 of 8 timed out; exponential backoff 2s, full jitter from 0s to 2s",
		f(func(f *policy.Failure) { f.Cause = policy.ReasonTimeout }).Explain())
	require.Equal(t, retry+"attempt 3 of 8 panicked; exponential backoff 2s, full jitter from 0s to 2s",
		f(func(f *policy.Failure) { f.Cause = policy.ReasonPanic }).Explain())
	require.Equal(t, "dead-letter: attempt 8 of 8 failed, the last",
		f(func(f *policy.Failure) { f.Attempt = 8 }).Explain())
	require.Equal(t, "dead-letter: attempt 3 of 8 failed with an error marked permanent",
		f(marked(policy.Permanent(errDown))).Explain())
	require.Equal(t, "discard: attempt 3 of 8 failed with an error marked to discard",
		f(marked(policy.Discard(errDown))).Explain())
	require.Equal(t, "dead-letter: attempt 3 of 8 failed at an age of 59m59.9s, and a retry in 281.837576ms would be past the maximum age of 1h0m0s; "+
		"exponential backoff 2s, full jitter from 0s to 2s",
		f(func(f *policy.Failure) { f.Age = 59*time.Minute + 59*time.Second + 900*time.Millisecond }).Explain())
	require.Equal(t, "dead-letter: attempt 3 of 8 failed at an age of 2h0m0s, no less than the maximum age of 1h0m0s; "+
		"exponential backoff 2s, full jitter from 0s to 2s",
		f(func(f *policy.Failure) { f.Age = 2 * time.Hour }).Explain())
	require.Equal(t, "retry in 5s, uncharged: attempt 3 of 8 asked to wait, snooze 1 of 10000; the error asked for 5s",
		f(marked(policy.Snooze(5*time.Second))).Explain())
	require.Equal(t, "dead-letter: snoozed 10000 times already, at most 10000 are allowed",
		f(func(f *policy.Failure) { f.Err, f.Snoozes = policy.Snooze(1), 10000 }).Explain())
	require.Equal(t, "dead-letter: 11 deliveries ended without an outcome, at most 10 may",
		admit(policy.Receipt{Attempt: 1, Lapses: 11}).Explain())
	require.Equal(t, "dead-letter: received as attempt 9 of 8, already beyond the last",
		admit(policy.Receipt{Attempt: 9}).Explain())
	require.Equal(t, "none", admit(policy.Receipt{Attempt: 1}).Explain())

	p.Jitter = policy.NoJitter
	require.Equal(t, "retry in 1m0s: attempt 3 of 8 failed; exponential backoff 2s; the error asked for 1m0s",
		f(marked(policy.RetryAfter(time.Minute, errDown))).Explain())
	p.MaxRetryAfter = 30 * time.Second
	p.Jitter = policy.EqualJitter
	require.Equal(t, "retry in 30s: attempt 3 of 8 failed; exponential backoff 2s, equal jitter from 1s to 2s; "+
		"the error asked for 1m0s, spread by up to 1s, at most 30s is allowed",
		f(marked(policy.RetryAfter(time.Minute, errDown))).Explain())

	p = policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Exponential{Base: time.Second, Max: time.Minute}}
	require.Equal(t, "retry in 1m0s: attempt 1000 failed; exponential backoff 1m0s",
		f(func(f *policy.Failure) { f.Attempt = 1000 }).Explain())
	p.MaxDelay = 3 * time.Second
	require.Equal(t, "retry in 3s: attempt 3 failed; exponential backoff 4s capped at 3s", f(plain).Explain())
	p.MaxDelay, p.MinDelay = 0, 10*time.Second
	require.Equal(t, "retry in 10s: attempt 3 failed; exponential backoff 4s, not below 10s", f(plain).Explain())
	p.MinDelay = 0
	for curve, text := range map[string]policy.Backoff{
		"retry in 1s: attempt 3 failed; fixed backoff 1s":          policy.Fixed(time.Second),
		"retry in 1s: attempt 3 failed; linear backoff 1s":         policy.Linear{Base: time.Second},
		"retry in 1s: attempt 3 failed; backoff by steps 1s":       policy.Steps{time.Second},
		"retry in 9s: attempt 3 failed; backoff 9s":                quadratic{time.Minute},
		"retry at once: attempt 3 failed; an immediate retry":      policy.Immediate{Attempts: 3, Then: policy.Fixed(1)},
		"retry at once: attempt 3 failed; backoff -1s taken as 0s": policy.Func(func(int) time.Duration { return -time.Second }),
	} {
		p.Backoff = text
		require.Equal(t, curve, f(plain).Explain())
	}
}

// An explanation ends up in logs.
func TestExplanationHoldsNothingOfTheMessage(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("canary"), policy.Permanent(fmt.Errorf("canary")), policy.Discard(fmt.Errorf("canary")),
		policy.RetryAfter(1, fmt.Errorf("canary")),
	} {
		for n := range 10 {
			d := payments.Decide(policy.Failure{Attempt: n, Err: err, MessageID: "canary", Cause: "canary"})
			require.NotContains(t, d.Explain(), "canary")
		}
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, "none retry dead-letter discard Action(9)",
		fmt.Sprint(policy.Action(0), " ", policy.ActionRetry, " ", policy.ActionDeadLetter, " ", policy.ActionDiscard, " ", policy.Action(9)))
	require.Equal(t, "none full equal proportional additive decorrelated JitterKind(99)",
		fmt.Sprint(policy.JitterNone, " ", policy.JitterFull, " ", policy.JitterEqual, " ", policy.JitterProportional, " ",
			policy.JitterAdditive, " ", policy.JitterDecorrelated, " ", policy.JitterKind(99)))
}

func TestDecisionsCanBeCompared(t *testing.T) {
	p := steady()
	p.Backoff = policy.Steps{time.Second} // neither slices nor functions may get into a decision
	first := p.Decide(policy.Failure{Attempt: 1})
	require.True(t, first == p.Decide(policy.Failure{Attempt: 1}))
	require.False(t, p.Decide(policy.Failure{Attempt: 1}) == p.Decide(policy.Failure{Attempt: 2}))
}

func TestExplainOfAnyDecision(t *testing.T) {
	for action := range 5 {
		for _, reason := range append(policy.Reasons(), "", "other") {
			d := policy.Decision{Action: policy.Action(action), Reason: reason, Delay: math.MinInt64}
			require.NotEmpty(t, d.Explain())
		}
	}
}
