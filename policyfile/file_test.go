package policyfile_test

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/policyfile"
)

const document = `
default: standard
policies:
  standard:
    max_attempts: 8
    backoff: {curve: exponential, base: 500ms, max: 30s}
    jitter: full
  patient:
    extends: standard
    max_attempts: unlimited
    max_age: 24h
    max_lapses: none
    max_snoozes: 5
    min_delay: 1s
    max_delay: 10s
    max_retry_after: 1h
    jitter: {kind: proportional, fraction: 0.15}
  stubborn:
    max_age: 1h30m
    backoff: {curve: fixed, delay: 5s, immediate: 2}
  listed:
    max_attempts: 3
    backoff:
      curve: steps
      steps: [0, 1s, 1m]
  slow:
    max_attempts: 3
    backoff: {curve: linear, base: 1s, step: 0, max: 1m}
    rules:
      - {name: busy, class: throttled, max_attempts: unlimited, backoff: {curve: fixed, delay: 1m, immediate: 1}}
      - {class: [permanent, http-503, ours], action: dead-letter}
      - {class: timeout, action: retry, max_attempts: 5}
      - {class: sqlstate-23505, action: discard}
queues:
  orders:
    policy: patient
    types: {refund: slow}
  invoices:
    types: {refund: listed}
types:
  refund: stubborn
`

func parse(t *testing.T, name, text string) *policyfile.File {
	t.Helper()
	f, err := policyfile.Parse(name, []byte(text), policyfile.Options{Classes: map[string]policy.Matcher{"ours": policy.Is(io.EOF)}})
	require.NoError(t, err)
	return f
}

func TestFieldsBecomePolicies(t *testing.T) {
	f := parse(t, "policies.yaml", document)
	s := time.Second
	rules := f.Policies["slow"].Rules
	ours := rules[1].Match.(policy.AnyOf)[2]
	require.True(t, ours.Match(io.EOF))
	require.False(t, ours.Match(io.ErrUnexpectedEOF))
	require.Equal(t, []policy.Rule{
		{Name: "busy", Match: classify.Throttled, MaxAttempts: policy.Unlimited, Backoff: policy.Immediate{Attempts: 1, Then: policy.Fixed(60 * s)}},
		{Match: policy.AnyOf{classify.Permanent, classify.Class("http-503"), ours}, Action: policy.ActionDeadLetter},
		{Match: classify.Timeout, Action: policy.ActionRetry, MaxAttempts: 5},
		{Match: classify.Class("sqlstate-23505"), Action: policy.ActionDiscard},
	}, rules)
	require.Equal(t, map[string]policy.Policy{
		"standard": {Name: "standard", MaxAttempts: 8, Backoff: policy.Exponential{Base: s / 2, Max: 30 * s}, Jitter: policy.FullJitter},
		"patient": {
			Name: "patient", MaxAttempts: policy.Unlimited, MaxAge: 24 * time.Hour, MaxLapses: policy.NoLapses, MaxSnoozes: 5,
			MinDelay: s, MaxDelay: 10 * s, MaxRetryAfter: time.Hour,
			Backoff: policy.Exponential{Base: s / 2, Max: 30 * s}, Jitter: policy.Proportional(0.15),
		},
		"stubborn": {Name: "stubborn", MaxAge: 90 * time.Minute, Backoff: policy.Immediate{Attempts: 2, Then: policy.Fixed(5 * s)}},
		"listed":   {Name: "listed", MaxAttempts: 3, Backoff: policy.Steps{0, s, 60 * s}},
		"slow":     {Name: "slow", MaxAttempts: 3, Backoff: policy.Linear{Base: s, Max: 60 * s}, Rules: rules},
	}, f.Policies)
}

func TestTheNarrowestNameGoverns(t *testing.T) {
	f := parse(t, "policies.yaml", document)
	for _, tt := range []struct{ queue, messageType, want string }{
		{"", "", "standard"},
		{"other", "other", "standard"},
		{"orders", "", "patient"},
		{"orders", "other", "patient"},
		{"orders", "refund", "slow"},
		{"invoices", "refund", "listed"},
		{"invoices", "", "standard"},
		{"other", "refund", "stubborn"},
	} {
		require.Equal(t, tt.want, f.NameFor(tt.queue, tt.messageType), "%+v", tt)
		require.Equal(t, tt.want, f.For(tt.queue, tt.messageType).Name, "%+v", tt)
		headers := map[string]string{"type": tt.messageType}
		d := &backend.Delivery{Queue: tt.queue, Message: backend.Message{Headers: headers}}
		require.Equal(t, tt.want, f.Choose("type")(d), "%+v", tt)
	}
}

func TestFilesGoRound(t *testing.T) {
	f := parse(t, "policies.yaml", document)
	asJSON, err := f.JSON()
	require.NoError(t, err)
	require.Equal(t, f, parse(t, "policies.json", string(asJSON)))
	require.Equal(t, f, parse(t, "policies", string(asJSON)), "by its first character")
	asYAML, err := f.YAML()
	require.NoError(t, err)
	require.Equal(t, f, parse(t, "policies.yaml", string(asYAML)))
	again, err := f.YAML()
	require.NoError(t, err)
	require.Equal(t, string(asYAML), string(again))
}

// Whatever policy can be written is read back as the same, to the last digit of its numbers.
func TestAnyPolicyGoesRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duration := func(label string, least time.Duration) time.Duration {
			most := rapid.SampledFrom([]time.Duration{1, time.Millisecond, time.Minute, 1000 * time.Hour}).Draw(t, "magnitude")
			return least + time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, label))
		}
		name := rapid.StringOf(rapid.RuneFrom(nil, unicode.L, unicode.N, unicode.P, unicode.S, unicode.Zs))
		count := rapid.SampledFrom([]int{0, 1, 7, policy.Unlimited})
		backoff := func() (b policy.Backoff) {
			base := duration("base", 1)
			switch rapid.IntRange(0, 3).Draw(t, "curve") {
			case 0:
				b = policy.Fixed(base)
			case 1:
				b = policy.Linear{Base: base, Step: duration("step", 0), Max: base + duration("max", 0)}
			case 2:
				b = policy.Exponential{Base: base, Factor: rapid.OneOf(rapid.Just(0.0), rapid.Just(1.0), rapid.Float64Range(1.000001, 1e300)).Draw(t, "factor")}
			case 3:
				b = policy.Steps{duration("first", 0), base}
			}
			if n := rapid.IntRange(0, policy.MaxImmediate).Draw(t, "immediate"); n > 0 {
				b = policy.Immediate{Attempts: n, Then: b}
			}
			return b
		}
		fraction := rapid.Float64Range(0, 1).Draw(t, "fraction")
		p := policy.Policy{
			Name: "p", MaxAttempts: count.Draw(t, "attempts"), MaxSnoozes: count.Draw(t, "snoozes"),
			MaxLapses: rapid.OneOf(count, rapid.Just(policy.NoLapses)).Draw(t, "lapses"),
			MaxAge:    duration("age", 0), MinDelay: duration("floor", 0), MaxDelay: duration("cap", 0), MaxRetryAfter: duration("hint", 0),
			Backoff: backoff(),
			Jitter: rapid.SampledFrom([]policy.Jitter{
				policy.NoJitter, policy.FullJitter, policy.EqualJitter, policy.DecorrelatedJitter, policy.Proportional(fraction), policy.Additive(fraction),
			}).Draw(t, "jitter"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "rules") {
			r := policy.Rule{Name: name.Draw(t, "name"), Match: policy.AnyOf{classify.Throttled, classify.Class("http-503")}, Action: policy.ActionDiscard}
			if rapid.Bool().Draw(t, "retries") {
				r.Match, r.Action, r.MaxAttempts, r.Backoff = classify.Timeout, policy.ActionRetry, count.Draw(t, "attempts"), backoff()
			}
			p.Rules = append(p.Rules, r)
		}
		if p.Validate() != nil {
			t.Skip("not valid")
		}
		f := &policyfile.File{
			Default: "p", Policies: map[string]policy.Policy{"p": p},
			Queues: map[string]policyfile.Queue{name.Draw(t, "queue"): {Policy: "p", Types: map[string]string{name.Draw(t, "type"): "p"}}},
			Types:  map[string]string{name.Draw(t, "type"): "p"},
		}
		if rapid.Bool().Draw(t, "wishes") {
			f.Wishes = []string{"p"}
		}
		for name, marshal := range map[string]func() ([]byte, error){"p.json": f.JSON, "p.yaml": f.YAML} {
			data, err := marshal()
			require.NoError(t, err)
			read, err := policyfile.Parse(name, data, policyfile.Options{})
			require.NoError(t, err)
			require.Equal(t, f, read, string(data))
		}
	})
}

// What no file can hold is not written as something else.
func TestWhatNoFileHolds(t *testing.T) {
	for text, change := range map[string]func(*policy.Policy){
		`its Name is "q"`:            func(p *policy.Policy) { p.Name = "q" },
		"the Backoff is policy.Func": func(p *policy.Policy) { p.Backoff = policy.Func(func(int) time.Duration { return 1 }) },
		"random source":              func(p *policy.Policy) { p.Rand = policy.NewRand(rand.NewPCG(1, 2)) },
		"Rules[0].the Match is":      func(p *policy.Policy) { p.Rules = []policy.Rule{{Match: policy.Is(io.EOF)}} },
		"would not be valid":         func(p *policy.Policy) { p.MaxAttempts = 0 },
	} {
		p := policy.Policy{Name: "p", MaxAttempts: 5, Backoff: policy.Fixed(time.Second)}
		change(&p)
		f := &policyfile.File{Default: "p", Policies: map[string]policy.Policy{"p": p}}
		_, err := f.YAML()
		require.ErrorContains(t, err, text)
	}
}
