package analysis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/analysis"
)

func TestAdviceIsEnoughAndNoMoreThanNeeded(t *testing.T) {
	a, err := analysis.Advise(payments, 90*time.Second, 0.999, analysis.Conditions{})
	require.NoError(t, err)
	require.False(t, a.Enough)
	codes := make(map[string]analysis.Option)
	for i, o := range a.Options {
		codes[o.Code] = o
		require.NoError(t, o.Policy.Validate(), o.Text)
		s := schedule(t, o.Policy, analysis.Conditions{})
		require.GreaterOrEqual(t, s.Survival(90*time.Second).AtStart.Low(), 0.999, o.Text)
		require.Equal(t, s.Horizon(), o.Horizon)
		if i > 0 {
			require.GreaterOrEqual(t, o.Horizon.Mean, a.Options[i-1].Horizon.Mean, "the cheapest comes first")
		}
	}
	require.Contains(t, codes, "attempts")
	require.Contains(t, codes, "base")
	require.Contains(t, codes, "floor")
	require.NotContains(t, codes, "jitter", "equal jitter gives up after 61.5 s at the latest")

	fewer := codes["attempts"].Policy
	fewer.MaxAttempts--
	require.Less(t, schedule(t, fewer, analysis.Conditions{}).Survival(90*time.Second).AtStart.Low(), 0.999)
}

func TestNoAdviceWhereNoneIsNeeded(t *testing.T) {
	a, err := analysis.Advise(payments, 5*time.Second, 0.99, analysis.Conditions{})
	require.NoError(t, err)
	require.True(t, a.Enough)
	require.Empty(t, a.Options)
}

func TestAdviceRaisesTheMaximumAge(t *testing.T) {
	t.Parallel()
	p := payments
	p.MaxAge = time.Minute
	a, err := analysis.Advise(p, 90*time.Second, 1, analysis.Conditions{})
	require.NoError(t, err)
	require.NotEmpty(t, a.Options)
	for _, o := range a.Options {
		require.Contains(t, o.Text, "maximum age")
		require.Equal(t, "100 %", o.Survival.AtStart.Percent(), o.Text)
	}
}

func TestAdviceWantsAShare(t *testing.T) {
	for _, want := range []float64{0, -1, 1.01, 99} {
		_, err := analysis.Advise(payments, time.Minute, want, analysis.Conditions{})
		require.ErrorContains(t, err, "at most 1")
	}
}

func TestEveryAdviceHolds(t *testing.T) {
	t.Parallel()
	policies := rapid.Custom(anyPolicy)
	held := 0
	for seed := range 12 {
		p := policies.Example(seed)
		if p.Validate() != nil || p.MaxAttempts == 0 {
			continue // there are as many attempts as there is time for
		}
		outage, want := time.Duration(seed+1)*2*time.Second, 1-float64(seed%5)/10
		a, err := analysis.Advise(p, outage, want, analysis.Conditions{})
		require.NoError(t, err)
		for _, o := range a.Options {
			held++
			s := schedule(t, o.Policy, analysis.Conditions{})
			require.GreaterOrEqual(t, s.Survival(outage).AtStart.Low(), want-1e-8, o.Text)
		}
	}
	require.Greater(t, held, 5)
}

func ExampleAdvise() {
	advice, err := analysis.Advise(payments, 90*time.Second, 0.999, analysis.Conditions{})
	if err != nil {
		panic(err)
	}
	fmt.Printf("now: %s, given up after %s\n", advice.Now.AtStart.Percent(), analysis.Text(advice.Horizon.Mean))
	for _, o := range advice.Options {
		fmt.Printf("%s: %s, given up after %s\n", o.Text, o.Survival.AtStart.Percent(), analysis.Text(o.Horizon.Mean))
	}
	// Output:
	// now: 0 %, given up after 30.8s
	// a floor of 13s (MinDelay) under every wait: 100 %, given up after 1m49s
	// 18 attempts instead of 8: > 99.9 %, given up after 3m1s
	// a first delay of 1m15s instead of 500ms, and a cap of 1m15s: > 99.9 %, given up after 4m23s
}
