package analysis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/policy"
)

func TestCompareFindsNoDifferenceInEqualPolicies(t *testing.T) {
	c, err := analysis.Compare(payments, payments, analysis.Conditions{})
	require.NoError(t, err)
	require.Empty(t, c.Changes)
	require.Empty(t, c.Survivals)
}

func TestCompareNotesEveryField(t *testing.T) {
	for text, change := range map[string]func(*policy.Policy){
		"attempts: 9 attempts, before: 8":                           func(p *policy.Policy) { p.MaxAttempts = 9 },
		"attempts: unlimited attempts, before: 8":                   func(p *policy.Policy) { p.MaxAttempts = policy.Unlimited },
		"backoff: 500ms, doubling, at most 1m, before":              func(p *policy.Policy) { p.Backoff = policy.Exponential{Base: time.Second / 2, Max: time.Minute} },
		"backoff: 3 at once, then 5s, before":                       func(p *policy.Policy) { p.Backoff = policy.Immediate{Attempts: 3, Then: policy.Fixed(5 * time.Second)} },
		"backoff: 1s, growing by 2s, before":                        func(p *policy.Policy) { p.Backoff = policy.Linear{Base: time.Second, Step: 2 * time.Second} },
		"backoff: steps of 1s, 1m30s, before":                       func(p *policy.Policy) { p.Backoff = policy.Steps{time.Second, 90 * time.Second} },
		"backoff: 1s, growing by the factor 1.5, before":            func(p *policy.Policy) { p.Backoff = policy.Exponential{Base: time.Second, Factor: 1.5} },
		"jitter: no jitter, before: full jitter":                    func(p *policy.Policy) { p.Jitter = policy.NoJitter },
		"jitter: jitter ±15 %, before":                              func(p *policy.Policy) { p.Jitter = policy.Proportional(0.15) },
		"jitter: jitter +20 %, before":                              func(p *policy.Policy) { p.Jitter = policy.Additive(0.2) },
		"floor: 2s, before: none":                                   func(p *policy.Policy) { p.MinDelay = 2 * time.Second },
		"cap: 10s, before: none":                                    func(p *policy.Policy) { p.MaxDelay = 10 * time.Second },
		"maximum age: 1h, before: none":                             func(p *policy.Policy) { p.MaxAge = time.Hour },
		"longest Retry-After: 2h, before: none":                     func(p *policy.Policy) { p.MaxRetryAfter = 2 * time.Hour },
		"lapses: 3, before: 10":                                     func(p *policy.Policy) { p.MaxLapses = 3 },
		"a poison message is retried for ever":                      func(p *policy.Policy) { p.MaxAttempts = policy.Unlimited },
		"it costs 9 calls, before: 8":                               func(p *policy.Policy) { p.MaxAttempts = 9 },
		"the first retry comes after 500ms on average, before: 250": func(p *policy.Policy) { p.Jitter = policy.NoJitter },
	} {
		p := payments
		change(&p)
		c, err := analysis.Compare(payments, p, analysis.Conditions{}, time.Second)
		require.NoError(t, err, text)
		require.Contains(t, fmt.Sprint(c.Changes), text)
	}
}

func TestCompareSaysWhichPolicyIsNotValid(t *testing.T) {
	_, err := analysis.Compare(policy.Policy{}, payments, analysis.Conditions{})
	require.ErrorContains(t, err, "old")
	_, err = analysis.Compare(payments, policy.Policy{}, analysis.Conditions{})
	require.ErrorContains(t, err, "new")
}

func ExampleCompare() {
	patient := payments
	patient.MaxAttempts = 12
	c, err := analysis.Compare(payments, patient, analysis.Conditions{}, 30*time.Second, 90*time.Second)
	if err != nil {
		panic(err)
	}
	for _, change := range c.Changes {
		fmt.Println(change)
	}
	for _, s := range c.Survivals {
		fmt.Printf("outage of %s: %s survive, before: %s\n", analysis.Text(s.New.Outage), s.New.AtStart.Percent(), s.Old.AtStart.Percent())
	}
	// Output:
	// attempts: 12 attempts, before: 8 attempts
	// a poison message is given up after 1m31s on average (0s to 3m2s), before: 30.8s (0s to 1m2s), so 2.95 times as much, later
	// it costs 12 calls, before: 8
	// outage of 30s: > 99.9 % survive, before: 52.5 %
	// outage of 1m30s: 51.4 % survive, before: 0 %
}
