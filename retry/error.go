package retry

import (
	"fmt"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// An Error is why [Do] ended without success. It wraps Err and Context:
//
//	var gaveUp *retry.Error
//	switch {
//	case errors.Is(err, context.Canceled): // called off
//	case errors.Is(err, sql.ErrNoRows): // what the function returned last
//	case errors.As(err, &gaveUp): // gaveUp.Reason says why there was no other attempt
//	}
type Error struct {
	// Reason is why the policy gave up: ReasonExhausted, ReasonPermanent, ReasonExpired, ReasonSnoozeLimit or ReasonDiscarded.
	// It is empty where the context ended Do.
	Reason policy.Reason

	// Context is why the context ended Do; nil where the policy gave up. It wraps context.Canceled or
	// context.DeadlineExceeded, and the cause of [context.Cause] where there is one. It is DeadlineExceeded, too, where the
	// deadline was not awaited because the next call would have come after it.
	Context error

	// Attempt is the number of the last attempt, from 1. It is 0 where the context had ended before the first.
	Attempt int

	// Elapsed is how long it took, from the start of the first call.
	Elapsed time.Duration

	// Err is what the function returned last; nil where it was not called.
	Err error
}

// Error returns such as "retry: gave up at attempt 8, after 31.2s (exhausted): connection refused".
func (e *Error) Error() string {
	if e.Attempt == 0 {
		return fmt.Sprintf("retry: gave up before the first attempt: %v", e.Context)
	}
	why := string(e.Reason)
	if e.Context != nil {
		why = e.Context.Error()
	}
	return fmt.Sprintf("retry: gave up at attempt %d, after %v (%s): %v", e.Attempt, e.Elapsed.Round(time.Millisecond), why, e.Err)
}

// Unwrap returns those of Err and Context that are not nil.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Err, e.Context} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
