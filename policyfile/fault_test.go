package policyfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policyfile"
)

// What is wrong is put in the place of X in an otherwise valid file, each in a line of its own.
func TestFaultsNameThePlaceAndWhatWouldBeRight(t *testing.T) {
	const (
		fieldsOf  = "default: p\npolicies:\n  p:\n    max_attempts: 5\n    backoff: {curve: fixed, delay: 1s}\n    X\n"
		backoffOf = "default: p\npolicies:\n  p:\n    max_attempts: 5\n    backoff:\n      X\n"
		curveOf   = "default: p\npolicies:\n  p:\n    max_attempts: 5\n    backoff:\n      curve: exponential\n      X\n"
		topOf     = "default: p\npolicies:\n  p: {max_attempts: 5, backoff: {curve: fixed, delay: 1s}}\nX\n"
	)
	for _, tt := range []struct {
		in, fault string
		place     string // line and column
		text      string // and what the error says there
	}{
		{topOf, "wishes: p", "4:9", `wishes: is "p": want a list of the names of policies`},
		{topOf, "wishes: [p, q]", "4:13", `wishes[1]: no policy is named "q"`},
		{topOf, "wishes: [p, p]", "4:13", `wishes[1]: the policy "p" stands in the list already`},
		{topOf, "wishes: [{}]", "4:10", "wishes[0]: is a mapping"},
		{fieldsOf, "max_attempt: 5", "6:5", "policies.p.max_attempt: unknown key (did you mean max_attempts?)"},
		{fieldsOf, "Max_Age: 5h", "6:5", "(did you mean max_age?)"},
		{fieldsOf, "zzz: 5", "6:5", "unknown key; known are extends, max_attempts"},
		{fieldsOf, "max_attempts: 6", "6:5", "the key stands in line 4 already"},
		{fieldsOf, "max_age: 5", "6:14", "is 5, without a unit: write 5s for seconds or 5ms for milliseconds"},
		{fieldsOf, "max_age: 600", "6:14", "without a unit"},
		{fieldsOf, "max_age: 5.5", "6:14", "5.5s"},
		{fieldsOf, "max_age: 1d", "6:14", `is "1d": want a duration with a unit of ns, us, ms, s, m or h, such as "500ms" or "1h30m"; there are no days: write 24h`},
		{fieldsOf, "max_age: 2 weeks", "6:14", "write 336h"},
		{fieldsOf, "max_age: 5 sec", "6:14", "(did you mean 5s?)"},
		{fieldsOf, "max_age: 5S", "6:14", "(did you mean 5s?)"},
		{fieldsOf, "max_age: 1e3s", "6:14", "want a duration"},
		{fieldsOf, `max_age: ""`, "6:14", "want a duration"},
		{fieldsOf, "max_age: -5s", "6:14", "must not be negative"},
		{fieldsOf, "max_age: -5", "6:14", "must not be negative"},
		{fieldsOf, "max_age: +5s", "6:14", "want a duration"},
		{fieldsOf, "max_age: .inf", "6:14", "want a duration with a unit"},
		{fieldsOf, "max_age: ~", "6:14", "is null: want a duration"},
		{fieldsOf, "max_age: [1s]", "6:14", "is a list: want a duration"},
		{fieldsOf, "max_age: 9999999999h", "6:14", "more than the largest duration"},
		{fieldsOf, "max_age: 500ms", "6:14", "want at least the first delay of 1s"},
		{fieldsOf, "max_retry_after: 0", "6:22", "want more than 0"},
		{fieldsOf, "max_lapses: 0", "6:17", "is 0: want 1 or more, none, or unlimited"},
		{fieldsOf, "max_lapses: 1.0", "6:17", "is 1.0: want 1 or more"},
		{fieldsOf, "max_lapses: -1", "6:17", "want 1 or more"},
		{fieldsOf, "max_lapses: 0x10", "6:17", "want 1 or more"},
		{fieldsOf, `max_lapses: "5"`, "6:17", "want 1 or more"},
		{fieldsOf, "max_snoozes: none", "6:18", `is "none": want 1 or more, or unlimited`},
		{fieldsOf, "max_snoozes: 99999999999999999999", "6:18", "want 1 or more, or unlimited"},
		{fieldsOf, "min_delay: 2s\n    max_delay: 1s", "6:16", "is 2s: want at most the cap of 1s, the lower of max_delay and the curve's own"},
		{fieldsOf, "jitter: ful", "6:13", "(did you mean full?)"},
		{fieldsOf, "jitter: proportional", "6:13", "write {kind: proportional, fraction: 0.15}"},
		{fieldsOf, "jitter: {kind: full, fraction: 0}", "6:20", "stand alone"},
		{fieldsOf, "jitter: {kind: additive}", "6:13", "policies.p.jitter.fraction: is missing"},
		{fieldsOf, "jitter: {fraction: 0.1}", "6:13", "policies.p.jitter.kind: is missing"},
		{fieldsOf, "jitter: {kind: additive, fraction: 15}", "6:40", "is 15: want 0 to 1"},
		{fieldsOf, "jitter: {kind: additive, fraction: .nan}", "6:40", "want 0 to 1"},
		{fieldsOf, "jitter: decorrelated\n    max_delay: 1s", "6:13", "want a first delay below the cap of 1s"},
		{fieldsOf, "extends: q", "6:14", `no policy is named "q"`},
		{fieldsOf, "extends: p", "6:14", "goes round in a circle: p extends p"},
		{fieldsOf, "<<: {a: b}", "6:5", "let the policy extend another"},
		{fieldsOf, "rules: throttled", "6:12", "want a list of rules"},
		{fieldsOf, "rules: [throttled]", "6:13", "policies.p.rules[0]: is \"throttled\": want a mapping"},
		{fieldsOf, "rules: [{action: discard}]", "6:13", "policies.p.rules[0].class: is missing"},
		{fieldsOf, "rules: [{class: throtled}]", "6:21", "(did you mean throttled?)"},
		{fieldsOf, "rules: [{class: http-999}]", "6:21", "want one such as http-429"},
		{fieldsOf, "rules: [{class: []}]", "6:21", "at least one class"},
		{fieldsOf, "rules: [{class: [tls, 5]}]", "6:27", "want text"},
		{fieldsOf, "rules: [{class: tls, action: dead_letter}]", "6:34", "(did you mean dead-letter?): want dead-letter, discard, retry"},
		{fieldsOf, "rules: [{class: tls, max_attempts: 0}]", "6:40", "want 1 (no retry) or more"},
		{fieldsOf, "rules: [{class: tls, action: discard, max_attempts: 2}]", "6:34", "max_attempts or a backoff"},
		{fieldsOf, "rules: [{class: tls, backoff: {curve: fixed, delay: 1}}]", "6:57", "policies.p.rules[0].backoff.delay: is 1, without a unit"},
		{fieldsOf, "rules: [{class: tls, backoff: {curve: fixed, delay: 2h}}]\n    max_age: 1h", "6:35", "policies.p.rules[0].backoff: want a first delay of at most the max_age of 1h0m0s"},
		{backoffOf, "{}", "6:7", "policies.p.backoff.curve: is missing"},
		{backoffOf, "5s", "6:7", "want a mapping"},
		{backoffOf, "curve: exponentail", "6:14", "(did you mean exponential?)"},
		{backoffOf, "curve: exponential", "6:7", "policies.p.backoff.base: is missing"},
		{backoffOf, "curve: fixed", "6:7", "policies.p.backoff.delay: is missing"},
		{backoffOf, "curve: linear\n      base: 1s", "6:7", "policies.p.backoff.step: is missing"},
		{backoffOf, "curve: steps", "6:7", "policies.p.backoff.steps: is missing"},
		{backoffOf, "curve: steps\n      steps: []", "7:14", "want a list of at least one duration"},
		{backoffOf, "curve: steps\n      steps: [1s, 5]", "7:19", "policies.p.backoff.steps[1]: is 5, without a unit"},
		{backoffOf, "curve: steps\n      steps: [1s, 0]", "7:19", "is 0: want more than 0"},
		{backoffOf, "curve: fixed\n      delay: 1s\n      base: 1s", "8:7", "unknown key; known are curve, immediate, delay"},
		{curveOf, "base: 0", "7:13", "is 0: want more than 0"},
		{curveOf, "base: 1s\n      max: 500ms", "8:12", "is 500ms: want at least base, which is 1s"},
		{curveOf, "base: 1s\n      factor: 0.5", "8:15", "is 0.5: want 1, or a number of at least 1.000001"},
		{curveOf, "base: 1s\n      factor: .inf", "8:15", "want 1, or"},
		{curveOf, "base: 1s\n      factor: 1e999", "8:15", "want 1, or"},
		{curveOf, "base: 1s\n      immediate: 101", "8:18", "0 to 100"},
		{topOf, "polices: {}", "4:1", "(did you mean policies?)"},
		{topOf, "default: q", "4:1", "line 1 already"},
		{topOf, "types: {refund: q}", "4:17", `types.refund: no policy is named "q"`},
		{topOf, "queues: {orders: p}", "4:18", "queues.orders: is \"p\": want a mapping"},
		{topOf, "queues: {orders: {policies: p}}", "4:19", "(did you mean policy?)"},
		{topOf, "queues: {orders: {types: {a: 5}}}", "4:30", "is 5: want text"},
		{topOf, "? [a]\n: b", "5:1", "not YAML"},
		{topOf, "types: {a: *b}", "4:12", "no anchor &b"},
		{topOf, "types: !x {a: p}", "4:8", "the tag !x is not supported"},
		{topOf, "---\ndefault: p", "5:8", "a file holds one"},
	} {
		f, err := policyfile.Parse("p.yaml", []byte(strings.Replace(tt.in, "X", tt.fault, 1)), policyfile.Options{})
		require.Nil(t, f, tt.fault)
		var all *policyfile.Error
		require.ErrorAs(t, err, &all, tt.fault)
		require.Len(t, all.Faults, 1, "%s: %v", tt.fault, err)
		require.True(t, strings.HasPrefix(err.Error(), "p.yaml:"+tt.place+": "), "%s: want %s: %v", tt.fault, tt.place, err)
		require.Contains(t, err.Error(), tt.text, tt.fault)
		var fault *policyfile.Fault
		require.ErrorAs(t, err, &fault, tt.fault)
	}
}

func TestFaultsOfWholeDocuments(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "p:1:1: the file is empty",
		"# nothing\n":              "p:1:1: the file is empty",
		"[1]":                      "p:1:1: the document is a list: want a mapping with the keys default and policies",
		"{}":                       "p:1:1: default: is missing",
		"{\"default\": 1,}":        "p:1:15: not JSON",
		"{\"default\": \"p\"":      "p:1:16: not JSON: the document ends too early",
		"{} {}":                    "p:1:4: there is more after the document",
		"{\n  \"a\": tru\n}":       "p:2:8: not JSON",
		"a: [":                     "p:1:4: not YAML",
		"\tdefault: p":             "p:1:8: not YAML",
		"default: \"\xff\"":        "p:1:11: the file is not UTF-8 text",
		"default: p\npolicies: {}": "p:1:10: default: no policy is named \"p\"; policies has none",
		"default: ä\npolicies: {ä: {max_attempts: 5, backoff: {curve: fixed, delay: 1s}}}": "p:2:12: policies.ä: is no name for a policy",
		"default: p\npolicies: {p: {max_attempts: 5}}":                                     "p:2:12: policies.p.backoff: is missing",
		"default: p\npolicies: {p: {backoff: {curve: fixed, delay: 1s}}}":                  "p:2:12: policies.p.max_attempts: is missing",
	} {
		_, err := policyfile.Parse("p", []byte(text), policyfile.Options{})
		require.ErrorContains(t, err, want, text)
	}
}

func TestAllFaultsAreReportedInTheirOrder(t *testing.T) {
	_, err := policyfile.Parse("p.json", []byte(`{
  "default": "q",
  "policies": {
    "p": {
      "max_attempts": "8",
      "backoff": {"curve": "fixed", "delay": 5},
      "retries": 3
    },
    "r": {"extends": "p", "max_attempts": 0}
  }
}`), policyfile.Options{})
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		place, _, _ := strings.Cut(line, ": ")
		lines = append(lines, place)
	}
	// What r inherits is not reported again.
	require.Equal(t, []string{"p.json:2:14", "p.json:5:23", "p.json:6:46", "p.json:7:7", "p.json:9:43"}, lines, err.Error())
}

func TestAliasesStandForWhatTheyName(t *testing.T) {
	f := parse(t, "p.yaml", `
default: a
policies:
  a: {max_attempts: 5, backoff: &curve {curve: fixed, delay: 1s}}
  b: {max_attempts: 6, backoff: *curve}
`)
	require.Equal(t, f.Policies["a"].Backoff, f.Policies["b"].Backoff)
	_, err := policyfile.Parse("p.yaml", []byte("default: a\npolicies:\n  a: {max_attempts: &x 5, backoff: *x}\n"), policyfile.Options{})
	require.ErrorContains(t, err, "p.yaml:3:36: policies.a.backoff: is 5: want a mapping", "where it is used")
}

func TestLoadReadsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policies.yml")
	require.NoError(t, os.WriteFile(path, []byte("\ufeffdefault: p\npolicies:\n  p: {max_attempts: 5, backoff: {curve: fixed, delay: 1s}}\n"), 0o600))
	f, err := policyfile.Load(path, policyfile.Options{})
	require.NoError(t, err)
	require.Equal(t, 5, f.For("", "").MaxAttempts)
	_, err = policyfile.Load(filepath.Join(t.TempDir(), "none.yaml"), policyfile.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.False(t, errors.As(err, new(*policyfile.Error)))
}
