package conformance

import (
	"time"

	"github.com/redeliver/redeliver/backend"
)

const (
	// clockSkew is how far the clocks of producer, broker and consumer may be apart.
	clockSkew = time.Minute
	// coarse is how far off the time of one message may be: an AMQP timestamp counts in whole seconds.
	coarse = time.Second
	// apart is how far apart things happen whose times are compared: so far that a coarse clock does not hide it.
	apart = coarse * 3 / 2
)

// timed returns when a call began and ended.
func timed(call func()) span {
	begun := time.Now()
	call()
	return span{begun, time.Now()}
}

// byID returns deliveries by their message ID.
func byID(list []*backend.Delivery) map[string]*backend.Delivery {
	all := make(map[string]*backend.Delivery)
	for _, d := range list {
		all[d.ID] = d
	}
	return all
}

// timesKept sends two messages, receives them together, and has them fail first in the other order: a receipt is then taken
// neither for the sending nor for the failure, nor one of these for the other. Only differences are compared closely, so no
// clock needs to be right.
func timesKept(c *trial) {
	msgs := c.messages(2)
	older, younger := msgs[0].ID, msgs[1].ID
	graves := c.subscribe(c.DeadLetters, longLease)
	sent, failed := make(map[string]span), make(map[string]span)
	sent[older] = timed(func() { c.send(msgs[0]) })
	graves.nothing(11, apart, "a message was sent")
	sent[younger] = timed(func() { c.send(msgs[1]) })

	begun := time.Now()
	s := c.subscribe(c.Queue, longLease)
	held := byID(s.take(5, 2))
	if len(held) != 2 {
		c.fatal(3, "message %q or %q came twice", older, younger)
	}
	enqueued := make(map[string]time.Time)
	for id, d := range held {
		c.checkAge(d, sent[id], begun)
		enqueued[id] = d.FirstEnqueuedAt
		if at := enqueued[id]; !at.IsZero() && (at.Before(sent[id].begun.Add(-clockSkew)) || at.After(sent[id].ended.Add(clockSkew))) {
			c.fail(9, "message %q came with FirstEnqueuedAt %v; it was sent at %v", id, at, sent[id].begun)
		}
	}
	c.checkDistance(9, "FirstEnqueuedAt", "sent", enqueued, sent, older, younger)

	// check looks at deliveries that were not due before some time.
	check := func(got []*backend.Delivery, since time.Time) {
		for _, d := range got {
			at, known := enqueued[d.ID]
			if !known {
				c.fatal(9, "message %q came, which nobody sent", d.ID)
			}
			c.checkAge(d, sent[d.ID], since)
			if !sameTime(d.FirstEnqueuedAt, at) {
				c.fail(9, "message %q came with FirstEnqueuedAt %v (%s); it had %v at first", d.ID, d.FirstEnqueuedAt, countsOf(d), at)
			}
			if f := d.Failure; f != nil && !f.FirstEnqueuedAt.IsZero() && !sameTime(f.FirstEnqueuedAt, at) {
				c.fail(22, "message %q came with a record that says first_enqueued_at %v; its first delivery said %v", d.ID, f.FirstEnqueuedAt, at)
			}
		}
	}
	delay := c.limits.Applied(apart)
	failed[younger] = timed(func() { s.settle(9, retry(held[younger], delay)) })
	back := s.receive(1, delay+patience)
	if len(back) == 0 {
		c.fatal(8, "message %q did not come within %v of its delay of %v", younger, patience, delay)
	}
	check(back, failed[younger].begun.Add(delay))
	failed[older] = timed(func() { s.settle(9, retry(held[older], 0), retry(back[0], 0)) })
	got := s.take(9, 2)
	check(got, failed[older].begun)
	for _, hop := range []func(*backend.Delivery) backend.Settlement{
		func(d *backend.Delivery) backend.Settlement { return snooze(d, 0) },
		release,
		func(d *backend.Delivery) backend.Settlement { return awaitDeadLetter(d, 0) },
	} {
		begun = time.Now()
		s.settle(9, all(hop, got)...)
		got = s.take(9, 2)
		check(got, begun)
	}
	if c.limits.LeaseExpires || c.Crash != nil {
		s.settle(9, all(release, got)...)
		dying := c.subscribe(c.reopen(), c.harness.Lease)
		got = dying.take(9, 2)
		dying.crash()
		begun = c.leased(got[0]).begun
		got = s.lapse(2, got, c.harness.Lease)
		check(got, begun)
	}

	s.settle(11, all(deadLetter, got)...)
	firstEnqueued, firstFailed := make(map[string]time.Time), make(map[string]time.Time)
	for _, d := range graves.take(11, 2) {
		at, known := enqueued[d.ID]
		if !known || d.Failure == nil {
			c.fatal(11, "message %q is in the dead-letter queue, with the envelope %+v", d.ID, d.Failure)
		}
		firstEnqueued[d.ID], firstFailed[d.ID] = d.Failure.FirstEnqueuedAt, d.Failure.FirstFailedAt
		if !at.IsZero() && !sameTime(firstEnqueued[d.ID], at) {
			c.fail(22, "the envelope of message %q says first_enqueued_at %v; its first delivery said %v", d.ID, firstEnqueued[d.ID], at)
		}
	}
	c.checkDistance(22, "first_enqueued_at", "sent", firstEnqueued, sent, older, younger)
	if !c.limits.NoRetryRecord {
		c.checkDistance(22, "first_failed_at", "first reported as failed", firstFailed, failed, older, younger)
	}
}

// checkAge compares the age of a delivery with the time from when its message was sent to when the delivery came, which was
// not before since.
func (c *trial) checkAge(d *backend.Delivery, sent span, since time.Time) {
	least, most := since.Sub(sent.ended)-coarse, c.leased(d).ended.Sub(sent.begun)+coarse
	if d.Age < least || d.Age > most {
		c.fail(9, "message %q came with Age %v (%s); it was sent between %v and %v before", d.ID, d.Age, countsOf(d), max(least, 0), most)
	}
}

// checkDistance compares how far apart a backend says that something happened to two messages with how far that was.
func (c *trial) checkDistance(sentence int, field, what string, told map[string]time.Time, when map[string]span, a, b string) {
	if told[a].IsZero() || told[b].IsZero() {
		return
	}
	least, most := when[b].begun.Sub(when[a].ended), when[b].ended.Sub(when[a].begun)
	if distance := told[b].Sub(told[a]); distance < least-coarse || distance > most+coarse {
		c.fail(sentence, "%s of messages %q and %q is %v and %v, the second %v after the first; it was %s %v after it",
			field, a, b, told[a], told[b], distance, what, least)
	}
}

// sameTime reports whether two times are the same in an envelope, which holds milliseconds.
func sameTime(a, b time.Time) bool { return a.Sub(b).Abs() < time.Millisecond }
