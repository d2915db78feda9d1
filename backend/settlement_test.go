package backend_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
)

func TestOutcomeString(t *testing.T) {
	want := []string{"outcome(0)", "ack", "retry", "dead-letter", "discard", "release", "outcome(6)"}
	for i, name := range want {
		require.Equal(t, name, backend.Outcome(i).String())
	}
}

func TestSettlementValidate(t *testing.T) {
	d := &backend.Delivery{Message: backend.Message{ID: "7"}, Queue: "orders"}
	f := new(backend.Failure)
	for name, c := range map[string]struct {
		s    backend.Settlement
		want string // "" if it is valid
	}{
		"ack":                    {s: backend.Settlement{Delivery: d, Outcome: backend.Ack}},
		"retry":                  {s: backend.Settlement{Delivery: d, Outcome: backend.Retry}},
		"retry with failure":     {s: backend.Settlement{Delivery: d, Outcome: backend.Retry, Failure: f, Delay: -1}},
		"snooze":                 {s: backend.Settlement{Delivery: d, Outcome: backend.Retry, Uncharged: true}},
		"wait for dead letters":  {s: backend.Settlement{Delivery: d, Outcome: backend.Retry, AwaitDeadLetter: true, Failure: f}},
		"dead letter":            {s: backend.Settlement{Delivery: d, Outcome: backend.DeadLetter, Failure: f}},
		"discard":                {s: backend.Settlement{Delivery: d, Outcome: backend.Discard}},
		"release":                {s: backend.Settlement{Delivery: d, Outcome: backend.Release}},
		"no delivery":            {s: backend.Settlement{Outcome: backend.Ack}, want: "without a delivery"},
		"no outcome":             {s: backend.Settlement{Delivery: d}, want: "Settlement.Outcome"},
		"outcome out of range":   {s: backend.Settlement{Delivery: d, Outcome: backend.Release + 1}, want: "outcome(6)"},
		"uncharged ack":          {s: backend.Settlement{Delivery: d, Outcome: backend.Ack, Uncharged: true}, want: "belong to a retry"},
		"waiting dead letter":    {s: backend.Settlement{Delivery: d, Outcome: backend.DeadLetter, Failure: f, AwaitDeadLetter: true}, want: "belong to a retry"},
		"bare dead letter":       {s: backend.Settlement{Delivery: d, Outcome: backend.DeadLetter}, want: "needs a Failure"},
		"bare wait for its turn": {s: backend.Settlement{Delivery: d, Outcome: backend.Retry, AwaitDeadLetter: true}, want: "needs a Failure"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.s.Validate()
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			if c.s.Delivery != nil {
				require.ErrorContains(t, err, `message "7" of queue "orders"`)
			}
		})
	}
}

type brokerError struct{ code int }

func (e *brokerError) Error() string { return fmt.Sprintf("code %d", e.code) }

func TestBatchError(t *testing.T) {
	require.NoError(t, backend.NewBatchError(nil))
	require.NoError(t, backend.NewBatchError(make([]error, 3)))

	cause := &brokerError{40}
	err := backend.NewBatchError([]error{nil, fmt.Errorf("ack: %w", backend.ErrLeaseLost), nil, fmt.Errorf("retry: %w", cause)})
	var batch *backend.BatchError
	require.ErrorAs(t, err, &batch)
	require.Equal(t, 4, batch.Size)
	require.Equal(t, "2 of 4 items failed; item 1: ack: lease lost; item 3: retry: code 40", err.Error())
	require.ErrorIs(t, err, backend.ErrLeaseLost)
	require.NotErrorIs(t, err, backend.ErrSettled)
	var broker *brokerError
	require.ErrorAs(t, err, &broker)
	require.Same(t, cause, broker)
	for i, fails := range []bool{false, true, false, true, false} {
		require.Equal(t, fails, batch.At(i) != nil, "item %d", i)
		require.Equal(t, batch.At(i), backend.ErrorAt(err, i))
	}
}

func TestBatchErrorNamesTheFirstFew(t *testing.T) {
	errs := make([]error, 10)
	for i := range errs {
		errs[i] = backend.ErrSettled
	}
	require.Equal(t, "10 of 10 items failed; item 0: delivery already settled; item 1: delivery already settled; item 2: delivery already settled; ...",
		backend.NewBatchError(errs).Error())
}

func TestErrorAt(t *testing.T) {
	require.NoError(t, backend.ErrorAt(nil, 3))
	whole := errors.New("no connection")
	require.Equal(t, whole, backend.ErrorAt(whole, 3))

	// Wrapped, a batch error is about the call that wrapped it.
	wrapped := fmt.Errorf("settle: %w", backend.NewBatchError([]error{nil, whole}))
	require.Equal(t, wrapped, backend.ErrorAt(wrapped, 0))
}

func TestLimitsApplied(t *testing.T) {
	seconds := backend.Limits{Granularity: time.Second, MaxDelay: 12 * time.Hour}
	for _, c := range []struct {
		limits     backend.Limits
		want, held time.Duration
	}{
		{backend.Limits{}, 0, 0},
		{backend.Limits{}, -5 * time.Second, 0},
		{backend.Limits{}, 1500*time.Millisecond + 1, 1500*time.Millisecond + 1},
		{backend.Limits{}, math.MaxInt64, math.MaxInt64},
		{seconds, math.MinInt64, 0},
		{seconds, 0, 0},
		{seconds, 1, time.Second},
		{seconds, 200 * time.Millisecond, time.Second},
		{seconds, time.Second, time.Second},
		{seconds, 1001 * time.Millisecond, 2 * time.Second},
		{seconds, 40300 * time.Millisecond, 41 * time.Second},
		{seconds, 12*time.Hour - 1, 12 * time.Hour},
		{seconds, 20 * time.Hour, 12 * time.Hour},
		{seconds, math.MaxInt64, 12 * time.Hour},
		{backend.Limits{Granularity: time.Second}, math.MaxInt64, math.MaxInt64},
		{backend.Limits{Granularity: 10 * time.Second, MaxDelay: 15 * time.Second}, 11 * time.Second, 15 * time.Second},
		{backend.Limits{Granularity: 1}, 7, 7},
	} {
		require.Equal(t, c.held, c.limits.Applied(c.want), "%v under %+v", c.want, c.limits)
	}
}
