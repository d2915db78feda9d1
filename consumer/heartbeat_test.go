package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
)

// elapsed are the times as durations since began.
func elapsed(began time.Time, times []time.Time) (found []time.Duration) {
	for _, at := range times {
		found = append(found, at.Sub(began))
	}
	return found
}

func TestAHandlerOfManyLeasesRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		c := consume(q, three, events, seen.wrap(func(ctx context.Context, _ *backend.Delivery) error {
			time.Sleep(95 * time.Second)
			return ctx.Err()
		}))
		c.Lease = 30 * time.Second
		began := time.Now()
		stop := start(t, c)
		rival := start(t, consume(q.Open(), three, events, seen.wrap(succeed)))
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.NoError(t, rival())
		require.Len(t, seen.all(), 1)
		if ticks := elapsed(began, q.extensions("m")); len(ticks) > 0 { // or the rival had it
			require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second, 50 * time.Second,
				60 * time.Second, 70 * time.Second, 80 * time.Second, 90 * time.Second}, ticks)
		}
	})
}

func TestHeartbeatsComeAtEveryThirdOfTheLeaseInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		calls := 0
		q.onExtend = func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error {
			calls++
			deadline, ok := ctx.Deadline()
			require.True(t, ok, "a heartbeat that hangs must not hold up the next")
			require.Less(t, time.Until(deadline), 30*time.Second/3)
			return next(ctx, batch)
		}
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(45 * time.Second)
			return nil
		})
		c.Lease, c.Concurrency, c.Prefetch = 30*time.Second, 2, 1
		publish(t, q.Queue, message("a"), message("b"), message("waits"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(44 * time.Second)
		thirds := []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second}
		require.Equal(t, thirds, elapsed(began, q.extensions("a")))
		require.Equal(t, thirds, elapsed(began, q.extensions("b")))
		require.Equal(t, thirds, elapsed(began, q.extensions("waits")), "what waits for its turn is held too")
		require.Equal(t, 4, calls)
		require.Equal(t, backend.SubscribeOptions{MaxInFlight: 3, Lease: 30 * time.Second}, q.options())
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("waits"))
		require.Len(t, q.extensions("a"), 4, "none after the end")
	})
}

func TestAfterACrashTheMessageIsBackWithinOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen := &journal{}
		crash := make(chan struct{})
		c := consume(q, three, &recorder{}, seen.wrap(func(context.Context, *backend.Delivery) error {
			<-crash
			q.Queue.Crash()
			return errDeclined
		}))
		c.Lease, c.Timeout = 30*time.Second, 2*time.Hour
		publish(t, q.Queue, message("m"))
		done := make(chan error, 1)
		go func() { done <- c.Run(t.Context()) }()
		other := q.Open()
		time.Sleep(time.Hour)
		close(crash)
		require.ErrorIs(t, <-done, backend.ErrClosed)
		crashed := time.Now()
		stop := start(t, consume(other, three, &recorder{}, seen.wrap(succeed)))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		calls := seen.all()
		require.Len(t, calls, 2)
		require.LessOrEqual(t, calls[1].at.Sub(crashed), 30*time.Second, "renewals do not add up")
		require.Equal(t, 1, calls[1].lapses)
	})
}

// An extension that arrives after a retry would overwrite its delay.
func TestTheSettlementWaitsForTheHeartbeatUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		var extended list[time.Time]
		q.onExtend = func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error {
			time.Sleep(3 * time.Second)
			extended.add(time.Now())
			return next(ctx, batch)
		}
		seen := &journal{}
		c := consume(q, three, &recorder{}, seen.wrap(func(context.Context, *backend.Delivery) error {
			time.Sleep(11 * time.Second)
			return errDeclined
		}))
		c.Lease = 30 * time.Second
		publish(t, q.Queue, message("m"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(30 * time.Second)
		require.Equal(t, began.Add(13*time.Second), extended.all()[0])
		require.Equal(t, began.Add(13*time.Second), q.settled("m")[0].at)
		require.NoError(t, stop())
		require.Len(t, q.extensions("m"), 1, "and no other follows")
	})
}

func TestASettlementWaitsNoLongerForAHeartbeatThanForACallOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events := newFaulty("orders"), &recorder{}
		q.onExtend = func(ctx context.Context, _ []*backend.Delivery, _ extendFunc) error { return hangs(ctx) }
		c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
			time.Sleep(time.Hour + time.Second)
			return nil
		})
		c.Lease, c.Timeout = 3*time.Hour, 2*time.Hour
		publish(t, q.Queue, message("m"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(2 * time.Hour)
		require.NoError(t, stop())
		require.Len(t, events.when(consumer.Succeeded), 1)
		require.Equal(t, time.Hour+consumer.DefaultSettleTimeout, events.when(consumer.Succeeded)[0].Sub(began))
	})
}

func TestHeartbeatsThatFailCancelTheHandlerWhileTheLeaseLasts(t *testing.T) {
	for name, c := range map[string]struct {
		limits func(*backend.Limits)
		extend func(context.Context) error
	}{
		"at once":           {nil, func(context.Context) error { return errors.New("no route to host") }},
		"by hanging":        {nil, hangs},
		"slowly":            {nil, func(context.Context) error { time.Sleep(time.Second); return errors.New("reset by peer") }},
		"by hanging, each":  {func(l *backend.Limits) { l.SettleBatch = 1 }, hangs},
		"in a broken batch": {nil, func(context.Context) error { return fmt.Errorf("%w: no answer", backend.ErrUnknown) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				q.limits = c.limits
				q.onExtend = func(ctx context.Context, _ []*backend.Delivery, _ extendFunc) error { return c.extend(ctx) }
				events := &recorder{}
				var causes list[error]
				var ended list[time.Duration]
				for i := range 10 {
					publish(t, q.Queue, message(fmt.Sprint(i)))
				}
				began := time.Now()
				con := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
					<-ctx.Done()
					causes.add(context.Cause(ctx))
					ended.add(time.Since(began))
					return ctx.Err()
				})
				con.Lease, con.Concurrency, con.Grace = 30*time.Second, 10, -1
				stop := start(t, con)
				time.Sleep(30*time.Second - time.Nanosecond)
				require.Len(t, ended.all(), 10)
				for i, after := range ended.all() {
					require.ErrorIs(t, causes.all()[i], backend.ErrLeaseLost)
					require.Greater(t, after, 20*time.Second, "not before it must be")
					require.Less(t, after, 28*time.Second, "with time to stop")
				}
				require.GreaterOrEqual(t, len(q.extensions("0")), 2, "tried again")
				require.NoError(t, stop())
				require.Equal(t, 10, events.count(consumer.LeaseLost))
				for _, e := range events.of(consumer.LeaseLost) {
					require.ErrorIs(t, e.Err, backend.ErrLeaseLost)
					require.ErrorContains(t, e.Err, "could not be extended in time")
				}
				require.Empty(t, q.settled("0"), "nothing is settled")
			})
		})
	}
}

func TestALeaseCountsFromWhenItWasAskedFor(t *testing.T) {
	late := func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
		ds, err := next(ctx, max)
		for _, d := range ds {
			d.LeasedAt = time.Now().Add(-22 * time.Second) // the answer was under way for so long
		}
		return ds, err
	}
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onReceive = late
		publish(t, q.Queue, message("m"))
		began := time.Now()
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(15 * time.Second)
			return nil
		})
		c.Lease = 30 * time.Second
		stop := start(t, c)
		time.Sleep(20 * time.Second)
		require.Equal(t, []time.Duration{0, 10 * time.Second}, elapsed(began, q.extensions("m")), "at once, and then as ever")
		require.NoError(t, stop())
	})
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onReceive = late
		q.onExtend = func(context.Context, []*backend.Delivery, extendFunc) error { return errors.New("no route to host") }
		publish(t, q.Queue, message("m"))
		began := time.Now()
		var ended list[time.Duration]
		c := consume(q, three, &recorder{}, func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			ended.add(time.Since(began))
			return ctx.Err()
		})
		c.Lease, c.Grace = 30*time.Second, -1
		stop := start(t, c)
		time.Sleep(10 * time.Second)
		require.Len(t, ended.all(), 1)
		require.Positive(t, ended.all()[0], "not before it must be")
		require.Less(t, ended.all()[0], 8*time.Second, "while the lease lasts")
		require.NoError(t, stop())
	})
}

// A delivery may have waited for so long on its way here that its lease is over.
func TestADeliveryThatComesTooLateTakesNoTimeFromTheOthersHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events := newFaulty("orders"), &recorder{}
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			ds, err := next(ctx, max)
			for _, d := range ds {
				if d.ID == "late" {
					d.LeasedAt = time.Now().Add(-time.Hour)
				}
			}
			return ds, err
		}
		q.onExtend = func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error {
			time.Sleep(time.Second)
			if err := ctx.Err(); err != nil {
				return err
			}
			return next(ctx, batch)
		}
		c := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		})
		publish(t, q.Queue, message("m"), message("late"))
		stop := start(t, c)
		time.Sleep(2 * time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("m"))
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("late"), "its lease was extended after all")
	})
}

func TestAHeartbeatThatFailedIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		calls := 0
		q.onExtend = func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error {
			if calls++; calls == 1 {
				return errors.New("reset by peer")
			}
			return next(ctx, batch)
		}
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			time.Sleep(50 * time.Second)
			return ctx.Err()
		})
		c.Lease = 24 * time.Second
		publish(t, q.Queue, message("m"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []time.Duration{8 * time.Second, 10 * time.Second, 18 * time.Second, 26 * time.Second, 34 * time.Second, 42 * time.Second, 50 * time.Second},
			append(elapsed(began, q.extensions("m")), 50*time.Second)[:7])
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("m"))
	})
}

// lostTo makes the heartbeats of one message fail as if another consumer had it.
func lostTo(id string) func(context.Context, []*backend.Delivery, extendFunc) error {
	return func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error {
		errs := make([]error, len(batch))
		for i, d := range batch {
			if d.ID == id {
				errs[i] = fmt.Errorf("message %q: %w", d.ID, backend.ErrLeaseLost)
			} else {
				errs[i] = next(ctx, []*backend.Delivery{d})
			}
		}
		return backend.NewBatchError(errs)
	}
}

func TestALostLeaseCancelsTheHandlerAndSettlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onExtend = lostTo("lost")
		events := &recorder{}
		began := time.Now()
		c := consume(q, three, events, func(ctx context.Context, d *backend.Delivery) error {
			if d.ID == "kept" {
				time.Sleep(40 * time.Second)
				return ctx.Err()
			}
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), backend.ErrLeaseLost)
			return ctx.Err()
		})
		c.Lease = 30 * time.Second
		publish(t, q.Queue, message("lost"), message("kept"))
		stop := start(t, c)
		time.Sleep(25 * time.Second)
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.LeaseLost}, events.kinds("lost"))
		e := events.of(consumer.LeaseLost)[0]
		require.ErrorIs(t, e.Err, backend.ErrLeaseLost)
		require.Equal(t, 10*time.Second, e.Duration)
		require.Equal(t, began.Add(10*time.Second), events.when(consumer.LeaseLost)[0])
		require.Empty(t, e.Reason)
		require.Empty(t, q.settled("lost"))
		require.Len(t, q.extensions("lost"), 1, "no more heartbeats")
		time.Sleep(16 * time.Second)
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("kept"))
		require.NoError(t, stop())
	})
}

// The handler returns while the heartbeat is under way that will tell of the loss.
func TestALossThatTheAwaitedHeartbeatTellsOfSettlesNothing(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			q := newFaulty("orders")
			q.onExtend = func(context.Context, []*backend.Delivery, extendFunc) error {
				time.Sleep(3 * time.Second)
				return fmt.Errorf("gone: %w", backend.ErrLeaseLost)
			}
			events := &recorder{}
			c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
				time.Sleep(11 * time.Second)
				return errDeclined
			})
			c.Lease = 30 * time.Second
			publish(t, q.Queue, message("m"))
			stop := start(t, c)
			time.Sleep(14 * time.Second)
			require.Equal(t, []consumer.Kind{consumer.Received, consumer.LeaseLost}, events.kinds("m"))
			require.Empty(t, q.settled("m"))
			require.NoError(t, stop())
		})
	}
}

func TestASuccessAfterALostLeaseIsLeftToTheBroker(t *testing.T) {
	for name, c := range map[string]struct {
		stillOurs bool
		kind      consumer.Kind
	}{
		"that lost it": {false, consumer.LeaseLost},
		"that kept it": {true, consumer.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				q.onExtend = lostTo("m")
				if !c.stillOurs {
					q.onSettle = func(context.Context, []backend.Settlement, settleFunc) error { return backend.ErrLeaseLost }
				}
				events := &recorder{}
				con := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
					<-ctx.Done()
					return nil
				})
				publish(t, q.Queue, message("m"))
				stop := start(t, con)
				time.Sleep(15 * time.Second)
				require.NoError(t, stop())
				require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"), "once")
				require.Equal(t, []consumer.Kind{consumer.Received, c.kind}, events.kinds("m"))
			})
		})
	}
}

func TestABackendThatKnowsOfTheLossCancelsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events := newScripted(backend.Limits{}), &recorder{}
		began := time.Now()
		var cause error
		stop := start(t, consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}))
		d := &backend.Delivery{Message: message("m")}
		q.deliver(d)
		synctest.Wait()
		d.MarkLost()
		synctest.Wait()
		require.Zero(t, time.Since(began), "without a heartbeat")
		require.ErrorIs(t, cause, backend.ErrLeaseLost)
		require.ErrorContains(t, cause, "the connection that held it is gone")
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.LeaseLost}, events.kinds("m"))
		require.NoError(t, stop())
		require.Empty(t, q.order())
	})
}

func TestALossBeforeItsTurnKeepsTheHandlerFromStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, seen, events := newScripted(backend.Limits{}), &journal{}, &recorder{}
		var breaker counting
		c := consume(q, three, events, seen.wrap(func(context.Context, *backend.Delivery) error {
			time.Sleep(10 * time.Second)
			return nil
		}))
		c.Concurrency, c.Prefetch, c.Breaker = 1, 2, &breaker
		stop := start(t, c)
		waits := &backend.Delivery{Message: message("waits")}
		q.deliver(&backend.Delivery{Message: message("runs")})
		q.deliver(waits)
		q.deliver(&backend.Delivery{Message: message("next")})
		synctest.Wait()
		waits.MarkLost()
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []string{"runs", "next"}, seen.ids())
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.LeaseLost}, events.kinds("waits"))
		require.Equal(t, []string{"runs ack", "next ack"}, q.order())
		require.Equal(t, breaker.permits, breaker.successes+breaker.failures, "its permit is given back")
	})
}

func TestStopExtendingIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, d *backend.Delivery) error {
			time.Sleep(15 * time.Second)
			d.StopExtending()
			time.Sleep(14 * time.Second)
			return ctx.Err()
		})
		c.Lease = 30 * time.Second
		publish(t, q.Queue, message("m"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []time.Duration{10 * time.Second}, elapsed(began, q.extensions("m")))
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("m"))
	})
}

func TestAHandlerWithoutHeartbeatsIsNotCancelledForWantOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events := newScripted(backend.Limits{LeaseExpires: true}), &recorder{}
		c := consume(q, three, events, func(ctx context.Context, d *backend.Delivery) error {
			d.StopExtending()
			time.Sleep(5 * time.Minute)
			return ctx.Err()
		})
		c.Lease = 30 * time.Second
		stop := start(t, c)
		q.deliver(&backend.Delivery{Message: message("m")})
		time.Sleep(6 * time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("m"))
		require.Zero(t, q.extends)
	})
}

func TestWhereLeasesLastNoHeartbeatIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.LeaseExpires = false }
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(25 * time.Second)
			return nil
		})
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Empty(t, q.extensions("m"))
	})
}

func TestHeartbeatsGoOnDuringTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		c := consume(q, three, &recorder{}, func(ctx context.Context, _ *backend.Delivery) error {
			time.Sleep(65 * time.Second)
			return ctx.Err()
		})
		c.Lease, c.Grace = 30*time.Second, 2*time.Minute
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Len(t, q.extensions("m"), 6)
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
		require.Zero(t, stats(t, q.Queue))
	})
}

func TestALostLeaseIsNotExtendedWhileTheHandlerIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.lease = time.Hour
		q.onExtend = lostTo("m")
		events := &recorder{}
		c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
			time.Sleep(45 * time.Second)
			return errDeclined
		})
		c.Lease = 30 * time.Second
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Len(t, q.extensions("m"), 1)
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.LeaseLost}, events.kinds("m"))
	})
}
