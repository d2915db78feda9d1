package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the output of the samples into docs/command.md, and the drawings beside it")

// command runs the program among the samples.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Chdir("../../docs/samples")
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	t.Chdir("../../cmd/redeliver")
	return out.String(), errs.String(), code
}

// What the documentation shows is what the program prints: go test -run Samples -update writes it anew.
func TestSamples(t *testing.T) {
	const path = "../../docs/command.md"
	docs, err := os.ReadFile(path)
	require.NoError(t, err)
	sample := regexp.MustCompile("(?s)```console\n\\$ redeliver ([^\n]*)\n(.*?)```\n")
	count := 0
	now := sample.ReplaceAllStringFunc(string(docs), func(s string) string {
		count++
		args := sample.FindStringSubmatch(s)[1]
		stdout, stderr, _ := command(t, strings.Fields(args)...)
		return "```console\n$ redeliver " + args + "\n" + stdout + stderr + "```\n"
	})
	require.Equal(t, 6, count)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(now), 0o644))
		return
	}
	require.Equal(t, string(docs), now)
}

// The sample in the README is a part of what the program prints.
func TestSampleOfTheREADME(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), "$ redeliver plan docs/samples/policies.yaml --outage 30s\n")
	require.True(t, found)
	sample, _, _ := strings.Cut(rest, "```")
	stdout, _, _ := command(t, "plan", "policies.yaml", "--outage", "30s")
	require.Contains(t, stdout, strings.TrimPrefix(sample, "  ...\n"))
}

var drawings = map[string][]string{
	"plan.svg":     {"plan", "policies.yaml", "--outage", "45s"},
	"simulate.svg": {"simulate", "policies.yaml", "-n", "3000", "--over", "0s", "--from", "0s", "--outage", "10s", "-c", "500", "--capacity", "400"},
}

func TestDrawings(t *testing.T) {
	for name, args := range drawings {
		path := filepath.Join(t.TempDir(), name)
		_, stderr, code := command(t, append(args, "--svg", path)...)
		require.Equal(t, exitOK, code, stderr)
		drawn, err := os.ReadFile(path)
		require.NoError(t, err)
		sample := "../../docs/samples/" + name
		if *update {
			require.NoError(t, os.WriteFile(sample, drawn, 0o644))
		}
		want, err := os.ReadFile(sample)
		require.NoError(t, err)
		require.Equal(t, string(want), string(drawn), "go test -run Drawings -update draws it anew")

		decoder := xml.NewDecoder(bytes.NewReader(drawn))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
		require.Contains(t, string(drawn), "prefers-color-scheme: dark")
		require.NotContains(t, string(drawn), "NaN")
	}
}

func TestExitCodes(t *testing.T) {
	for args, want := range map[string]int{
		"lint policies.yaml":                                       exitWarnings,
		"lint policies.yaml --ignore no-jitter,no-cap":             exitOK,
		"lint policies.yaml --ignore no-jitter":                    exitWarnings,
		"lint policies.yaml --ignore no-jitter,no-cap -b sqs":      exitWarnings,
		"lint policies.yaml --ignore no-jitter,no-cap -b rabbitmq": exitOK, // with notes
		"lint policies.yaml --ignore no-jiter":                     exitFault,
		"lint broken.yaml":                                         exitFault,
		"lint policies.yaml --survive 99":                          exitFault,
		"lint missing.yaml":                                        exitFault,
		"lint":                                                     exitFault,
		"plan policies.yaml":                                       exitOK,
		"plan policies.yaml --outage 90s":                          exitOK,
		"plan policies.yaml --outage 90":                           exitFault,
		"plan policies.yaml --outage -90s":                         exitFault,
		"plan policies.yaml --survive 99":                          exitFault,
		"plan policies.yaml --run -1s":                             exitFault,
		"plan policies.yaml --retention -1s":                       exitFault,
		"compare policies.yaml policies-new.yaml --outage 1s,-1s":  exitFault,
		"compare policies.yaml policies-new.yaml --run -1s":        exitFault,
		"plan policies.yaml --policy nobody":                       exitFault,
		"plan policies.yaml --broker fax":                          exitFault,
		"plan policies.yaml --nonsense":                            exitFault,
		"plan policies.yaml --svg /no/such/dir/x":                  exitFault,
		"compare policies.yaml policies-new.yaml":                  exitOK,
		"compare policies.yaml":                                    exitFault,
		"compare policies.yaml policies-new.yaml --retention 1h":   exitFault,
		"simulate policies.yaml --retention 1h":                    exitFault,
		"simulate policies.yaml -n 100":                            exitOK,
		"simulate policies.yaml -n -1":                             exitFault,
		"help":                                                     exitOK,
		"nonsense":                                                 exitFault,
	} {
		stdout, stderr, code := command(t, strings.Fields(args)...)
		require.Equal(t, want, code, "%s: %s%s", args, stdout, stderr)
		if code == exitFault {
			require.NotEmpty(t, stderr, args)
			require.Empty(t, stdout, args)
		}
	}
}

func TestFaultsNameTheirPlace(t *testing.T) {
	_, stderr, _ := command(t, "plan", "broken.yaml")
	require.Contains(t, stderr, "broken.yaml:5:")
	require.Contains(t, stderr, "broken.yaml:6:")
	_, stderr, _ = command(t, "plan", "policies.yaml", "-p", "payment")
	require.Contains(t, stderr, "hasty, payments", "what there is")
	_, stderr, _ = command(t, "plan", "policies.yaml", "-b", "fax")
	require.Contains(t, stderr, "memory, pgmq, rabbitmq, sqs")
}

func TestEveryBrokerIsKnown(t *testing.T) {
	for name := range brokers {
		_, stderr, code := command(t, "plan", "policies.yaml", "--broker", name)
		require.Equal(t, exitOK, code, stderr)
	}
}

func TestPlanAsJSON(t *testing.T) {
	stdout, _, code := command(t, "plan", "policies.yaml", "--outage", "30s", "--json")
	require.Equal(t, exitOK, code)
	var plan struct {
		Policy   string
		Attempts []struct {
			Number   int
			Wait, At struct{ Earliest, Mean, Latest string }
		}
		Horizon   struct{ Mean string }
		Survivals []struct {
			Outage  string
			AtStart struct{ Value, Error float64 } `json:"at_start"`
		}
		Advice   []struct{ Code string }
		Warnings []struct{ Code string }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &plan))
	require.Equal(t, "payments", plan.Policy)
	require.Len(t, plan.Attempts, 8)
	require.Equal(t, "1m1.5s", plan.Attempts[7].At.Latest)
	require.Equal(t, "30.75s", plan.Horizon.Mean)
	require.Equal(t, "30s", plan.Survivals[0].Outage)
	require.InDelta(t, 0.525, plan.Survivals[0].AtStart.Value, 0.001)
	require.NotEmpty(t, plan.Advice)
	require.Equal(t, "outage-outlasts", plan.Warnings[0].Code)
}

// The fields that docs/command.md lists are those that there are.
func TestFieldsOfTheJSONAreDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../docs/command.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(docs), "## JSON")
	require.True(t, found)
	for _, args := range []string{
		"plan policies.yaml --outage 30s --json", "lint policies.yaml -b rabbitmq --json",
		"compare policies.yaml policies-new.yaml --json", "simulate policies.yaml -n 100 --json",
	} {
		stdout, _, _ := command(t, strings.Fields(args)...)
		require.True(t, json.Valid([]byte(stdout)), args)
		for _, m := range regexp.MustCompile(`(?m)^\s*"([a-z_]+)":`).FindAllStringSubmatch(stdout, -1) {
			require.Contains(t, section, "`"+m[1]+"`", args)
		}
	}
}

func TestCompareTellsOfPoliciesThatComeAndGo(t *testing.T) {
	dir := t.TempDir()
	one := "default: a\npolicies:\n  a: {max_attempts: 3, backoff: {curve: fixed, delay: 1s}}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "one.yaml"), []byte(one), 0o600))
	two := strings.NewReplacer("default: a", "default: b", "  a:", "  b:").Replace(one)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "two.yaml"), []byte(two), 0o600))
	stdout, stderr, code := command(t, "compare", filepath.Join(dir, "one.yaml"), filepath.Join(dir, "two.yaml"))
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "a: removed")
	require.Contains(t, stdout, "b: added")
	require.Contains(t, stdout, "b: added\n  3 attempts; 1s; no jitter\n  governs what nothing else names, before: a\n")
}

// Which policy a queue has is part of what a file says.
func TestCompareTellsWhatAnotherPolicyGoverns(t *testing.T) {
	dir := t.TempDir()
	write := func(name, more string) string {
		path := filepath.Join(dir, name)
		text := "default: a\npolicies:\n  a: &p {max_attempts: 3, backoff: {curve: fixed, delay: 1s}}\n  b: *p\n" + more
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	older := write("old.yaml", "queues: {orders: {policy: b, types: {refund: b}}, same: {policy: b}}\ntypes: {news: a}\n")
	newer := write("new.yaml", "queues: {orders: {types: {refund: a}}, same: {policy: b}}\ntypes: {news: b}\n")
	stdout, stderr, code := command(t, "compare", older, newer)
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, `a: changed
  governs the queue "orders", before: b
  governs the type "refund" in the queue "orders", before: b
b: changed
  governs the type "news", before: a
`, stdout)
	stdout, _, _ = command(t, "compare", older, newer, "--json")
	require.Contains(t, stdout, `"governs the type \"news\", before: a"`)
}

func TestEnvironmentIsAppliedWhenAsked(t *testing.T) {
	t.Setenv("REDELIVER_POLICY_PAYMENTS_MAX_ATTEMPTS", "3")
	stdout, _, _ := command(t, "plan", "policies.yaml")
	require.Contains(t, stdout, "8 attempts")
	stdout, _, _ = command(t, "plan", "policies.yaml", "--environ")
	require.Contains(t, stdout, "3 attempts")
}

func TestCompletions(t *testing.T) {
	stdout, _, code := command(t, "completion", "bash")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "redeliver")
	stdout, _, _ = command(t, "__complete", "plan", "policies.yaml", "--policy", "")
	require.Contains(t, stdout, "hasty\npayments\n")
	stdout, _, _ = command(t, "__complete", "plan", "policies.yaml", "--broker", "")
	require.Contains(t, stdout, "rabbitmq\n")
	stdout, _, _ = command(t, "__complete", "lint", "policies.yaml", "--ignore", "")
	require.Contains(t, stdout, "no-jitter\n")
	stdout, _, _ = command(t, "__complete", "plan", "")
	require.Contains(t, stdout, "yaml")
}

func TestColoursAreForTerminals(t *testing.T) {
	stdout, _, _ := command(t, "plan", "policies.yaml")
	require.NotContains(t, stdout, "\x1b")
	require.False(t, newPrinter(&bytes.Buffer{}).colour)
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	require.False(t, newPrinter(file).colour)

	var out bytes.Buffer
	p := &printer{&out, true}
	p.line("%s", p.paint(green, "good"))
	require.Equal(t, "\x1b[32mgood\x1b[0m\n", out.String())
	p.colour = false
	require.Equal(t, "good", p.paint(green, "good"))
}
