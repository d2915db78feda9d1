package policy_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/policy"
)

var errBusy = errors.New("busy")

// ruled has a rule of every kind.
func ruled() policy.Policy {
	p := steady()
	p.MaxAttempts = 5
	p.Rules = []policy.Rule{
		{Name: "malformed", Match: policy.Is(io.ErrUnexpectedEOF), Action: policy.ActionDeadLetter},
		{Match: policy.As[*fs.PathError](), Action: policy.ActionDiscard},
		{Name: "busy", Match: policy.Is(errBusy), MaxAttempts: 20, Backoff: policy.Fixed(time.Minute)},
		{Name: "once", Match: policy.MatchFunc(func(err error) bool { return err.Error() == "once" }), MaxAttempts: 1},
		{Name: "either", Match: policy.AnyOf{policy.Is(io.EOF), policy.Is(io.ErrClosedPipe)}, Backoff: policy.Fixed(time.Hour)},
		{Name: "late", Match: policy.Is(errBusy), Action: policy.ActionDiscard},
	}
	return p
}

func TestTheFirstRuleThatMatchesDecides(t *testing.T) {
	p := ruled()
	p.Jitter = policy.NoJitter
	p.MaxDelay = 0
	p.Backoff = policy.Fixed(time.Second)
	require.NoError(t, p.Validate())
	path := &fs.PathError{Op: "open", Path: "x", Err: errors.New("gone")}
	for _, tt := range []struct {
		name    string
		err     error
		attempt int
		action  policy.Action
		delay   time.Duration
		reason  policy.Reason
		rule    string
	}{
		{"none", errors.New("other"), 1, policy.ActionRetry, time.Second, policy.ReasonError, ""},
		{"nil", nil, 1, policy.ActionRetry, time.Second, policy.ReasonError, ""},
		{"dead letter", io.ErrUnexpectedEOF, 1, policy.ActionDeadLetter, 0, policy.ReasonPermanent, "malformed"},
		{"wrapped", fmt.Errorf("read: %w", io.ErrUnexpectedEOF), 1, policy.ActionDeadLetter, 0, policy.ReasonPermanent, "malformed"},
		{"joined", errors.Join(errors.New("x"), io.ErrUnexpectedEOF), 1, policy.ActionDeadLetter, 0, policy.ReasonPermanent, "malformed"},
		{"discard", fmt.Errorf("read: %w", path), 1, policy.ActionDiscard, 0, policy.ReasonDiscarded, "#2"},
		{"own backoff", errBusy, 1, policy.ActionRetry, time.Minute, policy.ReasonError, "busy"},
		{"more attempts", errBusy, 19, policy.ActionRetry, time.Minute, policy.ReasonError, "busy"},
		{"and the last of them", errBusy, 20, policy.ActionDeadLetter, 0, policy.ReasonExhausted, "busy"},
		{"fewer attempts", errors.New("once"), 1, policy.ActionDeadLetter, 0, policy.ReasonExhausted, "once"},
		{"one of two", io.ErrClosedPipe, 4, policy.ActionRetry, time.Hour, policy.ReasonError, "either"},
		{"the policy's attempts", io.EOF, 5, policy.ActionDeadLetter, 0, policy.ReasonExhausted, "either"},
		{"no rule, after many attempts", errors.New("other"), 11, policy.ActionDeadLetter, 0, policy.ReasonExhausted, ""},
		{"first of two", errors.Join(errBusy, io.ErrUnexpectedEOF), 1, policy.ActionDeadLetter, 0, policy.ReasonPermanent, "malformed"},
		{"marks go first", policy.Permanent(errBusy), 1, policy.ActionDeadLetter, 0, policy.ReasonPermanent, ""},
		{"discard mark", policy.Discard(errBusy), 1, policy.ActionDiscard, 0, policy.ReasonDiscarded, ""},
		{"snooze", errors.Join(policy.Snooze(time.Millisecond), errBusy), 30, policy.ActionRetry, time.Millisecond, policy.ReasonSnoozed, ""},
		{"a hint overrules an action", policy.RetryAfter(time.Hour, io.ErrUnexpectedEOF), 1, policy.ActionRetry, time.Hour, policy.ReasonRetryAfter, ""},
		{"a hint keeps attempts and backoff", policy.RetryAfter(time.Second, errBusy), 19, policy.ActionRetry, time.Minute, policy.ReasonRetryAfter, "busy"},
		{"a hint does not outlive them", policy.RetryAfter(time.Second, errBusy), 20, policy.ActionDeadLetter, 0, policy.ReasonExhausted, "busy"},
	} {
		d := p.Decide(policy.Failure{Attempt: tt.attempt, Err: tt.err, MessageID: someID})
		require.Equal(t, tt.action, d.Action, tt.name)
		require.Equal(t, tt.delay, d.Delay, tt.name)
		require.Equal(t, tt.reason, d.Reason, tt.name)
		require.Equal(t, tt.rule, d.Rule(), tt.name)
		if tt.rule != "" {
			require.Contains(t, d.Explain(), "rule "+tt.rule, tt.name)
		} else {
			require.NotContains(t, d.Explain(), "rule", tt.name)
		}
	}
}

func TestRulesAreExplained(t *testing.T) {
	p := ruled()
	p.Jitter = policy.NoJitter
	for err, want := range map[error]string{
		io.ErrUnexpectedEOF: "dead-letter: attempt 2 of 5 failed; by rule malformed",
		errBusy:             "retry in 1m0s: attempt 2 of 20 failed; fixed backoff 1m0s; by rule busy",
		errors.New("once"):  "dead-letter: attempt 2 of 1 failed, beyond the last; by rule once",
	} {
		require.Equal(t, want, p.Decide(policy.Failure{Attempt: 2, Err: err}).Explain())
	}
}

// The limits that hold before the error is known are the widest.
func TestLimitsSpanTheRules(t *testing.T) {
	p := ruled()
	require.Equal(t, 20, p.AttemptLimit())
	require.Equal(t, 5, steady().AttemptLimit())
	require.False(t, p.IsLast(19))
	require.True(t, p.IsLast(20))
	_, ok := p.Admit(policy.Receipt{Attempt: 20})
	require.True(t, ok)
	d, ok := p.Admit(policy.Receipt{Attempt: 21})
	require.False(t, ok)
	require.Equal(t, policy.ReasonExhausted, d.Reason)
	require.Contains(t, d.Explain(), "received as attempt 21 of 20")
	require.Equal(t, policy.Unlimited, policy.Policy{MaxAge: time.Hour, Rules: p.Rules}.AttemptLimit())
	p.Rules[0].MaxAttempts = 50
	require.Equal(t, 20, p.AttemptLimit(), "a rule that does not retry has no attempts")

	p.Jitter = policy.NoJitter
	require.Equal(t, time.Hour, p.MaxBackoff())
	p.MaxDelay = time.Minute
	require.Equal(t, time.Minute, p.MaxBackoff())
}

// The branches have every delay and every limit that the policy has.
func TestBranchesCoverThePolicy(t *testing.T) {
	errs := []error{errors.New("x"), errBusy, io.EOF, io.ErrClosedPipe}
	rapid.Check(t, func(t *rapid.T) {
		p := ruled()
		p.Jitter = rapid.SampledFrom([]policy.Jitter{policy.NoJitter, policy.FullJitter, policy.Proportional(0.2)}).Draw(t, "jitter")
		f := policy.Failure{
			Attempt: rapid.IntRange(1, 25).Draw(t, "attempt"), Err: rapid.SampledFrom(errs).Draw(t, "err"),
			MessageID: rapid.String().Draw(t, "id"),
		}
		d := p.Decide(f)
		found := false
		for _, b := range p.Branches() {
			require.Empty(t, b.Rules)
			require.LessOrEqual(t, b.MaxBackoff(), p.MaxBackoff())
			require.LessOrEqual(t, b.AttemptLimit(), p.AttemptLimit())
			same := b.Decide(f)
			found = found || same.Action == d.Action && same.Delay == d.Delay && same.Reason == d.Reason
		}
		require.True(t, found)
		require.LessOrEqual(t, d.Delay, p.MaxBackoff())
	})
}

func TestFaultsOfRules(t *testing.T) {
	with := func(r policy.Rule) policy.Policy {
		p := steady()
		p.Rules = []policy.Rule{{Match: policy.Is(io.EOF)}, r}
		return p
	}
	match := policy.Is(io.EOF)
	require.NoError(t, ruled().Validate())
	for name, tt := range map[string]struct {
		policy policy.Policy
		path   string
		text   []string
	}{
		"no match":         {with(policy.Rule{}), "Rules[1].Match", []string{"Is(io.EOF)"}},
		"is nil":           {with(policy.Rule{Match: policy.Is(nil)}), "Rules[1].Match", []string{"nil"}},
		"nil func":         {with(policy.Rule{Match: policy.MatchFunc(nil)}), "Rules[1].Match", []string{"function"}},
		"any of none":      {with(policy.Rule{Match: policy.AnyOf{}}), "Rules[1].Match", []string{"at least one"}},
		"any of nil":       {with(policy.Rule{Match: policy.AnyOf{match, nil}}), "Rules[1].Match", []string{"nil"}},
		"attempts":         {with(policy.Rule{Match: match, MaxAttempts: -1}), "Rules[1].MaxAttempts", []string{"-1", "Unlimited"}},
		"backoff":          {with(policy.Rule{Match: match, Backoff: policy.Exponential{}}), "Rules[1].Backoff.Base", []string{"0s"}},
		"nil backoff":      {with(policy.Rule{Match: match, Backoff: (*policy.Linear)(nil)}), "Rules[1].Backoff", []string{"policy's own"}},
		"action":           {with(policy.Rule{Match: match, Action: 9}), "Rules[1].Action", []string{"Action(9)", "ActionDeadLetter"}},
		"action and curve": {with(policy.Rule{Match: match, Action: policy.ActionDiscard, Backoff: policy.Fixed(1)}), "Rules[1].Action", []string{"discard", "Backoff"}},
		"below the floor": {func() policy.Policy {
			p := with(policy.Rule{Match: match, Backoff: policy.Linear{Base: 1, Max: 2}})
			p.MinDelay = time.Second
			return p
		}(), "Rules[1].Backoff", []string{"MinDelay", "1s"}},
		"beyond the age": {func() policy.Policy {
			p := with(policy.Rule{Match: match, Backoff: policy.Fixed(2 * time.Hour)})
			p.MaxAge = time.Hour
			return p
		}(), "Rules[1].Backoff", []string{"MaxAge", "1h0m0s"}},
		"nowhere to spread": {func() policy.Policy {
			p := with(policy.Rule{Match: match, Backoff: policy.Linear{Base: time.Minute, Max: time.Minute}})
			p.Jitter = policy.DecorrelatedJitter
			return p
		}(), "Rules[1].Backoff", []string{"decorrelated"}},
	} {
		var invalid *policy.ValidationError
		err := tt.policy.Validate()
		require.ErrorAs(t, err, &invalid, name)
		require.Len(t, invalid.Faults, 1, "%s: %v", name, err)
		require.Equal(t, tt.path, invalid.Faults[0].Path, name)
		for _, text := range tt.text {
			require.Contains(t, err.Error(), text, name)
		}
	}
}

// Whatever the rules hold, an unvalidated policy decides.
func TestUnvalidatedRules(t *testing.T) {
	p := policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second), Rules: []policy.Rule{
		{}, {Match: policy.MatchFunc(nil)}, {Match: policy.AnyOf{nil}}, {Match: policy.Is(nil)},
		{Match: policy.Is(io.EOF), Action: 77, MaxAttempts: -5},
	}}
	d := p.Decide(policy.Failure{Attempt: 2, Err: io.EOF})
	require.Equal(t, policy.ActionRetry, d.Action)
	require.Equal(t, "#5", d.Rule())
	require.Equal(t, policy.ReasonExhausted, p.Decide(policy.Failure{Attempt: 3, Err: io.EOF}).Reason)
	require.Equal(t, 3, p.AttemptLimit())
}

// An error whose own methods panic, as those of a nil pointer do, is matched by no rule.
func TestRulesOutliveErrorsThatPanic(t *testing.T) {
	p := policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second), Rules: []policy.Rule{
		{Match: policy.Is(io.EOF), Action: policy.ActionDiscard}, {Match: policy.As[*fs.PathError](), Action: policy.ActionDiscard},
	}}
	d := p.Decide(policy.Failure{Attempt: 1, Err: explosive{}})
	require.Equal(t, policy.ActionRetry, d.Action)
	require.Empty(t, d.Rule())
}

type explosive struct{}

func (explosive) Error() string   { panic("Error") }
func (explosive) Is(error) bool   { panic("Is") }
func (explosive) As(any) bool     { panic("As") }
func (explosive) Unwrap() []error { panic("Unwrap") }

func tenRules() policy.Policy {
	p := payments
	for i := range 9 {
		p.Rules = append(p.Rules, policy.Rule{Match: policy.Is(fmt.Errorf("sentinel %d", i)), Action: policy.ActionDeadLetter})
	}
	p.Rules = append(p.Rules, policy.Rule{Name: "eof", Match: policy.Is(io.EOF), MaxAttempts: 20, Backoff: policy.Fixed(time.Minute)})
	return p
}

func TestDecideByTenRulesAllocatesNothing(t *testing.T) {
	p := tenRules()
	wrapped := fmt.Errorf("read: %w", io.EOF)
	for name, err := range map[string]error{"last": io.EOF, "wrapped": wrapped, "none": errBusy} {
		f := policy.Failure{Attempt: 3, Err: err, MessageID: someID}
		require.Zero(t, testing.AllocsPerRun(100, func() { sink = p.Decide(f) }), name)
	}
	p.Rules[9].Match = policy.As[*fs.PathError]()
	f := policy.Failure{Attempt: 3, Err: fmt.Errorf("open: %w", &fs.PathError{}), MessageID: someID}
	require.Zero(t, testing.AllocsPerRun(100, func() { sink = p.Decide(f) }), "by type")
	require.Equal(t, "eof", sink.Rule())
}

func TestRulesWithARandStayInRange(t *testing.T) {
	p := ruled()
	p.Jitter = policy.FullJitter
	p.Rand = policy.NewRand(rand.NewPCG(1, 2))
	for attempt := range 19 {
		d := p.Decide(policy.Failure{Attempt: attempt + 1, Err: errBusy})
		require.LessOrEqual(t, d.Delay, time.Minute)
	}
	require.Equal(t, policy.ActionDeadLetter, p.Decide(policy.Failure{Attempt: math.MaxInt, Err: errBusy}).Action)
}
