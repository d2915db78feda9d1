package pgmq

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// subscription is a backend.Subscription.
type subscription struct {
	queue *Queue
	sql   statements
	lease time.Duration
	alarm *alarm

	// lead is held by the one call of Receive that waits for messages; the others wait for it. So an idle subscription
	// asks the database once, however many calls there are, and each one that finds something lets the next look.
	lead chan struct{}

	drafts chan *draft // to be used again

	life context.Context // ends when Close begins
	end  context.CancelFunc
	done chan struct{} // closed when Close is through

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // what Close waits for; added to under mu, while not closed
	held   map[*Message]*delivery
	sweep  int // the size of held at which to look for what is not held any more
}

const leastSweep = 128

// Subscribe begins to receive. It fails if the queue is not fit for use, see Check, and matches backend.ErrQueueNotFound if
// the queue, its dead-letter queue or PGMQ is missing. It says nothing of what is no more than a warning. The lease must be
// 1 ms at least.
func (q *Queue) Subscribe(ctx context.Context, opts backend.SubscribeOptions) (backend.Subscription, error) {
	if opts.Lease < time.Millisecond {
		return nil, q.errorf("subscribe", fmt.Errorf("SubscribeOptions.Lease is %v: set it to the time between two heartbeats and a reserve, 1 ms at least", opts.Lease))
	}
	if q.isClosed() {
		return nil, q.errorf("subscribe", backend.ErrClosed)
	}
	l, err := q.probe(ctx)
	if err != nil {
		return nil, q.errorf("subscribe", err)
	}
	if err := q.refuse("subscribe", q.findings(l)); err != nil {
		return nil, err
	}
	s := &subscription{
		queue:  q,
		sql:    q.statements(l),
		lease:  opts.Lease,
		alarm:  newAlarm(),
		lead:   make(chan struct{}, 1),
		drafts: make(chan *draft, q.opts.Parallel),
		done:   make(chan struct{}),
		held:   make(map[*Message]*delivery),
		sweep:  leastSweep,
	}
	s.life, s.end = context.WithCancel(context.Background())
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, q.errorf("subscribe", backend.ErrClosed)
	}
	q.subs = append(q.subs, s)
	q.listen()
	return s, nil
}

// enter begins a piece of work that Close waits for; work.Done ends it.
func (s *subscription) enter(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.errClosed(op)
	}
	s.work.Add(1)
	return nil
}

func (s *subscription) errClosed(op string) error {
	return s.queue.errorf(op, fmt.Errorf("the subscription is %w", backend.ErrClosed))
}

// hold remembers deliveries for Close. It refuses when Close has begun.
func (s *subscription) hold(ds []*delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	for _, d := range ds {
		s.held[&d.message] = d
	}
	if len(s.held) >= s.sweep {
		// What a handler settled in a transaction of its own, and what the consumer gave up, nobody tells us.
		now := time.Now()
		for m, d := range s.held {
			if d.Settled() || now.After(m.until) {
				delete(s.held, m)
			}
		}
		s.sweep = max(2*len(s.held), leastSweep)
	}
	return true
}

// Close implements backend.Subscription. It waits for the calls of Settle and Extend that are under way, then releases what
// is left in one statement for each batch. What it could not release, because ctx ended or the database is gone, comes back
// when its lease ends, as a lapse.
func (s *subscription) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		select {
		case <-s.done:
		case <-ctx.Done():
		}
		return nil
	}
	defer close(s.done)
	s.end()
	s.queue.forget(s)

	idle := make(chan struct{})
	go func() {
		s.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		return s.queue.errorf("close", fmt.Errorf("statements still run: what they claim comes back when its lease ends: %w", ctx.Err()))
	}
	s.mu.Lock()
	left := make([]*delivery, 0, len(s.held))
	for _, d := range s.held {
		left = append(left, d)
	}
	s.held = nil
	s.mu.Unlock()
	return s.giveBack(ctx, left)
}

func (q *Queue) forget(s *subscription) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.subs = slices.DeleteFunc(q.subs, func(other *subscription) bool { return other == s })
}
