package policyfile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
	"github.com/redeliver/redeliver/policyfile"
)

func withEnviron(variables ...string) (*policyfile.File, error) {
	return policyfile.Parse("p.yaml", []byte(`
default: p
policies:
  p: &p {max_attempts: 5, backoff: &b {curve: exponential, base: 1s}, jitter: {kind: additive, fraction: 0.1}}
  p-2: {extends: p}
  alias: {max_attempts: 5, backoff: *b}
`), policyfile.Options{Environ: variables})
}

func TestTheEnvironmentOverridesTheFile(t *testing.T) {
	f, err := withEnviron(
		"PATH=/bin", "REDELIVER_POSTGRES_URL=x", "=C:=x",
		"REDELIVER_POLICY_P_MAX_ATTEMPTS=3", "REDELIVER_POLICY_P_MAX_AGE=1h", "REDELIVER_POLICY_P_BACKOFF_BASE=2s",
		"REDELIVER_POLICY_P_BACKOFF_FACTOR=1.5", "REDELIVER_POLICY_P_JITTER_FRACTION=0.5",
		"REDELIVER_POLICY_P_2_MAX_ATTEMPTS=unlimited", "REDELIVER_POLICY_P_2_JITTER=full",
	)
	require.NoError(t, err)
	require.Equal(t, policy.Policy{
		Name: "p", MaxAttempts: 3, MaxAge: time.Hour, Jitter: policy.Additive(0.5),
		Backoff: policy.Exponential{Base: 2 * time.Second, Factor: 1.5},
	}, f.Policies["p"])
	require.Equal(t, policy.Policy{
		Name: "p-2", MaxAttempts: policy.Unlimited, Backoff: policy.Exponential{Base: time.Second}, Jitter: policy.FullJitter,
	}, f.Policies["p-2"], "what extends the policy stays as it is")
	require.Equal(t, policy.Exponential{Base: time.Second}, f.Policies["alias"].Backoff, "and so does what shares its curve")
}

func TestTheEnvironmentIsAsStrictAsTheFile(t *testing.T) {
	for variable, want := range map[string]string{
		"REDELIVER_POLICY_P_MAX_AGE=5":                "environment variable REDELIVER_POLICY_P_MAX_AGE: policies.p.max_age: is 5, without a unit",
		"REDELIVER_POLICY_P_MAX_ATTEMPTS=":            `policies.p.max_attempts: is "": want 1`,
		"REDELIVER_POLICY_P_MAX_ATTEMTPS=5":           "policies.p: it names no field (did you mean MAX_ATTEMPTS?)",
		"REDELIVER_POLICY_Q_MAX_ATTEMPTS=5":           "it names no policy: want REDELIVER_POLICY_, the name of a policy and a field; policies are alias, p, p-2",
		"REDELIVER_POLICY_=5":                         "it names no policy",
		"REDELIVER_POLICY_ALIAS_JITTER_KIND=additive": "policies.alias.jitter: there is no mapping of that name in the file",
		"REDELIVER_POLICY_P_BACKOFF_DELAY=5s":         "policies.p.backoff.delay: unknown key",
		"REDELIVER_POLICY_P_BACKOFF_MAX=1ms":          "environment variable REDELIVER_POLICY_P_BACKOFF_MAX: policies.p.backoff.max: is 1ms: want at least base, which is 1s",
		"REDELIVER_POLICY_P_EXTENDS=p-2":              "it names no field",
	} {
		_, err := withEnviron(variable)
		require.ErrorContains(t, err, want, variable)
	}
	_, err := policyfile.Parse("p.yaml", []byte(`
default: a-b
policies:
  a-b: {max_attempts: 5, backoff: {curve: fixed, delay: 1s}}
  a.b: {extends: a-b}
`), policyfile.Options{Environ: []string{"REDELIVER_POLICY_A_B_MAX_ATTEMPTS=5"}})
	require.ErrorContains(t, err, "the policies a-b and a.b look the same")
}

// An override must not hide what is wrong with the file.
func TestAnOverriddenDuplicateIsStillOne(t *testing.T) {
	_, err := policyfile.Parse("p.yaml", []byte(`
default: p
policies:
  p: {max_attempts: 5, max_attempts: 6, backoff: {curve: fixed, delay: 1s}}
`), policyfile.Options{Environ: []string{"REDELIVER_POLICY_P_MAX_ATTEMPTS=5"}})
	require.ErrorContains(t, err, "the key stands in line")
}
