package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// DeadLetterSuffix follows a queue's name in the default name of its dead-letter queue.
const DeadLetterSuffix = "_dlq"

// Options configures a queue. The zero value is a queue with a dead-letter queue of the default name.
type Options struct {
	// DeadLetter names the dead-letter queue. Empty means the queue's own name followed by DeadLetterSuffix.
	DeadLetter string

	// NoDeadLetter makes a queue that has no dead-letter queue. Dead-lettering from it fails with
	// backend.ErrQueueNotFound, and the message stays.
	NoDeadLetter bool
}

// Queue is a handle on a queue in this process's memory. It is safe for concurrent use.
type Queue struct {
	store *store

	// Both are guarded by store.mu.
	subs   map[*Subscription]struct{}
	closed bool
}

var (
	_ backend.Queue     = (*Queue)(nil)
	_ backend.Publisher = (*Queue)(nil)
	_ backend.Statser   = (*Queue)(nil)
	_ backend.Checker   = (*Queue)(nil)
)

// New makes an empty queue and its dead-letter queue, and returns the first handle on it. Queues are known by their
// handles, not by their names: two with one name have nothing in common. New panics if name is empty, since the envelope
// of a dead letter names the queue that it comes from.
func New(name string, opts Options) *Queue {
	if name == "" {
		panic("memory: New needs the name of the queue")
	}
	mu := new(sync.Mutex)
	s := newStore(name, mu)
	if !opts.NoDeadLetter {
		if opts.DeadLetter == "" {
			opts.DeadLetter = name + DeadLetterSuffix
		}
		s.dead = newStore(opts.DeadLetter, mu)
	}
	return &Queue{store: s}
}

// Open returns another handle on the queue, as another process would hold it. It is open even if q is closed.
func (q *Queue) Open() *Queue { return &Queue{store: q.store} }

// DeadLetters returns a new handle on the dead-letter queue, or nil if there is none. It is a queue like any other, without
// a dead-letter queue of its own: subscribe to it to read the dead letters, each with its envelope in Delivery.Failure.
// There a message starts anew, as attempt 1 and with an age of 0.
func (q *Queue) DeadLetters() *Queue {
	if q.store.dead == nil {
		return nil
	}
	return &Queue{store: q.store.dead}
}

// Name returns the queue's name.
func (q *Queue) Name() string { return q.store.name }

// Limits tells that delays are exact and unlimited, that leases expire, and that groups stay in order.
func (q *Queue) Limits() backend.Limits {
	return backend.Limits{Ordered: true, LeaseExpires: true}
}

// Subscribe begins to receive; the subscription is a *Subscription. It fails if opts.Lease is not above 0, with
// backend.ErrClosed if this handle is closed, and with backend.ErrQueueNotFound if Refuse plays a missing queue here or
// on the dead-letter queue.
func (q *Queue) Subscribe(ctx context.Context, opts backend.SubscribeOptions) (backend.Subscription, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory: subscribe to %q: %w", q.Name(), err)
	}
	if opts.Lease <= 0 {
		return nil, fmt.Errorf("memory: subscribe to %q: a lease of %v keeps nothing: set SubscribeOptions.Lease above 0", q.Name(), opts.Lease)
	}
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	if q.closed {
		return nil, fmt.Errorf("memory: subscribe to %q: %w", q.Name(), backend.ErrClosed)
	}
	for _, s := range []*store{q.store, q.store.dead} {
		if s.missing() {
			return nil, fmt.Errorf("memory: subscribe to %q: %w: end with Refuse(nil) what Refuse began on %q", q.Name(), s.refused, s.name)
		}
	}
	sub := &Subscription{queue: q, lease: opts.Lease}
	if q.subs == nil {
		q.subs = make(map[*Subscription]struct{})
	}
	q.subs[sub] = struct{}{}
	return sub, nil
}

// Publish puts copies of the messages into the queue, all of them or none. It fails with backend.ErrInvalidMessage,
// backend.ErrClosed, or with what Refuse was given.
func (q *Queue) Publish(ctx context.Context, msgs ...backend.Message) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: publish to %q: %w", q.Name(), err)
	}
	for _, m := range msgs {
		if err := m.Validate(); err != nil {
			return fmt.Errorf("memory: publish to %q: %w", q.Name(), err)
		}
	}
	s := q.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.closed {
		return fmt.Errorf("memory: publish to %q: %w", q.Name(), backend.ErrClosed)
	}
	if s.refused != nil {
		return fmt.Errorf("memory: publish to %q: %w", q.Name(), s.refused)
	}
	now := time.Now()
	for _, m := range msgs {
		if m.ID == "" {
			m.ID = backend.NewID()
		}
		s.add(&entry{message: clone(m), sent: now, enqueued: now}, now)
	}
	s.rouse()
	return nil
}

// Stats counts the messages. Those that stand behind an earlier one of their group count as waiting.
func (q *Queue) Stats(ctx context.Context) (backend.Stats, error) {
	if err := ctx.Err(); err != nil {
		return backend.Stats{}, fmt.Errorf("memory: stats of %q: %w", q.Name(), err)
	}
	s := q.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.closed {
		return backend.Stats{}, fmt.Errorf("memory: stats of %q: %w", q.Name(), backend.ErrClosed)
	}
	now := time.Now()
	s.advance(now)
	s.rouse()
	stats := backend.Stats{
		Ready:   int64(len(s.ready)),
		Waiting: int64(s.size - len(s.ready) - len(s.leased)),
		Leased:  int64(len(s.leased)),
	}
	if s.dead != nil {
		stats.Dead = int64(s.dead.size)
	}
	if len(s.ready) > 0 {
		stats.OldestDue = now.Sub(s.ready[0].when)
	}
	return stats, nil
}

// Check reports a missing queue or dead-letter queue, which is fatal (queue_not_found, dead_letter_queue_not_found), and a
// dead-letter queue that was never wanted, which is not (no_dead_letter_queue).
func (q *Queue) Check(ctx context.Context, _ backend.Needs) ([]backend.Finding, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory: check of %q: %w", q.Name(), err)
	}
	s := q.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var findings []backend.Finding
	if s.missing() {
		findings = append(findings, backend.Finding{
			Fatal: true,
			Code:  "queue_not_found",
			Text:  fmt.Sprintf("queue %q is missing: end with Refuse(nil) what Refuse began", s.name),
			Err:   s.refused,
		})
	}
	switch {
	case s.dead == nil:
		findings = append(findings, backend.Finding{
			Code: "no_dead_letter_queue",
			Text: fmt.Sprintf("queue %q was made without a dead-letter queue: a message that fails for good stays in it, waiting", s.name),
		})
	case s.dead.missing():
		findings = append(findings, backend.Finding{
			Fatal: true,
			Code:  "dead_letter_queue_not_found",
			Text:  fmt.Sprintf("dead-letter queue %q of queue %q is missing: end with Refuse(nil) what Refuse began", s.dead.name, s.name),
			Err:   s.dead.refused,
		})
	}
	return findings, nil
}

// Refuse makes the queue accept no message until Refuse(nil): Publish, and dead-lettering if it is a dead-letter queue,
// fail with an error that wraps err and change nothing. Any error plays a queue that is full or out of reach;
// backend.ErrQueueNotFound plays one that is missing, so that Subscribe and Check find it missing too. What is in the
// queue already stays, can be received, and can be retried. Refuse acts on all handles.
func (q *Queue) Refuse(err error) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	q.store.refused = err
}

// Close closes the subscriptions made through this handle, which give back what they hold, and the handle. The messages
// stay, for other handles. Closing again does nothing. It never fails.
func (q *Queue) Close(context.Context) error {
	q.end(true)
	return nil
}

// Crash abandons the handle and its subscriptions as a killed process would: nothing is given back, what they hold comes
// back with a lapse when its lease has run out, and every later call fails with backend.ErrClosed.
func (q *Queue) Crash() { q.end(false) }

func (q *Queue) end(giveBack bool) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	q.closed = true
	for sub := range q.subs {
		sub.end(giveBack)
	}
}
