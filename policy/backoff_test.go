package policy_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/policy"
)

const maxDuration = time.Duration(math.MaxInt64)

func delays(b policy.Backoff, n int) []time.Duration {
	var ds []time.Duration
	for i := range n {
		ds = append(ds, b.Delay(i+1))
	}
	return ds
}

func TestExponentialStartsAtItsBase(t *testing.T) {
	s := time.Second
	for _, tt := range []struct {
		curve policy.Exponential
		want  []time.Duration
	}{
		{policy.Exponential{Base: 5 * s, Factor: 2}, []time.Duration{5 * s, 10 * s, 20 * s, 40 * s}},
		{policy.Exponential{Base: 5 * s}, []time.Duration{5 * s, 10 * s, 20 * s, 40 * s}},
		{policy.Exponential{Base: 5 * s, Factor: 1}, []time.Duration{5 * s, 5 * s, 5 * s, 5 * s}},
		{policy.Exponential{Base: 5 * s, Factor: 3}, []time.Duration{5 * s, 15 * s, 45 * s, 135 * s}},
		{policy.Exponential{Base: 5 * s, Factor: 1.5}, []time.Duration{5 * s, 7500 * time.Millisecond, 11250 * time.Millisecond, 16875 * time.Millisecond}},
		{policy.Exponential{Base: s, Factor: 1.1}, []time.Duration{s, 1100 * time.Millisecond, 1210 * time.Millisecond, 1331 * time.Millisecond}},
		{policy.Exponential{Base: 500 * time.Millisecond}, []time.Duration{s / 2, s, 2 * s, 4 * s}},
		{policy.Exponential{Base: 5 * s, Max: 12 * s}, []time.Duration{5 * s, 10 * s, 12 * s, 12 * s}},
		{policy.Exponential{Base: time.Minute}, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute}},
	} {
		require.Equal(t, tt.want, delays(tt.curve, 4), "%+v", tt.curve)
	}
}

func TestUncappedExponentialSaturates(t *testing.T) {
	curve := policy.Exponential{Base: time.Second}
	require.Equal(t, 8589934592*time.Second, curve.Delay(34))
	for _, n := range []int{35, 36, 63, 64, 65, 66, 128, 1000, math.MaxInt32, math.MaxInt} {
		require.Equal(t, maxDuration, curve.Delay(n), "attempt %d", n)
	}
}

// The first exponents at which each base leaves the int64.
func TestExponentialSaturatesWhereTheProductOverflows(t *testing.T) {
	for base, exponent := range map[time.Duration]int{
		1: 63, 100 * time.Millisecond: 37, 500 * time.Millisecond: 35,
		time.Second: 34, time.Minute: 28, time.Hour: 22,
	} {
		curve := policy.Exponential{Base: base}
		require.Equal(t, base<<(exponent-1), curve.Delay(exponent), "%v", base)
		require.Equal(t, maxDuration, curve.Delay(exponent+1), "%v", base)
	}
}

func TestCapHoldsWhereTheProductOverflows(t *testing.T) {
	for _, base := range []time.Duration{1, 100 * time.Millisecond, time.Second, time.Hour} {
		for _, factor := range []float64{0, 1.000001, 1.5, 2, 3, 10, 1e18, 1e19, 1e308} {
			curve := policy.Exponential{Base: base, Factor: factor, Max: 10 * time.Hour}
			for _, n := range []int{36, 37, 38, 39, 63, 64, 65, 66, 128, 10_000, math.MaxInt32, math.MaxInt} {
				d := curve.Delay(n)
				require.LessOrEqual(t, base, d, "%+v, attempt %d", curve, n)
				require.LessOrEqual(t, d, curve.Max, "%+v, attempt %d", curve, n)
			}
			require.Equal(t, curve.Max, curve.Delay(math.MaxInt32), "%+v", curve)
		}
	}
}

func TestWholeFactorsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(1, math.MaxInt64).Draw(t, "base")
		factor := rapid.Int64Range(1, 1<<53).Draw(t, "factor")
		n := rapid.IntRange(1, 70).Draw(t, "attempt")
		want := new(big.Int).Exp(big.NewInt(factor), big.NewInt(int64(n-1)), nil)
		want.Mul(want, big.NewInt(base))
		if !want.IsInt64() {
			want.SetInt64(math.MaxInt64)
		}
		d := policy.Exponential{Base: time.Duration(base), Factor: float64(factor)}.Delay(n)
		require.Equal(t, want.Int64(), int64(d))
	})
}

func TestFractionalFactorsAreCloseToExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(1, 1<<53).Draw(t, "base")
		factor := rapid.Float64Range(1.000001, 20).Draw(t, "factor")
		n := rapid.IntRange(1, 2000).Draw(t, "attempt")
		want := new(big.Float).SetPrec(2000).SetInt64(base)
		for range n - 1 {
			want.Mul(want, big.NewFloat(factor))
		}
		d := float64(policy.Exponential{Base: time.Duration(base), Factor: factor}.Delay(n))
		exact, _ := want.Float64()
		exact = min(exact, math.MaxInt64)
		require.InDelta(t, exact, d, 0.5+exact*1e-9)
	})
}

func attempts(t *rapid.T, label string) int {
	return rapid.OneOf(
		rapid.IntRange(1, 200),
		rapid.IntRange(1, math.MaxInt-1),
		rapid.IntRange(math.MaxInt-100, math.MaxInt-1),
	).Draw(t, label)
}

func growing(t *rapid.T) policy.Backoff {
	base := rapid.Int64Range(1, math.MaxInt64)
	maximum := rapid.OneOf(rapid.Just(int64(0)), base)
	if rapid.Bool().Draw(t, "linear") {
		return policy.Linear{
			Base: time.Duration(base.Draw(t, "base")),
			Step: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "step")),
			Max:  time.Duration(maximum.Draw(t, "max")),
		}
	}
	factor := rapid.OneOf(
		rapid.SampledFrom([]float64{0, 1, 1.000001, 1.0000011, 2, 3, 1e18, 1 << 63, 1e308, math.MaxFloat64}),
		rapid.Float64Range(1.000001, 1.00001), rapid.Float64Range(1.000001, 4), rapid.Float64Range(2, math.MaxFloat64),
	)
	return policy.Exponential{
		Base:   time.Duration(base.Draw(t, "base")),
		Factor: factor.Draw(t, "factor"),
		Max:    time.Duration(maximum.Draw(t, "max")),
	}
}

func TestGrowingCurvesNeverDecrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		curve := growing(t)
		n := attempts(t, "attempt")
		require.Positive(t, curve.Delay(n))
		require.LessOrEqual(t, curve.Delay(n), curve.Delay(n+1))
		require.LessOrEqual(t, curve.Delay(n), curve.Delay(math.MaxInt))
	})
}

// Factors as close to 1 as is legal have the most attempts before they
// saturate, and so the largest rounding errors.
func TestSmallestFactorNeverDecreases(t *testing.T) {
	curve := policy.Exponential{Base: 1 << 40, Factor: 1.000001}
	last := time.Duration(0)
	for n := 15_900_000; last < maxDuration; n++ {
		d := curve.Delay(n)
		require.LessOrEqual(t, last, d, "attempt %d", n)
		last = d
		require.Less(t, n, 16_000_000, "saturates sooner")
	}
}

func TestLinear(t *testing.T) {
	s := time.Second
	curve := policy.Linear{Base: s, Step: 2 * s}
	require.Equal(t, []time.Duration{s, 3 * s, 5 * s, 7 * s}, delays(curve, 4))
	curve.Max = 4 * s
	require.Equal(t, []time.Duration{s, 3 * s, 4 * s, 4 * s}, delays(curve, 4))
	require.Equal(t, 4*s, curve.Delay(math.MaxInt))
	require.Equal(t, maxDuration, policy.Linear{Base: 1, Step: maxDuration}.Delay(3))
	require.Equal(t, maxDuration, policy.Linear{Base: maxDuration, Step: 1}.Delay(2))
	require.Equal(t, maxDuration, policy.Linear{Base: s, Step: time.Hour}.Delay(math.MaxInt))
	require.Equal(t, s, policy.Linear{Base: s}.Delay(math.MaxInt))
}

func TestFixed(t *testing.T) {
	require.Equal(t, time.Minute, policy.Fixed(time.Minute).Delay(1))
	require.Equal(t, time.Minute, policy.Fixed(time.Minute).Delay(math.MaxInt))
}

func TestLastStepRepeats(t *testing.T) {
	curve := policy.Steps{time.Second, 5 * time.Second, 30 * time.Second}
	want := []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 30 * time.Second, 30 * time.Second}
	require.Equal(t, want, delays(curve, 5))
	require.Equal(t, 30*time.Second, curve.Delay(math.MaxInt))
}

func TestImmediateAttemptsComeFirst(t *testing.T) {
	curve := policy.Immediate{Attempts: 2, Then: policy.Exponential{Base: time.Second}}
	require.Equal(t, []time.Duration{0, 0, time.Second, 2 * time.Second}, delays(curve, 4))
	require.Equal(t, maxDuration, curve.Delay(math.MaxInt))
	require.Equal(t, delays(curve, 4), delays(&curve, 4), "by pointer")
	curve.Attempts = 0
	require.Equal(t, time.Second, curve.Delay(1))
}

func TestCurveHasNoMemory(t *testing.T) {
	curve := policy.Exponential{Base: time.Second}
	require.Equal(t, 4*time.Second, curve.Delay(3), "asked for nothing before")
	curve.Delay(10)
	require.Equal(t, time.Second, curve.Delay(1))
}

func TestAttemptsBelowOneCountAsOne(t *testing.T) {
	for _, curve := range []policy.Backoff{
		policy.Fixed(time.Second),
		policy.Linear{Base: time.Second, Step: time.Second},
		policy.Exponential{Base: time.Second},
		policy.Exponential{Base: time.Second, Factor: 1.5},
		policy.Steps{time.Second, time.Minute},
		policy.Func(func(n int) time.Duration { return time.Duration(n) * time.Second }),
		policy.Func(nil),
		policy.Steps(nil),
		policy.Immediate{Then: policy.Exponential{Base: time.Second}},
	} {
		for _, n := range []int{0, -1, math.MinInt32, math.MinInt} {
			require.Equal(t, time.Second, curve.Delay(n), "%T, attempt %d", curve, n)
		}
	}
	require.Zero(t, policy.Immediate{Attempts: 1, Then: policy.Fixed(1)}.Delay(math.MinInt))
}

func TestInvalidCurvesStillWait(t *testing.T) {
	nested := &policy.Immediate{}
	nested.Then = nested
	for name, tt := range map[string]struct {
		curve policy.Backoff
		want  []time.Duration
	}{
		"zero exponential":       {policy.Exponential{}, []time.Duration{time.Second, 2 * time.Second}},
		"negative base":          {policy.Exponential{Base: -1}, []time.Duration{time.Second, 2 * time.Second}},
		"base above max":         {policy.Exponential{Base: 500 * time.Millisecond, Max: time.Millisecond}, []time.Duration{time.Millisecond, time.Millisecond}},
		"negative max":           {policy.Exponential{Base: time.Second, Max: -1}, []time.Duration{time.Second, 2 * time.Second}},
		"factor not a number":    {policy.Exponential{Base: time.Second, Factor: math.NaN()}, []time.Duration{time.Second, time.Second}},
		"negative factor":        {policy.Exponential{Base: time.Second, Factor: -2}, []time.Duration{time.Second, time.Second}},
		"shrinking factor":       {policy.Exponential{Base: time.Second, Factor: 0.5}, []time.Duration{time.Second, time.Second}},
		"factor just above 1":    {policy.Exponential{Base: time.Second, Factor: 1.0000001}, []time.Duration{time.Second, time.Second}},
		"infinite factor":        {policy.Exponential{Base: time.Second, Factor: math.Inf(1)}, []time.Duration{time.Second, maxDuration}},
		"infinitely negative":    {policy.Exponential{Base: time.Second, Factor: math.Inf(-1)}, []time.Duration{time.Second, time.Second}},
		"zero linear":            {policy.Linear{}, []time.Duration{time.Second, time.Second}},
		"negative step":          {policy.Linear{Base: time.Minute, Step: -time.Second}, []time.Duration{time.Minute, time.Minute}},
		"linear base above max":  {policy.Linear{Base: time.Minute, Max: time.Second}, []time.Duration{time.Second, time.Second}},
		"zero fixed":             {policy.Fixed(0), []time.Duration{time.Second, time.Second}},
		"negative fixed":         {policy.Fixed(-1), []time.Duration{time.Second, time.Second}},
		"no steps":               {policy.Steps{}, []time.Duration{time.Second, 2 * time.Second}},
		"negative steps":         {policy.Steps{-1, -1}, []time.Duration{0, time.Second}},
		"last step zero":         {policy.Steps{time.Minute, 0}, []time.Duration{time.Minute, time.Second}},
		"nil func":               {policy.Func(nil), []time.Duration{time.Second, 2 * time.Second}},
		"zero immediate":         {policy.Immediate{}, []time.Duration{time.Second, 2 * time.Second}},
		"negative immediate":     {policy.Immediate{Attempts: math.MinInt, Then: policy.Fixed(1)}, []time.Duration{1, 1}},
		"nested immediate":       {policy.Immediate{Attempts: 1, Then: policy.Immediate{Attempts: 1, Then: policy.Fixed(1)}}, []time.Duration{0, 0, 1}},
		"immediate in itself":    {nested, []time.Duration{time.Second, 2 * time.Second}},
		"nil pointer":            {policy.Immediate{Then: (*policy.Exponential)(nil)}, []time.Duration{time.Second, 2 * time.Second}},
		"nil pointer to itself":  {policy.Immediate{Then: (*policy.Immediate)(nil)}, []time.Duration{time.Second, 2 * time.Second}},
		"too many at once":       {policy.Immediate{Attempts: math.MaxInt, Then: policy.Fixed(1)}, append(make([]time.Duration, policy.MaxImmediate), 1, 1)},
		"fallback has a maximum": {policy.Immediate{}, append(delays(policy.Exponential{Base: time.Second}, 9), 5*time.Minute, 5*time.Minute)},
	} {
		require.Equal(t, tt.want, delays(tt.curve, len(tt.want)), name)
	}
}

func TestTinyDelays(t *testing.T) {
	for _, base := range []time.Duration{1, 2, 3} {
		for _, maximum := range []time.Duration{0, 1} {
			for _, jitter := range allJitters() {
				p := policy.Policy{
					MaxAttempts: policy.Unlimited,
					Backoff:     policy.Exponential{Base: base, Max: maximum},
					Jitter:      jitter,
				}
				for n := range 64 {
					d := p.Decide(policy.Failure{Attempt: n + 1, MessageID: "m"}).Delay
					require.GreaterOrEqual(t, d, time.Duration(0))
					if maximum > 0 {
						require.LessOrEqual(t, d, maximum)
					}
				}
			}
		}
	}
}

func allJitters() []policy.Jitter {
	return []policy.Jitter{
		policy.NoJitter, policy.FullJitter, policy.EqualJitter, policy.DecorrelatedJitter,
		policy.Proportional(0.1), policy.Proportional(0.5), policy.Proportional(1),
		policy.Additive(0.1), policy.Additive(0.5), policy.Additive(1),
	}
}
