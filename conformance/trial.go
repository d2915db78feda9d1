package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
)

const (
	// longLease outlasts patience by far, so that nothing that was wrongly kept comes back in time by itself.
	longLease = time.Minute
	// patience is how long to wait for what should be there at once, before it counts as missing.
	patience = 10 * time.Second
	// glance is how long to look for what must not be there and would be at once.
	glance = 250 * time.Millisecond
	// attempts is how often a case is begun anew because the machine was too slow for its leases.
	attempts = 3
	// details is how many violations of one sentence a case reports, before it only counts them.
	details = 5
	// cleanup bounds the end of a case.
	cleanup = 10 * time.Second
)

// result is what became of a case.
type result struct {
	violations   []Violation
	skipped      string // the reason, if the harness lacks what the case needs
	inapplicable string // the reason, if the backend's limits exclude what the case is about
	stalled      string // the reason, if the machine was too slow
}

// run runs a case, again if the machine was too slow.
func (h Harness) run(ctx context.Context, one testCase) result {
	var r result
	for range attempts {
		if r = h.once(ctx, one); r.stalled == "" {
			return r
		}
	}
	r.violations = append(r.violations, Violation{
		Sentence: sentence(setup),
		Case:     one.path(),
		Detail:   fmt.Sprintf("tried %d times in vain: %s; if it is the machine that is slow, raise Harness.Lease", attempts, r.stalled),
	})
	return r
}

func (h Harness) once(ctx context.Context, one testCase) result {
	c := &trial{
		harness: h, testCase: one,
		count:  make(map[int]int),
		leases: make(map[*backend.Delivery]span),
	}
	running, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	c.ctx = running

	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.guard(func() { c.end(cancel) })
		c.guard(func() {
			c.open()
			one.check(c)
		})
	}()
	hung := time.NewTimer(h.Timeout + 2*cleanup)
	defer hung.Stop()
	select {
	case <-done:
	case <-hung.C:
		c.fail(one.sentence, "a call did not return although its context ended %v ago; the last one was %s", 2*cleanup, c.lastCall())
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(c.count)) {
		if more := c.count[n] - details; more > 0 {
			c.result.violations = append(c.result.violations, c.violation(n, fmt.Sprintf("and %d more", more)))
		}
	}
	return c.result
}

// trial is one run of a case: what it works with, and the record of what it found. Its methods that end the case end the
// goroutine that calls them.
type trial struct {
	ctx context.Context
	testCase
	harness Harness
	*Fixture
	limits backend.Limits

	mu      sync.Mutex
	result  result
	count   map[int]int // violations, by sentence
	doing   string      // the last call to the backend
	clients []*client
	closers []closer
	leases  map[*backend.Delivery]span
	others  sync.WaitGroup
}

type closer struct {
	what  string
	close func(context.Context) error
}

// open makes the fixture of the case.
func (c *trial) open() {
	c.Fixture = c.openFixture(c.harness.Open, "Open")
	c.limits = c.Queue.Limits()
}

// openFixture calls a hook that makes a fixture.
func (c *trial) openFixture(open func(context.Context, string) (*Fixture, error), hook string) *Fixture {
	if open == nil {
		c.fatal(setup, "Harness.%s is nil", hook)
	}
	name := c.freshName()
	c.calling(hook)
	f, err := open(c.ctx, name)
	switch {
	case err != nil:
		c.fatal(setup, "%s(%q): %v", hook, name, err)
	case f == nil || f.Queue == nil || f.DeadLetters == nil:
		c.fatal(setup, "%s(%q) returned no fixture, or one without Queue or DeadLetters", hook, name)
	}
	if f.Publish == nil {
		p, ok := f.Queue.(backend.Publisher)
		if !ok {
			c.fatal(setup, "%s(%q): Fixture.Publish is nil and the queue is no backend.Publisher", hook, name)
		}
		f.Publish = p.Publish
	}
	if f.Close != nil {
		c.later("Fixture.Close", f.Close)
	}
	return f
}

// freshName returns a queue name of at most 40 bytes that nobody else has and that tells what it was made for.
func (c *trial) freshName() string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, c.name)
	return fmt.Sprintf("%.27s_%s", name, strings.ToLower(rand.Text()[:12]))
}

// later has close called when the case has ended, in reverse order.
func (c *trial) later(what string, close func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closers = append(c.closers, closer{what, close})
}

// spawn runs f beside the case, which does not end before f did.
func (c *trial) spawn(f func()) { c.others.Go(func() { c.guard(f) }) }

// end tears down what the case made.
func (c *trial) end(cancel context.CancelFunc) {
	cancel()
	c.others.Wait()
	ctx, stop := context.WithTimeout(context.WithoutCancel(c.ctx), cleanup)
	defer stop()
	c.mu.Lock()
	clients, closers := c.clients, c.closers
	c.mu.Unlock()
	for _, s := range clients {
		c.calling("Subscription.Close")
		if err := s.sub.Close(ctx); err != nil && !s.crashed {
			c.fail(19, "Close of a subscription: %v", err)
		}
	}
	for _, last := range slices.Backward(closers) {
		c.calling(last.what)
		if err := last.close(ctx); err != nil {
			c.fail(setup, "%s: %v", last.what, err)
		}
	}
}

// guard runs f and turns its panic into a violation.
func (c *trial) guard(f func()) {
	defer func() {
		if v := recover(); v != nil {
			c.fail(c.sentence, "panic: %v\n%s", v, debug.Stack())
		}
	}()
	f()
}

// fail records that a sentence was not kept.
func (c *trial) fail(sentence int, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count[sentence]++; c.count[sentence] <= details {
		c.result.violations = append(c.result.violations, c.violation(sentence, fmt.Sprintf(format, args...)))
	}
}

func (c *trial) violation(n int, detail string) Violation {
	return Violation{Sentence: sentence(n), Case: c.path(), Detail: detail}
}

// fatal records that a sentence was not kept, and ends the case.
func (c *trial) fatal(sentence int, format string, args ...any) {
	c.fail(sentence, format, args...)
	runtime.Goexit()
}

// needs ends the case if the harness lacks one of its hooks.
func (c *trial) needs(present bool, hook string) {
	if !present {
		c.leave(&c.result.skipped, "the harness has no "+hook)
	}
}

// applies ends the case if the backend's limits exclude what it is about.
func (c *trial) applies(is bool, limit string) {
	if !is {
		c.leave(&c.result.inapplicable, limit)
	}
}

// stalled ends the case because the machine was too slow for it, so that nothing was shown.
func (c *trial) stalled(format string, args ...any) {
	c.leave(&c.result.stalled, fmt.Sprintf(format, args...))
}

func (c *trial) leave(why *string, text string) {
	c.mu.Lock()
	*why = text
	c.mu.Unlock()
	runtime.Goexit()
}

// calling notes a call to the backend, for the report of one that does not return.
func (c *trial) calling(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doing = what
}

func (c *trial) lastCall() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doing
}
