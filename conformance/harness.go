package conformance

import (
	"context"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// Harness tells the suite how to reach the backend under test. Open is all that it must hold; without an optional hook the
// cases that need it are skipped, by name and with the reason.
type Harness struct {
	// Name is the backend's name, for the summary.
	Name string

	// Open makes a new queue with its dead-letter queue. The suite calls it at least once for each case, concurrently, each
	// time with another name: lower-case letters, digits and underscores, at most 40 bytes.
	Open func(ctx context.Context, name string) (*Fixture, error)

	// OpenWithoutQueue opens a queue of that name without making it, or fails as the backend does when it opens a queue
	// that does not exist. Optional.
	OpenWithoutQueue func(ctx context.Context, name string) (*Fixture, error)

	// OpenWithoutDeadLetters makes a queue of that name without its dead-letter queue, and opens it as if it had one.
	// Optional.
	OpenWithoutDeadLetters func(ctx context.Context, name string) (*Fixture, error)

	// Lease is the lease that the suite lets lapse, many times over. It should be short, but long enough for a few calls to
	// the broker. Default 1s.
	Lease time.Duration

	// Slack is how late a message may be, beyond the granularity that the backend states, before that counts as late.
	// Raise it for a slow machine. Default 500ms.
	Slack time.Duration

	// Timeout ends a case that hangs. Default 1 minute.
	Timeout time.Duration

	// Logf takes the summary of skipped cases from Check. Run logs it to the test. Optional.
	Logf func(format string, args ...any)
}

// Fixture is one queue under test, and what the suite needs to know around it.
type Fixture struct {
	// Queue is the queue.
	Queue backend.Queue

	// DeadLetters is Queue's dead-letter queue, opened as a queue of its own.
	DeadLetters backend.Queue

	// Publish sends to Queue. It may be nil if Queue is a backend.Publisher. Where the broker leaves it to producers to
	// note when they sent a message, it must do so.
	Publish func(ctx context.Context, msgs ...backend.Message) error

	// Reopen opens the same queue once more, as another process would. Optional.
	Reopen func(ctx context.Context) (backend.Queue, error)

	// Crash abandons a subscription as the death of its process would: nothing is given back. If it is nil the suite just
	// stops using the subscription, which is right where leases expire by time; where they do not, the hook is needed.
	Crash func(backend.Subscription)

	// BreakDeadLetters makes the dead-letter queue unavailable (missing, full, down) until restore is called. What is in it
	// may be lost. Optional.
	BreakDeadLetters func(ctx context.Context) (restore func(context.Context) error, err error)

	// Close removes what Open made. The suite has closed its subscriptions before. Optional.
	Close func(ctx context.Context) error
}

func (h Harness) withDefaults() Harness {
	if h.Lease <= 0 {
		h.Lease = time.Second
	}
	if h.Slack <= 0 {
		h.Slack = 500 * time.Millisecond
	}
	if h.Timeout <= 0 {
		h.Timeout = time.Minute
	}
	return h
}
