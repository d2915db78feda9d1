package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/conformance"
)

func harness() conformance.Harness {
	return conformance.Harness{
		Name: "memory",
		Open: func(_ context.Context, name string) (*conformance.Fixture, error) {
			return fixture(memory.New(name, memory.Options{})), nil
		},
		OpenWithoutQueue: func(_ context.Context, name string) (*conformance.Fixture, error) {
			q := memory.New(name, memory.Options{})
			q.Refuse(backend.ErrQueueNotFound)
			return fixture(q), nil
		},
		OpenWithoutDeadLetters: func(_ context.Context, name string) (*conformance.Fixture, error) {
			q := memory.New(name, memory.Options{})
			q.DeadLetters().Refuse(backend.ErrQueueNotFound)
			return fixture(q), nil
		},
	}
}

func fixture(q *memory.Queue) *conformance.Fixture {
	return &conformance.Fixture{
		Queue:       q,
		DeadLetters: q.DeadLetters(),
		Reopen:      func(context.Context) (backend.Queue, error) { return q.Open(), nil },
		Crash:       func(s backend.Subscription) { s.(*memory.Subscription).Crash() },
		BreakDeadLetters: func(context.Context) (func(context.Context) error, error) {
			q.DeadLetters().Refuse(errors.New("the queue is full"))
			return func(context.Context) error {
				q.DeadLetters().Refuse(nil)
				return nil
			}, nil
		},
		Close: q.Close,
	}
}

func TestConformance(t *testing.T) {
	h := harness()
	h.Lease = 300 * time.Millisecond
	conformance.Run(t, h)
}

// TestConformanceInVirtualTime checks against a clock that stands still while anything runs, so that what comes a
// nanosecond early or late is seen.
func TestConformanceInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness()
		h.Lease = time.Second
		h.Slack = time.Nanosecond
		h.Logf = t.Logf
		require.Empty(t, conformance.Check(t.Context(), h))
	})
}
