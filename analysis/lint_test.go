package analysis_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/policy"
)

func codes(t *testing.T, p policy.Policy, c analysis.Conditions, outage time.Duration) (warnings, notes []analysis.Code) {
	found, err := analysis.Lint(p, c, outage, 0)
	require.NoError(t, err)
	for _, w := range found {
		require.NotEmpty(t, w.Text)
		if w.Note {
			notes = append(notes, w.Code)
		} else {
			warnings = append(warnings, w.Code)
		}
	}
	return warnings, notes
}

func TestWarningsOfThePolicy(t *testing.T) {
	s := time.Second
	for name, tt := range map[string]struct {
		policy policy.Policy
		want   []analysis.Code
	}{
		"good":               {payments, nil},
		"no jitter":          {policy.Policy{MaxAttempts: 5, Backoff: policy.Fixed(s)}, []analysis.Code{analysis.NoJitter}},
		"jitter of nothing":  {policy.Policy{MaxAttempts: 5, Backoff: policy.Fixed(s), Jitter: policy.Additive(0)}, []analysis.Code{analysis.NoJitter}},
		"no cap":             {policy.Policy{MaxAttempts: 5, Backoff: policy.Exponential{Base: s}, Jitter: policy.FullJitter}, []analysis.Code{analysis.NoCap}},
		"linear, no cap":     {policy.Policy{MaxAttempts: 5, Backoff: policy.Linear{Base: s, Step: s}, Jitter: policy.FullJitter}, []analysis.Code{analysis.NoCap}},
		"capped by MaxDelay": {policy.Policy{MaxAttempts: 5, Backoff: policy.Exponential{Base: s}, MaxDelay: 9 * s, Jitter: policy.FullJitter}, nil},
		"no limit":           {policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(s), Jitter: policy.EqualJitter}, []analysis.Code{analysis.NoLimit}},
		"an age is a limit":  {policy.Policy{MaxAge: time.Minute, Backoff: policy.Fixed(s), Jitter: policy.EqualJitter}, nil},
		"one attempt":        {policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(s)}, []analysis.Code{analysis.NoRetry}},
		"hammering": {policy.Policy{MaxAttempts: 9, Backoff: policy.Immediate{Attempts: 4, Then: policy.Fixed(s)}, Jitter: policy.FullJitter},
			[]analysis.Code{analysis.Hammering}},
		"three at once": {policy.Policy{MaxAttempts: 9, Backoff: policy.Immediate{Attempts: 3, Then: policy.Fixed(s)}, Jitter: policy.FullJitter}, nil},
		"descending": {policy.Policy{MaxAttempts: 4, Backoff: policy.Steps{s, 5 * s, 2 * s}, Jitter: policy.FullJitter},
			[]analysis.Code{analysis.Descending}},
		"unreached": {policy.Policy{MaxAttempts: 50, MaxAge: 10 * s, Backoff: policy.Fixed(s), Jitter: policy.EqualJitter},
			[]analysis.Code{analysis.UnreachedAttempts}},
	} {
		warnings, notes := codes(t, tt.policy, analysis.Conditions{}, 0)
		require.Equal(t, tt.want, warnings, name)
		require.Empty(t, notes, name)
	}
}

func TestWarningsOfRules(t *testing.T) {
	p := payments
	p.Rules = []policy.Rule{
		{Name: "busy", Match: policy.Is(os.ErrDeadlineExceeded), MaxAttempts: policy.Unlimited, Backoff: policy.Exponential{Base: time.Second}},
		{Match: policy.Is(os.ErrExist), Action: policy.ActionDeadLetter},
		{Match: policy.Is(os.ErrClosed), MaxAttempts: 1},
	}
	found, err := analysis.Lint(p, analysis.Conditions{}, 0, 0)
	require.NoError(t, err)
	require.Len(t, found, 2)
	for i, code := range []analysis.Code{analysis.NoCap, analysis.NoLimit} {
		require.Equal(t, code, found[i].Code)
		require.Contains(t, found[i].Text, `rule "busy": `)
	}

	// The schedule is that of the rule that the error picks.
	s := schedule(t, p, analysis.Conditions{Err: os.ErrClosed})
	require.Len(t, s.Attempts, 1)
	require.Len(t, schedule(t, p, analysis.Conditions{}).Attempts, 8)
	_, err = analysis.New(p, analysis.Conditions{Err: os.ErrExist})
	require.ErrorContains(t, err, "not retried")

	c, err := analysis.Compare(payments, p, analysis.Conditions{})
	require.NoError(t, err)
	require.NotEmpty(t, c.Changes)
	require.Contains(t, c.Changes[0], `rules: "busy" for the error "i/o timeout": unlimited attempts; 1s, doubling; full jitter, `+
		`2 for the error "file already exists": dead-letter at once, 3 for the error "file already closed": one attempt`)
}

func TestWarningOfAnOutage(t *testing.T) {
	warnings, _ := codes(t, payments, analysis.Conditions{}, 90*time.Second)
	require.Equal(t, []analysis.Code{analysis.OutageOutlasts}, warnings)
	warnings, _ = codes(t, payments, analysis.Conditions{}, 5*time.Second)
	require.Empty(t, warnings)
}

func TestWarningsOfABroker(t *testing.T) {
	whole := analysis.Broker{Name: "whole seconds", Limits: backend.Limits{Granularity: time.Second, MaxDelay: 12 * time.Hour}, Retention: 4 * 24 * time.Hour}
	warnings, notes := codes(t, payments, analysis.Conditions{Broker: whole}, 0)
	require.Equal(t, []analysis.Code{analysis.BrokerRounds, analysis.JitterRoundedAway}, warnings)
	require.Equal(t, []analysis.Code{analysis.HintAboveBroker}, notes, "by default an error may ask for 24 h")

	slow := policy.Policy{MaxAttempts: 30, Backoff: policy.Fixed(13 * time.Hour), Jitter: policy.EqualJitter, MaxRetryAfter: time.Hour}
	warnings, notes = codes(t, slow, analysis.Conditions{Broker: whole}, 0)
	require.Equal(t, []analysis.Code{analysis.DelayAboveBroker, analysis.RetentionShorter}, warnings)
	require.Empty(t, notes)

	endless := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(time.Minute), Jitter: policy.EqualJitter, MaxRetryAfter: time.Hour}
	warnings, _ = codes(t, endless, analysis.Conditions{Broker: whole}, 0)
	require.Equal(t, []analysis.Code{analysis.NoLimit, analysis.RetentionShorter}, warnings)
}

// The real limits and the real number of queues.
func TestWarningsOfRabbitMQ(t *testing.T) {
	queue, err := rabbit.Open("amqp://127.0.0.1", "orders", rabbit.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, queue.Close(t.Context())) })
	b := analysis.Broker{Name: "RabbitMQ", Limits: queue.Limits(), ParkingQueues: queue.ParkingQueues}

	found, err := analysis.Lint(payments, analysis.Conditions{Broker: b}, 0, 0)
	require.NoError(t, err)
	text := fmt.Sprint(found)
	require.Contains(t, text, fmt.Sprintf("needs %d queues", len(queue.ParkingQueues(payments))))
	_, notes := codes(t, payments, analysis.Conditions{Broker: b}, 0)
	require.Equal(t, []analysis.Code{analysis.ParkingQueues, analysis.BrokerLate}, notes)

	wide := policy.Policy{MaxAttempts: 30, Backoff: policy.Exponential{Base: 10 * time.Millisecond, Max: 24 * time.Hour}, Jitter: policy.FullJitter}
	warnings, _ := codes(t, wide, analysis.Conditions{Broker: b}, 0)
	require.Equal(t, []analysis.Code{analysis.ParkingQueues}, warnings)
}

// The table in the documentation of the command has every code, and no other.
func TestCodesAreDocumented(t *testing.T) {
	source, err := os.ReadFile("lint.go")
	require.NoError(t, err)
	docs, err := os.ReadFile("../docs/command.md")
	require.NoError(t, err)
	found := func(pattern string, text []byte) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			all = append(all, string(m[1]))
		}
		return all
	}
	constants := found(`Code = "([a-z-]+)"`, source)
	require.ElementsMatch(t, constants, found("(?m)^\\| `([a-z-]+)` \\| (?:warning|note)", docs))
	require.Equal(t, fmt.Sprint(constants), fmt.Sprint(analysis.Codes()))
}

func ExampleLint() {
	hasty := policy.Policy{MaxAttempts: 4, Backoff: policy.Exponential{Base: 500 * time.Millisecond}}
	warnings, err := analysis.Lint(hasty, analysis.Conditions{}, 90*time.Second, 0.99)
	if err != nil {
		panic(err)
	}
	for _, w := range warnings {
		fmt.Printf("%s: %s\n", w.Code, w.Text)
	}
	// Output:
	// no-jitter: delays are not spread: messages that fail together come back together, each time; set Jitter, full or equal
	// no-cap: delays grow without a cap, to 2s after attempt 3; set Max of the curve or MaxDelay
	// outage-outlasts: of the messages that fail first as an outage of 1m30s begins 0 % survive it, and 99 % should: the policy gives up after 3.5s on average; it needs more attempts or longer waits
}
