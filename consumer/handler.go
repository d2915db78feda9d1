package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// Handler handles one delivery. The package comment tells what its end means. It is called concurrently, for different
// deliveries. The context ends when the handler's time is up, when the lease is lost, or when the consumer's shutdown
// will wait no longer; context.Cause tells which. The delivery must not be used after Handle has returned.
type Handler interface {
	// Handle returns nil if the message is done, and otherwise the failure that the policy decides on.
	Handle(ctx context.Context, d *backend.Delivery) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, d *backend.Delivery) error

// Handle calls f. A nil f is an error, not a panic, so that the message is retried and not lost.
func (f HandlerFunc) Handle(ctx context.Context, d *backend.Delivery) error {
	if f == nil {
		return errors.New("consumer: the handler is a nil HandlerFunc")
	}
	return f(ctx, d)
}

// TimeoutError says that a handler outlived Consumer.Timeout. It matches context.DeadlineExceeded.
type TimeoutError struct {
	Timeout time.Duration // the bound that the handler outlived
	// Err is what the handler returned after it was cancelled; nil if it did not return.
	Err error
}

// Error tells the bound and, if there is one, the handler's own error.
func (e *TimeoutError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("consumer: handler ran longer than its timeout of %v", e.Timeout)
	}
	return fmt.Sprintf("consumer: handler ran longer than its timeout of %v: %v", e.Timeout, e.Err)
}

// Unwrap returns the handler's own error, and context.DeadlineExceeded.
func (e *TimeoutError) Unwrap() []error {
	if e.Err == nil {
		return []error{context.DeadlineExceeded}
	}
	return []error{e.Err, context.DeadlineExceeded}
}

// PanicError says that a handler panicked, or ended its goroutine with runtime.Goexit.
type PanicError struct {
	// Value is what the handler panicked with; nil after runtime.Goexit.
	Value any
	// Stack is the stack of the panic, as debug.Stack formats it.
	Stack string
}

// Error tells the value.
func (e *PanicError) Error() string {
	if e.Value == nil {
		return "consumer: handler ended its goroutine with runtime.Goexit"
	}
	return fmt.Sprintf("consumer: handler panicked: %v", e.Value)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return sound(err)
}

// protect calls f and passes its error to then. It turns a panic into a *PanicError, and calls then also when f ends its
// goroutine.
func protect(f func() error, then func(error)) {
	returned := false
	var err error
	defer func() {
		if !returned {
			// A panic(nil) has a non-nil value since Go 1.21, so that nil means runtime.Goexit.
			err = &PanicError{Value: recover(), Stack: string(debug.Stack())}
		}
		then(err)
	}()
	err = sound(f())
	returned = true
}
