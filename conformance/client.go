package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// client is a subscription as the cases use it: every call is bounded, and what comes back is looked at.
type client struct {
	*trial
	sub     backend.Subscription
	queue   backend.Queue
	lease   time.Duration
	crashed bool
}

// subscribe subscribes to a queue. It ends the case if that fails.
func (c *trial) subscribe(q backend.Queue, lease time.Duration) *client {
	c.calling("Subscribe")
	sub, err := q.Subscribe(c.ctx, backend.SubscribeOptions{MaxInFlight: 1000, Lease: lease})
	if err != nil {
		c.fatal(setup, "Subscribe to %q: %v", q.Name(), err)
	}
	s := &client{trial: c, sub: sub, queue: q, lease: lease}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, s)
	return s
}

// reopen opens the queue under test once more, or returns it where the harness cannot.
func (c *trial) reopen() backend.Queue {
	if c.Reopen == nil {
		return c.Queue
	}
	c.calling("Reopen")
	q, err := c.Reopen(c.ctx)
	if err != nil {
		c.fatal(setup, "Reopen: %v", err)
	}
	c.later("Queue.Close", q.Close)
	return q
}

// crash ends the client as the death of its process would.
func (s *client) crash() {
	s.mu.Lock()
	s.crashed = true
	s.mu.Unlock()
	if s.Crash != nil {
		s.Crash(s.sub)
	}
}

// close closes the subscription.
func (s *client) close(sentence int) {
	s.calling("Subscription.Close")
	if err := s.sub.Close(s.ctx); err != nil {
		s.fail(sentence, "Close of a subscription: %v", err)
	}
}

// send publishes to the queue under test. It ends the case if that fails.
func (c *trial) send(msgs ...backend.Message) {
	c.calling("Publish")
	if err := c.Publish(c.ctx, msgs...); err != nil {
		c.fatal(setup, "Publish of %d messages: %v", len(msgs), err)
	}
}

// receive calls Receive once, for at most the given time, and returns what it got: nothing, if nothing came.
func (s *client) receive(limit int, within time.Duration) []*backend.Delivery {
	ctx, cancel := context.WithTimeout(s.ctx, within)
	defer cancel()
	return s.receiveUntil(ctx, limit)
}

// receiveUntil calls Receive once with ctx. It ends the case if Receive fails for another reason than ctx.
func (s *client) receiveUntil(ctx context.Context, limit int) []*backend.Delivery {
	s.calling("Receive")
	begun := time.Now()
	got, err := s.sub.Receive(ctx, limit)
	ended := ctx.Err()
	switch {
	case err == nil && len(got) == 0:
		s.fail(5, "Receive returned neither a message nor an error")
	case err != nil && ended == nil:
		s.fatal(5, "Receive failed: %v", err)
	case err != nil && !errors.Is(err, ended):
		s.fail(4, "Receive ended with its context but returned another error: %v", err)
	}
	if len(got) > limit {
		s.fail(5, "Receive(%d) returned %d messages", limit, len(got))
	}
	s.hold(got, begun)
	for _, d := range got {
		s.inspect(d)
	}
	return got
}

// inspect looks for what no delivery may be.
func (s *client) inspect(d *backend.Delivery) {
	switch {
	case d.ID == "":
		s.fail(1, "a message came without an ID")
	case d.Queue != s.queue.Name():
		s.fail(1, "message %q came from Queue %q, not %q", d.ID, d.Queue, s.queue.Name())
	case d.Attempt < 1 || d.Lapses < 0 || d.Snoozes < 0 || d.DeadLetterWaits < 0:
		s.fail(2, "message %q came with impossible counts: %s", d.ID, countsOf(d))
	case d.Settled():
		s.fail(17, "message %q came settled", d.ID)
	}
	for name := range d.Headers {
		if backend.Reserved(name) {
			s.fail(9, "message %q shows header %q, which is not the user's", d.ID, name)
		}
	}
}

// gather receives until it has n messages or waited long enough. It may return fewer.
func (s *client) gather(n int, within time.Duration) []*backend.Delivery {
	ctx, cancel := context.WithTimeout(s.ctx, within)
	defer cancel()
	var all []*backend.Delivery
	for len(all) < n && ctx.Err() == nil {
		all = append(all, s.receiveUntil(ctx, n-len(all))...)
	}
	return all
}

// take receives exactly n messages, which should be there. If they are not, the sentence is not kept and the case ends.
func (s *client) take(sentence, n int) []*backend.Delivery {
	got := s.gather(n, patience)
	if len(got) < n {
		if s.ctx.Err() != nil {
			s.fatal(sentence, "%d of %d messages came from %q before the case was out of time", len(got), n, s.queue.Name())
		}
		s.fatal(sentence, "%d of %d messages came from %q within %v", len(got), n, s.queue.Name(), patience)
	}
	s.intact(got)
	return got
}

// one receives one message, which should be there.
func (s *client) one(sentence int) *backend.Delivery { return s.take(sentence, 1)[0] }

// nothing says that the sentence is not kept if a message comes within the given time. It returns what came.
func (s *client) nothing(sentence int, within time.Duration, after string) []*backend.Delivery {
	got := s.receive(10, within)
	if len(got) > 0 {
		d := got[0]
		s.fail(sentence, "after %s, message %q came from %q (%s)", after, d.ID, s.queue.Name(), countsOf(d))
	}
	return got
}

// beyondLease is how long to wait to see that nothing comes back when leases have lapsed.
func (c *trial) beyondLease() time.Duration { return c.harness.Lease + 2*glance }

// settle settles a batch, of which every item should succeed.
func (s *client) settle(sentence int, batch ...backend.Settlement) {
	s.calling("Settle")
	err := s.sub.Settle(s.ctx, batch)
	for i, item := range batch {
		if itemErr := backend.ErrorAt(err, i); itemErr != nil {
			s.slow(item.Delivery, itemErr)
			s.fail(sentence, "%s of message %q failed: %v", item.Outcome, item.Delivery.ID, itemErr)
		}
	}
}

// refuse settles one delivery, which should fail with the given error.
func (s *client) refuse(sentence int, item backend.Settlement, want error) {
	s.calling("Settle")
	got := backend.ErrorAt(s.sub.Settle(s.ctx, []backend.Settlement{item}), 0)
	s.wants(sentence, fmt.Sprintf("%s of message %q", item.Outcome, item.Delivery.ID), got, want)
}

// extend extends deliveries, each of which should succeed.
func (s *client) extend(sentence int, batch ...*backend.Delivery) {
	s.calling("Extend")
	begun := time.Now()
	err := s.sub.Extend(s.ctx, batch)
	for i, d := range batch {
		if itemErr := backend.ErrorAt(err, i); itemErr != nil {
			s.slow(d, itemErr)
			s.fail(sentence, "Extend of message %q failed: %v", d.ID, itemErr)
			continue
		}
		s.hold(batch[i:i+1], begun)
	}
}

// wants compares the error of a call with the one that it should have.
func (c *trial) wants(sentence int, what string, got, want error) {
	switch {
	case got == nil:
		c.fail(sentence, "%s succeeded; it should have failed with %q", what, want)
	case !errors.Is(got, want):
		c.fail(sentence, "%s failed with %q; that should match %q", what, got, want)
	}
}

// span is the call that won or last renewed a lease, which began at some moment of it.
type span struct{ begun, ended time.Time }

// hold notes that a call that began at begun, and has just ended, won or renewed the leases of deliveries.
func (s *client) hold(list []*backend.Delivery, begun time.Time) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range list {
		s.leases[d] = span{begun, now}
	}
}

// leased returns the call that won or last renewed the lease of a delivery.
func (c *trial) leased(d *backend.Delivery) span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leases[d]
}

// slow ends the case if an error says no more than that the machine was too slow for the lease. The lease may have begun a
// little before the call that won it returned.
func (s *client) slow(d *backend.Delivery, err error) {
	if !errors.Is(err, backend.ErrLeaseLost) {
		return
	}
	if took := time.Since(s.leased(d).ended); took >= s.lease*3/4 {
		s.stalled("a lease of %v was held for %v", s.lease, took)
	}
}

// intact ends the case if the machine was so slow that the first of several deliveries may have lapsed before the last
// one was there.
func (s *client) intact(got []*backend.Delivery) {
	if len(got) == 0 {
		return
	}
	if took := time.Since(s.leased(got[0]).ended); took >= s.lease*3/4 {
		s.stalled("%d messages took %v to come, and the lease is %v", len(got), took, s.lease)
	}
}

// arrival is a delivery, and when it was there.
type arrival struct {
	*backend.Delivery
	at time.Time
}

// stream receives until the case ends, and hands on what comes.
func (s *client) stream() <-chan arrival {
	out := make(chan arrival, 1000)
	s.spawn(func() {
		for s.ctx.Err() == nil {
			for _, d := range s.receiveUntil(s.ctx, 100) {
				select {
				case out <- arrival{d, time.Now()}:
				case <-s.ctx.Done():
				}
			}
		}
	})
	return out
}

// await returns the next arrival, or false if none comes in time.
func (c *trial) await(from <-chan arrival, within time.Duration) (arrival, bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case a := <-from:
		return a, true
	case <-timer.C:
	case <-c.ctx.Done():
	}
	return arrival{}, false
}

// expect compares a delivery's counts.
func (c *trial) expect(sentence int, d *backend.Delivery, attempt, lapses, snoozes int) {
	if d.Attempt != attempt || d.Lapses != lapses || d.Snoozes != snoozes {
		c.fail(sentence, "message %q came with %s; it should have attempt %d, lapses %d, snoozes %d",
			d.ID, countsOf(d), attempt, lapses, snoozes)
	}
}

func countsOf(d *backend.Delivery) string {
	return fmt.Sprintf("attempt %d, lapses %d, snoozes %d", d.Attempt, d.Lapses, d.Snoozes)
}

// ids returns the deliveries' message IDs in order.
func ids(list []*backend.Delivery) []string {
	all := make([]string, len(list))
	for i, d := range list {
		all[i] = d.ID
	}
	slices.Sort(all)
	return all
}

// Settlements as the cases use them.

func ack(d *backend.Delivery) backend.Settlement {
	return backend.Settlement{Delivery: d, Outcome: backend.Ack}
}

func discard(d *backend.Delivery) backend.Settlement {
	return backend.Settlement{Delivery: d, Outcome: backend.Discard}
}

func release(d *backend.Delivery) backend.Settlement {
	return backend.Settlement{Delivery: d, Outcome: backend.Release}
}

func retry(d *backend.Delivery, delay time.Duration) backend.Settlement {
	return backend.Settlement{Delivery: d, Outcome: backend.Retry, Delay: delay, Failure: failureOf(d, "failed")}
}

func snooze(d *backend.Delivery, delay time.Duration) backend.Settlement {
	return backend.Settlement{Delivery: d, Outcome: backend.Retry, Delay: delay, Uncharged: true}
}

func deadLetter(d *backend.Delivery) backend.Settlement {
	return backend.Settlement{Delivery: d, Outcome: backend.DeadLetter, Failure: failureOf(d, "exhausted")}
}

func awaitDeadLetter(d *backend.Delivery, delay time.Duration) backend.Settlement {
	return backend.Settlement{Delivery: d, Outcome: backend.Retry, Delay: delay, AwaitDeadLetter: true, Failure: failureOf(d, "exhausted")}
}

// failureOf is the failure of a delivery as a consumer would report it.
func failureOf(d *backend.Delivery, reason string) *backend.Failure {
	return &backend.Failure{
		Reason:    reason,
		Error:     fmt.Sprintf("handle %s: attempt %d: gateway says 503", d.ID, d.Attempt),
		ErrorType: "*gateway.StatusError",
		Attempts:  d.Attempt,
		Lapses:    d.Lapses,
		Policy:    "conformance",
		Consumer:  "host-a",
	}
}

// all applies one outcome to several deliveries.
func all(outcome func(*backend.Delivery) backend.Settlement, list []*backend.Delivery) []backend.Settlement {
	batch := make([]backend.Settlement, len(list))
	for i, d := range list {
		batch[i] = outcome(d)
	}
	return batch
}
