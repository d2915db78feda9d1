package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/budget"
	"github.com/redeliver/redeliver/policy"
)

// Defaults of the fields of Consumer that are left zero.
const (
	DefaultConcurrency   = 10               // handlers at once
	DefaultLease         = 30 * time.Second // renewed every ten seconds
	DefaultTimeout       = 30 * time.Minute // of one handler call; less where the broker allows less
	DefaultGrace         = 15 * time.Second // for running handlers at the shutdown
	DefaultSettleTimeout = 5 * time.Second  // of one call to the broker
)

// maxHeld bounds what a consumer may hold. More is a slip of the pen, and would overflow somewhere.
const maxHeld = 1_000_000

// minLease leaves room for three heartbeats and their replies.
const minLease = 100 * time.Millisecond

// ErrShutdown is the cause of a handler's context when the consumer's shutdown cancelled it, and the error of Run if
// Shutdown came before it.
var ErrShutdown = errors.New("consumer: shut down")

// Consumer handles the messages of one queue. Set the fields, then call Run once; they must not change after that. The
// zero value of a field means its documented default. A Consumer must not be copied.
type Consumer struct {
	// Queue is where messages come from. Required.
	Queue backend.Queue

	// Policy decides what a failure means. Required.
	Policy policy.Policy

	// Handler handles the messages. Required.
	Handler Handler

	// Overrides are further policies, by name, that Choose may pick, or messages where Wishes allows it. All of them are validated and checked against the
	// broker at start.
	Overrides map[string]policy.Policy

	// Choose returns the name of the override that governs a delivery; "" means Policy. A name that Overrides lacks means
	// Policy too, and is logged. Nil means Policy always. It is called concurrently.
	Choose func(*backend.Delivery) string

	// Wishes are the names of those Overrides that a message may ask for in its header redeliver-policy, within the bounds of the
	// policy that governs it: see Wish. The default is none. Wishes for tighter limits are always heeded.
	Wishes []string

	// Concurrency is how many handlers run at once. The default is DefaultConcurrency.
	Concurrency int

	// Prefetch is how many messages to hold beyond those that are being handled, so that a handler that ends finds the next
	// one here. A held message is under lease: if the process dies it counts a lapse, and if it waits, others cannot take
	// it. The default is none.
	Prefetch int

	// Lease is how long the broker keeps a delivery from other consumers without hearing from this one. It is renewed at
	// every third of its length while the message is held, so it bounds not the handler's time but the time until the
	// messages of a dead process come back. The default is DefaultLease, the minimum 100ms.
	Lease time.Duration

	// Timeout bounds the time of one handler call. When it has passed, the handler's context is cancelled with a
	// *TimeoutError as its cause. An error that the handler returns after that is a failure with reason timeout, and nil is
	// a success all the same. A handler that does not return soon has failed for the same reason: it is left to itself,
	// holding its place among the Concurrency, and the message is settled without it. The default is DefaultTimeout, or nine
	// tenths of what the broker allows if that is less.
	Timeout time.Duration

	// Grace is how long running handlers may go on when Run's context ends, before their contexts are cancelled. The
	// default is DefaultGrace. A negative Grace cancels them at once. Run returns after Grace and two SettleTimeouts at the
	// latest, by default within the 30 seconds that Kubernetes grants a pod.
	Grace time.Duration

	// SettleTimeout bounds one call that settles a batch. Such calls use a context of their own, so that a shutdown does
	// not lose the result of finished work. The default is DefaultSettleTimeout.
	SettleTimeout time.Duration

	// Breaker, if set, pauses consumption while it is open. Messages then stay in the broker and nothing is charged to them.
	Breaker Breaker

	// Budget, if set, bounds the share of retries among the calls of handlers: while it is empty, retries wait longer than the
	// policy says, never past MaxAge or what the broker can hold, and nothing is dead-lettered for it. Each nil that a handler
	// returns is a success; a snooze costs nothing. Give one to all consumers whose handlers use the same dependency.
	Budget *budget.Bucket

	// Observer, if set, is told of what happens.
	Observer Observer

	// Logger gets one error for each dead letter, warnings for lost leases and failed settlements, and a debug line for
	// each retry and snooze. Bodies and headers are never logged. The default is slog.Default.
	Logger *slog.Logger

	// Redact, if set, is applied to every error text and stack before it is stored in an envelope or logged, and to what a
	// panic or a mistaken Choose adds to the log. It is called concurrently.
	Redact func(string) string

	// Host names this consumer in envelopes. The default is the host name.
	Host string

	mu    sync.Mutex
	state runState
	stop  chan struct{} // closed by Shutdown
	kill  chan struct{} // closed when Shutdown's context ends
	done  chan struct{} // closed when Run returns
}

type runState uint8

const (
	idle runState = iota
	running
	stopped
)

// Run receives and handles messages until ctx ends or Shutdown is called, then drains: it stops receiving, gives running
// handlers the time of Grace, cancels those that remain, releases what was not handled and returns nil.
//
// It returns an error at start if the configuration is invalid, if the queue or its dead-letter queue does not exist
// (backend.ErrQueueNotFound), or if the broker cannot keep what a policy asks for (each a backend.Finding, for errors.As); and
// later if the subscription ends by itself, or if handlers did not return although they were cancelled. Faults of the broker
// that pass, a restart for example, do not end Run.
func (c *Consumer) Run(ctx context.Context) error {
	if err := c.begin(); err != nil {
		return err
	}
	defer c.end()
	r, err := newRun(ctx, c)
	if err != nil {
		return err
	}
	return r.run(ctx)
}

// Shutdown makes Run drain and return, and waits for that. When ctx ends first, handlers that are still running are
// cancelled without further grace; Shutdown then waits for the releases, at most SettleTimeout long, and returns ctx's
// error if Run has not returned by then. No handler is called after Shutdown has returned. It may be called more than
// once, concurrently, and before Run, which then does not start.
func (c *Consumer) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.init()
	closeOnce(c.stop)
	if c.state == idle {
		c.state = stopped
		close(c.done)
	}
	settleTimeout := orDefault(c.SettleTimeout, DefaultSettleTimeout)
	c.mu.Unlock()

	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	closeOnce(c.kill)
	c.mu.Unlock()
	timer := time.NewTimer(settleTimeout)
	defer timer.Stop()
	select {
	case <-c.done:
		return nil
	case <-timer.C:
		return context.Cause(ctx)
	}
}

func (c *Consumer) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case running:
		return errors.New("consumer: Run was called twice: use one Consumer for each run")
	case stopped:
		return fmt.Errorf("%w: use a new Consumer to run again", ErrShutdown)
	}
	c.init()
	c.state = running
	return nil
}

func (c *Consumer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = stopped
	close(c.done)
}

func (c *Consumer) init() {
	if c.stop == nil {
		c.stop, c.kill, c.done = make(chan struct{}), make(chan struct{}), make(chan struct{})
	}
}

func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// settings are the fields of a Consumer with their defaults filled in.
type settings struct {
	concurrency, prefetch         int
	lease, timeout, grace, settle time.Duration
	host                          string
	logger                        *slog.Logger
	limits                        backend.Limits
}

func (c *Consumer) settings() (settings, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("consumer: "+format, args...)) }
	if c.Queue == nil {
		fault("Queue is nil: set it to the queue to consume")
	}
	if f, ok := c.Handler.(HandlerFunc); c.Handler == nil || ok && f == nil {
		fault("Handler is nil: set it to what handles a message")
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"Lease", c.Lease}, {"Timeout", c.Timeout}, {"SettleTimeout", c.SettleTimeout}} {
		if d.value < 0 {
			fault("%s is %v: it must be positive, or 0 for the default", d.field, d.value)
		}
	}
	if c.Lease > 0 && c.Lease < minLease {
		fault("Lease is %v: it must be at least %v, to leave time for heartbeats", c.Lease, minLease)
	}
	if c.Concurrency < 0 {
		fault("Concurrency is %d: it must be positive, or 0 for the default of %d", c.Concurrency, DefaultConcurrency)
	}
	if c.Prefetch < 0 {
		fault("Prefetch is %d: it must not be negative", c.Prefetch)
	}
	if c.Concurrency > maxHeld || c.Prefetch > maxHeld-c.Concurrency {
		fault("Concurrency is %d and Prefetch %d: together they must be at most %d", c.Concurrency, c.Prefetch, maxHeld)
	}
	if err := c.Policy.Validate(); err != nil {
		fault("Policy: %w", err)
	}
	for name, p := range c.Overrides {
		if err := p.Validate(); err != nil {
			fault("Overrides[%q]: %w", name, err)
		}
	}
	if c.Budget != nil {
		if err := c.Budget.Validate(); err != nil {
			fault("Budget: %w", err)
		}
	}
	if len(c.Overrides) > 0 && c.Choose == nil && len(c.Wishes) == 0 {
		fault("Overrides are set but Choose is nil: set Choose to name the override of a delivery, or Wishes to let messages ask for it")
	}
	faults = append(faults, c.checkWishes()...)
	if faults != nil {
		return settings{}, errors.Join(faults...)
	}
	s := settings{
		concurrency: orDefault(c.Concurrency, DefaultConcurrency),
		prefetch:    c.Prefetch,
		lease:       orDefault(c.Lease, DefaultLease),
		timeout:     c.Timeout,
		grace:       max(orDefault(c.Grace, DefaultGrace), 0),
		settle:      orDefault(c.SettleTimeout, DefaultSettleTimeout),
		host:        c.Host,
		logger:      c.Logger,
		limits:      c.Queue.Limits(),
	}
	if s.timeout == 0 {
		s.timeout = DefaultTimeout
		if hold := s.limits.MaxHold; hold > 0 {
			s.timeout = min(s.timeout, hold/10*9)
		}
	}
	if s.host == "" {
		// An envelope without a host is better than a consumer that does not start.
		s.host, _ = os.Hostname()
	}
	if s.logger == nil {
		s.logger = slog.Default()
	}
	s.limits.SettleBatch = orDefault(s.limits.SettleBatch, 100)
	s.limits.Parallel = orDefault(s.limits.Parallel, 1)
	return s, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// preflight asks the broker whether it can keep what the policies need.
func (c *Consumer) preflight(ctx context.Context, s settings) error {
	need := backend.Needs{Lease: s.lease, HandlerBound: s.timeout}
	for _, p := range slices.AppendSeq([]policy.Policy{c.Policy}, maps.Values(c.Overrides)) {
		need.MaxDelay = max(need.MaxDelay, c.longestWait(p.MaxBackoff(), s.limits))
		need.MaxAttempts = max(need.MaxAttempts, p.AttemptLimit())
		need.MaxLapses = max(need.MaxLapses, p.LapseLimit())
	}
	checker, ok := c.Queue.(backend.Checker)
	if !ok {
		return nil
	}
	findings, err := checker.Check(ctx, need)
	if err != nil {
		return fmt.Errorf("consumer: check of queue %q: %w", c.Queue.Name(), err)
	}
	var fatal []error
	for _, f := range findings {
		if f.Fatal {
			fatal = append(fatal, fmt.Errorf("consumer: queue %q: %s: %w", c.Queue.Name(), f.Code, f))
			continue
		}
		s.logger.WarnContext(ctx, "redeliver: preflight", "queue", c.Queue.Name(), "code", f.Code, "finding", f.Text)
	}
	return errors.Join(fatal...)
}
