package analysis_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

var payments = policy.Policy{
	Name:        "payments",
	MaxAttempts: 8,
	Backoff:     policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second},
	Jitter:      policy.FullJitter,
}

func schedule(t require.TestingT, p policy.Policy, c analysis.Conditions) *analysis.Schedule {
	s, err := analysis.New(p, c)
	require.NoError(t, err)
	return s
}

func waits(s *analysis.Schedule) (earliest, mean, latest []time.Duration) {
	for _, a := range s.Attempts[1:] {
		earliest, mean, latest = append(earliest, a.Wait.Earliest), append(mean, a.Wait.Mean), append(latest, a.Wait.Latest)
	}
	return earliest, mean, latest
}

func seconds(ns ...float64) (ds []time.Duration) {
	for _, n := range ns {
		ds = append(ds, time.Duration(n*float64(time.Second)))
	}
	return ds
}

func TestFiveSecondsDoublingGiveOrTake(t *testing.T) {
	s := schedule(t, policy.Policy{
		MaxAttempts: 5,
		Backoff:     policy.Exponential{Base: 5 * time.Second, Factor: 2, Max: 300 * time.Second},
		Jitter:      policy.Proportional(0.15),
	}, analysis.Conditions{})
	earliest, mean, latest := waits(s)
	require.Equal(t, seconds(4.25, 8.5, 17, 34), earliest)
	require.Equal(t, seconds(5, 10, 20, 40), mean)
	require.Equal(t, seconds(5.75, 11.5, 23, 46), latest)
	require.Len(t, s.Attempts, 5)

	h := s.Horizon()
	require.Equal(t, analysis.Range{Earliest: 63750 * time.Millisecond, Mean: 75 * time.Second, Latest: 86250 * time.Millisecond}, h.Range)
	require.Equal(t, 5.0, h.Attempts)
	require.Zero(t, h.Error)
}

func TestHalfASecondDoublingThreeRetries(t *testing.T) {
	s := schedule(t, policy.Policy{MaxAttempts: 4, Backoff: policy.Exponential{Base: 500 * time.Millisecond}}, analysis.Conditions{})
	earliest, mean, latest := waits(s)
	require.Equal(t, seconds(0.5, 1, 2), earliest)
	require.Equal(t, seconds(0.5, 1, 2), mean)
	require.Equal(t, seconds(0.5, 1, 2), latest)
	require.Equal(t, analysis.Range{Earliest: 3500 * time.Millisecond, Mean: 3500 * time.Millisecond, Latest: 3500 * time.Millisecond}, s.Horizon().Range)
}

func TestPayments(t *testing.T) {
	s := schedule(t, payments, analysis.Conditions{})
	earliest, mean, latest := waits(s)
	require.Equal(t, seconds(0, 0, 0, 0, 0, 0, 0), earliest)
	require.Equal(t, seconds(0.25, 0.5, 1, 2, 4, 8, 15), mean)
	require.Equal(t, seconds(0.5, 1, 2, 4, 8, 16, 30), latest)
	require.Equal(t, analysis.Range{Mean: 30750 * time.Millisecond, Latest: 61500 * time.Millisecond}, s.Horizon().Range)
	for i, at := range seconds(0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 30.75) {
		require.Equal(t, at, s.Attempts[i].At.Mean)
		require.Equal(t, i+1, s.Attempts[i].Number)
	}
}

func TestAttemptsThatTakeTime(t *testing.T) {
	p := policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(10 * time.Second)}
	s := schedule(t, p, analysis.Conditions{Run: 5 * time.Second})
	require.Equal(t, 30*time.Second, s.Attempts[2].At.Mean)
	require.Equal(t, 35*time.Second, s.Horizon().Mean, "given up when the last attempt has failed")
	require.Equal(t, 1.0, s.Survival(30*time.Second).AtStart.Value)
	require.Equal(t, 0.0, s.Survival(30*time.Second+1).AtStart.Value)
}

// A broker that takes whole seconds makes every wait of up to a second one of
// a second; a longer one than it can hold is cut.
func TestBrokerRoundsAndCuts(t *testing.T) {
	s := schedule(t, policy.Policy{
		MaxAttempts: 6,
		Backoff:     policy.Steps{500 * time.Millisecond, 4 * time.Second, 7 * time.Second, 10 * time.Second, 0, time.Second},
		Jitter:      policy.FullJitter,
	}, analysis.Conditions{Broker: analysis.Broker{Limits: backend.Limits{Granularity: time.Second, MaxDelay: 8 * time.Second}}})
	earliest, mean, latest := waits(s)
	require.Equal(t, seconds(0, 0, 0, 0, 0), earliest)
	require.Equal(t, seconds(1, 4, 7, 8, 0), latest)
	for i, want := range []time.Duration{
		time.Second,             // 0 s has no width
		2500 * time.Millisecond, // 1, 2, 3 and 4 s
		4 * time.Second,         // 1 to 7 s
		5200 * time.Millisecond, // 1 to 7 s, and 8 s for three of ten
		0,
	} {
		require.InDelta(t, float64(want), float64(mean[i]), 10, "wait %d", i+1)
	}
}

func TestAgeEndsWhatIsTooOld(t *testing.T) {
	p := policy.Policy{MaxAge: time.Minute, Backoff: policy.Fixed(25 * time.Second)}
	s := schedule(t, p, analysis.Conditions{})
	require.Len(t, s.Attempts, 3, "at 0, 25 and 50 s; another would be at 75 s")
	require.False(t, s.Endless)
	h := s.Horizon()
	require.Equal(t, analysis.Range{Earliest: 50 * time.Second, Mean: 50 * time.Second, Latest: 50 * time.Second}, h.Range)
	require.False(t, h.Never)
	require.Equal(t, analysis.Share{Value: 1}, s.Survival(50*time.Second).AtStart)
	require.Equal(t, analysis.Share{Value: 0}, s.Survival(51*time.Second).AtStart)
	require.InDelta(t, 50.0/80, s.Survival(80*time.Second).Within.Value, 1e-8)
}

// With a last retry in 0 to 30 s and at most 20 s to live, two of three get it.
func TestAgeEndsSome(t *testing.T) {
	p := policy.Policy{MaxAttempts: 3, MaxAge: 20 * time.Second, Backoff: policy.Steps{1, 30 * time.Second}, Jitter: policy.FullJitter}
	s := schedule(t, p, analysis.Conditions{})
	reached := s.Attempts[2].Reached
	require.InDelta(t, 2.0/3, reached.Value, reached.Error)
	require.Less(t, reached.Error, 1e-3)
	require.InDelta(t, float64(10*time.Second), float64(s.Attempts[2].At.Mean), float64(time.Millisecond))
	require.Equal(t, 20*time.Second, s.Attempts[2].At.Latest)

	h := s.Horizon()
	require.InDelta(t, 20*time.Second/3, h.Mean, float64(h.Error))
	require.Less(t, h.Error, 10*time.Millisecond)
	require.Equal(t, time.Duration(0), h.Earliest)
	require.Equal(t, 20*time.Second, h.Latest)

	alive := s.Survival(15 * time.Second).AtStart
	require.InDelta(t, 5.0/30, alive.Value, alive.Error)
}

func TestUnlimitedAttempts(t *testing.T) {
	s := schedule(t, policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(time.Second)}, analysis.Conditions{})
	require.True(t, s.Endless)
	require.True(t, s.Horizon().Never)
	require.Len(t, s.Attempts, analysis.MaxAttempts)
	require.Equal(t, 1.0, s.Survival(time.Hour).AtStart.Value)
	beyond := s.Survival(24 * time.Hour).AtStart
	require.Less(t, beyond.Low(), 1e-6, "what is not looked at is not claimed")
	require.Greater(t, beyond.High(), 1-1e-6)
}

// There are 86 million attempts in a day. What lies beyond those that are
// looked at is bounded, not guessed.
func TestMoreAttemptsThanAreLookedAt(t *testing.T) {
	for _, jitter := range []policy.Jitter{policy.NoJitter, policy.FullJitter} {
		s := schedule(t, policy.Policy{MaxAge: 24 * time.Hour, Backoff: policy.Fixed(time.Millisecond), Jitter: jitter}, analysis.Conditions{})
		require.True(t, s.Endless)
		h := s.Horizon()
		require.False(t, h.Never)
		require.Equal(t, 24*time.Hour, h.Latest)
		require.Less(t, h.Earliest, time.Minute)
		require.LessOrEqual(t, h.Mean-h.Error, 24*time.Hour-time.Second)
		require.GreaterOrEqual(t, h.Mean+h.Error, 24*time.Hour-time.Second)
		alive := s.Survival(time.Hour).AtStart
		require.GreaterOrEqual(t, alive.High(), 1.0-1e-6)
	}
}

func TestDelaysThatSaturate(t *testing.T) {
	p := policy.Policy{MaxAttempts: 100, Backoff: policy.Exponential{Base: time.Second}, Jitter: policy.EqualJitter}
	s := schedule(t, p, analysis.Conditions{})
	require.Equal(t, time.Duration(math.MaxInt64), s.Attempts[99].At.Latest)
	for _, a := range s.Attempts[1:] {
		require.LessOrEqual(t, a.At.Earliest, a.At.Mean)
		require.LessOrEqual(t, a.At.Mean, a.At.Latest)
	}
	require.InDelta(t, 1, s.Survival(1000*time.Hour).AtStart.Value, 1e-6)
	require.NotPanics(t, func() { s.Survival(math.MaxInt64) })
}

func TestOneAttempt(t *testing.T) {
	s := schedule(t, policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(time.Second)}, analysis.Conditions{})
	require.Len(t, s.Attempts, 1)
	require.Zero(t, s.Horizon().Mean)
	require.Zero(t, s.Survival(1).AtStart.Value)
	require.Equal(t, 1.0, s.Survival(0).AtStart.Value)
}

func TestWhatHasNoSchedule(t *testing.T) {
	_, err := analysis.New(policy.Policy{}, analysis.Conditions{})
	var invalid *policy.ValidationError
	require.ErrorAs(t, err, &invalid)

	_, err = analysis.New(payments, analysis.Conditions{Err: policy.Permanent(errors.New("card expired"))})
	require.ErrorContains(t, err, "not retried")
	for _, asks := range []error{policy.Snooze(time.Second), policy.RetryAfter(time.Second, errors.New("429"))} {
		_, err = analysis.New(payments, analysis.Conditions{Err: asks})
		require.ErrorContains(t, err, "wait of its own")
	}
}
