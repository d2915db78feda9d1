package analysis_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/policy"
)

func TestCompareFindsNoDifferenceInEqualPolicies(t *testing.T) {
	c, err := analysis.Compare(payments, payments, analysis.Conditions{})
	require.NoError(t, err)
	require.Empty(t, c.Changes)
	require.Empty(t, c.Survivals)
}

func TestCompareNotesEveryField(t *testing.T) {
	changes := map[string]func(*policy.Policy){
		"attempts: 9 attempts, before: 8":                func(p *policy.Policy) { p.MaxAttempts = 9 },
		"attempts: unlimited attempts, before: 8":        func(p *policy.Policy) { p.MaxAttempts = policy.Unlimited },
		"backoff: 500ms, doubling, at most 1m, before":   func(p *policy.Policy) { p.Backoff = policy.Exponential{Base: time.Second / 2, Max: time.Minute} },
		"backoff: 3 at once, then 5s, before":            func(p *policy.Policy) { p.Backoff = policy.Immediate{Attempts: 3, Then: policy.Fixed(5 * time.Second)} },
		"backoff: 1s, growing by 2s, before":             func(p *policy.Policy) { p.Backoff = policy.Linear{Base: time.Second, Step: 2 * time.Second} },
		"backoff: steps of 1s, 1m30s, before":            func(p *policy.Policy) { p.Backoff = policy.Steps{time.Second, 90 * time.Second} },
		"backoff: 1s, growing by the factor 1.5, before": func(p *policy.Policy) { p.Backoff = policy.Exponential{Base: time.Second, Factor: 1.5} },
		"jitter: no jitter, before: full jitter":         func(p *policy.Policy) { p.Jitter = policy.NoJitter },
		"jitter: jitter ±15 %, before":                   func(p *policy.Policy) { p.Jitter = policy.Proportional(0.15) },
		"jitter: jitter +20 %, before":                   func(p *policy.Policy) { p.Jitter = policy.Additive(0.2) },
		"floor: 2s, before: none":                        func(p *policy.Policy) { p.MinDelay = 2 * time.Second },
		"cap: 10s, before: none":                         func(p *policy.Policy) { p.MaxDelay = 10 * time.Second },
		"maximum age: 1h, before: none":                  func(p *policy.Policy) { p.MaxAge = time.Hour },
		"longest Retry-After: 2h, before: 24h":           func(p *policy.Policy) { p.MaxRetryAfter = 2 * time.Hour },
		"snoozes: 3, before: 10000":                      func(p *policy.Policy) { p.MaxSnoozes = 3 },
		"rules: 1 for throttled or a function: discard at once, before: none": func(p *policy.Policy) {
			p.Rules = []policy.Rule{{Match: policy.AnyOf{classify.Throttled, policy.MatchFunc(func(error) bool { return false })}, Action: policy.ActionDiscard}}
		},
		"lapses: 3, before: 10":                                     func(p *policy.Policy) { p.MaxLapses = 3 },
		"a poison message is retried for ever":                      func(p *policy.Policy) { p.MaxAttempts = policy.Unlimited },
		"it costs 9 calls, before: 8":                               func(p *policy.Policy) { p.MaxAttempts = 9 },
		"the first retry comes after 500ms on average, before: 250": func(p *policy.Policy) { p.Jitter = policy.NoJitter },
	}
	compared := make(map[string]bool)
	for text, change := range changes {
		p := payments
		change(&p)
		for _, field := range reflect.VisibleFields(reflect.TypeFor[policy.Policy]()) {
			if !reflect.DeepEqual(reflect.ValueOf(p).FieldByIndex(field.Index).Interface(), reflect.ValueOf(payments).FieldByIndex(field.Index).Interface()) {
				compared[field.Name] = true
			}
		}
		c, err := analysis.Compare(payments, p, analysis.Conditions{}, time.Second)
		require.NoError(t, err, text)
		require.Contains(t, fmt.Sprint(c.Changes), text)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[policy.Policy]()) {
		if field.Name != "Name" && field.Name != "Rand" {
			require.True(t, compared[field.Name], "a change of %s is a change", field.Name)
		}
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
	// a poison message is given up after 1m31s on average (0s to 3m2s), before: 30.8s (0s to 1m2s): 2.95 times as long
	// it costs 12 calls, before: 8
	// outage of 30s: > 99.9 % survive, before: 52.5 %
	// outage of 1m30s: 51.4 % survive, before: 0 %
}
