package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// brittle is an error whose methods panic where it is nil.
type brittle struct {
	text  string
	cause error
}

func (b *brittle) Error() string { return b.text }
func (b *brittle) Unwrap() error { return b.cause }

// touchy is an error whose Is panics.
type touchy struct{ error }

func (touchy) Is(error) bool { panic("touchy") }

// grabby is an error whose As panics.
type grabby struct{ error }

func (grabby) As(any) bool { panic("grabby") }

// evasive is an error whose Unwrap panics.
type evasive struct{ error }

func (evasive) Unwrap() []error { panic("evasive") }

// silent is an error that has a cause and a text that panics.
type silent struct{ error }

func (silent) Error() string   { panic("silent") }
func (s silent) Unwrap() error { return s.error }

func explode() { panic("in a function with a name") }

func deep(n int) int {
	if n == 0 {
		panic("deep down")
	}
	return deep(n-1) + 1
}

func TestHandlersThatBreakHaveFailed(t *testing.T) {
	for name, c := range map[string]struct {
		handler   consumer.HandlerFunc
		panicked  bool
		error     string // what the envelope holds
		errorType string
		stack     string
	}{
		"panics with an error": {
			handler:  func(context.Context, *backend.Delivery) error { panic(fmt.Errorf("db: %w", errDeclined)) },
			panicked: true, error: "consumer: handler panicked: db: declined", errorType: "*consumer.PanicError", stack: "panic_test.go",
		},
		"panics with a text": {
			handler:  func(context.Context, *backend.Delivery) error { explode(); return nil },
			panicked: true, error: "consumer: handler panicked: in a function with a name", errorType: "*consumer.PanicError", stack: "consumer_test.explode",
		},
		"panics with nil": {
			handler:  func(context.Context, *backend.Delivery) error { panic(nil) },
			panicked: true, error: "consumer: handler panicked: panic called with nil argument", errorType: "*consumer.PanicError", stack: "panic_test.go",
		},
		"panics far down": {
			handler:  func(context.Context, *backend.Delivery) error { deep(100_000); return nil },
			panicked: true, error: "consumer: handler panicked: deep down", errorType: "*consumer.PanicError", stack: "consumer_test.deep",
		},
		"panics with an error that panics": {
			handler:  func(context.Context, *backend.Delivery) error { panic((*brittle)(nil)) },
			panicked: true, error: "consumer: handler panicked: ", errorType: "*consumer.PanicError", stack: "panic_test.go",
		},
		"ends its goroutine": {
			handler:  func(context.Context, *backend.Delivery) error { runtime.Goexit(); return nil },
			panicked: true, error: "consumer: handler ended its goroutine with runtime.Goexit", errorType: "*consumer.PanicError", stack: "panic_test.go",
		},
		"is nil": {
			error: "consumer: the handler is a nil HandlerFunc", errorType: "*errors.errorString",
		},
		"returns a nil pointer as its error": {
			handler: func(context.Context, *backend.Delivery) error { return (*brittle)(nil) },
			error:   "*consumer_test.brittle whose methods panic", errorType: "*errors.errorString",
		},
		"returns an error that holds a nil pointer": {
			handler: func(context.Context, *backend.Delivery) error { return &brittle{"outside", (*brittle)(nil)} },
			error:   "*consumer_test.brittle whose methods panic", errorType: "*errors.errorString",
		},
		"returns an error whose text panics": {
			handler: func(context.Context, *backend.Delivery) error { return silent{errDeclined} },
			error:   "consumer_test.silent whose methods panic: silent", errorType: "*errors.errorString",
		},
		"returns an error whose Is panics": {
			handler: func(context.Context, *backend.Delivery) error { return touchy{errDeclined} },
			error:   "consumer_test.touchy whose methods panic: touchy", errorType: "*errors.errorString",
		},
		"returns an error whose As panics": {
			handler: func(context.Context, *backend.Delivery) error { return grabby{errDeclined} },
			error:   "consumer_test.grabby whose methods panic: grabby", errorType: "*errors.errorString",
		},
		"returns an error that holds another that panics, late": {
			handler: func(context.Context, *backend.Delivery) error {
				return errors.Join(context.Canceled, touchy{errDeclined})
			},
			error: "*errors.joinError whose methods panic: touchy", errorType: "*errors.errorString",
		},
		"returns an error whose Unwrap panics": {
			handler: func(context.Context, *backend.Delivery) error { return evasive{errDeclined} },
			error:   "consumer_test.evasive whose methods panic: evasive", errorType: "*errors.errorString",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				seen, events := &journal{}, &recorder{}
				p := policy.Policy{MaxAttempts: 2, Backoff: policy.Fixed(time.Minute)}
				con := consume(q, p, events, nil)
				var breaker counting
				con.Breaker = &breaker
				con.Concurrency = 1
				handler := c.handler
				con.Handler = consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
					seen.note(d)
					if d.ID == "other" {
						return nil
					}
					return handler.Handle(ctx, d)
				})
				publish(t, q.Queue, message("m"), message("other"))
				stop := start(t, con)
				time.Sleep(time.Hour)
				require.NoError(t, stop())

				require.Equal(t, []string{"m", "other", "m"}, seen.ids())
				require.Equal(t, []backend.Outcome{backend.Retry, backend.DeadLetter}, q.outcomes("m"), "settled once an attempt")
				require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("other"))
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.Retried, consumer.Received, consumer.DeadLettered}, events.kinds("m"))
				retried := events.of(consumer.Retried)[0]
				var panicked *consumer.PanicError
				f := deadLetter(t, q.Queue)
				require.Equal(t, "exhausted", f.Reason)
				require.Equal(t, 2, f.Attempts)
				require.Contains(t, f.Error, c.error)
				require.Equal(t, c.errorType, f.ErrorType)
				if c.panicked {
					require.Equal(t, policy.ReasonPanic, retried.Reason)
					require.True(t, errors.As(retried.Err, &panicked))
					require.Contains(t, f.Stack, c.stack)
					require.Less(t, len(f.Stack), backend.DefaultEnvelopeBudget)
				} else {
					require.Equal(t, policy.ReasonError, retried.Reason)
					require.Empty(t, f.Stack)
				}
				require.Equal(t, 1, breaker.successes)
				require.Equal(t, 2, breaker.failures)
			})
		})
	}
}

func TestAPanicWithAMarkedErrorIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		stop := start(t, consume(q, three, events, func(context.Context, *backend.Delivery) error { panic(policy.Permanent(errDeclined)) }))
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.ErrorIs(t, events.of(consumer.DeadLettered)[0].Err, errDeclined)
		f := deadLetter(t, q.Queue)
		require.Equal(t, "permanent", f.Reason)
		require.NotEmpty(t, f.Stack)
	})
}

func TestRunDrainsWhileHandlersPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		publish(t, q.Queue, message("panics"), message("exits"))
		stop := start(t, consume(q, three, events, func(ctx context.Context, d *backend.Delivery) error {
			time.Sleep(5 * time.Second)
			if d.ID == "exits" {
				runtime.Goexit()
			}
			panic("x")
		}))
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, stop())
		require.Equal(t, 4*time.Second, time.Since(began))
		require.Equal(t, 2, events.count(consumer.Retried))
		require.Equal(t, int64(2), stats(t, q.Queue).Waiting)
	})
}

func TestACurveThatPanicsCostsNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		p := policy.Policy{MaxAttempts: 3, MaxDelay: time.Minute, Backoff: policy.Func(func(attempt int) time.Duration {
			if len(seen.all()) > 0 {
				panic("no curve today")
			}
			return time.Second
		})}
		stop := start(t, consume(q, p, events, seen.wrap(fail)))
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, seen.gaps(), "those of a policy without a curve")
		require.Equal(t, "declined", deadLetter(t, q.Queue).Error)
	})
}

func TestAChooseThatPanicsLeavesTheMessageToThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events, logged := &journal{}, &recorder{}, &logs{}
		c := consume(q, three, events, seen.wrap(fail))
		c.Overrides = map[string]policy.Policy{"other": {MaxAttempts: 1, Backoff: policy.Fixed(time.Second)}}
		c.Choose = func(d *backend.Delivery) string { panic("canary") }
		c.Redact = func(s string) string { return strings.ReplaceAll(s, "canary", "***") }
		c.Logger = logged.logger()
		stop := start(t, c)
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 3)
		require.Equal(t, "three", deadLetter(t, q.Queue).Policy)
		require.Contains(t, strings.Join(logged.all(), ""), "Choose panicked")
		require.NotContains(t, strings.Join(logged.all(), ""), "canary")
	})
}
