package conformance

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/redeliver/redeliver/backend"
)

var settleCases = []testCase{
	{name: "ack is final", sentence: 6, check: ackIsFinal},
	{name: "discard removes", sentence: 13, check: discardRemoves},
	{name: "release returns at once", sentence: 13, check: releaseReturns},
	{name: "a second settlement fails and changes nothing", sentence: 17, check: settledTwice},
	{name: "an extend after the settlement fails and changes nothing", sentence: 17, check: extendSettled},
	{name: "of concurrent settlements exactly one wins", sentence: 17, check: settledConcurrently},
	{name: "each item of a batch has its own result", sentence: 18, check: mixedBatch},
	{name: "a settlement that makes no sense leaves the delivery open", sentence: 18, check: senseless},
	{name: "a large batch of every outcome", sentence: 18, check: largeBatch},
}

func ackIsFinal(c *trial) {
	const count = 20
	c.send(c.messages(count)...)
	s := c.subscribe(c.Queue, c.harness.Lease)
	got := s.take(5, count)
	s.settle(6, all(ack, got[:count/2])...)
	for _, d := range got[count/2:] {
		s.settle(6, ack(d))
	}
	for _, d := range got {
		if !d.Settled() {
			c.fail(17, "message %q was acked, but its delivery does not say that it is settled", d.ID)
		}
	}
	s.nothing(6, c.beyondLease(), "all were acked and their leases had lapsed")
	s.close(19)
	c.subscribe(c.reopen(), longLease).nothing(6, glance, "all were acked and their consumer had gone")
	c.subscribe(c.DeadLetters, longLease).nothing(6, glance, "all were acked")
}

func discardRemoves(c *trial) {
	const count = 4
	c.send(c.messages(count)...)
	s := c.subscribe(c.Queue, c.harness.Lease)
	got := s.take(5, count)
	s.settle(13, all(discard, got[:count-1])...)
	withFailure := discard(got[count-1])
	withFailure.Failure = failureOf(got[count-1], "discarded")
	s.settle(13, withFailure)
	s.nothing(13, c.beyondLease(), "all were discarded and their leases had lapsed")
	c.subscribe(c.DeadLetters, longLease).nothing(13, glance, "all were discarded")
}

func releaseReturns(c *trial) {
	const count = 10
	c.send(c.messages(count)...)
	s := c.subscribe(c.Queue, longLease)
	other := c.subscribe(c.reopen(), longLease)
	charged := c.limits.ReleaseCharged || c.limits.CountsReceives
	for range 3 {
		s.settle(13, all(release, s.take(13, count))...)
		for _, d := range other.take(13, count) {
			if !charged {
				c.expect(13, d, 1, 0, 0)
			}
			other.settle(13, release(d))
		}
	}
	for _, d := range s.take(13, count) {
		if d.Failure != nil {
			c.fail(13, "message %q was released, never failed, and came with a failure: %+v", d.ID, *d.Failure)
		}
	}
}

// everyOutcome settles a delivery in every way there is.
var everyOutcome = []func(*backend.Delivery) backend.Settlement{
	ack,
	func(d *backend.Delivery) backend.Settlement { return retry(d, 0) },
	func(d *backend.Delivery) backend.Settlement { return snooze(d, 0) },
	func(d *backend.Delivery) backend.Settlement { return awaitDeadLetter(d, 0) },
	deadLetter,
	discard,
	release,
}

// fate is where a message should be after it was settled.
type fate struct {
	outcome    backend.Settlement
	gone, dead bool
	attempt    int
	lapses     int
	snoozes    int
	waits      int
}

func fateOf(end backend.Settlement) fate {
	d := end.Delivery
	f := fate{outcome: end, attempt: d.Attempt, lapses: d.Lapses, snoozes: d.Snoozes, waits: d.DeadLetterWaits}
	switch {
	case end.Outcome == backend.Ack || end.Outcome == backend.Discard:
		f.gone = true
	case end.Outcome == backend.DeadLetter:
		f.dead = true
	case end.AwaitDeadLetter:
		f.waits++
	case end.Uncharged:
		f.snoozes++
	case end.Outcome == backend.Retry:
		f.attempt++
	}
	return f
}

// checkFates looks for every message where it should be, and nowhere else. Held deliveries must have been settled without
// a delay, or with one that is well below patience.
func (c *trial) checkFates(sentence int, fates map[string]fate) {
	back, dead := 0, 0
	for _, f := range fates {
		switch {
		case f.dead:
			dead++
		case !f.gone:
			back++
		}
	}
	s, graves := c.subscribe(c.Queue, longLease), c.subscribe(c.DeadLetters, longLease)
	seen := make(map[string]bool)
	look := func(s *client, where string, n int, here func(fate) bool) {
		got := s.gather(n, patience)
		got = append(got, s.receive(10, glance)...)
		for _, d := range got {
			f, known := fates[d.ID]
			switch {
			case !known:
				c.fail(sentence, "message %q is in the %s, which nobody sent", d.ID, where)
			case seen[d.ID]:
				c.fail(sentence, "message %q is there twice after %s", d.ID, f.outcome.Outcome)
			case !here(f):
				c.fail(sentence, "message %q is in the %s after %s", d.ID, where, f.outcome.Outcome)
			case f.dead:
			case d.DeadLetterWaits != f.waits:
				c.fail(sentence, "message %q came with %d waits for its dead-letter queue after %s; it should have %d",
					d.ID, d.DeadLetterWaits, f.outcome.Outcome, f.waits)
			case c.limits.CountsReceives:
			case c.limits.ReleaseCharged && f.outcome.Outcome == backend.Release:
			default:
				c.expect(sentence, d, f.attempt, f.lapses, f.snoozes)
			}
			seen[d.ID] = true
		}
	}
	look(s, "queue", back, func(f fate) bool { return !f.gone && !f.dead })
	look(graves, "dead-letter queue", dead, func(f fate) bool { return f.dead })
	for id, f := range fates {
		if !f.gone && !seen[id] {
			c.fail(sentence, "message %q is nowhere after %s", id, f.outcome.Outcome)
		}
	}
}

func settledTwice(c *trial) {
	n := len(everyOutcome)
	c.send(c.messages(n)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, n)
	fates := make(map[string]fate)
	for i, first := range everyOutcome {
		end := first(got[i])
		fates[got[i].ID] = fateOf(end)
		s.settle(17, end)
		if !got[i].Settled() {
			c.fail(17, "message %q: after %s its delivery does not say that it is settled", got[i].ID, end.Outcome)
		}
		for _, second := range everyOutcome {
			s.refuse(17, second(got[i]), backend.ErrSettled)
		}
	}
	c.checkFates(17, fates)
}

// extendSettled extends with a lease so long that a message whose delay gave way to it does not come back in time.
func extendSettled(c *trial) {
	n := len(everyOutcome)
	c.send(c.messages(n + 2)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, n+2)
	waiting, open := got[n], got[n+1]
	batch := []backend.Settlement{retry(waiting, glance)}
	for i, outcome := range everyOutcome {
		batch = append(batch, outcome(got[i]))
	}
	fates := map[string]fate{open.ID: fateOf(ack(open))}
	for _, end := range batch {
		fates[end.Delivery.ID] = fateOf(end)
	}
	s.settle(17, batch...)

	c.calling("Extend")
	err := s.sub.Extend(c.ctx, got)
	for i, d := range got {
		switch itemErr := backend.ErrorAt(err, i); {
		case d == open && itemErr != nil:
			c.fail(18, "Extend of message %q failed beside others that were settled: %v", d.ID, itemErr)
		case d == open || errors.Is(itemErr, backend.ErrSettled) || errors.Is(itemErr, backend.ErrLeaseLost):
		case itemErr != nil:
			c.fail(17, "Extend of message %q after %s failed with %q; that should match %q or %q",
				d.ID, fates[d.ID].outcome.Outcome, itemErr, backend.ErrSettled, backend.ErrLeaseLost)
		case c.limits.LeaseExpires:
			c.fail(17, "Extend of message %q after %s succeeded; it should have failed with %q or %q",
				d.ID, fates[d.ID].outcome.Outcome, backend.ErrSettled, backend.ErrLeaseLost)
		}
	}
	s.settle(17, ack(open))
	c.checkFates(17, fates)
}

func settledConcurrently(c *trial) {
	const count, settlers = 30, 8
	c.send(c.messages(count)...)
	s := c.subscribe(c.Queue, longLease)
	var mu sync.Mutex
	fates := make(map[string]fate)
	for _, d := range s.take(5, count) {
		winners := 0
		var working sync.WaitGroup
		working.Add(settlers)
		start := make(chan struct{})
		for n := range settlers {
			end := everyOutcome[n%len(everyOutcome)](d)
			s.spawn(func() {
				defer working.Done()
				<-start
				err := backend.ErrorAt(s.sub.Settle(s.ctx, []backend.Settlement{end}), 0)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					winners++
					fates[d.ID] = fateOf(end)
				} else if !errors.Is(err, backend.ErrSettled) {
					c.fail(17, "message %q: %s beside %d other settlements failed with %q; that should match %q",
						d.ID, end.Outcome, settlers-1, err, backend.ErrSettled)
				}
			})
		}
		close(start)
		working.Wait()
		if winners != 1 {
			c.fatal(17, "message %q was settled %d times by %d concurrent settlements", d.ID, winners, settlers)
		}
	}
	c.checkFates(17, fates)
}

func mixedBatch(c *trial) {
	n := len(everyOutcome)
	c.send(c.messages(2*n + 2)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, 2*n+2)
	early, open := got[2*n], got[2*n+1]
	s.settle(6, ack(early))

	fates := map[string]fate{early.ID: fateOf(ack(early))}
	var batch []backend.Settlement
	wants := make(map[int]error) // by index; nil for any error
	add := func(bad backend.Settlement, want error) {
		wants[len(batch)] = want
		batch = append(batch, bad)
	}
	add(ack(early), backend.ErrSettled)
	for i, outcome := range everyOutcome {
		end := outcome(got[i])
		fates[got[i].ID] = fateOf(end)
		batch = append(batch, end)
		if i == n/2 {
			add(backend.Settlement{Delivery: open}, nil)
			add(backend.Settlement{Outcome: backend.Ack}, nil)
		}
	}
	add(deadLetter(early), backend.ErrSettled)
	// A delivery that stands in a batch twice is settled by one of the two, whichever that is.
	twice := batch[1]
	batch = append(batch, twice)

	c.calling("Settle")
	err := s.sub.Settle(c.ctx, batch)
	if (backend.ErrorAt(err, 1) == nil) == (backend.ErrorAt(err, len(batch)-1) == nil) {
		c.fail(17, "a delivery that stood twice in a batch was not settled exactly once: %v", err)
	}
	for i, item := range batch {
		if item == twice {
			continue
		}
		got := backend.ErrorAt(err, i)
		want, bad := wants[i]
		switch {
		case !bad && got != nil:
			c.fail(18, "item %d of a batch, %s, failed beside others that had to: %v", i, item.Outcome, got)
		case bad && got == nil:
			c.fail(18, "item %d of a batch, %s, succeeded; it should have failed", i, item.Outcome)
		case bad && want != nil && !errors.Is(got, want):
			c.fail(18, "item %d of a batch, %s, failed with %q; that should match %q", i, item.Outcome, got, want)
		}
	}
	s.settle(18, ack(open))
	fates[open.ID] = fateOf(ack(open))
	rest := got[n : 2*n]
	s.settle(18, all(ack, rest)...)
	for _, d := range rest {
		fates[d.ID] = fateOf(ack(d))
	}
	c.checkFates(18, fates)
}

func senseless(c *trial) {
	c.sendOne()
	s := c.subscribe(c.Queue, longLease)
	d := s.one(5)
	for _, bad := range []backend.Settlement{
		{Delivery: d},
		{Delivery: d, Outcome: 99},
		{Delivery: d, Outcome: backend.Ack, Uncharged: true},
		{Delivery: d, Outcome: backend.Release, AwaitDeadLetter: true, Failure: failureOf(d, "failed")},
		{Delivery: d, Outcome: backend.DeadLetter},
		{Delivery: d, Outcome: backend.Retry, AwaitDeadLetter: true},
	} {
		c.calling("Settle")
		if backend.ErrorAt(s.sub.Settle(c.ctx, []backend.Settlement{bad}), 0) == nil {
			c.fail(18, "a settlement that makes no sense succeeded: outcome %s, uncharged %t, awaits %t, failure %t",
				bad.Outcome, bad.Uncharged, bad.AwaitDeadLetter, bad.Failure != nil)
		}
		if d.Settled() {
			c.fatal(18, "a settlement that failed left its delivery settled: outcome %s", bad.Outcome)
		}
	}
	c.calling("Settle")
	if err := s.sub.Settle(c.ctx, nil); err != nil {
		c.fail(18, "Settle of an empty batch: %v", err)
	}
	c.calling("Extend")
	if err := s.sub.Extend(c.ctx, nil); err != nil {
		c.fail(15, "Extend of an empty batch: %v", err)
	}
	s.extend(15, d)
	s.settle(18, ack(d))
	s.nothing(6, glance, "it was acked")
}

func largeBatch(c *trial) {
	const count = 350
	c.send(c.messages(count)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, count)
	// An order that no backend would choose.
	slices.SortFunc(got, func(a, b *backend.Delivery) int { return strings.Compare(reversed(a.ID), reversed(b.ID)) })
	fates := make(map[string]fate)
	batch := make([]backend.Settlement, count)
	for i, d := range got {
		batch[i] = everyOutcome[i%len(everyOutcome)](d)
		fates[d.ID] = fateOf(batch[i])
	}
	s.settle(18, batch...)
	c.checkFates(18, fates)
}

func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}
