package conformance

import (
	"errors"
	"time"

	"github.com/redeliver/redeliver/backend"
)

var leaseCases = []testCase{
	{name: "a lapse brings the message back and charges no attempt", sentence: 14, check: lapses},
	{name: "a lapse keeps the failure and the waits", sentence: 14, check: lapseKeeps},
	{name: "extend keeps a delivery from others", sentence: 15, check: extendKeeps},
	{name: "extend of a lost lease says so", sentence: 15, check: extendLost},
	{name: "a settlement from a lost lease changes nothing", sentence: 16, check: staleSettlement},
	{name: "a stale item does not take its batch with it", sentence: 18, check: staleItem},
}

// needsLapse ends the case where the suite cannot make a lease lapse.
func (c *trial) needsLapse() {
	c.needs(c.limits.LeaseExpires || c.Crash != nil, "Fixture.Crash, and leases do not expire by time")
}

// checkLapse compares when a message came back with when its lease ended, by the clock of the call that won or last
// renewed it. What comes too soon breaks the given sentence.
func (c *trial) checkLapse(sentence int, a arrival, won span, lease time.Duration) {
	if !c.limits.LeaseExpires {
		return
	}
	if early := won.begun.Add(lease).Sub(a.at); early > 0 {
		c.fail(sentence, "message %q came to another consumer %v before its lease of %v had ended", a.ID, early, lease)
	}
	bound := lease + c.limits.Granularity + c.harness.Slack
	if took := a.at.Sub(won.ended); took > bound {
		c.fail(14, "message %q came back %v after a lease of %v began; %v would not have been late: its lease lasts longer than asked", a.ID, took, lease, bound)
	}
}

// lapse waits for n messages that others hold and let lapse, and looks that each comes when its lease has ended.
func (s *client) lapse(n int, held []*backend.Delivery, lease time.Duration) []*backend.Delivery {
	wins := make(map[string]span)
	for _, d := range held {
		wins[d.ID] = s.leased(d)
	}
	var got []*backend.Delivery
	deadline := time.Now().Add(lease + patience)
	for len(got) < n && time.Now().Before(deadline) && s.ctx.Err() == nil {
		for _, d := range s.receive(n-len(got), time.Until(deadline)) {
			if won, ok := wins[d.ID]; ok {
				s.checkLapse(3, arrival{d, time.Now()}, won, lease)
			}
			got = append(got, d)
		}
	}
	s.intact(got)
	if len(got) < n {
		s.fatal(14, "%d of %d messages came back within %v of the end of their lease of %v", len(got), n, patience, lease)
	}
	return got
}

func lapses(c *trial) {
	c.needsLapse()
	const count = 5
	c.send(c.messages(count)...)
	lease := c.harness.Lease
	var held []*backend.Delivery
	for n := range 3 {
		s := c.subscribe(c.reopen(), lease)
		if n == 0 {
			held = s.take(5, count)
		} else {
			held = s.lapse(count, held, lease)
		}
		for _, d := range held {
			if c.limits.CountsReceives {
				if sum := d.Attempt + d.Lapses; sum != n+1 {
					c.fail(14, "after %d lapses message %q came with %s", n, d.ID, countsOf(d))
				}
				continue
			}
			c.expect(14, d, 1, n, 0)
		}
		s.crash()
	}
	s := c.subscribe(c.Queue, longLease)
	held = s.lapse(count, held, lease)
	if c.limits.CountsReceives {
		return
	}
	// Other outcomes leave the lapses as they are.
	s.settle(14, retry(held[0], 0), snooze(held[1], 0), release(held[2]), ack(held[3]), deadLetter(held[4]))
	attempts := map[string]int{held[0].ID: 2, held[1].ID: 1, held[2].ID: 1}
	snoozes := map[string]int{held[1].ID: 1}
	for _, d := range s.take(14, 3) {
		if d.ID == held[2].ID && c.limits.ReleaseCharged {
			continue
		}
		c.expect(14, d, attempts[d.ID], 3, snoozes[d.ID])
	}
	dead := c.subscribe(c.DeadLetters, longLease).one(11)
	c.expect(2, dead, 1, 0, 0)
	if dead.Failure == nil || dead.Failure.Lapses != 3 {
		c.fail(11, "the envelope does not tell of 3 lapses: %+v", dead.Failure)
	}
}

func lapseKeeps(c *trial) {
	c.needsLapse()
	c.applies(!c.limits.CountsReceives && !c.limits.NoRetryRecord, "the limits say that it does not keep them")
	msgs := c.messages(2)
	c.send(msgs...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, 2)
	s.settle(9, retry(got[0], 0), awaitDeadLetter(got[1], 0))
	dying := c.subscribe(c.reopen(), c.harness.Lease)
	held := dying.take(9, 2)
	dying.crash()
	for _, d := range s.lapse(2, held, c.harness.Lease) {
		attempt, waits := 2, 0
		if d.ID == got[1].ID {
			attempt, waits = 1, 1
		}
		c.expect(14, d, attempt, 1, 0)
		if d.DeadLetterWaits != waits || d.Failure == nil {
			c.fail(14, "after a lapse message %q came with DeadLetterWaits %d, failure %+v; it should have %d and a failure",
				d.ID, d.DeadLetterWaits, d.Failure, waits)
		}
	}
}

func extendKeeps(c *trial) {
	c.applies(c.limits.LeaseExpires, "Limits.LeaseExpires is false: a lease needs no extension")
	c.send(c.messages(4)...)
	lease := c.harness.Lease
	s := c.subscribe(c.Queue, lease)
	got := s.take(5, 4)
	kept, left := got[:3], got[3]
	other := c.subscribe(c.reopen(), longLease)
	arrivals := other.stream()

	// What is not extended shows that the lease is as short as asked. The others are extended until it has come, however
	// long that takes, or their end would be taken for the fault.
	won := c.leased(left)
	keepUntil, giveUp := time.Now().Add(2*lease+lease/2), won.ended.Add(lease+patience)
	tick := time.NewTicker(lease / 4)
	defer tick.Stop()
	for lapsed := false; !lapsed || time.Now().Before(keepUntil); {
		select {
		case a := <-arrivals:
			switch {
			case a.ID != left.ID:
				c.early(a, lease)
			case lapsed:
				c.fatal(3, "message %q came twice to a consumer that holds it", a.ID)
			}
			lapsed = true
			c.checkLapse(3, a, won, lease)
		case <-tick.C:
			if !lapsed && time.Now().After(giveUp) {
				c.fatal(14, "a message that was not extended did not come back within %v of the end of its lease of %v", patience, lease)
			}
			s.extend(15, kept...)
		case <-c.ctx.Done():
			c.fatal(15, "the case was out of time")
		}
	}
	s.extend(15, kept...)
	s.settle(6, ack(kept[0]))
	for range kept[1:] {
		a, ok := c.await(arrivals, lease+patience)
		if !ok {
			c.fatal(14, "a message did not come back within %v of the end of its last extension", patience)
		}
		if a.ID == kept[0].ID {
			c.fatal(6, "message %q came back after it was extended and acked", a.ID)
		}
		for _, d := range kept {
			if d.ID == a.ID {
				c.checkLapse(15, a, c.leased(d), lease)
			}
		}
		if !c.limits.CountsReceives {
			c.expect(15, a.Delivery, 1, 1, 0)
		}
	}
}

// early reports a message that came although it had been extended, unless the machine was too slow to extend it in time.
func (c *trial) early(a arrival, lease time.Duration) {
	c.mu.Lock()
	var last time.Time
	for d, won := range c.leases {
		if d.ID == a.ID && d != a.Delivery && won.begun.After(last) {
			last = won.begun
		}
	}
	c.mu.Unlock()
	if took := a.at.Sub(last); took >= lease {
		c.stalled("a lease of %v was not extended for %v", lease, took)
	}
	c.fatal(15, "message %q came to another consumer %v after it was extended by %v", a.ID, a.at.Sub(last), lease)
}

// lose has a client lose the leases of n messages to another one, whose own lease is long.
func (c *trial) lose(n int) (stale *client, lost []*backend.Delivery, holder *client, held []*backend.Delivery) {
	stale = c.subscribe(c.Queue, c.harness.Lease)
	lost = stale.take(5, n)
	if !c.limits.LeaseExpires {
		stale.crash()
	}
	holder = c.subscribe(c.reopen(), longLease)
	held = holder.lapse(n, lost, c.harness.Lease)
	byID := make(map[string]*backend.Delivery)
	for _, d := range held {
		byID[d.ID] = d
	}
	for i, d := range lost {
		if byID[d.ID] == nil {
			c.fatal(14, "message %q did not come back when its lease had ended", d.ID)
		}
		held[i] = byID[d.ID]
	}
	return stale, lost, holder, held
}

func extendLost(c *trial) {
	c.needsLapse()
	c.send(c.messages(3)...)
	stale, lost, holder, held := c.lose(3)
	c.calling("Extend")
	err := stale.sub.Extend(c.ctx, lost)
	for i, d := range lost {
		c.wants(15, "Extend of message "+d.ID+", whose lease was lost,", backend.ErrorAt(err, i), backend.ErrLeaseLost)
	}
	// The stale extension is as long as the short lease: the new holder's must not be cut to it.
	c.subscribe(c.Queue, longLease).nothing(16, c.beyondLease(), "a stale Extend of what another holds")
	holder.extend(15, held...)
	holder.settle(16, all(ack, held)...)
	c.subscribe(c.Queue, longLease).nothing(6, glance, "the new holder acked")
}

func staleSettlement(c *trial) {
	c.needsLapse()
	n := len(everyOutcome)
	c.send(c.messages(n * n)...)
	stale, lost, holder, held := c.lose(n * n)
	for i, d := range lost {
		stale.refuse(16, everyOutcome[i%n](d), backend.ErrLeaseLost)
	}
	c.subscribe(c.Queue, longLease).nothing(16, glance, "settlements from lost leases")
	c.subscribe(c.DeadLetters, longLease).nothing(16, glance, "settlements from lost leases")
	// Whatever the former holder tried, every outcome of the new one works, and only that.
	holder.extend(16, held...)
	fates := make(map[string]fate)
	var batch []backend.Settlement
	for i, d := range held {
		end := everyOutcome[i/n](d)
		batch = append(batch, end)
		fates[d.ID] = fateOf(end)
	}
	holder.settle(16, batch...)
	c.checkFates(16, fates)
}

func staleItem(c *trial) {
	c.applies(c.limits.LeaseExpires, "Limits.LeaseExpires is false: a client that lost one lease has lost all")
	c.send(c.messages(2)...)
	stale, lost, holder, held := c.lose(2)
	fresh := c.messages(5)[2:]
	c.send(fresh...)
	got := stale.take(5, 3)
	batch := []backend.Settlement{ack(got[0]), ack(lost[0]), deadLetter(got[1]), retry(lost[1], 0), retry(got[2], 0)}
	c.calling("Settle")
	err := stale.sub.Settle(c.ctx, batch)
	for i, item := range batch {
		itemErr := backend.ErrorAt(err, i)
		if i == 1 || i == 3 {
			c.wants(16, "a stale "+item.Outcome.String()+" in a batch", itemErr, backend.ErrLeaseLost)
			continue
		}
		if itemErr != nil {
			if errors.Is(itemErr, backend.ErrLeaseLost) {
				stale.slow(item.Delivery, itemErr)
			}
			c.fail(18, "%s of message %q failed beside stale items: %v", item.Outcome, item.Delivery.ID, itemErr)
		}
	}
	fates := make(map[string]fate)
	for i, d := range got {
		fates[d.ID] = fateOf(batch[2*i])
	}
	holder.settle(16, all(ack, held)...)
	for _, d := range held {
		fates[d.ID] = fateOf(ack(d))
	}
	c.checkFates(18, fates)
}
