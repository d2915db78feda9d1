package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/conformance"
)

// harness opens queues whose dead-letter queue is unavailable, when the suite asks for that, in the given way.
func harness(unavailable error) conformance.Harness {
	open := func(name string) *conformance.Fixture {
		q := memory.New(name, memory.Options{})
		return &conformance.Fixture{
			Queue:       q,
			DeadLetters: q.DeadLetters(),
			Reopen:      func(context.Context) (backend.Queue, error) { return q.Open(), nil },
			Crash:       func(sub backend.Subscription) { sub.(*memory.Subscription).Crash() },
			BreakDeadLetters: func(context.Context) (func(context.Context) error, error) {
				q.DeadLetters().Refuse(unavailable)
				return func(context.Context) error {
					q.DeadLetters().Refuse(nil)
					return nil
				}, nil
			},
		}
	}
	return conformance.Harness{
		Name: "memory",
		Open: func(_ context.Context, name string) (*conformance.Fixture, error) { return open(name), nil },
		OpenWithoutQueue: func(_ context.Context, name string) (*conformance.Fixture, error) {
			f := open(name)
			f.Queue.(*memory.Queue).Refuse(backend.ErrQueueNotFound)
			return f, nil
		},
		OpenWithoutDeadLetters: func(_ context.Context, name string) (*conformance.Fixture, error) {
			f := open(name)
			f.DeadLetters.(*memory.Queue).Refuse(backend.ErrQueueNotFound)
			return f, nil
		},
	}
}

// The suite runs in virtual time here, where nothing but the backend's own rules can make a message late: so it gets no
// slack. It runs in real time among the examples.
func TestConformance(t *testing.T) {
	for name, unavailable := range map[string]error{"missing": backend.ErrQueueNotFound, "full": errors.New("queue is full")} {
		t.Run("dead-letter queue "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := harness(unavailable)
				h.Slack = time.Nanosecond
				h.Logf = t.Logf
				for _, v := range conformance.Check(t.Context(), h) {
					t.Error(v)
				}
			})
		})
	}
}
