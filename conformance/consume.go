package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// These cases put the real consumer on top, for what a backend and the consumer keep together.
var consumeCases = []testCase{
	{name: "a message that always fails is handled as often as the policy allows", sentence: 2, check: consumeAttempts},
	{name: "a message that failed too often is not handled again", sentence: 2, check: consumeExhausted},
	{name: "a schedule of retries is kept", sentence: 7, check: consumeOnSchedule},
	{name: "handlers that panic or end their goroutine have failed", sentence: 11, check: consumePanics},
	{name: "a message that kills its consumers ends in the dead-letter queue", sentence: 14, check: consumeAbandoned},
	{name: "an unavailable dead-letter queue holds up nobody and runs nothing again", sentence: 12, check: consumeBroken},
	{name: "a long handler keeps its message", sentence: 15, check: consumeLong},
	{name: "a shutdown charges nothing", sentence: 19, check: consumeShutdown},
	{name: "a consumer does not start without its queues", sentence: 20, check: consumeMissing},
	{name: "groups are handled in order", sentence: 23, check: consumeInOrder},
}

// testPolicy gives up at the third failure.
var testPolicy = policy.Policy{Name: "conformance", MaxAttempts: 3, Backoff: policy.Fixed(10 * time.Millisecond)}

// consume runs a consumer beside the case, until stop is called or the case ends.
func (c *trial) consume(runs *consumer.Consumer) (stop func()) {
	runs.Host, runs.Logger = "host-a", slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	c.spawn(func() {
		defer close(ended)
		defer cancel()
		c.calling("Consumer.Run")
		if err := runs.Run(ctx); err != nil && ctx.Err() == nil {
			c.fail(c.sentence, "Run of a consumer: %v", err)
		}
	})
	return func() {
		cancel()
		<-ended
	}
}

// run is one call of a handler.
type run struct {
	id      string
	attempt int
	last    bool
}

// diary is what handlers did.
type diary struct {
	mu   sync.Mutex
	runs []run
	wake chan struct{}
}

func newDiary() *diary { return &diary{wake: make(chan struct{}, 1)} }

func (d *diary) note(of *backend.Delivery) {
	d.mu.Lock()
	d.runs = append(d.runs, run{of.ID, of.Attempt, of.Last})
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *diary) all() []run {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.runs)
}

// of returns the attempts at which a message was handled.
func (d *diary) of(id string) []int {
	var list []int
	for _, r := range d.all() {
		if r.id == id {
			list = append(list, r.attempt)
		}
	}
	return list
}

// until waits until a number of runs was noted.
func (c *trial) until(d *diary, n int, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for len(d.all()) < n {
		select {
		case <-d.wake:
		case <-timer.C:
			return false
		case <-c.ctx.Done():
			return false
		}
	}
	return true
}

func consumeAttempts(c *trial) {
	const count = 20
	c.send(c.messages(count)...)
	book := newDiary()
	stop := c.consume(&consumer.Consumer{
		Queue:  c.Queue,
		Policy: testPolicy,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			book.note(d)
			return fmt.Errorf("handle %s: gateway says 503", d.ID)
		}),
	})
	graves := c.subscribe(c.DeadLetters, longLease)
	dead := graves.take(11, count)
	graves.nothing(11, glance, "each message was dead-lettered once")
	stop()
	for _, d := range dead {
		if got := book.of(d.ID); !slices.Equal(got, []int{1, 2, 3}) {
			c.fail(2, "with MaxAttempts 3 message %q was handled at the attempts %d", d.ID, got)
		}
		f := d.Failure
		switch {
		case f == nil:
			c.fail(11, "message %q is in the dead-letter queue without an envelope", d.ID)
		case f.Reason != string(policy.ReasonExhausted) || f.Attempts != 3 || !strings.Contains(f.Error, d.ID) ||
			f.Origin != c.Queue.Name() || f.MessageID != d.ID || f.Policy != "conformance" || f.Consumer != "host-a":
			c.fail(22, "the envelope of message %q is %+v", d.ID, *f)
		}
	}
	for _, r := range book.all() {
		if r.last != (r.attempt == 3) {
			c.fail(2, "with MaxAttempts 3 attempt %d of message %q came with Last %t", r.attempt, r.id, r.last)
		}
	}
	c.subscribe(c.Queue, longLease).nothing(11, glance, "all were dead-lettered")
}

// consumeExhausted lowers MaxAttempts, as a new version of a program may, while messages wait.
func consumeExhausted(c *trial) {
	c.applies(!c.limits.CountsReceives, "Limits.CountsReceives: failures are not told from lapses")
	c.send(c.messages(2)...)
	s := c.subscribe(c.Queue, longLease)
	got := s.take(5, 2)
	s.settle(2, retry(got[0], 0), retry(got[1], 0))
	got = s.take(2, 2)
	s.settle(2, retry(got[0], 0))
	again := s.one(2)
	s.settle(2, retry(again, 0), snooze(got[1], 0))
	failed, spared := again.ID, got[1].ID
	s.close(19)

	book := newDiary()
	p := testPolicy
	p.MaxAttempts = 2
	stop := c.consume(&consumer.Consumer{
		Queue:  c.Queue,
		Policy: p,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			book.note(d)
			return nil
		}),
	})
	dead := c.subscribe(c.DeadLetters, longLease).one(11)
	if !c.until(book, 1, patience) {
		c.fail(2, "a message that had failed once was not handled although MaxAttempts is 2")
	}
	stop()
	if f := dead.Failure; dead.ID != failed || f == nil || f.Reason != string(policy.ReasonExhausted) || f.Attempts != 3 {
		c.fail(2, "with MaxAttempts 2 message %q, of which %q had failed 3 times, is in the dead-letter queue with the envelope %+v", dead.ID, failed, f)
	}
	if n := len(book.of(failed)); n > 0 {
		c.fail(2, "a message that had failed 3 times was handled %d times although MaxAttempts is 2", n)
	}
	if n := len(book.of(spared)); n != 1 {
		c.fail(2, "a message that had failed once was handled %d times by a handler that succeeds", n)
	}
}

func consumeOnSchedule(c *trial) {
	const count, tries = 10, 5
	c.send(c.messages(count)...)
	backoff := policy.Exponential{Base: 40 * time.Millisecond, Max: 200 * time.Millisecond}
	book := newDiary()
	var mu sync.Mutex
	ended := make(map[string]time.Time)
	stop := c.consume(&consumer.Consumer{
		Queue:  c.Queue,
		Policy: policy.Policy{MaxAttempts: tries, Backoff: backoff},
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			now := time.Now()
			mu.Lock()
			last, again := ended[d.ID]
			mu.Unlock()
			if again {
				delay := backoff.Delay(d.Attempt - 1)
				if early := delay - now.Sub(last); early > 0 {
					c.fail(7, "attempt %d of message %q came %v before its delay of %v had passed", d.Attempt, d.ID, early, delay)
				}
			}
			book.note(d)
			mu.Lock()
			ended[d.ID] = time.Now()
			mu.Unlock()
			if d.Last {
				return nil
			}
			return errors.New("not yet")
		}),
	})
	if !c.until(book, count*tries, patience) {
		c.fail(8, "only %d of %d runs came within %v", len(book.all()), count*tries, patience)
	}
	stop()
	c.subscribe(c.Queue, longLease).nothing(6, glance, "all succeeded at their last attempt")
	c.subscribe(c.DeadLetters, longLease).nothing(11, glance, "all succeeded at their last attempt")
}

func consumePanics(c *trial) {
	ends := map[string]func() error{
		"panics with an error": func() error { panic(errors.New("broken")) },
		"panics with a text":   func() error { panic("broken") },
		"ends its goroutine":   func() error { runtime.Goexit(); return nil },
		"fails for good":       func() error { return fmt.Errorf("broken: %w", policy.Permanent(errors.New("no such account"))) },
		"succeeds":             func() error { return nil },
		"is to be discarded":   func() error { return policy.Discard(errors.New("too old to matter")) },
	}
	var msgs []backend.Message
	for id := range ends {
		msgs = append(msgs, backend.Message{ID: id, Body: []byte(`{}`)})
	}
	c.send(msgs...)
	book := newDiary()
	stop := c.consume(&consumer.Consumer{
		Queue:  c.Queue,
		Policy: testPolicy,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			book.note(d)
			return ends[d.ID]()
		}),
	})
	graves := c.subscribe(c.DeadLetters, longLease)
	dead := graves.take(11, 4)
	graves.nothing(11, glance, "each message was dead-lettered once")
	stop()
	for _, d := range dead {
		tries, reason := 3, policy.ReasonExhausted
		if d.ID == "fails for good" {
			tries, reason = 1, policy.ReasonPermanent
		}
		if got := len(book.of(d.ID)); got != tries {
			c.fail(2, "a message whose handler %s was handled %d times, not %d", d.ID, got, tries)
		}
		if d.Failure == nil || d.Failure.Reason != string(reason) {
			c.fail(22, "a message whose handler %s is in the dead-letter queue with the envelope %+v", d.ID, d.Failure)
		} else if strings.Contains(d.ID, "panics") && d.Failure.Stack == "" {
			c.fail(22, "a message whose handler %s is in the dead-letter queue without a stack", d.ID)
		}
	}
	for _, id := range []string{"succeeds", "is to be discarded"} {
		if got := len(book.of(id)); got != 1 {
			c.fail(6, "a message whose handler %s was handled %d times", id, got)
		}
	}
	c.subscribe(c.Queue, longLease).nothing(6, glance, "all were handled to their end")
}

func consumeAbandoned(c *trial) {
	c.needsLapse()
	c.applies(!c.limits.CountsReceives, "Limits.CountsReceives: lapses are not told from failures")
	c.send(c.messages(2)...)
	const most = 1
	lease := c.harness.Lease
	var held []*backend.Delivery
	for n := range most + 1 {
		s := c.subscribe(c.reopen(), lease)
		if n == 0 {
			held = s.take(5, 2)
		} else {
			held = s.lapse(2, held, lease)
		}
		if n == most {
			// One of the two is spared the last lapse. It has to come due after the crash: a broker that sends messages unasked
			// may send it to the same client.
			i := slices.IndexFunc(held, func(d *backend.Delivery) bool { return d.ID == "m-0001" })
			s.settle(13, snooze(held[i], 2*glance))
		}
		s.crash()
	}
	book := newDiary()
	p := testPolicy
	p.MaxLapses = most
	stop := c.consume(&consumer.Consumer{
		Queue:  c.Queue,
		Policy: p,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			book.note(d)
			return nil
		}),
	})
	if !c.until(book, 1, patience) {
		c.fail(14, "a message with no more lapses than MaxLapses was not handled")
	}
	graves := c.subscribe(c.DeadLetters, longLease)
	got := graves.gather(1, lease+patience)
	stop()
	if len(got) != 1 {
		c.fatal(14, "a message with %d lapses was not dead-lettered although MaxLapses is %d", most+1, most)
	}
	if f := got[0].Failure; got[0].ID != "m-0000" || f == nil || f.Reason != string(policy.ReasonAbandoned) || f.Lapses != most+1 || f.Attempts != 0 {
		c.fail(14, "with MaxLapses %d message %q is in the dead-letter queue with the envelope %+v", most, got[0].ID, f)
	}
	if n := len(book.of("m-0000")); n > 0 {
		c.fail(14, "a message with %d lapses was handled %d times although MaxLapses is %d", most+1, n, most)
	}
	if n := len(book.of("m-0001")); n != 1 {
		c.fail(14, "a message with %d lapses was handled %d times; MaxLapses is %d", most, n, most)
	}
}

func consumeBroken(c *trial) {
	c.needs(c.BreakDeadLetters != nil, "Fixture.BreakDeadLetters")
	msgs := c.messages(12)
	book := newDiary()
	broken := make(chan struct{})
	stop := c.consume(&consumer.Consumer{
		Queue:       c.Queue,
		Policy:      testPolicy,
		Concurrency: 2,
		Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
			book.note(d)
			select {
			case <-broken:
			case <-ctx.Done():
			}
			if d.ID == msgs[0].ID || d.ID == msgs[1].ID {
				return policy.Permanent(errors.New("no such account"))
			}
			return nil
		}),
	})
	c.send(msgs[:2]...)
	if !c.until(book, 2, patience) {
		c.fatal(5, "messages were not handled within %v", patience)
	}
	c.calling("BreakDeadLetters")
	restore, err := c.BreakDeadLetters(c.ctx)
	if err != nil {
		c.fatal(setup, "BreakDeadLetters: %v", err)
	}
	close(broken)
	// As many poisoned messages as handlers: if those held their places, nothing would move.
	c.send(msgs[2:]...)
	if !c.until(book, len(msgs), patience) {
		c.fail(12, "with an unavailable dead-letter queue only %d of %d messages were handled within %v", len(book.all()), len(msgs), patience)
	}
	c.calling("restore")
	if err := restore(c.ctx); err != nil {
		c.fatal(setup, "restore of the dead-letter queue: %v", err)
	}
	graves := c.subscribe(c.DeadLetters, longLease)
	dead := graves.gather(2, 3*patience)
	if len(dead) < 2 {
		c.fail(12, "%d of 2 messages were dead-lettered within %v after their dead-letter queue was available again", len(dead), 3*patience)
	}
	graves.nothing(11, glance, "two messages were dead-lettered")
	stop()
	for _, d := range dead {
		if d.Failure == nil || d.Failure.Reason != string(policy.ReasonPermanent) || !strings.Contains(d.Failure.Error, "no such account") || d.Failure.Attempts != 1 {
			c.fail(12, "message %q is in the dead-letter queue with the envelope %+v, which is not of its failure", d.ID, d.Failure)
		}
	}
	for _, m := range msgs {
		if got := book.of(m.ID); !slices.Equal(got, []int{1}) {
			c.fail(12, "with an unavailable dead-letter queue message %q was handled at the attempts %d", m.ID, got)
		}
	}
}

func consumeLong(c *trial) {
	c.applies(c.limits.LeaseExpires, "Limits.LeaseExpires is false: a lease needs no extension")
	c.sendOne()
	book := newDiary()
	long := 3 * c.harness.Lease
	var lost atomic.Bool
	handler := consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
		book.note(d)
		timer := time.NewTimer(long)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			lost.Store(true)
			return context.Cause(ctx)
		}
	})
	lease := c.harness.Lease
	stopFirst := c.consume(&consumer.Consumer{Queue: c.Queue, Policy: testPolicy, Lease: lease, Handler: handler})
	stopSecond := c.consume(&consumer.Consumer{Queue: c.reopen(), Policy: testPolicy, Lease: lease, Handler: handler})
	c.until(book, 2, long+lease)
	if lost.Load() {
		c.stalled("a lease of %v was lost under the consumer's heartbeat", lease)
	}
	stopFirst()
	stopSecond()
	if n := len(book.all()); n != 1 {
		c.fail(15, "a message whose handler takes %v under a lease of %v was handled %d times", long, lease, n)
	}
	c.subscribe(c.Queue, longLease).nothing(6, glance, "its handler succeeded")
}

func consumeShutdown(c *trial) {
	const count = 5
	c.send(c.messages(count)...)
	book := newDiary()
	stop := c.consume(&consumer.Consumer{
		Queue:       c.Queue,
		Policy:      testPolicy,
		Concurrency: count,
		Grace:       -1,
		Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
			book.note(d)
			<-ctx.Done()
			return fmt.Errorf("query: %w", ctx.Err())
		}),
	})
	if !c.until(book, count, patience) {
		c.fatal(5, "only %d of %d messages were handled at once", len(book.all()), count)
	}
	stop()
	s := c.subscribe(c.reopen(), longLease)
	for _, d := range s.take(19, count) {
		if !c.limits.ReleaseCharged && !c.limits.CountsReceives {
			c.expect(19, d, 1, 0, 0)
		}
	}
	s.nothing(19, glance, "a shutdown gave back each message once")
	c.subscribe(c.DeadLetters, longLease).nothing(19, glance, "a shutdown")
}

func consumeMissing(c *trial) {
	c.needs(c.harness.OpenWithoutQueue != nil || c.harness.OpenWithoutDeadLetters != nil,
		"Harness.OpenWithoutQueue or OpenWithoutDeadLetters")
	for _, open := range []func(context.Context, string) (*Fixture, error){c.harness.OpenWithoutQueue, c.harness.OpenWithoutDeadLetters} {
		if open == nil {
			continue
		}
		f, err := open(c.ctx, c.freshName())
		if err != nil {
			c.wants(20, "Open of a queue that is not complete", err, backend.ErrQueueNotFound)
			continue
		}
		if f.Close != nil {
			c.later("Fixture.Close", f.Close)
		}
		runs := &consumer.Consumer{
			Queue: f.Queue, Policy: testPolicy, Logger: slog.New(slog.DiscardHandler),
			Handler: consumer.HandlerFunc(func(context.Context, *backend.Delivery) error { return nil }),
		}
		ctx, cancel := context.WithTimeout(c.ctx, patience)
		c.calling("Consumer.Run")
		err = runs.Run(ctx)
		cancel()
		c.wants(20, "Run of a consumer of a queue that is not complete", err, backend.ErrQueueNotFound)
		if err != nil && !strings.Contains(err.Error(), f.Queue.Name()) {
			c.fail(20, "Run of a consumer of %q, which is not complete, failed with an error that does not name it: %v", f.Queue.Name(), err)
		}
	}
}

func consumeInOrder(c *trial) {
	c.needsOrder()
	const groups, each = 6, 8
	for i := range each {
		for g := range groups {
			c.send(grouped(fmt.Sprintf("g%02d", g), each)[i])
		}
	}
	var mu sync.Mutex
	done, running := make(map[string]int), make(map[string]bool)
	book := newDiary()
	handler := consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
		mu.Lock()
		if running[d.Group] {
			c.fail(23, "message %q was handled beside another of its group", d.ID)
		}
		if want := fmt.Sprintf("%s-%d", d.Group, done[d.Group]); d.ID != want {
			c.fail(23, "message %q was handled before %q", d.ID, want)
		}
		running[d.Group] = true
		fails := d.Attempt == 1 && done[d.Group]%2 == 1
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		defer mu.Unlock()
		running[d.Group] = false
		if fails {
			return errors.New("not yet")
		}
		done[d.Group]++
		book.note(d)
		return nil
	})
	for range 2 {
		c.consume(&consumer.Consumer{Queue: c.reopen(), Policy: testPolicy, Handler: handler})
	}
	if !c.until(book, groups*each, 2*patience) {
		c.fail(23, "only %d of %d messages of %d groups were handled within %v", len(book.all()), groups*each, groups, 2*patience)
	}
}
