package consumer_test

import (
	"context"
	"errors"
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

func TestHandlersThatFinishWithinTheGraceAreAcked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			time.Sleep(5 * time.Second)
			return ctx.Err()
		})
		c.Grace = 15 * time.Second
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, stop())
		require.Equal(t, 4*time.Second, time.Since(began), "no longer than the handler needs")
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
		require.Equal(t, 1, events.count(consumer.Succeeded))
		require.Zero(t, stats(t, q.Queue))
	})
}

func TestTheDrainsAckOutlivesTheCancelledContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			deadline, ok := ctx.Deadline()
			require.True(t, ok, "bounded")
			require.Equal(t, consumer.DefaultSettleTimeout, time.Until(deadline))
			return next(ctx, batch)
		}
		events := &recorder{}
		ctx, cancel := context.WithCancel(t.Context())
		c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
			cancel()
			return nil
		})
		publish(t, q.Queue, message("m"))
		require.NoError(t, c.Run(ctx))
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
		require.Equal(t, 1, events.count(consumer.Succeeded))
		require.Empty(t, held(t, q.Queue))
	})
}

func TestHandlersThatOutlastTheGraceAreCancelledAndReleased(t *testing.T) {
	for name, c := range map[string]struct {
		grace, after time.Duration
		returns      func(context.Context) error
	}{
		"with the context's error, wrapped": {15 * time.Second, 15 * time.Second, func(ctx context.Context) error { return fmt.Errorf("db: %w", ctx.Err()) }},
		"with the cause":                    {15 * time.Second, 15 * time.Second, context.Cause},
		"with a panic of it":                {15 * time.Second, 15 * time.Second, func(ctx context.Context) error { panic(ctx.Err()) }},
		"marked permanent":                  {15 * time.Second, 15 * time.Second, func(ctx context.Context) error { return policy.Permanent(ctx.Err()) }},
		"after the default":                 {0, consumer.DefaultGrace, context.Context.Err},
		"without a grace":                   {-1, 0, context.Context.Err},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				seen, events := &journal{}, &recorder{}
				con := consume(q, three, events, seen.wrap(func(ctx context.Context, _ *backend.Delivery) error {
					<-ctx.Done()
					require.ErrorIs(t, context.Cause(ctx), consumer.ErrShutdown)
					require.ErrorIs(t, ctx.Err(), context.Canceled)
					return c.returns(ctx)
				}))
				con.Grace = c.grace
				publish(t, q.Queue, message("m"))
				stop := start(t, con)
				time.Sleep(time.Second)
				began := time.Now()
				require.NoError(t, stop())
				require.Equal(t, c.after, time.Since(began))
				require.Equal(t, []backend.Outcome{backend.Release}, q.outcomes("m"))
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds("m"))
				require.Empty(t, events.of(consumer.Released)[0].Reason)

				second := start(t, consume(q.Open(), three, &recorder{}, seen.wrap(succeed)))
				synctest.Wait()
				require.NoError(t, second())
				calls := seen.all()
				require.Len(t, calls, 2)
				require.Equal(t, call{"m", 1, 0, time.Now()}, calls[1], "at once, and nothing is charged")
				require.Zero(t, stats(t, q.Queue))
			})
		})
	}
}

func TestASuccessAfterTheGraceIsAcked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		c := consume(q, three, &recorder{}, func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return nil
		})
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
	})
}

func TestFailuresOfTheHandlersOwnMakingCountDuringTheShutdown(t *testing.T) {
	for name, c := range map[string]struct{ handler handle }{
		"its own deadline": {func(ctx context.Context, _ *backend.Delivery) error {
			own, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			<-own.Done()
			return fmt.Errorf("db: %w", own.Err())
		}},
		"its own cancellation": {func(ctx context.Context, _ *backend.Delivery) error {
			own, cancel := context.WithCancel(ctx)
			cancel()
			time.Sleep(time.Second)
			return fmt.Errorf("db: %w", own.Err())
		}},
		"a text alone": {func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return errors.New("db: context canceled")
		}},
		"another error": {func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return errDeclined
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				events := &recorder{}
				con := consume(q, three, events, c.handler)
				publish(t, q.Queue, message("m"))
				stop := start(t, con)
				synctest.Wait()
				require.NoError(t, stop())
				require.Equal(t, []backend.Outcome{backend.Retry}, q.outcomes("m"))
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.Retried}, events.kinds("m"))
				require.Equal(t, policy.ReasonError, events.of(consumer.Retried)[0].Reason)
				require.Equal(t, time.Minute, events.of(consumer.Retried)[0].Delay)
			})
		})
	}
}

func TestOwnDeadlinesCountWhileTheConsumerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen := &journal{}
		stop := start(t, consume(q, three, &recorder{}, seen.wrap(func(ctx context.Context, _ *backend.Delivery) error {
			own, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			<-own.Done()
			return own.Err()
		})))
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, []backend.Outcome{backend.Retry, backend.Retry, backend.DeadLetter}, q.outcomes("m"))
		require.Equal(t, []time.Duration{61 * time.Second, 61 * time.Second}, seen.gaps())
	})
}

func TestWhatHasNotStartedIsReleasedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		c := consume(q, three, events, seen.wrap(func(context.Context, *backend.Delivery) error {
			time.Sleep(10 * time.Second)
			return nil
		}))
		c.Concurrency, c.Prefetch = 1, 3
		publish(t, q.Queue, message("a"), message("b"), message("c"), message("d"), message("e"))
		stop := start(t, c)
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, stop())
		require.Equal(t, 9*time.Second, time.Since(began))
		require.Equal(t, []string{"a"}, seen.ids())
		for _, id := range []string{"b", "c", "d"} {
			require.Equal(t, []backend.Outcome{backend.Release}, q.outcomes(id))
			require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds(id))
		}
		for _, at := range events.when(consumer.Released) {
			require.Equal(t, began, at, "not after the grace")
		}
		rest := held(t, q.Queue)
		require.Len(t, rest, 4)
		for _, d := range rest {
			require.Equal(t, 1, d.Attempt)
			require.Zero(t, d.Lapses)
		}
	})
}

func TestShutdownEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		publish(t, q.Queue, message("m"))
		done := make(chan error, 1)
		go func() { done <- c.Run(t.Context()) }()
		time.Sleep(time.Second)

		began := time.Now()
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() { require.NoError(t, c.Shutdown(t.Context())) })
		}
		calls.Wait()
		require.Equal(t, 4*time.Second, time.Since(began), "it waits for the drain")
		require.NoError(t, <-done)
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
		require.NoError(t, c.Shutdown(t.Context()), "once more")
		require.ErrorIs(t, c.Run(t.Context()), consumer.ErrShutdown)
	})
}

func TestShutdownBeforeRunKeepsItFromStarting(t *testing.T) {
	q := newFaulty("orders")
	seen := &journal{}
	c := consume(q, three, &recorder{}, seen.wrap(succeed))
	publish(t, q.Queue, message("m"))
	require.NoError(t, c.Shutdown(t.Context()))
	require.NoError(t, c.Shutdown(t.Context()))
	err := c.Run(t.Context())
	require.ErrorIs(t, err, consumer.ErrShutdown)
	require.ErrorContains(t, err, "new Consumer")
	require.Empty(t, seen.all())
	require.Zero(t, q.received())
}

func TestRunTwiceIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		c := consume(q, three, &recorder{}, succeed)
		stop := start(t, c)
		synctest.Wait()
		require.ErrorContains(t, c.Run(t.Context()), "twice")
		publish(t, q.Queue, message("m"))
		synctest.Wait()
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"), "the first goes on")
		require.NoError(t, stop())
	})
}

func TestTheEndOfShutdownsContextEndsTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		})
		c.Grace = time.Hour
		publish(t, q.Queue, message("m"))
		done := make(chan error, 1)
		go func() { done <- c.Run(t.Context()) }()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		require.NoError(t, c.Shutdown(ctx), "the releases went through")
		require.Equal(t, 3*time.Second, time.Since(began))
		require.NoError(t, <-done)
		require.Equal(t, []backend.Outcome{backend.Release}, q.outcomes("m"))
	})
}

func TestShutdownCutsShortTheGraceOfACancelledRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		c := consume(q, three, &recorder{}, func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		})
		c.Grace = time.Hour
		publish(t, q.Queue, message("m"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		cancel()
		time.Sleep(time.Minute)
		began := time.Now()
		require.NoError(t, c.Shutdown(ctx), "its context has ended already")
		require.Zero(t, time.Since(began))
		require.NoError(t, <-done)
	})
}

func TestAHandlerThatNeverReturnsDoesNotHoldRunForEver(t *testing.T) {
	for _, way := range []string{"the context ends", "shutdown"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				events := &recorder{}
				forever := make(chan struct{})
				c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
					<-forever
					return errDeclined
				})
				publish(t, q.Queue, message("m"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				synctest.Wait()
				began := time.Now()
				if way == "shutdown" {
					ended, cancelEnded := context.WithCancel(ctx)
					cancelEnded()
					err := c.Shutdown(ended)
					require.LessOrEqual(t, time.Since(began), consumer.DefaultSettleTimeout)
					if err != nil { // the two timers end together
						require.ErrorIs(t, err, context.Canceled)
					}
				} else {
					cancel()
				}
				require.ErrorContains(t, <-done, "1 handler")
				require.LessOrEqual(t, time.Since(began), consumer.DefaultGrace+consumer.DefaultSettleTimeout)
				rest := held(t, q.Queue)
				require.Len(t, rest, 1, "given back")
				require.Equal(t, 1, rest[0].Attempt)
				require.Zero(t, rest[0].Lapses)
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds("m"))

				close(forever)
				synctest.Wait()
				require.Empty(t, q.outcomes("m"), "its late return settles nothing")
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds("m"))
			})
		})
	}
}

func TestAHandlerWhoseMessageIsSettledIsReportedAsWhatItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		forever := make(chan struct{})
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			<-forever
			return nil
		})
		c.Timeout = time.Second
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.Equal(t, []backend.Outcome{backend.Retry}, q.outcomes("m"))
		err := stop()
		require.ErrorContains(t, err, "1 handler")
		require.NotContains(t, err.Error(), "settled")
		close(forever)
		synctest.Wait()
	})
}

func TestSettlementsThatDoNotGetThroughAreReportedAsThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.LeaseExpires = false }
		q.onSettle = func(context.Context, []backend.Settlement, settleFunc) error { return errors.New("the disk is full") }
		events := &recorder{}
		publish(t, q.Queue, message("m"))
		stop := start(t, consume(q, three, events, succeed))
		synctest.Wait()
		began := time.Now()
		err := stop()
		require.LessOrEqual(t, time.Since(began), consumer.DefaultGrace+consumer.DefaultSettleTimeout)
		require.ErrorContains(t, err, "1 message could not be settled")
		require.NotContains(t, err.Error(), "handler")
		failed := events.of(consumer.SettleFailed)
		require.Greater(t, len(failed), 3)
		for i, e := range failed {
			require.ErrorContains(t, e.Err, "the disk is full")
			require.Equal(t, i == len(failed)-1, e.GaveUp, "the last one, and only that, is left to the broker")
		}
		n := len(events.all())
		time.Sleep(time.Hour)
		require.Len(t, events.all(), n, "nothing happens after Run")
	})
}

// A stop that comes while messages stream through must not start a handler after Shutdown has returned.
func TestNoHandlerStartsAfterShutdownHasReturned(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	for i := range 200 {
		publish(t, q, message(fmt.Sprint(i)))
	}
	for range 10 {
		var down atomic.Bool
		var late, calls atomic.Int32
		c := consume(q.Open(), three, &recorder{}, func(context.Context, *backend.Delivery) error {
			calls.Add(1)
			if down.Load() {
				late.Add(1)
			}
			return policy.Snooze(time.Nanosecond)
		})
		c.Concurrency, c.Prefetch = 4, 8
		done := make(chan error, 1)
		go func() { done <- c.Run(t.Context()) }()
		require.Eventually(t, func() bool { return calls.Load() > 20 }, 10*time.Second, time.Millisecond)
		require.NoError(t, c.Shutdown(t.Context()))
		down.Store(true)
		require.NoError(t, <-done)
		require.Zero(t, late.Load())
		require.Equal(t, int64(200), stats(t, q).Ready+stats(t, q).Waiting, "nothing is held any more")
	}
}

func TestAContextThatHasEndedStartsNothing(t *testing.T) {
	q := newFaulty("orders")
	seen := &journal{}
	publish(t, q.Queue, message("m"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := consume(q, three, &recorder{}, seen.wrap(succeed)).Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, seen.all())
	require.Equal(t, int64(1), stats(t, q.Queue).Ready)
}

func TestTheEndOfTheSubscriptionEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := make(chan struct{})
		q := newFaulty("orders")
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			receiving, cancel := context.WithCancel(ctx)
			defer cancel()
			go func() {
				select {
				case <-broken:
					cancel()
				case <-receiving.Done():
				}
			}()
			batch, err := next(receiving, max)
			if err != nil && ctx.Err() == nil {
				return nil, fmt.Errorf("%w: deleted", backend.ErrQueueNotFound)
			}
			return batch, err
		}
		events := &recorder{}
		c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		publish(t, q.Queue, message("m"))
		done := make(chan error, 1)
		go func() { done <- c.Run(t.Context()) }()
		time.Sleep(time.Second)
		began := time.Now()
		close(broken)
		err := <-done
		require.ErrorIs(t, err, backend.ErrQueueNotFound)
		require.ErrorContains(t, err, `queue "orders": receive`)
		require.Equal(t, 4*time.Second, time.Since(began), "running handlers have their grace")
		require.Equal(t, 1, events.count(consumer.Succeeded))
	})
}

func TestDeliveriesThatComeWithTheErrorAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			batch, _ := next(ctx, max)
			return batch, backend.ErrClosed
		}
		events := &recorder{}
		publish(t, q.Queue, message("a"), message("b"))
		require.ErrorIs(t, consume(q, three, events, succeed).Run(t.Context()), backend.ErrClosed)
		require.Equal(t, 2, events.count(consumer.Received))
		require.Equal(t, 2, events.count(consumer.Succeeded)+events.count(consumer.Released))
		require.Zero(t, stats(t, q.Queue).Leased)
	})
}

// A queue that is closed under the consumer has given back what it held: there is nothing left to wait for.
func TestAClosedQueueEndsRunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.LeaseExpires = false }
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		publish(t, q.Queue, message("m"))
		done := make(chan error, 1)
		go func() { done <- c.Run(t.Context()) }()
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, q.Close(t.Context()))
		require.ErrorIs(t, <-done, backend.ErrClosed)
		require.Equal(t, 4*time.Second, time.Since(began))
		failed := events.of(consumer.SettleFailed)
		require.Len(t, failed, 1)
		require.True(t, failed[0].GaveUp)
		require.ErrorIs(t, failed[0].Err, backend.ErrClosed)
	})
}

// Some brokers' polls cannot be cancelled and come back late, with messages.
func TestWhatArrivesDuringTheDrainIsReleasedUnrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			return next(context.WithoutCancel(ctx), max)
		}
		seen, events := &journal{}, &recorder{}
		publish(t, q.Queue, message("m"), grouped("g", "g1"))
		stop := start(t, consume(q, three, events, seen.wrap(succeed)))
		synctest.Wait()
		began := time.Now()
		require.NoError(t, stop())
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Empty(t, seen.all())
		for _, id := range []string{"m", "g1"} {
			require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds(id))
			require.Equal(t, []backend.Outcome{backend.Release}, q.outcomes(id))
		}
	})
}

func TestTheEndOfTheContextIsNoError(t *testing.T) {
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			stop := start(t, consume(newFaulty("orders"), three, &recorder{}, succeed))
			synctest.Wait()
			require.NoError(t, stop())
		})
	}
}

func TestEachSettlementThatHangsAtTheEndIsGivenUpOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.LeaseExpires, l.SettleBatch = false, 2 }
		q.onSettle = func(ctx context.Context, _ []backend.Settlement, _ settleFunc) error { return hangs(ctx) }
		events := &recorder{}
		c := consume(q, three, events, succeed)
		for i := range 10 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(time.Second)
		require.ErrorContains(t, stop(), "10 messages could not be settled")
		gaveUp := map[string]int{}
		for _, e := range events.of(consumer.SettleFailed) {
			if e.GaveUp {
				gaveUp[e.Delivery.ID]++
			}
		}
		require.Len(t, gaveUp, 10)
		for id, n := range gaveUp {
			require.Equal(t, 1, n, id)
		}
		n := len(events.all())
		time.Sleep(time.Hour)
		require.Len(t, events.all(), n, "nothing happens after Run")
	})
}

// All that Run waits for ends within its bound, also when each call to the broker hangs for as long as its context allows.
func TestRunKeepsItsBoundWhenTheBrokerHangs(t *testing.T) {
	const bound = consumer.DefaultGrace + 2*consumer.DefaultSettleTimeout
	for name, hang := range map[string]func(q *faulty, closing *atomic.Bool){
		"heartbeats": func(q *faulty, _ *atomic.Bool) {
			q.onExtend = func(ctx context.Context, _ []*backend.Delivery, _ extendFunc) error { return hangs(ctx) }
		},
		"settlements": func(q *faulty, _ *atomic.Bool) {
			q.onSettle = func(ctx context.Context, _ []backend.Settlement, _ settleFunc) error { return hangs(ctx) }
		},
		"all": func(q *faulty, closing *atomic.Bool) {
			q.onExtend = func(ctx context.Context, _ []*backend.Delivery, _ extendFunc) error { return hangs(ctx) }
			q.onSettle = func(ctx context.Context, _ []backend.Settlement, _ settleFunc) error { return hangs(ctx) }
			closing.Store(true)
		},
	} {
		for _, lease := range []time.Duration{consumer.DefaultLease, 10 * time.Minute, 12 * time.Hour} {
			for _, after := range []time.Duration{time.Second, lease / 3, lease/3 + time.Second} { // of the first heartbeat, too
				t.Run(fmt.Sprintf("%s, lease %v, after %v", name, lease, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						q := newFaulty("orders")
						var closing atomic.Bool
						hang(q, &closing)
						q.onClose = func(ctx context.Context, next closeFunc) error {
							if closing.Load() {
								return hangs(ctx)
							}
							return next(ctx)
						}
						c := consume(q, three, &recorder{}, func(ctx context.Context, d *backend.Delivery) error {
							if d.ID == "quick" {
								return nil
							}
							<-ctx.Done()
							return context.Cause(ctx)
						})
						c.Lease, c.Timeout, c.Concurrency, c.Prefetch = lease, 100*time.Hour, 2, 2
						publish(t, q.Queue, message("a"), message("b"), message("waits in hand"))
						stop := start(t, c)
						time.Sleep(after)
						publish(t, q.Queue, message("quick"))
						began := time.Now()
						_ = stop() // what it returns depends on what hangs
						require.LessOrEqual(t, time.Since(began), bound)
					})
				})
			}
		}
	}
}

// A heartbeat that hangs when the consumer stops keeps the subscription from giving back what it holds.
func TestAHeartbeatThatHangsDoesNotKeepWhatIsHeldFromBeingGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		var under sync.WaitGroup
		q.onExtend = func(ctx context.Context, _ []*backend.Delivery, _ extendFunc) error {
			under.Add(1)
			defer under.Done()
			return hangs(ctx)
		}
		// As a backend does whose calls share a connection.
		q.onClose = func(ctx context.Context, next closeFunc) error {
			idle := make(chan struct{})
			go func() {
				under.Wait()
				close(idle)
			}()
			select {
			case <-idle:
				return next(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(time.Hour) // deaf
			return nil
		})
		c.Lease, c.Timeout = time.Minute, 100*time.Hour
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		// Heartbeats are under way from 20 s on, and again from 30 s on; Run has no more patience at 32 s.
		time.Sleep(12 * time.Second)
		require.ErrorContains(t, stop(), "1 handler did not return")
		require.Equal(t, int64(1), stats(t, q.Queue).Ready, "at once, not when its lease ends")
		time.Sleep(time.Hour)
	})
}
