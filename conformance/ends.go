package conformance

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redeliver/redeliver/backend"
)

var endsCases = []testCase{
	{name: "close gives back what was not settled", sentence: 19, check: closeGivesBack},
	{name: "closing the queue gives back what was not settled", sentence: 19, check: queueCloseGivesBack},
	{name: "close ends a waiting receive", sentence: 19, check: closeEndsReceive},
	{name: "nothing is settled after close", sentence: 19, check: nothingAfterClose},
	{name: "a missing queue is told at start", sentence: 20, check: missingQueue},
	{name: "a missing dead-letter queue is told at start", sentence: 20, check: missingDeadLetters},
	{name: "a sound queue passes preflight", sentence: 20, check: soundPreflight},
}

func closeGivesBack(c *trial) {
	const count = 30
	c.send(c.messages(count)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, count)
	s.settle(19, ack(got[0]), retry(got[1], 0), discard(got[2]), deadLetter(got[3]))
	s.close(19)
	s.close(19)
	c.checkGivenBack(got)
}

func queueCloseGivesBack(c *trial) {
	c.needs(c.Reopen != nil, "Fixture.Reopen")
	const count = 30
	c.send(c.messages(count)...)
	q := c.reopen()
	one, two := c.subscribe(q, longLease), c.subscribe(q, longLease)
	got := append(one.take(5, count/2), two.take(5, count/2)...)
	one.settle(19, ack(got[0]), retry(got[1], 0), discard(got[2]), deadLetter(got[3]))
	for range 2 {
		c.calling("Queue.Close")
		if err := q.Close(c.ctx); err != nil {
			c.fail(19, "Close of a queue: %v", err)
		}
	}
	for _, s := range []*client{one, two} {
		s.crashed = true
		if _, err := s.sub.Receive(c.ctx, 1); !errors.Is(err, backend.ErrClosed) {
			c.fail(19, "after its queue was closed a subscription's Receive returned %v; that should match %q", err, backend.ErrClosed)
		}
	}
	c.checkGivenBack(got)
}

// checkGivenBack looks for what was held by a client that was closed, after the first four were acked, retried, discarded
// and dead-lettered.
func (c *trial) checkGivenBack(held []*backend.Delivery) {
	gone := map[string]bool{held[0].ID: true, held[2].ID: true, held[3].ID: true}
	s := c.subscribe(c.reopen(), longLease)
	back := s.gather(len(held)-len(gone), patience)
	if missing := len(held) - len(gone) - len(back); missing > 0 {
		c.fail(19, "%d of %d messages that a closed client held were not given back within %v", missing, len(held)-len(gone), patience)
	}
	for _, d := range back {
		switch {
		case gone[d.ID]:
			c.fail(19, "message %q came back, which was settled before Close", d.ID)
		case d.ID == held[1].ID:
			if d.Attempt != 2 {
				c.fail(19, "message %q, retried before Close, came back with %s", d.ID, countsOf(d))
			}
		case !c.limits.ReleaseCharged && !c.limits.CountsReceives:
			c.expect(19, d, 1, 0, 0)
		}
	}
	s.nothing(19, glance, "all were given back once")
}

func closeEndsReceive(c *trial) {
	s := c.subscribe(c.Queue, longLease)
	ended := make(chan error, 1)
	c.spawn(func() {
		_, err := s.sub.Receive(c.ctx, 1)
		ended <- err
	})
	s.nothing(1, glance, "nobody sent any")
	s.close(19)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	c.calling("Receive, which Close should end")
	select {
	case err := <-ended:
		if !errors.Is(err, backend.ErrClosed) {
			c.fail(19, "Receive returned %v when its subscription was closed; that should match %q", err, backend.ErrClosed)
		}
	case <-timer.C:
		c.fail(19, "Receive did not return within %v after its subscription was closed", patience)
	}
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	c.calling("Receive")
	if _, err := s.sub.Receive(ctx, 1); !errors.Is(err, backend.ErrClosed) {
		c.fail(19, "Receive of a closed subscription returned %v; that should match %q", err, backend.ErrClosed)
	}
	// What nobody waited for any more was not taken by the closed one.
	m := c.sendOne()
	c.same(1, m, c.subscribe(c.Queue, longLease).one(19), "after another subscription was closed")
}

func nothingAfterClose(c *trial) {
	c.send(c.messages(len(everyOutcome))...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, len(everyOutcome))
	s.close(19)
	for i, outcome := range everyOutcome {
		end := outcome(got[i])
		c.calling("Settle")
		err := backend.ErrorAt(s.sub.Settle(c.ctx, []backend.Settlement{end}), 0)
		switch {
		case err == nil:
			c.fail(16, "%s of message %q succeeded after Close had given it back", end.Outcome, got[i].ID)
		case !errors.Is(err, backend.ErrClosed) && !errors.Is(err, backend.ErrLeaseLost) && !errors.Is(err, backend.ErrSettled):
			c.fail(16, "%s of message %q, which Close had given back, failed with %q; that should match %q or %q",
				end.Outcome, got[i].ID, err, backend.ErrClosed, backend.ErrLeaseLost)
		}
	}
	back := c.subscribe(c.Queue, longLease)
	for _, d := range back.take(19, len(everyOutcome)) {
		if !c.limits.ReleaseCharged && !c.limits.CountsReceives {
			c.expect(19, d, 1, 0, 0)
		}
	}
	back.nothing(19, glance, "each was given back once")
	c.subscribe(c.DeadLetters, longLease).nothing(19, glance, "a settlement after Close")
}

func missingQueue(c *trial) {
	c.needs(c.harness.OpenWithoutQueue != nil, "Harness.OpenWithoutQueue")
	c.refusedAtStart("a queue that does not exist", c.harness.OpenWithoutQueue)
}

func missingDeadLetters(c *trial) {
	c.needs(c.harness.OpenWithoutDeadLetters != nil, "Harness.OpenWithoutDeadLetters")
	c.refusedAtStart("a queue whose dead-letter queue does not exist", c.harness.OpenWithoutDeadLetters)
}

// refusedAtStart opens a queue that must not start, twice, since the first try must not have mended it.
func (c *trial) refusedAtStart(what string, open func(context.Context, string) (*Fixture, error)) {
	name := c.freshName()
	f, err := open(c.ctx, name)
	if err == nil && f.Close != nil {
		c.later("Fixture.Close", f.Close)
	}
	for range 2 {
		if f != nil && err == nil {
			c.calling("Subscribe")
			var sub backend.Subscription
			if sub, err = f.Queue.Subscribe(c.ctx, backend.SubscribeOptions{MaxInFlight: 10, Lease: longLease}); err == nil {
				c.later("Subscription.Close", sub.Close)
			}
		}
		c.wants(20, "Subscribe to "+what, err, backend.ErrQueueNotFound)
		if err != nil && !strings.Contains(err.Error(), name) {
			c.fail(20, "Subscribe to %s, %q, failed with an error that does not name it: %v", what, name, err)
		}
		if f == nil {
			return
		}
		err = nil
	}
	if checker, ok := f.Queue.(backend.Checker); ok {
		c.calling("Check")
		findings, err := checker.Check(c.ctx, sensibleNeeds)
		matches := errors.Is(err, backend.ErrQueueNotFound)
		for _, found := range findings {
			matches = matches || found.Fatal && errors.Is(found, backend.ErrQueueNotFound)
		}
		if !matches {
			c.fail(20, "Check of %s found nothing fatal that matches %q: %+v (error %v)", what, backend.ErrQueueNotFound, findings, err)
		}
	}
}

// sensibleNeeds is what any broker can be asked for.
var sensibleNeeds = backend.Needs{
	MaxDelay: time.Minute, MaxAttempts: 5, MaxLapses: 10, Lease: 30 * time.Second, HandlerBound: time.Minute,
}

func soundPreflight(c *trial) {
	checker, ok := c.Queue.(backend.Checker)
	c.applies(ok, "the queue is no backend.Checker")
	c.calling("Check")
	findings, err := checker.Check(c.ctx, sensibleNeeds)
	if err != nil {
		c.fatal(20, "Check of a sound queue: %v", err)
	}
	for _, f := range findings {
		if f.Fatal {
			c.fail(20, "Check of a sound queue found something fatal: %s: %s", f.Code, f.Text)
		}
		if f.Code == "" || f.Text == "" {
			c.fail(20, "Check found something that it does not name or explain: %+v", f)
		}
	}
	if c.limits.MaxDelay > 0 {
		need := sensibleNeeds
		need.MaxDelay = c.limits.MaxDelay + time.Hour
		if findings, err = checker.Check(c.ctx, need); err != nil || len(findings) == 0 {
			c.fail(20, "Check says nothing of a delay above the maximum of %v (error %v)", c.limits.MaxDelay, err)
		}
	}
}
