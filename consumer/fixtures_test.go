package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

var (
	errDeclined = errors.New("declined")

	// three is a policy for tests that are not about delays.
	three = policy.Policy{Name: "three", MaxAttempts: 3, Backoff: policy.Fixed(time.Minute)}

	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
)

type handle = func(context.Context, *backend.Delivery) error

func succeed(context.Context, *backend.Delivery) error { return nil }

func fail(context.Context, *backend.Delivery) error { return errDeclined }

func message(id string) backend.Message { return backend.Message{ID: id, Body: []byte("x")} }

// consume returns a consumer of q that tells events and writes no log.
func consume(q backend.Queue, p policy.Policy, events *recorder, h handle) *consumer.Consumer {
	return &consumer.Consumer{Queue: q, Policy: p, Handler: consumer.HandlerFunc(h), Observer: events, Logger: quiet, Host: "here"}
}

// start runs c in the background; the returned function ends its context and returns Run's error.
func start(t *testing.T, c *consumer.Consumer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

func publish(t *testing.T, q *memory.Queue, msgs ...backend.Message) {
	t.Helper()
	require.NoError(t, q.Publish(t.Context(), msgs...))
}

func stats(t *testing.T, q *memory.Queue) backend.Stats {
	t.Helper()
	s, err := q.Stats(t.Context())
	require.NoError(t, err)
	return s
}

// deadLetters returns what is in q's dead-letter queue at this moment.
func deadLetters(t *testing.T, q *memory.Queue) []*backend.Delivery {
	t.Helper()
	if stats(t, q).Dead == 0 {
		return nil
	}
	return held(t, q.DeadLetters())
}

// deadLetter returns the only dead letter of q.
func deadLetter(t *testing.T, q *memory.Queue) *backend.Failure {
	t.Helper()
	dead := deadLetters(t, q)
	require.Len(t, dead, 1)
	require.NotNil(t, dead[0].Failure)
	return dead[0].Failure
}

// held returns what can be received from q at this moment, and gives it back. It wants a bubble, where the wait is virtual.
func held(t *testing.T, q *memory.Queue) []*backend.Delivery {
	t.Helper()
	sub, err := q.Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1000, Lease: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Close(t.Context())) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	batch, err := sub.Receive(ctx, 1000)
	if err != nil {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	return batch
}

// recorder collects events.
type recorder struct {
	mu     sync.Mutex
	events []consumer.Event
	at     []time.Time
}

func (r *recorder) Observe(_ context.Context, e consumer.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	r.at = append(r.at, time.Now())
}

func (r *recorder) all() []consumer.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// of returns the events of one kind.
func (r *recorder) of(k consumer.Kind) (found []consumer.Event) {
	for _, e := range r.all() {
		if e.Kind == k {
			found = append(found, e)
		}
	}
	return found
}

// when returns the times of the events of one kind.
func (r *recorder) when(k consumer.Kind) (found []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, e := range r.events {
		if e.Kind == k {
			found = append(found, r.at[i])
		}
	}
	return found
}

func (r *recorder) count(k consumer.Kind) int { return len(r.of(k)) }

// kinds returns what happened to one message.
func (r *recorder) kinds(id string) (kinds []consumer.Kind) {
	for _, e := range r.all() {
		if e.Delivery.ID == id {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

// list collects what several goroutines add.
type list[T any] struct {
	mu    sync.Mutex
	items []T
}

func (l *list[T]) add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, v)
}

func (l *list[T]) all() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.items)
}

// journal notes what handlers saw.
type journal struct{ list[call] }

type call struct {
	id              string
	attempt, lapses int
	at              time.Time
}

func (j *journal) note(d *backend.Delivery) { j.add(call{d.ID, d.Attempt, d.Lapses, time.Now()}) }

// wrap notes each call before h is called.
func (j *journal) wrap(h handle) handle {
	return func(ctx context.Context, d *backend.Delivery) error {
		j.note(d)
		return h(ctx, d)
	}
}

func (j *journal) ids() (ids []string) {
	for _, c := range j.all() {
		ids = append(ids, c.id)
	}
	return ids
}

func (j *journal) of(id string) (found []call) {
	for _, c := range j.all() {
		if c.id == id {
			found = append(found, c)
		}
	}
	return found
}

// gaps are the times between the calls.
func (j *journal) gaps() (gaps []time.Duration) {
	calls := j.all()
	for i := 1; i < len(calls); i++ {
		gaps = append(gaps, calls[i].at.Sub(calls[i-1].at))
	}
	return gaps
}

// faulty is a queue in memory whose calls pass through functions of the test, where those are set, and are noted.
type faulty struct {
	*memory.Queue
	limits func(*backend.Limits)
	lease  time.Duration // how long the broker really keeps a delivery; 0 is as long as it was asked to

	onReceive func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error)
	onSettle  func(ctx context.Context, batch []backend.Settlement, next settleFunc) error
	onExtend  func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error
	onClose   func(ctx context.Context, next closeFunc) error

	mu       sync.Mutex
	opts     backend.SubscribeOptions
	receives int
	settles  []tried
	extends  []extended
}

type (
	receiveFunc func(ctx context.Context, max int) ([]*backend.Delivery, error)
	settleFunc  func(ctx context.Context, batch []backend.Settlement) error
	extendFunc  func(ctx context.Context, batch []*backend.Delivery) error
	closeFunc   func(ctx context.Context) error
)

// tried is one item of one call to Settle.
type tried struct {
	id      string
	outcome backend.Outcome
	delay   time.Duration
	await   bool
	at      time.Time
}

// extended is one item of one call to Extend.
type extended struct {
	id string
	at time.Time
}

func newFaulty(name string) *faulty { return &faulty{Queue: memory.New(name, memory.Options{})} }

func (f *faulty) Limits() backend.Limits {
	l := f.Queue.Limits()
	if f.limits != nil {
		f.limits(&l)
	}
	return l
}

func (f *faulty) Subscribe(ctx context.Context, opts backend.SubscribeOptions) (backend.Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opts = opts
	switch {
	case f.lease > 0:
		opts.Lease = f.lease
	case !f.Limits().LeaseExpires:
		opts.Lease = 1000 * time.Hour
	}
	sub, err := f.Queue.Subscribe(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &faultySubscription{Subscription: sub, f: f}, nil
}

func (f *faulty) options() backend.SubscribeOptions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opts
}

func (f *faulty) received() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.receives
}

// settled returns the tries to settle one message.
func (f *faulty) settled(id string) (found []tried) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.settles {
		if s.id == id {
			found = append(found, s)
		}
	}
	return found
}

// outcomes returns the outcomes of the tries to settle one message.
func (f *faulty) outcomes(id string) (found []backend.Outcome) {
	for _, s := range f.settled(id) {
		found = append(found, s.outcome)
	}
	return found
}

// extensions returns when one message was extended.
func (f *faulty) extensions(id string) (found []time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.extends {
		if e.id == id {
			found = append(found, e.at)
		}
	}
	return found
}

type faultySubscription struct {
	backend.Subscription
	f *faulty
}

func (s *faultySubscription) Receive(ctx context.Context, max int) ([]*backend.Delivery, error) {
	s.f.mu.Lock()
	s.f.receives++
	s.f.mu.Unlock()
	if s.f.onReceive != nil {
		return s.f.onReceive(ctx, max, s.Subscription.Receive)
	}
	return s.Subscription.Receive(ctx, max)
}

func (s *faultySubscription) Settle(ctx context.Context, batch []backend.Settlement) error {
	s.f.mu.Lock()
	for _, it := range batch {
		s.f.settles = append(s.f.settles, tried{it.Delivery.ID, it.Outcome, it.Delay, it.AwaitDeadLetter, time.Now()})
	}
	s.f.mu.Unlock()
	if s.f.onSettle != nil {
		return s.f.onSettle(ctx, batch, s.Subscription.Settle)
	}
	return s.Subscription.Settle(ctx, batch)
}

func (s *faultySubscription) Extend(ctx context.Context, batch []*backend.Delivery) error {
	s.f.mu.Lock()
	for _, d := range batch {
		s.f.extends = append(s.f.extends, extended{d.ID, time.Now()})
	}
	s.f.mu.Unlock()
	if s.f.onExtend != nil {
		return s.f.onExtend(ctx, batch, s.Subscription.Extend)
	}
	return s.Subscription.Extend(ctx, batch)
}

func (s *faultySubscription) Close(ctx context.Context) error {
	if s.f.onClose != nil {
		return s.f.onClose(ctx, s.Subscription.Close)
	}
	return s.Subscription.Close(ctx)
}

// hangs waits for what never comes, as a call to a dead broker does.
func hangs(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", backend.ErrUnknown, ctx.Err())
}

// scripted is a queue that hands out deliveries as the test made them, and notes how they were settled. Its leases last.
type scripted struct {
	limits backend.Limits
	in     chan *backend.Delivery

	mu      sync.Mutex
	settled []backend.Settlement
	extends int
}

func newScripted(limits backend.Limits) *scripted {
	return &scripted{limits: limits, in: make(chan *backend.Delivery, 1000)}
}

// deliver hands out d.
func (s *scripted) deliver(d *backend.Delivery) {
	d.Queue, d.ReceivedAt = s.Name(), time.Now()
	d.Attempt = max(d.Attempt, 1)
	s.in <- d
}

// outcome returns how a message was settled, exactly once.
func (s *scripted) outcome(t *testing.T, id string) backend.Settlement {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []backend.Settlement
	for _, it := range s.settled {
		if it.Delivery.ID == id {
			found = append(found, it)
		}
	}
	require.Len(t, found, 1, "settlements of %q", id)
	return found[0]
}

func (s *scripted) order() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range s.settled {
		ids = append(ids, fmt.Sprint(it.Delivery.ID, " ", it.Outcome))
	}
	return ids
}

func (s *scripted) Name() string                { return "orders" }
func (s *scripted) Limits() backend.Limits      { return s.limits }
func (s *scripted) Close(context.Context) error { return nil }

func (s *scripted) Subscribe(context.Context, backend.SubscribeOptions) (backend.Subscription, error) {
	return s, nil
}

func (s *scripted) Receive(ctx context.Context, max int) ([]*backend.Delivery, error) {
	var batch []*backend.Delivery
	select {
	case d := <-s.in:
		batch = append(batch, d)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for len(batch) < max {
		select {
		case d := <-s.in:
			batch = append(batch, d)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

func (s *scripted) Settle(_ context.Context, batch []backend.Settlement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(batch))
	for i, it := range batch {
		if errs[i] = it.Delivery.BeginSettle(); errs[i] == nil {
			s.settled = append(s.settled, it)
			it.Delivery.EndSettle(nil)
		}
	}
	return backend.NewBatchError(errs)
}

func (s *scripted) Extend(context.Context, []*backend.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extends++
	return nil
}

// logs collects what a consumer logs, at all levels.
type logs struct{ list[string] }

func (l *logs) Write(p []byte) (int, error) {
	l.add(string(p))
	return len(p), nil
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// at returns the lines of one level.
func (l *logs) at(level slog.Level) (found []string) {
	for _, line := range l.all() {
		if strings.Contains(line, " level="+level.String()+" ") {
			found = append(found, line)
		}
	}
	return found
}
