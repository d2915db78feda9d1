package policyfile_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
