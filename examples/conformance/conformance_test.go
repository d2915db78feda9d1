// Package conformance_test shows how to hold a backend of one's own to the contract. The backend here is the memory one;
// put yours in its place.
package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/conformance"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Harness{
		Name:  "memory",
		Open:  open,
		Lease: 300 * time.Millisecond, // short, since cases wait for leases to lapse; long enough for a few calls
		Slack: 5 * time.Second,        // a busy machine is late by itself

		OpenWithoutQueue:       openWithoutQueue,
		OpenWithoutDeadLetters: openWithoutDeadLetters,
	})
}

// open makes a queue that no other case uses.
func open(_ context.Context, name string) (*conformance.Fixture, error) {
	q := memory.New(name, memory.Options{})
	return &conformance.Fixture{
		Queue:       q,
		DeadLetters: q.DeadLetters(),

		// What follows may be left out. The cases that need it are then skipped, by name.
		Reopen: func(context.Context) (backend.Queue, error) { return q.Open(), nil },
		Crash:  func(sub backend.Subscription) { sub.(*memory.Subscription).Crash() },
		BreakDeadLetters: func(context.Context) (restore func(context.Context) error, err error) {
			q.DeadLetters().Refuse(backend.ErrQueueNotFound)
			return func(context.Context) error { q.DeadLetters().Refuse(nil); return nil }, nil
		},
	}, nil
}

func openWithoutQueue(ctx context.Context, name string) (*conformance.Fixture, error) {
	f, err := open(ctx, name)
	if err == nil {
		f.Queue.(*memory.Queue).Refuse(backend.ErrQueueNotFound)
	}
	return f, err
}

func openWithoutDeadLetters(ctx context.Context, name string) (*conformance.Fixture, error) {
	f, err := open(ctx, name)
	if err == nil {
		f.DeadLetters.(*memory.Queue).Refuse(backend.ErrQueueNotFound)
	}
	return f, err
}
