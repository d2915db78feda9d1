package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/redeliver/redeliver/backend"
)

var retryCases = []testCase{
	{name: "a retry is never early and not late", sentence: 7, check: onTime},
	{name: "mixed delays in one batch each keep their time", sentence: 8, check: mixedDelays},
	{name: "a short wait is not held up behind long ones", sentence: 8, check: shortBehindLong},
	{name: "a delay beyond the maximum is cut to it", sentence: 8, check: beyondMaximum},
	{name: "a retried message is whole", sentence: 9, check: retriedWhole},
	{name: "what a handler does to a message stays with it", sentence: 9, check: scribbled},
	{name: "the age goes on and the first times are kept", sentence: 9, check: timesKept},
	{name: "nothing piles up with attempts", sentence: 9, check: nothingPilesUp},
	{name: "a retry reaches only the queue that failed", sentence: 10, check: onlyTheQueue},
	{name: "a retry carries the record of its failure", sentence: 22, check: retryRecord},
}

// wait is a message that waits, and what bounds its return.
type wait struct {
	delay         time.Duration
	before, after time.Time // of the call of Settle
}

// checkReturn compares when a message came back with when it should.
func (c *trial) checkReturn(a arrival, w wait) {
	if early := w.delay - a.at.Sub(w.before); early > 0 {
		c.fail(7, "message %q came %v before its delay of %v had passed", a.ID, early, w.delay)
	}
	applied := c.limits.Applied(w.delay)
	bound := applied + c.limits.Granularity + time.Duration(c.limits.Stretch*float64(applied)) + c.harness.Slack
	if took := a.at.Sub(w.after); took > bound {
		c.fail(8, "message %q came %v after it was retried with a delay of %v; %v would not have been late", a.ID, took, w.delay, bound)
	}
}

// checkReturns takes in the messages that wait, and acks them.
func (s *client) checkReturns(arrivals <-chan arrival, waits map[string]wait, attempt int) {
	var longest time.Duration
	for _, w := range waits {
		longest = max(longest, s.limits.Applied(w.delay))
	}
	deadline := time.Now().Add(longest + patience)
	for len(waits) > 0 {
		a, ok := s.await(arrivals, time.Until(deadline))
		if !ok {
			for id, w := range waits {
				s.fail(8, "message %q did not come within %v of its delay of %v", id, patience, w.delay)
			}
			return
		}
		w, expected := waits[a.ID]
		if !expected {
			s.fail(7, "message %q came, which was not due", a.ID)
			continue
		}
		delete(waits, a.ID)
		s.checkReturn(a, w)
		if !s.limits.CountsReceives && a.Attempt != attempt+boolToInt(!strings.Contains(a.ID, "snooze")) {
			s.fail(2, "message %q came with %s", a.ID, countsOf(a.Delivery))
		}
		s.settle(6, ack(a.Delivery))
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// ladder is the delays that the cases try.
var ladder = []time.Duration{
	0, -time.Second, time.Nanosecond, 999 * time.Nanosecond, time.Millisecond, 1500 * time.Microsecond, 17 * time.Millisecond,
	100 * time.Millisecond, 333333333 * time.Nanosecond, 999 * time.Millisecond, 1001 * time.Millisecond, 1600 * time.Millisecond,
}

func onTime(c *trial) {
	var msgs []backend.Message
	for i := range ladder {
		for _, kind := range []string{"retry", "snooze"} {
			msgs = append(msgs, backend.Message{ID: fmt.Sprintf("%s-%02d", kind, i), Body: []byte(`{}`)})
		}
	}
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, len(msgs))
	arrivals := s.stream()
	waits := make(map[string]wait)
	for _, d := range got {
		var kind string
		var i int
		if _, err := fmt.Sscanf(strings.ReplaceAll(d.ID, "-", " "), "%s %d", &kind, &i); err != nil || i >= len(ladder) {
			c.fatal(1, "message %q came, which nobody sent", d.ID)
		}
		end := retry(d, ladder[i])
		if kind == "snooze" {
			end = snooze(d, ladder[i])
		}
		before := time.Now()
		s.settle(7, end)
		waits[d.ID] = wait{delay: ladder[i], before: before, after: time.Now()}
	}
	s.checkReturns(arrivals, waits, 1)
}

func mixedDelays(c *trial) {
	const count = 120
	c.send(c.messages(count)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, count)
	arrivals := s.stream()
	waits := make(map[string]wait)
	batch := make([]backend.Settlement, count)
	before := time.Now()
	for i, d := range got {
		// Neighbours in the batch differ widely, and no two are the same.
		delay := time.Duration(i*37%count) * 12 * time.Millisecond
		batch[i] = retry(d, delay)
		waits[d.ID] = wait{delay: delay, before: before}
	}
	s.settle(7, batch...)
	after := time.Now()
	for id, w := range waits {
		w.after = after
		waits[id] = w
	}
	s.checkReturns(arrivals, waits, 1)
}

func shortBehindLong(c *trial) {
	const long, short = 500, 20
	c.send(c.messages(long)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, long)
	batch := make([]backend.Settlement, long)
	for i, d := range got {
		batch[i] = retry(d, longLease+time.Duration(i*13)*time.Second)
	}
	s.settle(8, batch...)

	msgs := make([]backend.Message, short)
	for i := range msgs {
		msgs[i] = backend.Message{ID: fmt.Sprintf("short-%02d", i), Body: []byte(`{}`)}
	}
	c.send(msgs...)
	got = s.take(8, short)
	arrivals := s.stream()
	waits := make(map[string]wait)
	for i, d := range got {
		delay := time.Duration(short-i) * 20 * time.Millisecond
		before := time.Now()
		s.settle(8, retry(d, delay))
		waits[d.ID] = wait{delay: delay, before: before, after: time.Now()}
	}
	s.checkReturns(arrivals, waits, 1)
	if a, ok := c.await(arrivals, glance); ok {
		c.fail(7, "message %q came long before its delay had passed", a.ID)
	}
}

func beyondMaximum(c *trial) {
	c.applies(c.limits.MaxDelay > 0, "Limits.MaxDelay is 0: every delay can be held")
	c.sendOne()
	s := c.subscribe(c.Queue, longLease)
	s.settle(8, retry(s.one(5), c.limits.MaxDelay+24*time.Hour))
	if c.limits.MaxDelay > glance {
		s.nothing(7, glance, "a retry with a delay beyond the maximum")
	}
}

func retriedWhole(c *trial) {
	msgs := c.hostileMessages()
	sent := make(map[string]backend.Message)
	for _, m := range msgs {
		sent[m.ID] = m
	}
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	hops := []func(*backend.Delivery) backend.Settlement{
		func(d *backend.Delivery) backend.Settlement { return retry(d, 0) },
		func(d *backend.Delivery) backend.Settlement { return snooze(d, time.Millisecond) },
		release,
		func(d *backend.Delivery) backend.Settlement { return awaitDeadLetter(d, 0) },
		func(d *backend.Delivery) backend.Settlement { return retry(d, 2*time.Millisecond) },
	}
	for n, hop := range hops {
		got := s.take(9, len(msgs))
		c.sameAll(9, sent, got, fmt.Sprintf("after %d hops", n))
		s.settle(9, all(hop, got)...)
	}
	got := s.take(9, len(msgs))
	c.sameAll(9, sent, got, fmt.Sprintf("after %d hops", len(hops)))
	s.settle(11, all(deadLetter, got)...)
	c.sameAll(11, sent, c.subscribe(c.DeadLetters, longLease).take(11, len(msgs)), "in the dead-letter queue")
}

// sameAll compares a set of deliveries with what was sent.
func (c *trial) sameAll(sentence int, sent map[string]backend.Message, got []*backend.Delivery, when string) {
	seen := make(map[string]bool)
	for _, d := range got {
		m, ok := sent[d.ID]
		switch {
		case !ok:
			c.fail(sentence, "%s, message %q came, which nobody sent", when, d.ID)
		case seen[d.ID]:
			c.fail(sentence, "%s, message %q came twice", when, d.ID)
		default:
			c.same(sentence, m, d, when)
		}
		seen[d.ID] = true
	}
}

// scribbled writes over each delivery before it is settled.
func scribbled(c *trial) {
	msgs := c.messages(5)
	sent := make(map[string]backend.Message)
	for _, m := range msgs {
		sent[m.ID] = m
	}
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, len(msgs))
	end := func(outcome func(*backend.Delivery) backend.Settlement, list ...*backend.Delivery) {
		for _, d := range list {
			for i := range d.Body {
				d.Body[i] = 'x'
			}
			for name := range d.Headers {
				d.Headers[name] = "scribbled"
			}
			if d.Headers != nil {
				d.Headers["more"] = "scribbled"
			}
		}
		s.settle(9, all(outcome, list)...)
	}
	end(deadLetter, got[0])
	end(func(d *backend.Delivery) backend.Settlement { return retry(d, 0) }, got[1])
	end(func(d *backend.Delivery) backend.Settlement { return snooze(d, 0) }, got[2])
	end(func(d *backend.Delivery) backend.Settlement { return awaitDeadLetter(d, 0) }, got[3])
	end(release, got[4])
	got = s.take(9, len(msgs)-1)
	c.sameAll(9, sent, got, "after a handler wrote to Body and Headers of its delivery")
	end(deadLetter, got...)
	dead := c.subscribe(c.DeadLetters, longLease).take(11, len(msgs))
	c.sameAll(9, sent, dead, "in the dead-letter queue, after a handler wrote to Body and Headers of its delivery")
}

// nothingPilesUp fails a message many times with a long error, so that what accumulates would burst the broker's limits.
func nothingPilesUp(c *trial) {
	const hops = 60
	m := c.sendOne()
	s := c.subscribe(c.Queue, longLease)
	for n := 1; n <= hops; n++ {
		d := s.one(9)
		if !c.limits.CountsReceives && d.Attempt != n {
			c.fail(2, "after %d failures message %q came with %s", n-1, d.ID, countsOf(d))
		}
		c.same(9, m, d, fmt.Sprintf("after %d failures", n-1))
		end := retry(d, 0)
		end.Failure.Error = fmt.Sprintf("failure %d: %s", n, strings.Repeat("all work and no play ", 400))
		end.Failure.Stack = strings.Repeat("goroutine 1 [running]\n", 400)
		s.settle(9, end)
	}
	d := s.one(9)
	c.same(9, m, d, fmt.Sprintf("after %d failures", hops))
	if f := d.Failure; f != nil && !strings.HasPrefix(f.Error, fmt.Sprintf("failure %d:", hops)) {
		c.fail(9, "after %d failures the record is of another than the last: %.40q", hops, f.Error)
	}
}

func onlyTheQueue(c *trial) {
	neighbour := c.openFixture(c.harness.Open, "Open")
	m := c.sendOne()
	c.calling("Publish")
	if err := neighbour.Publish(c.ctx, m); err != nil {
		c.fatal(setup, "Publish to a second queue: %v", err)
	}
	s, other := c.subscribe(c.Queue, longLease), c.subscribe(neighbour.Queue, longLease)
	its := other.one(10)
	other.settle(6, ack(its))

	// Nothing that happens in one queue shows in another that has the same message.
	for _, end := range []func(*backend.Delivery) backend.Settlement{
		func(d *backend.Delivery) backend.Settlement { return retry(d, 0) },
		func(d *backend.Delivery) backend.Settlement { return retry(d, 50*time.Millisecond) },
		release,
	} {
		s.settle(10, end(s.one(10)))
	}
	d := s.one(10)
	other.nothing(10, glance, "retries in another queue")
	s.settle(11, deadLetter(d))
	c.subscribe(c.DeadLetters, longLease).take(11, 1)
	c.subscribe(neighbour.DeadLetters, longLease).nothing(10, glance, "a dead letter of another queue")
	other.nothing(10, glance, "a dead letter of another queue")
}

func retryRecord(c *trial) {
	c.applies(!c.limits.NoRetryRecord, "Limits.NoRetryRecord: the broker keeps no failure with a retried message")
	m := c.sendOne()
	s := c.subscribe(c.Queue, longLease)
	var first time.Time
	d := s.one(9)
	for n := 1; n <= 3; n++ {
		failed := d.Attempt
		end := retry(d, 2*time.Millisecond)
		end.Failure.Error += strings.Repeat(" 世界", 150)
		end.Failure.Stack = strings.Repeat("goroutine 1 [running]\n", 20)
		s.settle(9, end)
		d = s.one(9)
		f := d.Failure
		if f == nil {
			c.fatal(22, "a message that was retried with a failure came without it")
		}
		if n == 1 {
			first = f.FirstFailedAt
		}
		switch want := fmt.Sprintf("attempt %d:", failed); {
		case f.Reason != "failed" || !strings.Contains(f.Error, want) || f.ErrorType != "*gateway.StatusError" || f.Attempts != failed:
			c.fail(22, "a retried message carries the record %+v; it should be of attempt %d", *f, failed)
		case !c.keeps(*end.Failure, *f):
			c.fail(22, "a retried message carries the error %q and the stack %q; with Limits.ShortRetryRecord %t that is too little of %q and %q",
				f.Error, f.Stack, c.limits.ShortRetryRecord, end.Failure.Error, end.Failure.Stack)
		case f.Origin != c.Queue.Name() || f.MessageID != m.ID:
			c.fail(22, "a retried message carries a record with origin %q and message_id %q", f.Origin, f.MessageID)
		case !f.DeadLetteredAt.IsZero():
			c.fail(22, "a retried message carries a record that says dead_lettered_at %v", f.DeadLetteredAt)
		case first.IsZero() || !f.FirstFailedAt.Equal(first):
			c.fail(22, "after failure %d the record says first_failed_at %v; after the first it said %v", n, f.FirstFailedAt, first)
		}
		s.settle(9, snooze(d, 0))
		if d = s.one(9); d.Failure == nil {
			c.fatal(22, "a message lost the record of its failure in a snooze")
		}
		s.settle(9, release(d))
		if d = s.one(9); d.Failure == nil {
			c.fatal(22, "a message lost the record of its failure in a release")
		}
	}
	s.settle(11, deadLetter(d))
	dead := c.subscribe(c.DeadLetters, longLease).one(11)
	if dead.Failure == nil || !dead.Failure.FirstFailedAt.Equal(first) {
		c.fail(22, "the envelope does not keep first_failed_at %v: %+v", first, dead.Failure)
	}
}

// keeps reports whether a record that came with a retry has as much of the failure as the limits say.
func (c *trial) keeps(reported, kept backend.Failure) bool {
	if !c.limits.ShortRetryRecord {
		return kept.Error == reported.Error && kept.Stack == reported.Stack
	}
	text := strings.TrimSuffix(kept.Error, "…")
	return strings.HasPrefix(reported.Error, text) && len(text) >= min(250, len(reported.Error))
}
