package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
)

var receiveCases = []testCase{
	{name: "a message arrives as it was sent", sentence: 1, check: arrivesAsSent},
	{name: "a large body arrives whole", sentence: 1, check: largeBody},
	{name: "a message without an ID is given one that stays", sentence: 1, check: drawnID},
	{name: "a message that cannot be stored is refused before any is sent", sentence: 1, check: refusedMessage},
	{name: "only failures count as attempts", sentence: 2, check: onlyFailuresCount},
	{name: "counts survive the process", sentence: 2, check: countsSurvive},
	{name: "no two consumers hold a message at once", sentence: 3, check: heldOnce},
	{name: "a cancelled receive loses and hides nothing", sentence: 4, check: cancelledReceive},
	{name: "a receive that times out returns soon", sentence: 4, check: timedOutReceive},
	{name: "receive is woken by a publish", sentence: 5, check: wokenByPublish},
	{name: "receive is woken by a message that comes due", sentence: 5, check: wokenByDue},
	{name: "receive returns what there is and leaves the rest to others", sentence: 5, check: leavesTheRest},
}

func arrivesAsSent(c *trial) {
	sent := make(map[string]backend.Message)
	for _, m := range c.hostileMessages() {
		sent[m.ID] = m
		// The backend must not keep what belongs to the producer.
		scratch := backend.Message{ID: m.ID, Body: bytes.Clone(m.Body), Headers: maps.Clone(m.Headers)}
		c.send(scratch)
		for i := range scratch.Body {
			scratch.Body[i] = 'x'
		}
		clear(scratch.Headers)
	}
	s := c.subscribe(c.Queue, longLease)
	got := s.take(1, len(sent))
	for _, d := range got {
		m, ok := sent[d.ID]
		if !ok {
			c.fail(1, "message %q came, which nobody sent, or came twice", d.ID)
			continue
		}
		delete(sent, d.ID)
		c.same(1, m, d, "at the first delivery")
		c.expect(2, d, 1, 0, 0)
		if d.DeadLetterWaits != 0 || d.Failure != nil {
			c.fail(2, "message %q came with a failure although it never failed: %+v", d.ID, d.Failure)
		}
		if d.Age < 0 || d.Age > patience+c.harness.Timeout {
			c.fail(1, "message %q came with an age of %v", d.ID, d.Age)
		}
		if d.ReceivedAt.IsZero() || time.Since(d.ReceivedAt) < 0 || d.ReceivedAt.Before(c.leased(d).begun) {
			c.fail(1, "message %q came with ReceivedAt %v, which is not when it was received", d.ID, d.ReceivedAt)
		}
	}
	s.settle(6, all(ack, got)...)
}

func largeBody(c *trial) {
	const size = 200 << 10
	m := backend.Message{ID: "large", Body: []byte(`{"text":"` + strings.Repeat("0123456789abcdé", size/16) + `"}`)}
	c.send(m)
	s := c.subscribe(c.Queue, longLease)
	d := s.one(1)
	c.same(1, m, d, "at the first delivery")
	s.settle(9, retry(d, 0))
	c.same(9, m, s.one(9), "after a retry")
}

func drawnID(c *trial) {
	msgs := c.messages(3)
	for i := range msgs {
		msgs[i].ID = ""
	}
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	bodies := make(map[string][]byte) // by ID
	got := s.take(1, len(msgs))
	for _, d := range got {
		if bodies[d.ID] != nil {
			c.fail(1, "two messages that were sent without an ID were given the same: %q", d.ID)
		}
		bodies[d.ID] = d.Body
	}
	check := func(when string, d *backend.Delivery) {
		if body := bodies[d.ID]; body == nil || c.sameBody(body, d.Body) != nil {
			c.fail(9, "%s, a message that was sent without an ID came with another one than before: %q", when, d.ID)
		}
	}
	s.settle(9, retry(got[0], 0), release(got[1]))
	for _, d := range s.take(9, 2) {
		check("after a retry or a release", d)
		s.settle(11, deadLetter(d))
	}
	s.settle(11, deadLetter(got[2]))
	for _, d := range c.subscribe(c.DeadLetters, longLease).take(11, len(msgs)) {
		check("in the dead-letter queue", d)
		if d.Failure != nil && d.Failure.MessageID != d.ID {
			c.fail(22, "the envelope of message %q says message_id %q", d.ID, d.Failure.MessageID)
		}
	}
}

func refusedMessage(c *trial) {
	publisher, ok := c.Queue.(backend.Publisher)
	c.applies(ok, "the queue is no backend.Publisher")
	bad := map[string]backend.Message{
		"a reserved header":     {ID: "bad", Body: []byte(`{}`), Headers: map[string]string{"redeliver-attempt": "7"}},
		"a reserved header too": {ID: "bad", Body: []byte(`{}`), Headers: map[string]string{"Redeliver-Failure": "{}"}},
		"a NUL in the ID":       {ID: "b\x00d", Body: []byte(`{}`)},
		"an ID that is no text": {ID: "b\xffd", Body: []byte(`{}`)},
		"a header without name": {ID: "bad", Body: []byte(`{}`), Headers: map[string]string{"": "x"}},
		"a header with a NUL":   {ID: "bad", Body: []byte(`{}`), Headers: map[string]string{"x": "a\x00b"}},
	}
	if c.limits.Body >= backend.TextBody {
		bad["a body that is no text"] = backend.Message{ID: "bad", Body: []byte("\xff\xfe")}
	}
	if c.limits.Body == backend.JSONBody {
		bad["a body that is no JSON"] = backend.Message{ID: "bad", Body: []byte(`{"a":`)}
		bad["an empty body"] = backend.Message{ID: "bad"}
		bad["two values in one body"] = backend.Message{ID: "bad", Body: []byte(`{}{}`)}
	}
	if !c.limits.Ordered {
		bad["a group where none are kept"] = backend.Message{ID: "bad", Body: []byte(`{}`), Group: "g"}
	}
	for what, m := range bad {
		c.calling("Publish")
		err := publisher.Publish(c.ctx, c.messages(1)[0], m)
		c.wants(1, "Publish of a good message and one with "+what, err, backend.ErrInvalidMessage)
	}
	c.subscribe(c.Queue, longLease).nothing(1, glance, "every Publish was refused")
}

func onlyFailuresCount(c *trial) {
	c.applies(!c.limits.CountsReceives, "Limits.CountsReceives: failures, lapses and releases are one number")
	c.sendOne()
	s := c.subscribe(c.Queue, longLease)
	attempt, snoozes := 1, 0
	for step, what := range []string{"retry", "snooze", "release", "retry", "snooze", "snooze", "release", "release", "snooze", "retry", "retry"} {
		d := s.one(2)
		if c.limits.ReleaseCharged {
			// A charge may show as an attempt or as a lapse; only what the others add can be told.
			attempt = max(attempt, d.Attempt)
		}
		c.expectUncharged(2, d, attempt, snoozes)
		switch what {
		case "retry":
			attempt++
			s.settle(2, retry(d, 0))
		case "snooze":
			snoozes++
			s.settle(2, snooze(d, time.Duration(step)*time.Millisecond))
		case "release":
			s.settle(2, release(d))
		}
	}
	c.expectUncharged(2, s.one(2), attempt, snoozes)
}

// expectUncharged compares counts of a message that was never lapsed.
func (c *trial) expectUncharged(sentence int, d *backend.Delivery, attempt, snoozes int) {
	lapses := 0
	if c.limits.ReleaseCharged {
		lapses = d.Lapses
	}
	c.expect(sentence, d, attempt, lapses, snoozes)
}

func countsSurvive(c *trial) {
	c.needs(c.Reopen != nil, "Fixture.Reopen")
	c.sendOne()
	for n := 1; n <= 4; n++ {
		q := c.Queue
		if n > 1 {
			q = c.reopen()
		}
		s := c.subscribe(q, longLease)
		d := s.one(2)
		if c.limits.CountsReceives {
			c.expect(2, d, n, d.Lapses, d.Snoozes)
		} else {
			c.expect(2, d, n, 0, n-1)
			s.settle(2, snooze(d, 0))
			d = s.one(2)
			c.expect(2, d, n, 0, n)
		}
		s.settle(2, retry(d, time.Duration(n)*time.Millisecond))
		s.close(19)
	}
}

func heldOnce(c *trial) {
	const count, consumers = 400, 4
	book := newLedger()
	c.send(c.messages(count)...)
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	var working sync.WaitGroup
	for n := range consumers {
		q := c.Queue
		if n%2 == 1 {
			q = c.reopen()
		}
		s := c.subscribe(q, longLease)
		working.Add(1)
		s.spawn(func() {
			defer working.Done()
			s.work(ctx, n, book, func() {
				if book.finished() == count {
					cancel()
				}
			})
		})
	}
	timer := time.AfterFunc(c.harness.Timeout/2, cancel)
	defer timer.Stop()
	working.Wait()
	for _, seen := range book.offences {
		c.fail(seen.sentence, "%s", seen.text)
	}
	if done := book.finished(); done < count {
		c.fail(5, "%d consumers handled only %d of %d messages in %v", consumers, done, count, c.harness.Timeout/2)
	}
}

// work handles messages, each of which fails twice, in one way or another, before it is acked.
func (s *client) work(ctx context.Context, who int, book *ledger, done func()) {
	for ctx.Err() == nil {
		got := s.receiveUntil(ctx, 1+who*7)
		for _, d := range got {
			book.take(who, d.ID)
		}
		s.extend(15, got...)
		var batch []backend.Settlement
		for _, d := range got {
			switch n := book.give(who, d.ID); {
			case n == 1:
				batch = append(batch, retry(d, time.Duration(len(d.ID)+who)*time.Millisecond))
			case n == 2 && who%2 == 0:
				batch = append(batch, release(d))
			case n == 2:
				batch = append(batch, retry(d, 0))
			default:
				book.finish(d.ID)
				batch = append(batch, ack(d))
			}
		}
		if len(batch) > 0 {
			s.settle(3, batch...)
		}
		done()
	}
}

// ledger keeps who holds which message.
type ledger struct {
	mu       sync.Mutex
	holder   map[string]int
	taken    map[string]int
	done     map[string]bool
	offences []offence
}

type offence struct {
	sentence int
	text     string
}

func newLedger() *ledger {
	return &ledger{holder: make(map[string]int), taken: make(map[string]int), done: make(map[string]bool)}
}

// take notes that somebody was given a message.
func (l *ledger) take(who int, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[id]++
	if other, held := l.holder[id]; held {
		l.offences = append(l.offences, offence{3, fmt.Sprintf("consumer %d was given message %q while consumer %d held it", who, id, other)})
	}
	if l.done[id] {
		l.offences = append(l.offences, offence{6, fmt.Sprintf("consumer %d was given message %q, which had been acked", who, id)})
	}
	l.holder[id] = who
}

// give notes that the holder is about to settle a message, and returns how often it was taken.
func (l *ledger) give(who int, id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder[id] == who {
		delete(l.holder, id)
	}
	return l.taken[id]
}

func (l *ledger) finish(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[id] = true
}

func (l *ledger) finished() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done)
}

func cancelledReceive(c *trial) {
	const count, receivers, rounds = 200, 4, 40
	msgs := c.messages(count)
	c.send(msgs[:count/2]...)
	var working sync.WaitGroup
	working.Add(receivers + 1)
	c.spawn(func() {
		defer working.Done()
		for i := count / 2; i < count; i += 5 {
			c.send(msgs[i : i+5]...)
		}
	})
	for n := range receivers {
		s := c.subscribe(c.Queue, longLease)
		moments := rand.New(rand.NewPCG(4, uint64(n)))
		s.spawn(func() {
			defer working.Done()
			for range rounds {
				s.receiveCancelled(time.Duration(moments.Int64N(int64(6*time.Millisecond))), 1+moments.IntN(count/3))
			}
		})
	}
	working.Wait()

	s := c.subscribe(c.Queue, longLease)
	got := s.gather(count, patience)
	seen := make(map[string]bool)
	for _, d := range got {
		if seen[d.ID] {
			c.fail(3, "message %q came twice", d.ID)
		}
		seen[d.ID] = true
		if !c.limits.ReleaseCharged && !c.limits.CountsReceives {
			c.expect(4, d, 1, 0, 0)
		}
	}
	if missing := count - len(seen); missing > 0 {
		c.fail(4, "%d of %d messages were not available within %v after the last of %d cancelled receives",
			missing, count, patience, receivers*rounds)
	}
}

// receiveCancelled cancels a Receive at a moment, or before it begins, and releases what it returned all the same.
func (s *client) receiveCancelled(moment time.Duration, limit int) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if moment < time.Millisecond {
		cancel()
	} else {
		defer time.AfterFunc(moment, cancel).Stop()
	}
	got, err := s.sub.Receive(ctx, limit)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.fail(4, "a cancelled Receive returned %v", err)
	}
	if len(got) > 0 {
		s.settle(13, all(release, got)...)
	}
}

func timedOutReceive(c *trial) {
	s := c.subscribe(c.Queue, longLease)
	const within = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(c.ctx, within)
	defer cancel()
	begun := time.Now()
	c.calling("Receive")
	got, err := s.sub.Receive(ctx, 10)
	took := time.Since(begun)
	switch {
	case len(got) > 0:
		c.fail(1, "message %q came, which nobody sent", got[0].ID)
	case !errors.Is(err, context.DeadlineExceeded):
		c.fail(4, "a Receive that timed out returned %v", err)
	}
	if late := took - within; late > patience {
		c.fail(4, "Receive returned %v after its context had ended", late)
	}
	c.sendOne()
	d := s.one(4)
	c.expect(4, d, 1, 0, 0)
}

func wokenByPublish(c *trial) {
	s := c.subscribe(c.Queue, longLease)
	arrivals := s.stream()
	type publish struct {
		who  string
		send func(context.Context, ...backend.Message) error
	}
	publishes := []publish{{"Fixture.Publish", c.Publish}}
	if other, ok := c.reopen().(backend.Publisher); ok && c.Reopen != nil {
		publishes = append(publishes, publish{"another client's Publish", other.Publish})
	}
	for _, by := range publishes {
		// The first finds a Receive that has only begun, the later ones one that has waited.
		for n, pause := range []time.Duration{0, glance, 2 * glance} {
			if a, ok := c.await(arrivals, pause); ok {
				c.fatal(1, "message %q came, which nobody sent", a.ID)
			}
			c.calling("Publish")
			if err := by.send(c.ctx, c.messages(n + 1)[n]); err != nil {
				c.fatal(setup, "%s: %v", by.who, err)
			}
			sent := time.Now()
			a, ok := c.await(arrivals, patience)
			if !ok {
				c.fatal(5, "a waiting Receive did not return within %v of %s", patience, by.who)
			}
			if late := a.at.Sub(sent); late > c.harness.Slack {
				c.fail(5, "a waiting Receive returned %v after %s", late, by.who)
			}
			s.settle(6, ack(a.Delivery))
		}
	}
}

func wokenByDue(c *trial) {
	c.send(c.messages(2)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, 2)
	arrivals := c.subscribe(c.reopen(), longLease).stream()
	// A long wait comes first: what wakes the other must be the shorter one.
	s.settle(5, snooze(got[0], longLease))
	delay := c.limits.Applied(400 * time.Millisecond)
	before := time.Now()
	s.settle(5, retry(got[1], delay))
	after := time.Now()
	a, ok := c.await(arrivals, delay+patience)
	if !ok {
		c.fatal(5, "a waiting Receive was not woken within %v of the time when a message came due", patience)
	}
	if early := delay - a.at.Sub(before); early > 0 {
		c.fail(7, "message %q came %v before its delay of %v had passed", a.ID, early, delay)
	}
	if late := a.at.Sub(after) - delay; late > c.harness.Slack {
		c.fail(5, "a waiting Receive was woken %v after a message came due", late)
	}
}

func leavesTheRest(c *trial) {
	const count = 50
	greedy, err := c.Queue.Subscribe(c.ctx, backend.SubscribeOptions{MaxInFlight: 10, Lease: longLease})
	if err != nil {
		c.fatal(setup, "Subscribe: %v", err)
	}
	c.later("Subscription.Close", greedy.Close)
	a := &client{trial: c, sub: greedy, queue: c.Queue, lease: longLease}
	c.send(c.messages(count)...)

	held := a.receive(10, patience)
	if len(held) == 0 {
		c.fatal(5, "Receive(10) returned nothing while %d messages were due", count)
	}
	b := c.subscribe(c.Queue, longLease)
	got := b.gather(count-10, patience)
	if len(got) < count-10 {
		c.fail(5, "of %d messages one consumer holds %d, and another got only %d within %v", count, len(held), len(got), patience)
	}
	one := append(held, a.gather(count-len(held)-len(got), patience)...)
	if len(one)+len(got) != count {
		c.fail(5, "two consumers got %d and %d of %d messages", len(one), len(got), count)
	}
}
