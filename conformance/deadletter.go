package conformance

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redeliver/redeliver/backend"
)

var deadLetterCases = []testCase{
	{name: "a dead letter is one copy with its envelope", sentence: 11, check: oneDeadLetter},
	{name: "many dead letters at once", sentence: 11, check: manyDeadLetters},
	{name: "the envelope is the same document everywhere", sentence: 22, check: sameDocument},
	{name: "a hostile error text is no obstacle", sentence: 11, check: hostileErrors},
	{name: "a message that waits for its dead-letter queue keeps its failure", sentence: 12, check: awaitsDeadLetter},
	{name: "an unavailable dead-letter queue loses and blocks nothing", sentence: 12, check: brokenDeadLetters},
}

func oneDeadLetter(c *trial) {
	m := c.sendOne()
	s := c.subscribe(c.Queue, c.harness.Lease)
	begun := time.Now()
	s.settle(9, retry(s.one(5), 0))
	s.settle(9, snooze(s.one(9), 0))
	d := s.one(9)
	end := deadLetter(d)
	end.Failure.Stack = "goroutine 7 [running]:\nmain.handle()"
	s.settle(11, end)

	graves := c.subscribe(c.DeadLetters, longLease)
	dead := graves.one(11)
	c.same(11, m, dead, "in the dead-letter queue")
	c.expect(2, dead, 1, 0, 0)
	c.checkEnvelope(d, *end.Failure, dead, begun)
	graves.nothing(11, glance, "one message was dead-lettered once")
	s.nothing(11, c.beyondLease(), "its dead letter and the end of its lease")
	graves.settle(6, ack(dead))
	graves.nothing(6, glance, "it was acked in the dead-letter queue")
}

// checkEnvelope compares the envelope of a dead letter with what was reported of delivery d.
func (c *trial) checkEnvelope(d *backend.Delivery, reported backend.Failure, dead *backend.Delivery, begun time.Time) {
	if dead.Failure == nil {
		c.fatal(11, "message %q is in the dead-letter queue without an envelope", dead.ID)
	}
	got := *dead.Failure
	want := reported
	want.Origin, want.MessageID = c.Queue.Name(), d.ID
	if have, need := timeless(got), timeless(want); have != need {
		c.fail(11, "the envelope of message %q is\n\t\t%s\n\tand should be\n\t\t%s", d.ID, have, need)
	}
	for name, at := range map[string]time.Time{"first_failed_at": got.FirstFailedAt, "dead_lettered_at": got.DeadLetteredAt} {
		if at.Before(begun.Add(-clockSkew)) || at.After(time.Now().Add(clockSkew)) {
			c.fail(11, "the envelope of message %q says %s %v, while it happened after %v", d.ID, name, at, begun)
		}
	}
	if got.DeadLetteredAt.Before(got.FirstFailedAt) {
		c.fail(11, "the envelope of message %q says that it was dead-lettered at %v, before it failed at %v", d.ID, got.DeadLetteredAt, got.FirstFailedAt)
	}
	if sent := d.FirstEnqueuedAt; !sent.IsZero() && got.FirstEnqueuedAt.Sub(sent).Abs() >= time.Millisecond {
		c.fail(11, "the envelope of message %q says first_enqueued_at %v; its delivery said %v", d.ID, got.FirstEnqueuedAt, sent)
	}
}

// timeless is an envelope without its times.
func timeless(f backend.Failure) string {
	f.FirstEnqueuedAt, f.FirstFailedAt, f.DeadLetteredAt = time.Time{}, time.Time{}, time.Time{}
	return string(f.Encode(1 << 20))
}

func manyDeadLetters(c *trial) {
	const count = 150
	msgs := c.messages(count)
	sent := make(map[string]backend.Message)
	for _, m := range msgs {
		sent[m.ID] = m
	}
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, count)
	s.settle(11, all(deadLetter, got)...)
	graves := c.subscribe(c.DeadLetters, longLease)
	dead := graves.take(11, count)
	c.sameAll(11, sent, dead, "in the dead-letter queue")
	for _, d := range dead {
		if d.Failure == nil || d.Failure.MessageID != d.ID || !strings.Contains(d.Failure.Error, "handle "+d.ID+":") {
			c.fail(11, "message %q is in the dead-letter queue with an envelope that is not its own: %+v", d.ID, d.Failure)
		}
	}
	graves.nothing(11, glance, "each message was dead-lettered once")
	s.nothing(11, glance, "all were dead-lettered")
}

// sameDocument compares whole envelopes with documents that are written out here, since what another program reads is the
// document and not our struct.
func sameDocument(c *trial) {
	msgs := c.messages(3)
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	want := make(map[string]string)
	for _, d := range s.take(5, 3) {
		origin := fmt.Sprintf(`"origin":%q,"message_id":%q`, c.Queue.Name(), d.ID)
		end := deadLetter(d)
		switch d.ID {
		case msgs[0].ID:
			end.Failure = &backend.Failure{Reason: "abandoned"}
			want[d.ID] = `{"v":1,"reason":"abandoned","attempts":0,` + origin + `}`
		case msgs[1].ID:
			end.Failure = &backend.Failure{Reason: "permanent", Error: "card <4242> & \"more\"\n世界 👩‍👩‍👧", Attempts: 1}
			want[d.ID] = `{"v":1,"reason":"permanent","error":"card <4242> & \"more\"\n世界 👩‍👩‍👧","attempts":1,` + origin + `}`
		default:
			end.Failure = &backend.Failure{
				Reason: "exhausted", Error: "timeout", ErrorType: "*net.OpError", Stack: "goroutine 1:\n\tmain.go:7", Attempts: 8,
				Lapses: 2, Policy: "payments", Consumer: "host-a",
				// What only the backend knows is not taken from the caller.
				Origin: "elsewhere", MessageID: "another", Redrives: 9,
			}
			want[d.ID] = `{"v":1,"reason":"exhausted","error":"timeout","error_type":"*net.OpError","stack":"goroutine 1:\n\tmain.go:7",` +
				`"attempts":8,"lapses":2,` + origin + `,"policy":"payments","consumer":"host-a"}`
		}
		s.settle(11, end)
	}
	for _, dead := range c.subscribe(c.DeadLetters, longLease).take(11, 3) {
		if dead.Failure == nil {
			c.fatal(11, "message %q is in the dead-letter queue without an envelope", dead.ID)
		}
		if got := timeless(*dead.Failure); got != want[dead.ID] {
			c.fail(22, "the envelope of message %q is\n\t\t%s\n\tand should be\n\t\t%s", dead.ID, got, want[dead.ID])
		}
	}
}

func hostileErrors(c *trial) {
	const start = "boom "
	texts := map[string]string{
		"NUL":              start + "a\x00b",
		"control":          start + "\x01\x02\x1b[31m\x7f\u0085",
		"not UTF-8":        start + "\xff\xfe\xc3\x28\xed\xa0\x80",
		"non-characters":   start + "\ufffe\uffff\ufffd",
		"quotes":           start + `"'\\u0000 \u0000 {"v":2} ` + "`$1 %s",
		"one MiB":          start + strings.Repeat("x", 1<<20),
		"one MiB of runes": start + strings.Repeat("世界👩", 1<<20/10),
		"one MiB of NUL":   start + strings.Repeat("\x00", 1<<20),
		"one MiB of JSON":  start + strings.Repeat(`{"a":"b"},`, 1<<20/10),
		"lines":            start + strings.Repeat("\r\n\t", 1000),
		"SQL":              start + `'; DROP TABLE messages; --`,
	}
	var msgs []backend.Message
	for name := range texts {
		msgs = append(msgs, backend.Message{ID: name, Body: []byte(`{}`)})
	}
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	hostile := func(end backend.Settlement) backend.Settlement {
		text := texts[end.Delivery.ID]
		short := text[:min(len(text), 40)]
		end.Failure.Error, end.Failure.Stack, end.Failure.ErrorType, end.Failure.Policy = text, text, short, short
		return end
	}
	// Together, so that a text that the broker refuses shows as a failure of others too.
	for _, outcome := range []func(*backend.Delivery) backend.Settlement{
		func(d *backend.Delivery) backend.Settlement { return hostile(retry(d, 0)) },
		func(d *backend.Delivery) backend.Settlement { return hostile(awaitDeadLetter(d, 0)) },
		func(d *backend.Delivery) backend.Settlement { return hostile(deadLetter(d)) },
	} {
		s.settle(11, all(outcome, s.take(11, len(texts)))...)
	}
	for _, d := range c.subscribe(c.DeadLetters, longLease).take(11, len(texts)) {
		f := d.Failure
		switch {
		case f == nil:
			c.fail(11, "message %q is in the dead-letter queue without an envelope", d.ID)
		case f.Reason != "exhausted" || f.MessageID != d.ID || f.Origin != c.Queue.Name() || f.Attempts != 2 && !c.limits.CountsReceives:
			c.fail(11, "a hostile error text spoiled other fields of the envelope of message %q: reason %q, message_id %q, origin %q, attempts %d",
				d.ID, f.Reason, f.MessageID, f.Origin, f.Attempts)
		case !strings.HasPrefix(f.Error, start):
			c.fail(11, "the envelope of message %q lost its error text: %.40q", d.ID, f.Error)
		case !utf8.ValidString(f.Error) || strings.ContainsRune(f.Error, 0):
			c.fail(11, "the envelope of message %q holds an error that is no text: %.40q", d.ID, f.Error)
		case len(f.Encode(1<<20)) > backend.DefaultEnvelopeBudget:
			c.fail(11, "the envelope of message %q takes %d bytes, above %d", d.ID, len(f.Encode(1<<20)), backend.DefaultEnvelopeBudget)
		}
	}
}

func awaitsDeadLetter(c *trial) {
	m := c.sendOne()
	s := c.subscribe(c.Queue, longLease)
	s.settle(9, retry(s.one(5), 0))
	d := s.one(9)
	end := awaitDeadLetter(d, 30*time.Millisecond)
	reported := *end.Failure
	for n := 1; n <= 3; n++ {
		before := time.Now()
		s.settle(12, end)
		// Another process takes it up.
		s = c.subscribe(c.reopen(), longLease)
		d = s.one(12)
		if early := end.Delay - time.Since(before); early > 0 {
			c.fail(7, "a message that waits for its dead-letter queue came %v early", early)
		}
		c.same(9, m, d, "while it waits for its dead-letter queue")
		if !c.limits.CountsReceives {
			c.expect(12, d, 2, 0, 0)
		}
		if d.DeadLetterWaits != n {
			c.fail(12, "after %d waits for its dead-letter queue a message came with DeadLetterWaits %d", n, d.DeadLetterWaits)
		}
		if d.Failure == nil {
			c.fatal(12, "a message that waits for its dead-letter queue came without its failure")
		}
		want := reported
		want.Origin, want.MessageID = c.Queue.Name(), m.ID
		if got, need := timeless(*d.Failure), timeless(want); got != need {
			c.fail(12, "a message that waits for its dead-letter queue came with the failure\n\t\t%s\n\tand should have\n\t\t%s", got, need)
		}
		end = awaitDeadLetter(d, 30*time.Millisecond)
		end.Failure = d.Failure
	}
	// A release in between, as at a shutdown, takes it out of no account.
	s.settle(13, release(d))
	if d = s.one(13); d.DeadLetterWaits != 3 || d.Failure == nil {
		c.fatal(12, "a message that waited for its dead-letter queue came back from a release with DeadLetterWaits %d, failure %+v",
			d.DeadLetterWaits, d.Failure)
	}
	first := *d.Failure
	last := deadLetter(d)
	last.Failure = d.Failure
	s.settle(11, last)
	graves := c.subscribe(c.DeadLetters, longLease)
	dead := graves.one(11)
	if dead.Failure == nil || timeless(*dead.Failure) != timeless(first) || dead.DeadLetterWaits != 0 {
		c.fail(12, "after its waits message %q is in the dead-letter queue with DeadLetterWaits %d, envelope %+v", dead.ID, dead.DeadLetterWaits, dead.Failure)
	}
	s.nothing(11, glance, "it was dead-lettered")
}

func brokenDeadLetters(c *trial) {
	c.needs(c.BreakDeadLetters != nil, "Fixture.BreakDeadLetters")
	msgs := c.messages(6)
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	other := c.subscribe(c.reopen(), c.harness.Lease)
	got := s.take(5, len(msgs))
	c.calling("BreakDeadLetters")
	restore, err := c.BreakDeadLetters(c.ctx)
	if err != nil {
		c.fatal(setup, "BreakDeadLetters: %v", err)
	}

	// Two fail for good, beside others that end well.
	batch := []backend.Settlement{deadLetter(got[0]), ack(got[1]), retry(got[2], 0), deadLetter(got[3]), discard(got[4]), release(got[5])}
	c.calling("Settle")
	err = s.sub.Settle(c.ctx, batch)
	for i, item := range batch {
		switch itemErr := backend.ErrorAt(err, i); {
		case item.Outcome == backend.DeadLetter && itemErr == nil:
			c.fail(12, "message %q was dead-lettered although its dead-letter queue was unavailable", item.Delivery.ID)
		case item.Outcome != backend.DeadLetter && itemErr != nil:
			c.fail(18, "%s of message %q failed beside dead letters that had to: %v", item.Outcome, item.Delivery.ID, itemErr)
		}
	}
	for i := range 3 {
		c.calling("Settle")
		if backend.ErrorAt(s.sub.Settle(c.ctx, batch[:1]), 0) == nil {
			c.fatal(12, "message %q was dead-lettered at attempt %d although its dead-letter queue was unavailable", got[0].ID, i+2)
		}
	}
	// They wait in the queue, and others pass them.
	s.settle(12, awaitDeadLetter(got[0], 0), awaitDeadLetter(got[3], 0))
	seen := make(map[string]bool)
	for _, d := range other.take(12, 4) {
		seen[d.ID] = true
		switch waits := d.ID == got[0].ID || d.ID == got[3].ID; {
		case waits && (d.DeadLetterWaits != 1 || d.Failure == nil || d.Failure.Reason != "exhausted"):
			c.fail(12, "message %q waits for its dead-letter queue, and came with DeadLetterWaits %d, failure %+v", d.ID, d.DeadLetterWaits, d.Failure)
		case !waits && d.DeadLetterWaits != 0:
			c.fail(12, "message %q came with DeadLetterWaits %d although it does not wait", d.ID, d.DeadLetterWaits)
		case !waits:
			other.settle(12, ack(d))
			continue
		}
		// Its consumer dies with it: it is still there.
	}
	if !seen[got[0].ID] || !seen[got[3].ID] {
		c.fail(12, "a message that could not be dead-lettered is gone")
	}
	other.crash()

	c.calling("restore")
	if err := restore(c.ctx); err != nil {
		c.fatal(setup, "restore of the dead-letter queue: %v", err)
	}
	s = c.subscribe(c.reopen(), longLease)
	waiting := s.gather(2, c.harness.Lease+patience)
	if len(waiting) != 2 {
		c.fatal(12, "%d of 2 messages that could not be dead-lettered came back", len(waiting))
	}
	for _, d := range waiting {
		if d.DeadLetterWaits != 1 || d.Failure == nil {
			c.fatal(12, "after a lapse message %q came with DeadLetterWaits %d, failure %+v", d.ID, d.DeadLetterWaits, d.Failure)
		}
		end := deadLetter(d)
		end.Failure = d.Failure
		s.settle(12, end)
	}
	graves := c.subscribe(c.DeadLetters, longLease)
	if dead := ids(graves.take(12, 2)); dead[0] == dead[1] || !seen[dead[0]] || !seen[dead[1]] {
		c.fail(12, "in the restored dead-letter queue are %q", dead)
	}
	graves.nothing(11, glance, "two messages were dead-lettered")
	s.nothing(11, glance, "they were dead-lettered")
}
