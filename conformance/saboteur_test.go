package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/conformance"
)

// saboteur breaks one rule of a backend that keeps them all. Nil hooks break nothing.
type saboteur struct {
	name     string
	sentence int // that must be reported, whatever else is

	declare   func(*backend.Limits)
	publish   func(q *queue, m *backend.Message)
	subscribe func(q *queue, opts backend.SubscribeOptions) (backend.Subscription, error)
	check     func(q *queue) ([]backend.Finding, error)
	receive   func(ctx context.Context, s *subscription, limit int) ([]*backend.Delivery, error)
	deliver   func(s *subscription, d *backend.Delivery)
	settle    func(ctx context.Context, s *subscription, item backend.Settlement) error
	batch     func(ctx context.Context, s *subscription, batch []backend.Settlement) error
	extend    func(ctx context.Context, s *subscription, batch []*backend.Delivery) error
	close     func(ctx context.Context, s *subscription) error
}

// queue is a memory queue with a saboteur in it.
type queue struct {
	*memory.Queue
	saboteur
	*state
}

// state is what all handles on a queue share.
type state struct {
	mu     sync.Mutex
	latest map[string]*backend.Delivery // by message ID
	groups map[string]string            // by message ID
	shared map[string]backend.Message   // by ID

	counting *queue // the handle that received first

	neighbours *neighbours
}

// neighbours are the queues of one run of the suite.
type neighbours struct {
	mu   sync.Mutex
	list []*memory.Queue
}

// elsewhere calls do for the other queues of the same case.
func (q *queue) elsewhere(do func(*memory.Queue)) {
	n := q.neighbours
	n.mu.Lock()
	list := slices.Clone(n.list)
	n.mu.Unlock()
	family := func(name string) string { return name[:strings.LastIndexByte(name, '_')] }
	for _, other := range list {
		if other.Name() != q.Name() && family(other.Name()) == family(q.Name()) {
			do(other)
		}
	}
}

func (q *queue) open(m *memory.Queue) *queue {
	return &queue{Queue: m, saboteur: q.saboteur, state: q.state}
}

func (q *queue) Limits() backend.Limits {
	limits := q.Queue.Limits()
	if q.declare != nil {
		q.declare(&limits)
	}
	return limits
}

func (q *queue) Publish(ctx context.Context, msgs ...backend.Message) error {
	sent := slices.Clone(msgs)
	if q.publish != nil {
		for i := range sent {
			q.publish(q, &sent[i])
		}
	}
	return q.Queue.Publish(ctx, sent...)
}

func (q *queue) Subscribe(ctx context.Context, opts backend.SubscribeOptions) (backend.Subscription, error) {
	if q.subscribe != nil {
		return q.subscribe(q, opts)
	}
	return q.wrap(q.Queue.Subscribe(ctx, opts))
}

func (q *queue) Check(ctx context.Context, need backend.Needs) ([]backend.Finding, error) {
	if q.check != nil {
		return q.check(q)
	}
	return q.Queue.Check(ctx, need)
}

func (q *queue) wrap(sub backend.Subscription, err error) (backend.Subscription, error) {
	if err != nil {
		return nil, err
	}
	return &subscription{Subscription: sub, queue: q}, nil
}

type subscription struct {
	backend.Subscription
	queue *queue
}

func (s *subscription) Receive(ctx context.Context, limit int) ([]*backend.Delivery, error) {
	receive := s.queue.receive
	if receive == nil {
		receive = func(ctx context.Context, s *subscription, limit int) ([]*backend.Delivery, error) {
			return s.Subscription.Receive(ctx, limit)
		}
	}
	got, err := receive(ctx, s, limit)
	s.queue.mu.Lock()
	for _, d := range got {
		s.queue.latest[d.ID] = d
	}
	s.queue.mu.Unlock()
	if s.queue.deliver != nil {
		for _, d := range got {
			s.queue.deliver(s, d)
		}
	}
	return got, err
}

func (s *subscription) Settle(ctx context.Context, batch []backend.Settlement) error {
	if s.queue.batch != nil {
		return s.queue.batch(ctx, s, batch)
	}
	errs := make([]error, len(batch))
	for i, item := range batch {
		if s.queue.settle != nil && item.Validate() == nil {
			errs[i] = s.queue.settle(ctx, s, item)
		} else {
			errs[i] = s.honest(ctx, item)
		}
	}
	return backend.NewBatchError(errs)
}

// honest settles one item as it should be.
func (s *subscription) honest(ctx context.Context, item backend.Settlement) error {
	return backend.ErrorAt(s.Subscription.Settle(ctx, []backend.Settlement{item}), 0)
}

func (s *subscription) Extend(ctx context.Context, batch []*backend.Delivery) error {
	if s.queue.extend != nil {
		return s.queue.extend(ctx, s, batch)
	}
	return s.Subscription.Extend(ctx, batch)
}

func (s *subscription) Close(ctx context.Context) error {
	if s.queue.close != nil {
		return s.queue.close(ctx, s)
	}
	return s.Subscription.Close(ctx)
}

// generous keeps a delivery for longer than it should, until it is extended: then for as long as it should.
type generous struct {
	*memory.Subscription
	exact backend.Subscription
}

func (g generous) Extend(ctx context.Context, batch []*backend.Delivery) error {
	return g.exact.Extend(ctx, batch)
}

// copyOf is another delivery of the same hand-over, which knows nothing of what was settled.
func copyOf(d *backend.Delivery) *backend.Delivery {
	return &backend.Delivery{
		Message: d.Message, Queue: d.Queue, Attempt: d.Attempt, Lapses: d.Lapses, Snoozes: d.Snoozes, Age: d.Age,
		ReceivedAt: d.ReceivedAt, FirstEnqueuedAt: d.FirstEnqueuedAt, Failure: d.Failure, DeadLetterWaits: d.DeadLetterWaits, Raw: d.Raw,
	}
}

// altered settles a delivery as if it had come with something else in it.
func (s *subscription) altered(ctx context.Context, item backend.Settlement, alter func(*backend.Delivery)) error {
	d := item.Delivery
	if err := d.BeginSettle(); err != nil {
		return err
	}
	item.Delivery = copyOf(d)
	alter(item.Delivery)
	err := s.honest(ctx, item)
	d.EndSettle(err)
	return err
}

// harnessOf is a harness for memory with a saboteur in every queue.
func harnessOf(who saboteur) conformance.Harness {
	run := new(neighbours)
	fixture := func(m *memory.Queue) *conformance.Fixture {
		run.mu.Lock()
		run.list = append(run.list, m.Open())
		run.mu.Unlock()
		q := &queue{Queue: m, saboteur: who, state: &state{
			latest:     make(map[string]*backend.Delivery),
			groups:     make(map[string]string),
			shared:     make(map[string]backend.Message),
			neighbours: run,
		}}
		return &conformance.Fixture{
			Queue:       q,
			DeadLetters: m.DeadLetters(),
			Reopen:      func(context.Context) (backend.Queue, error) { return q.open(m.Open()), nil },
			Crash:       func(s backend.Subscription) { s.(*subscription).Subscription.(interface{ Crash() }).Crash() },
			BreakDeadLetters: func(context.Context) (func(context.Context) error, error) {
				m.DeadLetters().Refuse(errors.New("full"))
				return func(context.Context) error { m.DeadLetters().Refuse(nil); return nil }, nil
			},
			Close: m.Close,
		}
	}
	return conformance.Harness{
		Name: "saboteur",
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
		Slack: time.Millisecond,
	}
}

// forward settles items of some outcomes in the given way, and the others as they should be.
func forward(outcome backend.Outcome, do func(ctx context.Context, s *subscription, item backend.Settlement) error) func(context.Context, *subscription, backend.Settlement) error {
	return func(ctx context.Context, s *subscription, item backend.Settlement) error {
		if item.Outcome != outcome {
			return s.honest(ctx, item)
		}
		return do(ctx, s, item)
	}
}

// pretend marks a delivery as settled and does nothing.
func pretend(_ context.Context, _ *subscription, item backend.Settlement) error {
	if err := item.Delivery.BeginSettle(); err != nil {
		return err
	}
	item.Delivery.EndSettle(nil)
	return nil
}

var saboteurs = []saboteur{
	{
		name: "loses headers", sentence: 1,
		deliver: func(_ *subscription, d *backend.Delivery) { d.Headers = nil },
	},
	{
		name: "rounds numbers in bodies", sentence: 1,
		publish: func(_ *queue, m *backend.Message) {
			m.Body = bytes.ReplaceAll(m.Body, []byte("1234567890123456789"), []byte("1234567890123456800"))
		},
	},
	{
		name: "does not count failures", sentence: 2,
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			if !item.AwaitDeadLetter {
				item.Uncharged = true
			}
			return s.honest(ctx, item)
		}),
	},
	{
		name: "counts a snooze as a failure", sentence: 2,
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			item.Uncharged = false
			return s.honest(ctx, item)
		}),
	},
	{
		name: "keeps the attempt in the process", sentence: 2,
		deliver: func(s *subscription, d *backend.Delivery) {
			s.queue.mu.Lock()
			defer s.queue.mu.Unlock()
			if s.queue.counting == nil {
				s.queue.counting = s.queue
			}
			if s.queue.counting != s.queue {
				d.Attempt = 1
			}
		},
	},
	{
		name: "halves the lease", sentence: 3,
		subscribe: func(q *queue, opts backend.SubscribeOptions) (backend.Subscription, error) {
			opts.Lease /= 2
			return q.wrap(q.Queue.Subscribe(context.Background(), opts))
		},
	},
	{
		name: "hides what a cancelled receive took", sentence: 4,
		receive: func(ctx context.Context, s *subscription, limit int) ([]*backend.Delivery, error) {
			if ctx.Err() == nil {
				return s.Subscription.Receive(ctx, limit)
			}
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Millisecond)
			defer cancel()
			if _, err := s.Subscription.Receive(late, limit); errors.Is(err, backend.ErrClosed) {
				return nil, err
			}
			return nil, ctx.Err()
		},
	},
	{
		name: "does not heed the end of a receive's context", sentence: 4,
		receive: func(ctx context.Context, s *subscription, limit int) ([]*backend.Delivery, error) {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
			defer cancel()
			return s.Subscription.Receive(late, limit)
		},
	},
	{
		name: "looks for messages once in a while", sentence: 5,
		receive: func(ctx context.Context, s *subscription, limit int) ([]*backend.Delivery, error) {
			for {
				look, cancel := context.WithTimeout(ctx, time.Nanosecond)
				got, err := s.Subscription.Receive(look, limit)
				cancel()
				if err == nil || ctx.Err() != nil || errors.Is(err, backend.ErrClosed) {
					return got, err
				}
				pause(ctx, 5*time.Second)
			}
		},
	},
	{
		name: "waits for a full batch", sentence: 5,
		receive: func(ctx context.Context, s *subscription, limit int) ([]*backend.Delivery, error) {
			all, err := s.Subscription.Receive(ctx, limit)
			more, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			for err == nil && len(all) < limit && more.Err() == nil {
				got, _ := s.Subscription.Receive(more, limit-len(all))
				all = append(all, got...)
			}
			return all, err
		},
	},
	{
		name: "loses acks", sentence: 6,
		settle: forward(backend.Ack, pretend),
	},
	{
		name: "retries early", sentence: 7,
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			item.Delay -= item.Delay / 100
			return s.honest(ctx, item)
		}),
	},
	{
		name: "cuts delays to whole milliseconds", sentence: 7,
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			item.Delay = item.Delay.Truncate(time.Millisecond)
			return s.honest(ctx, item)
		}),
	},
	{
		name: "rounds delays up to seconds without saying so", sentence: 8,
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			item.Delay = (item.Delay + time.Second - 1).Truncate(time.Second)
			return s.honest(ctx, item)
		}),
	},
	{
		name: "adds a header with every retry", sentence: 9,
		deliver: func(_ *subscription, d *backend.Delivery) {
			if d.Attempt > 1 {
				d.Headers = maps.Clone(d.Headers)
				if d.Headers == nil {
					d.Headers = make(map[string]string)
				}
				d.Headers["x-death"] = fmt.Sprint(d.Attempt)
			}
		},
	},
	{
		name: "gives retries a new ID", sentence: 9,
		deliver: func(_ *subscription, d *backend.Delivery) {
			if d.Attempt > 1 {
				d.ID += "'"
			}
		},
	},
	{
		name: "counts no age", sentence: 9,
		deliver: func(_ *subscription, d *backend.Delivery) { d.Age = 0 },
	},
	{
		name: "counts the age anew after a failure", sentence: 9,
		deliver: func(_ *subscription, d *backend.Delivery) {
			if d.Attempt > 1 {
				d.Age = 0
			}
		},
	},
	{
		name: "takes the receipt for the sending", sentence: 9,
		deliver: func(_ *subscription, d *backend.Delivery) { d.FirstEnqueuedAt = d.ReceivedAt },
	},
	{
		name: "shares the message with its handler", sentence: 9,
		deliver: func(s *subscription, d *backend.Delivery) {
			s.queue.mu.Lock()
			defer s.queue.mu.Unlock()
			if shared, ok := s.queue.shared[d.ID]; ok {
				d.Body, d.Headers = shared.Body, shared.Headers
			} else {
				s.queue.shared[d.ID] = d.Message
			}
		},
	},
	{
		name: "sends retries to every queue", sentence: 10,
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			err := s.honest(ctx, item)
			if err == nil {
				s.queue.elsewhere(func(other *memory.Queue) { err = other.Publish(ctx, item.Delivery.Message) })
			}
			return err
		}),
	},
	{
		name: "dead-letters twice", sentence: 11,
		settle: forward(backend.DeadLetter, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			err := s.honest(ctx, item)
			if err == nil {
				err = s.queue.DeadLetters().Publish(ctx, item.Delivery.Message)
			}
			return err
		}),
	},
	{
		name: "leaves a dead letter in the queue", sentence: 11,
		settle: forward(backend.DeadLetter, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			m := item.Delivery.Message
			m.Group = ""
			err := s.honest(ctx, item)
			if err == nil {
				err = s.queue.Queue.Publish(ctx, m)
			}
			return err
		}),
	},
	{
		name: "drops the envelope", sentence: 11,
		settle: forward(backend.DeadLetter, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			item.Outcome = backend.Ack
			err := s.honest(ctx, item)
			if err == nil {
				err = s.queue.DeadLetters().Publish(ctx, item.Delivery.Message)
			}
			return err
		}),
	},
	{
		name: "acks what it cannot dead-letter", sentence: 12,
		settle: forward(backend.DeadLetter, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			err := s.honest(ctx, item)
			if err != nil && !errors.Is(err, backend.ErrSettled) && !errors.Is(err, backend.ErrLeaseLost) && !errors.Is(err, backend.ErrClosed) {
				item.Outcome = backend.Ack
				err = s.honest(ctx, item)
			}
			return err
		}),
	},
	{
		name: "forgets why a message waits for its dead-letter queue", sentence: 12,
		deliver: func(_ *subscription, d *backend.Delivery) {
			if d.DeadLetterWaits > 0 {
				d.Failure = nil
			}
		},
	},
	{
		name: "dead-letters what should be discarded", sentence: 13,
		settle: forward(backend.Discard, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			item.Outcome, item.Failure = backend.DeadLetter, &backend.Failure{Reason: "discarded"}
			return s.honest(ctx, item)
		}),
	},
	{
		name: "charges releases", sentence: 13,
		settle: forward(backend.Release, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			item.Outcome = backend.Retry
			return s.honest(ctx, item)
		}),
	},
	{
		name: "leaves releases to the lease", sentence: 13,
		settle: forward(backend.Release, pretend),
	},
	{
		name: "does not count lapses", sentence: 14,
		deliver: func(_ *subscription, d *backend.Delivery) { d.Lapses = 0 },
	},
	{
		name: "counts a lapse as a failure", sentence: 14,
		deliver: func(_ *subscription, d *backend.Delivery) { d.Attempt, d.Lapses = d.Attempt+d.Lapses, 0 },
	},
	{
		name: "does not extend", sentence: 15,
		extend: func(context.Context, *subscription, []*backend.Delivery) error { return nil },
	},
	{
		name: "says nothing of a lost lease", sentence: 15,
		extend: func(ctx context.Context, s *subscription, batch []*backend.Delivery) error {
			if err := s.Subscription.Extend(ctx, batch); !errors.Is(err, backend.ErrLeaseLost) {
				return err
			}
			return nil
		},
	},
	{
		name: "quadruples the lease", sentence: 14,
		subscribe: func(q *queue, opts backend.SubscribeOptions) (backend.Subscription, error) {
			exact, err := q.Queue.Subscribe(context.Background(), opts)
			if err != nil {
				return nil, err
			}
			opts.Lease *= 4
			sub, err := q.Queue.Subscribe(context.Background(), opts)
			if err != nil {
				return nil, err
			}
			return q.wrap(generous{sub.(*memory.Subscription), exact}, nil)
		},
	},
	{
		name: "accepts a stale settlement", sentence: 16,
		settle: func(ctx context.Context, s *subscription, item backend.Settlement) error {
			err := s.honest(ctx, item)
			if !errors.Is(err, backend.ErrLeaseLost) {
				return err
			}
			// As a broker that knows messages only by their ID: whoever holds it now loses it.
			s.queue.mu.Lock()
			latest := s.queue.latest[item.Delivery.ID]
			s.queue.mu.Unlock()
			item.Delivery = copyOf(latest)
			return s.honest(ctx, item)
		},
	},
	{
		name: "says that a stale settlement succeeded", sentence: 16,
		settle: func(ctx context.Context, s *subscription, item backend.Settlement) error {
			if err := s.honest(ctx, item); !errors.Is(err, backend.ErrLeaseLost) {
				return err
			}
			return nil
		},
	},
	{
		name: "accepts a second settlement", sentence: 17,
		settle: func(ctx context.Context, s *subscription, item backend.Settlement) error {
			if err := s.honest(ctx, item); !errors.Is(err, backend.ErrSettled) {
				return err
			}
			return nil
		},
	},
	{
		name: "says that it extended what was settled", sentence: 17,
		extend: func(ctx context.Context, s *subscription, batch []*backend.Delivery) error {
			errs := make([]error, len(batch))
			for i, d := range batch {
				if !d.Settled() {
					errs[i] = backend.ErrorAt(s.Subscription.Extend(ctx, batch[i:i+1]), 0)
				}
			}
			return backend.NewBatchError(errs)
		},
	},
	{
		name: "lets an extension take the place of a retry's delay", sentence: 17,
		extend: func(ctx context.Context, s *subscription, batch []*backend.Delivery) error {
			err := s.Subscription.Extend(ctx, batch)
			if !errors.Is(err, backend.ErrSettled) {
				return err
			}
			// What is due is hidden for as long as an extension lasts.
			hidden, failed := s.queue.Queue.Subscribe(ctx, backend.SubscribeOptions{Lease: time.Minute})
			if failed != nil {
				return failed
			}
			look, cancel := context.WithTimeout(ctx, time.Nanosecond)
			defer cancel()
			hidden.Receive(look, len(batch))
			return err
		},
	},
	{
		name: "fails a batch whole", sentence: 18,
		batch: func(ctx context.Context, s *subscription, batch []backend.Settlement) error {
			for _, item := range batch {
				if err := item.Validate(); err != nil {
					return err
				}
				if item.Delivery.Settled() {
					return backend.ErrSettled
				}
			}
			return s.Subscription.Settle(ctx, batch)
		},
	},
	{
		name: "stops at the first item that fails", sentence: 18,
		batch: func(ctx context.Context, s *subscription, batch []backend.Settlement) error {
			errs := make([]error, len(batch))
			for i, item := range batch {
				if errs[i] = s.honest(ctx, item); errs[i] != nil {
					for j := i + 1; j < len(batch); j++ {
						errs[j] = errors.New("not tried")
					}
					break
				}
			}
			return backend.NewBatchError(errs)
		},
	},
	{
		name: "closes without giving back", sentence: 19,
		close: func(_ context.Context, s *subscription) error {
			s.Subscription.(*memory.Subscription).Crash()
			return nil
		},
	},
	{
		name: "makes what is missing", sentence: 20,
		subscribe: func(q *queue, opts backend.SubscribeOptions) (backend.Subscription, error) {
			sub, err := q.Queue.Subscribe(context.Background(), opts)
			if errors.Is(err, backend.ErrQueueNotFound) {
				return q.wrap(memory.New(q.Name(), memory.Options{}).Subscribe(context.Background(), opts))
			}
			return q.wrap(sub, err)
		},
	},
	{
		name: "finds what is missing and does not say that it is that", sentence: 20,
		check: func(q *queue) ([]backend.Finding, error) {
			findings, err := q.Queue.Check(context.Background(), backend.Needs{})
			for i := range findings {
				findings[i].Err = nil
			}
			return findings, err
		},
	},
	{
		name: "names a wrong origin", sentence: 22,
		settle: forward(backend.DeadLetter, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			return s.altered(ctx, item, func(d *backend.Delivery) { d.Failure = &backend.Failure{Origin: "elsewhere"} })
		}),
	},
	{
		name: "forgets why a message failed when it is retried", sentence: 22,
		deliver: func(_ *subscription, d *backend.Delivery) {
			if d.DeadLetterWaits == 0 {
				d.Failure = nil
			}
		},
	},
	{
		name: "cuts the error of a retry and does not say so", sentence: 22,
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			if item.Failure != nil {
				short := *item.Failure
				short.Error = backend.Truncate(short.Error, 256)
				item.Failure = &short
			}
			return s.honest(ctx, item)
		}),
	},
	{
		name: "keeps less of the error of a retry than it says", sentence: 22,
		declare: func(l *backend.Limits) { l.ShortRetryRecord = true },
		settle: forward(backend.Retry, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			if item.Failure != nil {
				short := *item.Failure
				short.Error, short.Stack = backend.Truncate(short.Error, 100), ""
				item.Failure = &short
			}
			return s.honest(ctx, item)
		}),
	},
	{
		name: "renews the time of the first failure", sentence: 22,
		settle: func(ctx context.Context, s *subscription, item backend.Settlement) error {
			return s.altered(ctx, item, func(d *backend.Delivery) {
				if d.Failure != nil {
					again := *d.Failure
					again.FirstFailedAt = time.Time{}
					d.Failure = &again
				}
			})
		},
	},
	{
		name: "takes the receipt for the sending in the envelope", sentence: 22,
		settle: forward(backend.DeadLetter, func(ctx context.Context, s *subscription, item backend.Settlement) error {
			return s.altered(ctx, item, func(d *backend.Delivery) {
				d.FirstEnqueuedAt = d.ReceivedAt
				if d.Failure != nil {
					again := *d.Failure
					again.FirstEnqueuedAt = d.ReceivedAt
					d.Failure = &again
				}
			})
		}),
	},
	{
		name: "takes the receipt for the first failure", sentence: 22,
		settle: func(ctx context.Context, s *subscription, item backend.Settlement) error {
			return s.altered(ctx, item, func(d *backend.Delivery) {
				if d.Failure == nil {
					d.Failure = &backend.Failure{FirstFailedAt: d.ReceivedAt}
				}
			})
		},
	},
	{
		name: "keeps no order in groups", sentence: 23,
		publish: func(q *queue, m *backend.Message) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.groups[m.ID] = m.Group
			m.Group = ""
		},
		deliver: func(s *subscription, d *backend.Delivery) {
			s.queue.mu.Lock()
			defer s.queue.mu.Unlock()
			d.Group = s.queue.groups[d.ID]
		},
	},
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// TestSaboteurs proves that the suite can fail: each saboteur is caught, and by the rule that it breaks.
func TestSaboteurs(t *testing.T) {
	for _, who := range saboteurs {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				caught := make(map[int][]conformance.Violation)
				for _, v := range conformance.Check(t.Context(), harnessOf(who)) {
					caught[v.Sentence.Number] = append(caught[v.Sentence.Number], v)
				}
				require.Contains(t, slices.Collect(maps.Keys(caught)), who.sentence)
				// Time stands still when this function has returned, and a call that was left behind would never end.
				pause(context.Background(), time.Hour)
				t.Log("reported sentences:", slices.Sorted(maps.Keys(caught)))
				t.Log(caught[who.sentence][0])
				if who.sentence == 14 {
					require.Empty(t, caught[0], "leases that are not kept look like a slow machine")
				}
			})
		})
	}
}

// TestHonestWrapper proves that it is the sabotage that is caught, not the wrapper.
func TestHonestWrapper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Empty(t, conformance.Check(t.Context(), harnessOf(saboteur{})))
	})
}

// TestDeclaredLimitsAreKept proves that what breaks a rule is accepted where the backend declares it.
func TestDeclaredLimitsAreKept(t *testing.T) {
	for name, declare := range map[string]func(*backend.Limits){
		"charges releases": func(l *backend.Limits) { l.ReleaseCharged = true },
		"rounds delays up to seconds without saying so":   func(l *backend.Limits) { l.Granularity = time.Second },
		"forgets why a message failed when it is retried": func(l *backend.Limits) { l.NoRetryRecord = true },
	} {
		t.Run(name, func(t *testing.T) {
			i := slices.IndexFunc(saboteurs, func(s saboteur) bool { return s.name == name })
			require.GreaterOrEqual(t, i, 0)
			who := saboteurs[i]
			who.declare = declare
			synctest.Test(t, func(t *testing.T) { require.Empty(t, conformance.Check(t.Context(), harnessOf(who))) })
		})
	}
}
