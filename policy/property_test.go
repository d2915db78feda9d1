package policy_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/policy"
)

func anyInt(t *rapid.T, label string) int {
	return rapid.OneOf(
		rapid.IntRange(-3, 100), rapid.Int(),
		rapid.SampledFrom([]int{math.MinInt, math.MaxInt, math.MaxInt - 1, math.MaxInt32}),
	).Draw(t, label)
}

func anyDuration(t *rapid.T, label string) time.Duration {
	return time.Duration(rapid.OneOf(
		rapid.Int64Range(-3, 3), rapid.Int64Range(0, int64(time.Hour)), rapid.Int64(),
		rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, math.MaxInt64 - 1}),
	).Draw(t, label))
}

func anyFloat(t *rapid.T, label string) float64 {
	return rapid.OneOf(
		rapid.Float64Range(-1, 4), rapid.Float64(), rapid.Float64Range(1, 1.00001),
		rapid.SampledFrom([]float64{0, 1, 2, 3, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64}),
	).Draw(t, label)
}

func anyBackoff(t *rapid.T, depth int) policy.Backoff {
	kinds := 8
	if depth > 3 {
		kinds = 7
	}
	switch rapid.IntRange(0, kinds).Draw(t, "curve") {
	case 0:
		return nil
	case 1:
		return policy.Fixed(anyDuration(t, "delay"))
	case 2:
		return policy.Linear{Base: anyDuration(t, "base"), Step: anyDuration(t, "step"), Max: anyDuration(t, "max")}
	case 3:
		return policy.Exponential{Base: anyDuration(t, "base"), Factor: anyFloat(t, "factor"), Max: anyDuration(t, "max")}
	case 4:
		steps := policy.Steps{}
		for range rapid.IntRange(0, 5).Draw(t, "steps") {
			steps = append(steps, anyDuration(t, "step"))
		}
		return steps
	case 5:
		d := anyDuration(t, "returned")
		return policy.Func(func(n int) time.Duration { return d ^ time.Duration(n) })
	case 6:
		return policy.Func(nil)
	case 7:
		return (*policy.Linear)(nil)
	default:
		return policy.Immediate{Attempts: anyInt(t, "immediate"), Then: anyBackoff(t, depth+1)}
	}
}

// anyPolicy has whatever its fields can hold, garbage included.
func anyPolicy(t *rapid.T) policy.Policy {
	return policy.Policy{
		MaxAttempts:   anyInt(t, "max attempts"),
		MaxLapses:     anyInt(t, "max lapses"),
		MaxSnoozes:    anyInt(t, "max snoozes"),
		MaxAge:        rapid.SampledFrom([]time.Duration{0, anyDuration(t, "max age")}).Draw(t, "max age or none"),
		Backoff:       anyBackoff(t, 0),
		Jitter:        policy.Jitter{Kind: policy.JitterKind(rapid.IntRange(0, 7).Draw(t, "jitter")), Fraction: anyFloat(t, "fraction")},
		MinDelay:      anyDuration(t, "min delay"),
		MaxDelay:      anyDuration(t, "max delay"),
		MaxRetryAfter: anyDuration(t, "max retry after"),
	}
}

func anyFailure(t *rapid.T) policy.Failure {
	err := errDown
	switch rapid.IntRange(0, 9).Draw(t, "error") {
	case 0:
		err = policy.RetryAfter(anyDuration(t, "hint"), io.EOF)
	case 1:
		err = policy.Snooze(anyDuration(t, "snooze"))
	case 2:
		err = errors.Join(policy.ErrSnooze, io.EOF)
	case 3:
		err = policy.Permanent(io.EOF)
	case 4:
		err = policy.Discard(io.EOF)
	case 5:
		err = nil
	}
	return policy.Failure{
		Attempt:   anyInt(t, "attempt"),
		Err:       err,
		Cause:     policy.Reason(rapid.SampledFrom([]string{"", "error", "timeout", "panic", "x"}).Draw(t, "cause")),
		MessageID: rapid.String().Draw(t, "id"),
		Age:       anyDuration(t, "age"),
		Snoozes:   anyInt(t, "snoozes"),
	}
}

func TestAnyPolicyDecidesSoundly(t *testing.T) {
	reasons := map[policy.Reason]bool{}
	for _, r := range policy.Reasons() {
		reasons[r] = true
	}
	rapid.Check(t, func(t *rapid.T) {
		p, f := anyPolicy(t), anyFailure(t)
		d := p.Decide(f)
		require.Equal(t, d, p.Decide(f), "a pure function")
		require.GreaterOrEqual(t, d.Delay, time.Duration(0))
		require.True(t, reasons[d.Reason], "%q", d.Reason)
		require.NotEmpty(t, d.Explain())
		require.LessOrEqual(t, d.Delay, p.MaxWait())

		if d.Action != policy.ActionRetry {
			require.Zero(t, d.Delay)
			require.False(t, d.Uncharged)
		} else {
			require.Equal(t, d.Reason == policy.ReasonSnoozed, d.Uncharged)
			require.False(t, p.IsLast(f.Attempt) && !d.Uncharged, "retried after the last attempt")
			if p.MaxAge > 0 {
				require.LessOrEqual(t, d.Delay, p.MaxAge-max(f.Age, 0))
			}
			if _, hinted := policy.Hint(f.Err); !hinted {
				require.LessOrEqual(t, d.Delay, p.MaxBackoff())
				if p.MaxDelay > 0 {
					require.LessOrEqual(t, d.Delay, p.MaxDelay)
				}
				if _, immediate := p.Backoff.(policy.Immediate); !immediate {
					require.GreaterOrEqual(t, d.Delay, min(p.MinDelay, p.MaxBackoff()))
				}
			}
		}

		admitted, ok := p.Admit(policy.Receipt{Attempt: f.Attempt, Lapses: anyInt(t, "lapses")})
		require.Equal(t, ok, admitted.Action == 0)
		if f.Attempt > 0 && p.IsLast(f.Attempt) && f.Attempt < math.MaxInt {
			_, ok := p.Admit(policy.Receipt{Attempt: f.Attempt + 1})
			require.False(t, ok, "the attempt after the last")
		}
		if err := p.Validate(); err != nil {
			require.NotEmpty(t, err.Error())
		}
	})
}

func anyJitter(t *rapid.T) policy.Jitter {
	f := rapid.Float64Range(0, 1).Draw(t, "fraction")
	return rapid.SampledFrom([]policy.Jitter{
		policy.NoJitter, policy.FullJitter, policy.EqualJitter, policy.Proportional(f), policy.Additive(f), policy.DecorrelatedJitter,
	}).Draw(t, "jitter")
}

func TestDelaysStayBetweenFloorAndCap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: growing(t), Jitter: anyJitter(t)}
		p.MaxDelay = time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "max delay"))
		limit := maxDuration
		for _, d := range []time.Duration{p.MaxDelay, p.Backoff.(policy.Capped).Cap()} {
			if d > 0 {
				limit = min(limit, d)
			}
		}
		p.MinDelay = time.Duration(rapid.Int64Range(0, int64(limit)).Draw(t, "min delay"))
		n := attempts(t, "attempt")
		for _, source := range []*policy.Rand{nil, policy.NewRand(fixedSource(0)), policy.NewRand(fixedSource(math.MaxUint64))} {
			p.Rand = source
			d := p.Decide(policy.Failure{Attempt: n, MessageID: rapid.String().Draw(t, "id")}).Delay
			require.GreaterOrEqual(t, d, p.MinDelay)
			require.LessOrEqual(t, d, limit)
		}
	})
}

func TestDelaysWithoutJitterNeverDecrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policy.Policy{
			MaxAttempts: policy.Unlimited,
			Backoff:     policy.Immediate{Attempts: rapid.IntRange(0, policy.MaxImmediate).Draw(t, "immediate"), Then: growing(t)},
			MinDelay:    time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "min delay")),
			MaxDelay:    time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "max delay")),
		}
		n := attempts(t, "attempt")
		require.LessOrEqual(t, p.Decide(policy.Failure{Attempt: n}).Delay, p.Decide(policy.Failure{Attempt: n + 1}).Delay)
	})
}

func TestHintIsNeverShortened(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: growing(t), Jitter: anyJitter(t)}
		p.MaxRetryAfter = time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "max retry after"))
		hint := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "hint"))
		f := policy.Failure{Attempt: attempts(t, "attempt"), MessageID: rapid.String().Draw(t, "id")}
		without := p.Decide(f).Delay
		f.Err = policy.RetryAfter(hint, errDown)
		with := p.Decide(f).Delay
		require.GreaterOrEqual(t, with, without, "the policy's own delay holds")
		require.GreaterOrEqual(t, with, min(hint, p.MaxRetryAfter))
		require.LessOrEqual(t, with, max(without, p.MaxRetryAfter))
	})
}

func FuzzDecide(f *testing.F) {
	f.Add(8, int64(0), int64(500*time.Millisecond), 0.0, int64(30*time.Second), uint8(1), 0.0, int64(0), int64(0), 3, "m", int64(0), int64(0))
	f.Add(5, int64(0), int64(5*time.Second), 2.0, int64(300*time.Second), uint8(3), 0.15, int64(0), int64(0), 4, "order-1", int64(0), int64(time.Minute))
	f.Add(0, int64(time.Hour), int64(1), 1.000001, int64(0), uint8(5), 1.0, int64(math.MaxInt64), int64(1), math.MaxInt, "", int64(time.Hour), int64(-1))
	f.Add(-1, int64(-1), int64(math.MinInt64), math.Inf(-1), int64(math.MaxInt64), uint8(255), -1.0, int64(-1), int64(math.MinInt64), math.MinInt, "\x00", int64(math.MinInt64), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, maxAttempts int, maxAge, base int64, factor float64, most int64, kind uint8, fraction float64,
		minDelay, maxDelay int64, attempt int, id string, age, hint int64) {
		p := policy.Policy{
			MaxAttempts: maxAttempts,
			MaxAge:      time.Duration(maxAge),
			Backoff:     policy.Exponential{Base: time.Duration(base), Factor: factor, Max: time.Duration(most)},
			Jitter:      policy.Jitter{Kind: policy.JitterKind(kind), Fraction: fraction},
			MinDelay:    time.Duration(minDelay),
			MaxDelay:    time.Duration(maxDelay),
		}
		failure := policy.Failure{Attempt: attempt, MessageID: id, Age: time.Duration(age)}
		d := p.Decide(failure)
		if d.Delay < 0 || d.Delay > p.MaxBackoff() || d.Explain() == "" {
			t.Fatalf("%+v: %v", p, d)
		}
		if most > 0 && d.Delay > time.Duration(most) {
			t.Fatalf("%v is above the cap of %v", d.Delay, time.Duration(most))
		}
		failure.Err = policy.RetryAfter(time.Duration(hint), errDown)
		if hinted := p.Decide(failure); hinted.Action == policy.ActionRetry && hinted.Delay < d.Delay {
			t.Fatalf("a hint shortened %v to %v", d.Delay, hinted.Delay)
		}
		if p.Validate() == nil && attempt > 0 && attempt < math.MaxInt {
			curve := p.Backoff
			if a, b := curve.Delay(attempt), curve.Delay(attempt+1); a <= 0 || a > b {
				t.Fatalf("%+v: %v after attempt %d, then %v", curve, a, attempt, b)
			}
		}
	})
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, header := range []string{
		"120", "9223372037", "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
		"Thursday, 29-Feb-00 00:00:00 GMT", "-5", "1.5", "", "5;x", "2026-03-01T12:00:42Z",
	} {
		f.Add(header, int64(1772366400))
	}
	f.Add("Sun, 01 Mar 9999 12:00:00 GMT", int64(-62135596800))
	f.Fuzz(func(t *testing.T, header string, now int64) {
		d, ok := policy.ParseRetryAfter(header, time.Unix(now, 0))
		if d < 0 || !ok && d != 0 {
			t.Fatalf("%q: %v, %v", header, d, ok)
		}
		again, okAgain := policy.ParseRetryAfter(fmt.Sprintf(" %s\t", header), time.Unix(now, 0))
		if again != d || okAgain != ok {
			t.Fatalf("%q: spaces make it %v, %v", header, again, okAgain)
		}
	})
}
