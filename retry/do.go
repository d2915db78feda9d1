package retry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// Do calls fn until it returns nil, the policy gives it up, or ctx ends. It returns nil or an [*Error]; but for a policy that is
// not valid the error of [policy.Policy.Validate], without a call of fn.
//
// It calls fn in its own goroutine, with a context that tells the [Attempt]. It is safe for concurrent use.
func Do(ctx context.Context, p policy.Policy, fn func(ctx context.Context) error, opts ...Option) error {
	if fn == nil {
		return errNoFunction
	}
	if err := p.Validate(); err != nil {
		return fmt.Errorf("retry: %w", err)
	}
	if err := ended(ctx); err != nil {
		return &Error{Context: err}
	}

	o := merge(opts)
	f := policy.Failure{Attempt: 1}
	for began := time.Now(); ; {
		f.Err = fn(context.WithValue(ctx, attemptKey{}, f.Attempt))
		if f.Err == nil {
			return nil
		}
		f.Age = time.Since(began)
		if f.MessageID == "" {
			f.MessageID = o.identity()
		}
		d := p.Decide(f)
		if o.observe != nil {
			o.observe(ctx, f, d)
		}
		if d.Action != policy.ActionRetry {
			return &Error{Reason: d.Reason, Attempt: f.Attempt, Elapsed: f.Age, Err: f.Err}
		}
		if err := wait(ctx, d.Delay); err != nil {
			return &Error{Context: err, Attempt: f.Attempt, Elapsed: time.Since(began), Err: f.Err}
		}
		if d.Uncharged {
			f.Snoozes++
		} else {
			f.Attempt++
		}
	}
}

// Value is [Do] for a function that returns a value. It returns that of the last call, beside an error too; the zero value where
// fn was not called.
func Value[T any](ctx context.Context, p policy.Policy, fn func(ctx context.Context) (T, error), opts ...Option) (value T, err error) {
	if fn == nil {
		return value, errNoFunction
	}
	err = Do(ctx, p, func(ctx context.Context) (err error) {
		value, err = fn(ctx)
		return err
	}, opts...)
	return value, err
}

var errNoFunction = errors.New("retry: want a function to call; it is nil")

// Attempt returns the number of the call, from 1, to a function that Do calls with ctx. After a snooze it stays the same. Without
// a Do it is 0.
func Attempt(ctx context.Context) int {
	n, _ := ctx.Value(attemptKey{}).(int)
	return n
}

type attemptKey struct{}

// wait returns nil after the delay, or before it the reason why there will be no call after it.
func wait(ctx context.Context, delay time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && delay >= time.Until(deadline) && ctx.Err() == nil {
		return context.DeadlineExceeded
	}
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return ended(ctx)
}

// ended returns why the context has ended, its cause included; nil while it has not.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// An Option says more about a call of Do. The last one counts where there are several of a kind.
type Option struct {
	id      string
	observe func(context.Context, policy.Failure, policy.Decision)
}

// ID is the identity that jitter is drawn from, with the attempt. The same one has the same waits, as a test may want it, or who
// wants to replay a decision; different ones spread. Empty, and without this option, each Do draws one of its own.
func ID(id string) Option { return Option{id: id} }

// Observe has f called after each failure, the last one included, with what the policy was asked and what it decided, before the
// wait. It runs in the goroutine of Do.
func Observe(f func(context.Context, policy.Failure, policy.Decision)) Option {
	return Option{observe: f}
}

func merge(opts []Option) (o Option) {
	for _, opt := range opts {
		if opt.id != "" {
			o.id = opt.id
		}
		if opt.observe != nil {
			o.observe = opt.observe
		}
	}
	return o
}

// identity returns the ID, or a new one.
func (o *Option) identity() string {
	if o.id == "" {
		return rand.Text()
	}
	return o.id
}
