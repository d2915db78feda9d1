package policy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
)

// single holds one error.
type single struct{ err error }

func (e single) Error() string { return "single: " + e.err.Error() }
func (e single) Unwrap() error { return e.err }

// several holds a list of errors.
type several []error

func (e several) Error() string   { return "several" }
func (e several) Unwrap() []error { return e }

// hidden holds an error that only As reaches.
type hidden struct{ err error }

func (e *hidden) Error() string      { return "hidden" }
func (e *hidden) As(target any) bool { return errors.As(e.err, target) }

// delegate holds an error that only Is and As reach.
type delegate struct{ err error }

func (e delegate) Error() string        { return "delegate" }
func (e delegate) As(target any) bool   { return errors.As(e.err, target) }
func (e delegate) Is(target error) bool { return errors.Is(e.err, target) }

// picky has an Is of its own beside a list of errors.
type picky struct{ errs []error }

func (e picky) Error() string   { return "picky" }
func (e picky) Is(error) bool   { return false }
func (e picky) Unwrap() []error { return e.errs }

// declined says itself that it is permanent.
type declined struct{}

func (declined) Error() string        { return "declined" }
func (declined) Is(target error) bool { return target == policy.ErrPermanent }

// foreignPermanent is what other retry libraries have.
type foreignPermanent struct{}

func (foreignPermanent) Error() string   { return "permanent failure" }
func (foreignPermanent) Permanent() bool { return true }

func TestMarksAreFoundInAnyWrapping(t *testing.T) {
	w := func(err error) error { return fmt.Errorf("w: %w", err) }
	wrappings := map[string]func(error) error{
		"bare":              func(err error) error { return err },
		"%w":                w,
		"three times %w":    func(err error) error { return w(w(w(err))) },
		"two %w":            func(err error) error { return fmt.Errorf("%w, %w", io.EOF, err) },
		"Unwrap() error":    func(err error) error { return single{err} },
		"Unwrap() []error":  func(err error) error { return several{io.EOF, nil, err} },
		"errors.Join":       func(err error) error { return errors.Join(io.EOF, err) },
		"joined first":      func(err error) error { return errors.Join(err, io.EOF) },
		"deep in joins":     func(err error) error { return w(errors.Join(io.EOF, single{several{w(err)}})) },
		"As":                func(err error) error { return w(&hidden{err}) },
		"As and Is":         func(err error) error { return w(delegate{err}) },
		"Is beside several": func(err error) error { return picky{[]error{io.EOF, err}} },
		"below a hint":      func(err error) error { return policy.RetryAfter(time.Minute, err) },
	}
	p := steady()
	for name, wrap := range wrappings {
		for want, err := range map[string]error{
			"dead-letter permanent": policy.Permanent(errDown),
			"discard discarded":     policy.Discard(errDown),
			"retry snoozed":         policy.Snooze(30 * time.Second),
			"retry retry_after":     policy.RetryAfter(30*time.Second, errDown),
		} {
			err := wrap(err)
			d := p.Decide(policy.Failure{Attempt: 1, Err: err})
			require.Equal(t, want, outcome(d), name)
			if d.Action == policy.ActionRetry && name != "below a hint" {
				require.Equal(t, 30*time.Second, d.Delay, name)
				hint, ok := policy.Hint(err)
				require.True(t, ok, name)
				require.Equal(t, 30*time.Second, hint, name)
			}
		}
		d := p.Decide(policy.Failure{Attempt: 1, Err: wrap(errDown)})
		require.Equal(t, policy.ActionRetry, d.Action, name)
	}
}

func TestPrintedMarkIsLost(t *testing.T) {
	err := fmt.Errorf("printed: %v", policy.Permanent(errDown))
	require.Equal(t, "retry error", outcome(steady().Decide(policy.Failure{Attempt: 1, Err: err})))
}

func TestMostSevereMarkDecidesWhereverItIs(t *testing.T) {
	discard, permanent := policy.Discard(io.EOF), policy.Permanent(io.EOF)
	snooze, retryAfter := policy.Snooze(time.Second), policy.RetryAfter(time.Hour, io.EOF)
	p := steady()
	for _, tt := range []struct {
		errs []error
		want string
	}{
		{[]error{discard, permanent, snooze, retryAfter}, "discard discarded"},
		{[]error{permanent, snooze, retryAfter}, "dead-letter permanent"},
		{[]error{snooze, retryAfter}, "retry snoozed"},
		{[]error{retryAfter, errDown}, "retry retry_after"},
		{[]error{errDown, io.EOF}, "retry error"},
	} {
		require.Equal(t, tt.want, outcome(p.Decide(policy.Failure{Err: errors.Join(tt.errs...)})))
		for i, j := 0, len(tt.errs)-1; i < j; i, j = i+1, j-1 {
			tt.errs[i], tt.errs[j] = tt.errs[j], tt.errs[i]
		}
		require.Equal(t, tt.want, outcome(p.Decide(policy.Failure{Err: errors.Join(tt.errs...)})), "the other way round")
	}
	require.Equal(t, "discard discarded", outcome(p.Decide(policy.Failure{Err: policy.Permanent(discard)})))
	require.Equal(t, "discard discarded", outcome(p.Decide(policy.Failure{Err: policy.Discard(permanent)})))
}

func TestLongestHintCounts(t *testing.T) {
	short, long := policy.RetryAfter(time.Second, io.EOF), policy.RetryAfter(time.Minute, io.EOF)
	for _, err := range []error{errors.Join(short, long), errors.Join(long, short), policy.RetryAfter(time.Second, long)} {
		require.Equal(t, time.Minute, steady().Decide(policy.Failure{Err: err}).Delay)
	}
}

func TestNilStaysNil(t *testing.T) {
	require.True(t, policy.Permanent(nil) == nil)
	require.True(t, policy.Discard(nil) == nil)
	require.True(t, policy.RetryAfter(time.Second, nil) == nil)
}

func TestMarkTwiceIsMarkedOnce(t *testing.T) {
	permanent, discard := policy.Permanent(errDown), policy.Discard(errDown)
	require.Same(t, permanent, policy.Permanent(permanent))
	require.Same(t, discard, policy.Discard(discard))
	require.Equal(t, errDown, errors.Unwrap(policy.Permanent(permanent)))
}

func TestCauseStaysVisible(t *testing.T) {
	cause := single{fmt.Errorf("read: %w", context.DeadlineExceeded)}
	for _, err := range []error{policy.Permanent(cause), policy.Discard(cause), policy.RetryAfter(time.Second, cause)} {
		require.Equal(t, cause.Error(), err.Error())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var found single
		require.ErrorAs(t, err, &found)
	}
}

func TestSentinels(t *testing.T) {
	sentinels := []error{policy.ErrDiscard, policy.ErrPermanent, policy.ErrSnooze, policy.ErrRetryAfter}
	marked := []error{policy.Discard(io.EOF), policy.Permanent(io.EOF), policy.Snooze(time.Second), policy.RetryAfter(time.Second, io.EOF)}
	outcomes := []string{"discard discarded", "dead-letter permanent", "retry snoozed", "retry retry_after"}
	texts := map[string]bool{}
	for i, sentinel := range sentinels {
		texts[sentinel.Error()] = true
		for j, err := range marked {
			require.Equal(t, i == j, errors.Is(fmt.Errorf("w: %w", err), sentinel), "%v, %v", err, sentinel)
		}
		wrapped := fmt.Errorf("no such customer: %w", sentinel)
		require.Equal(t, outcomes[i], outcome(steady().Decide(policy.Failure{Attempt: 1, Err: wrapped})))
	}
	require.Len(t, texts, 4, "each says what it is")
	require.NotErrorIs(t, errDown, policy.ErrPermanent)
	require.Contains(t, policy.Snooze(time.Minute).Error(), "1m0s")
}

func TestErrorTypeCanDeclareItself(t *testing.T) {
	err := fmt.Errorf("charge: %w", declined{})
	require.ErrorIs(t, err, policy.ErrPermanent)
	require.Equal(t, "dead-letter permanent", outcome(steady().Decide(policy.Failure{Attempt: 1, Err: err})))
}

// broken is what becomes of an error when a nil pointer is returned as one.
type broken struct{ cause error }

func (b *broken) Error() string { return b.cause.Error() }
func (b *broken) Unwrap() error { return b.cause }

func TestPanickingErrorIsReadAsFarAsItLets(t *testing.T) {
	var err *broken
	for want, err := range map[string]error{
		"retry error":           err,
		"dead-letter permanent": policy.Permanent(err),
		"discard discarded":     errors.Join(policy.Discard(io.EOF), err),
		"retry retry_after":     policy.RetryAfter(time.Second, err),
	} {
		require.Equal(t, want, outcome(steady().Decide(policy.Failure{Attempt: 1, Err: err})))
	}
}

func TestOtherErrorsAreTransient(t *testing.T) {
	for _, err := range []error{
		nil, errDown, io.EOF, context.Canceled, context.DeadlineExceeded,
		foreignPermanent{}, errors.New("permanent failure"), several{}, several{nil, nil},
	} {
		require.Equal(t, "retry error", outcome(steady().Decide(policy.Failure{Attempt: 1, Err: err})), "%v", err)
		_, ok := policy.Hint(err)
		require.False(t, ok, "%v", err)
	}
}

func TestHint(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want time.Duration
		ok   bool
	}{
		{policy.RetryAfter(time.Minute, io.EOF), time.Minute, true},
		{policy.RetryAfter(-time.Minute, io.EOF), 0, true},
		{policy.Snooze(time.Hour), time.Hour, true},
		{policy.Snooze(-time.Hour), 0, true},
		{errors.Join(policy.Snooze(time.Second), policy.RetryAfter(time.Hour, io.EOF)), time.Second, true},
		{policy.Permanent(policy.RetryAfter(time.Minute, io.EOF)), 0, false},
		{policy.Discard(policy.Snooze(time.Minute)), 0, false},
		{nil, 0, false},
	} {
		d, ok := policy.Hint(tt.err)
		require.Equal(t, tt.want, d, "%v", tt.err)
		require.Equal(t, tt.ok, ok, "%v", tt.err)
	}
}
