package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// counting is a breaker that never opens.
type counting struct {
	mu                           sync.Mutex
	permits, successes, failures int
}

func (b *counting) IsClosed() bool                { return true }
func (b *counting) RemainingDelay() time.Duration { return 0 }

func (b *counting) TryAcquirePermit() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.permits++
	return true
}

func (b *counting) RecordSuccess() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.successes++
}

func (b *counting) RecordError(error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
}

func (b *counting) balance() (granted, recorded int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.permits, b.successes + b.failures
}

// circuit behaves as the breaker of failsafe-go: it opens after failures in a row, becomes half-open only through
// TryAcquirePermit after the delay, and then has a few permits, which Record gives back.
type circuit struct {
	failuresToOpen, successesToClose int
	delay                            time.Duration

	mu                  sync.Mutex
	state               string // "", open, half-open
	openedAt            time.Time
	failures, successes int
	free                int // permits, while half-open
	granted, recorded   int
}

func newCircuit() *circuit {
	return &circuit{failuresToOpen: 3, successesToClose: 2, delay: time.Minute}
}

func (b *circuit) IsClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == ""
}

func (b *circuit) RemainingDelay() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != "open" {
		return 0
	}
	return max(0, b.delay-time.Since(b.openedAt))
}

func (b *circuit) TryAcquirePermit() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == "open" {
		if time.Since(b.openedAt) < b.delay {
			return false
		}
		b.state, b.free, b.failures, b.successes = "half-open", b.successesToClose, 0, 0
	}
	if b.state == "half-open" {
		if b.free == 0 {
			return false
		}
		b.free--
	}
	b.granted++
	return true
}

func (b *circuit) RecordSuccess()    { b.record(true) }
func (b *circuit) RecordError(error) { b.record(false) }

func (b *circuit) record(success bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recorded++
	switch b.state {
	case "":
		if b.failures++; success {
			b.failures = 0
		}
		if b.failures >= b.failuresToOpen {
			b.open()
		}
	case "half-open":
		b.free++
		if !success {
			b.open()
		} else if b.successes++; b.successes >= b.successesToClose {
			b.state, b.failures = "", 0
		}
	}
}

func (b *circuit) open() { b.state, b.openedAt = "open", time.Now() }

func (b *circuit) balance() (granted, recorded int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.granted, b.recorded
}

func TestAnOutageLeavesTheMessagesInTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		breaker, seen, events := newCircuit(), &journal{}, &recorder{}
		mended := time.Now().Add(time.Hour + 30*time.Second)
		p := policy.Policy{MaxAttempts: 5, Backoff: policy.Fixed(2 * time.Hour)}
		c := consume(q, p, events, seen.wrap(func(context.Context, *backend.Delivery) error {
			if time.Now().Before(mended) {
				return errDeclined
			}
			return nil
		}))
		c.Breaker, c.Concurrency = breaker, 1
		const messages = 100
		for i := range messages {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(30 * time.Second)
		require.Len(t, seen.all(), 3)
		receives := q.received()
		time.Sleep(29 * time.Second)
		require.Equal(t, receives, q.received(), "nothing is received while it is open")
		require.Zero(t, stats(t, q.Queue).Leased)

		time.Sleep(time.Hour)
		require.Len(t, seen.all(), 3+60, "one probe a minute")
		require.Equal(t, 3+60, events.count(consumer.Retried), "only what ran is charged")
		require.Zero(t, events.count(consumer.DeadLettered))

		time.Sleep(5 * time.Hour)
		require.NoError(t, stop())
		require.Equal(t, messages, events.count(consumer.Succeeded))
		require.Zero(t, stats(t, q.Queue))
		granted, recorded := breaker.balance()
		require.Equal(t, granted, recorded)
	})
}

func TestAHalfOpenBreakerIsProbedWithOneMessageAtATime(t *testing.T) {
	for name, parallel := range map[string]int{"one receiver": 1, "several": 4} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				q.limits = func(l *backend.Limits) { l.Parallel, l.SettleBatch = parallel, 3 }
				breaker, events := newCircuit(), &recorder{}
				breaker.successesToClose = 5
				var handlers gauge
				c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
					handlers.add(1)
					defer handlers.add(-1)
					time.Sleep(10 * time.Second)
					return nil
				})
				c.Breaker, c.Concurrency, c.Prefetch = breaker, 10, 5
				for range 3 {
					breaker.RecordError(errDeclined)
				}
				for i := range 40 {
					publish(t, q.Queue, message(fmt.Sprint(i)))
				}
				stop := start(t, c)
				time.Sleep(time.Minute - time.Second)
				require.Zero(t, q.received())
				time.Sleep(50 * time.Second)
				_, most := handlers.read()
				require.Equal(t, 1, most)
				require.False(t, breaker.IsClosed())
				time.Sleep(10 * time.Second)
				require.True(t, breaker.IsClosed())
				running, _ := handlers.read()
				require.Equal(t, 10, running, "once it is closed all go on")
				time.Sleep(time.Hour)
				require.NoError(t, stop())
				require.Equal(t, 40, events.count(consumer.Succeeded))
				require.Zero(t, events.count(consumer.Released))
			})
		})
	}
}

func TestWhatIsInHandWhenTheBreakerOpensIsReleasedUncharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		breaker, seen, events := newCircuit(), &journal{}, &recorder{}
		breaker.failuresToOpen = 1
		c := consume(q, three, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			time.Sleep(time.Second)
			if d.ID == "0" && d.Attempt == 1 {
				return errDeclined
			}
			time.Sleep(5 * time.Second)
			return nil
		}))
		c.Breaker, c.Concurrency, c.Prefetch = breaker, 3, 4
		for i := range 7 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(2 * time.Second)
		require.Len(t, seen.all(), 3)
		require.Equal(t, 4, events.count(consumer.Released))
		require.Equal(t, int64(4), stats(t, q.Queue).Ready)
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, 4, events.count(consumer.Released), "once each")
		for _, id := range []string{"3", "4", "5", "6"} {
			require.Len(t, seen.of(id), 1)
			require.Equal(t, 1, seen.of(id)[0].attempt)
		}
		require.Equal(t, 7, events.count(consumer.Succeeded))
	})
}

// The permits of a half-open breaker may be in use elsewhere, for as long as a call there takes.
func TestABreakerWithoutAPermitIsNotAskedInATightLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		breaker, seen, events := newCircuit(), &journal{}, &recorder{}
		breaker.successesToClose = 1
		for range 3 {
			breaker.RecordError(errDeclined)
		}
		time.Sleep(breaker.delay)
		require.True(t, breaker.TryAcquirePermit(), "by someone else")
		c := consume(q, three, events, seen.wrap(succeed))
		c.Breaker = breaker
		publish(t, q.Queue, message("a"), message("b"))
		stop := start(t, c)
		time.Sleep(10 * time.Minute)
		require.Empty(t, seen.all())
		require.Greater(t, events.count(consumer.Released), 10)
		require.Less(t, events.count(consumer.Released), 50)
		breaker.RecordSuccess()
		time.Sleep(time.Minute)
		require.Equal(t, 2, events.count(consumer.Succeeded))

		// The next time it begins with short pauses again.
		for range 3 {
			breaker.RecordError(errDeclined)
		}
		time.Sleep(breaker.delay)
		require.True(t, breaker.TryAcquirePermit(), "by someone else")
		released := events.count(consumer.Released)
		publish(t, q.Queue, message("c"))
		time.Sleep(time.Second)
		require.Greater(t, events.count(consumer.Released), released+3)
		breaker.RecordSuccess()
		time.Sleep(time.Minute)
		require.NoError(t, stop())

		require.Len(t, seen.all(), 3)
		for _, call := range seen.all() {
			require.Equal(t, 1, call.attempt)
			require.Zero(t, call.lapses)
		}
		granted, recorded := breaker.balance()
		require.Equal(t, granted+6, recorded)
	})
}

// What is dead-lettered at receipt asked for no permit, and says nothing of the breaker's.
func TestMessagesRefusedAtReceiptDoNotDelayTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newScripted(backend.Limits{SettleBatch: 10, Parallel: 1})
		breaker, seen := newCircuit(), &journal{}
		for range breaker.failuresToOpen {
			breaker.RecordError(errDeclined)
		}
		for i := range 20 {
			q.deliver(&backend.Delivery{Message: message(fmt.Sprint("used up ", i)), Attempt: 4})
		}
		q.deliver(&backend.Delivery{Message: message("m")})
		c := consume(q, three, &recorder{}, seen.wrap(succeed))
		c.Breaker = breaker
		began := time.Now()
		stop := start(t, c)
		time.Sleep(breaker.delay + time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []string{"m"}, seen.ids())
		require.Less(t, seen.all()[0].at.Sub(began), breaker.delay+time.Second)
	})
}

func TestTheBreakerIsToldHowTheHandlerFared(t *testing.T) {
	for name, c := range map[string]struct {
		handler handle
		success bool
	}{
		"success":   {succeed, true},
		"failure":   {fail, false},
		"permanent": {func(context.Context, *backend.Delivery) error { return policy.Permanent(errDeclined) }, true},
		"discard":   {func(context.Context, *backend.Delivery) error { return policy.Discard(errDeclined) }, true},
		"snooze":    {func(context.Context, *backend.Delivery) error { return policy.Snooze(24 * time.Hour) }, true},
		"retry after": {
			func(context.Context, *backend.Delivery) error { return policy.RetryAfter(time.Hour, errDeclined) }, false,
		},
		"panic":   {func(context.Context, *backend.Delivery) error { panic("x") }, false},
		"timeout": {func(ctx context.Context, _ *backend.Delivery) error { <-ctx.Done(); return ctx.Err() }, false},
		"late":    {func(ctx context.Context, _ *backend.Delivery) error { time.Sleep(time.Hour); return nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				var breaker counting
				p := three
				p.Backoff = policy.Fixed(24 * time.Hour)
				con := consume(q, p, &recorder{}, c.handler)
				con.Breaker, con.Timeout = &breaker, time.Minute
				publish(t, q, message("m"))
				stop := start(t, con)
				time.Sleep(90 * time.Minute)
				require.NoError(t, stop())
				require.Equal(t, 1, breaker.permits)
				require.Equal(t, 1, breaker.successes+breaker.failures)
				require.Equal(t, c.success, breaker.successes == 1)
			})
		})
	}
}

func TestTheShutdownGivesThePermitsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		var breaker counting
		c := consume(q, three, &recorder{}, func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		})
		c.Breaker = &breaker
		publish(t, q, message("a"), message("b"))
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, 2, breaker.permits)
		require.Equal(t, 2, breaker.failures)
	})
}

func TestAnOpenBreakerDelaysNoShutdown(t *testing.T) {
	for name, ready := range map[string]time.Duration{"open": 0, "half-open, permits gone": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				breaker := newCircuit()
				breaker.successesToClose = 1
				for range 3 {
					breaker.RecordError(errDeclined)
				}
				time.Sleep(ready)
				breaker.TryAcquirePermit()
				c := consume(q, three, &recorder{}, succeed)
				c.Breaker = breaker
				publish(t, q, message("m"))
				stop := start(t, c)
				time.Sleep(time.Second)
				began := time.Now()
				require.NoError(t, stop())
				require.Zero(t, time.Since(began))
				require.Zero(t, stats(t, q).Leased)
			})
		})
	}
}

func TestAProbeThatFindsNoMessageWaitsForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		breaker, seen := newCircuit(), &journal{}
		for range 3 {
			breaker.RecordError(errDeclined)
		}
		c := consume(q, three, &recorder{}, seen.wrap(succeed))
		c.Breaker = breaker
		stop := start(t, c)
		time.Sleep(time.Hour)
		require.Equal(t, 1, q.received())
		granted, _ := breaker.balance()
		require.Zero(t, granted, "no permit is taken from others meanwhile")
		publish(t, q.Queue, message("a"), message("b"), message("c"))
		synctest.Wait()
		require.Len(t, seen.all(), 3)
		require.True(t, breaker.IsClosed())
		require.NoError(t, stop())
	})
}

func TestAProbeThatComesBackEmptyIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		var calls atomic.Int32
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			if calls.Add(1) <= 2 {
				time.Sleep(time.Second)
				return nil, nil
			}
			return next(ctx, max)
		}
		breaker, seen := newCircuit(), &journal{}
		for range 3 {
			breaker.RecordError(errDeclined)
		}
		c := consume(q, three, &recorder{}, seen.wrap(succeed))
		c.Breaker = breaker
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		time.Sleep(2 * time.Minute)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 1)
	})
}
