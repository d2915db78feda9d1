package consumer_test

import (
	"context"
	"errors"
	"fmt"
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

// byID handles what the test says, message by message, and acks the rest.
func byID(errs map[string]error) handle {
	return func(_ context.Context, d *backend.Delivery) error { return errs[d.ID] }
}

var oneIsPermanent = map[string]error{"dead": policy.Permanent(errDeclined)}

// deathsHang lets what dead-letters hang, and the rest through.
func deathsHang(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
	for _, s := range batch {
		if s.Outcome == backend.DeadLetter {
			return hangs(ctx)
		}
	}
	return next(ctx, batch)
}

func TestAMessageWaitsForADeadLetterQueueThatRefuses(t *testing.T) {
	for name, refusal := range map[string]error{
		"full":    errors.New("the queue is full"),
		"missing": backend.ErrQueueNotFound,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				seen, events := &journal{}, &recorder{}
				stop := start(t, consume(q, three, events, seen.wrap(byID(oneIsPermanent))))
				synctest.Wait()
				q.DeadLetters().Refuse(refusal)
				publish(t, q.Queue, message("dead"))
				time.Sleep(time.Second)
				require.Equal(t, 1, events.count(consumer.Parked))
				require.Equal(t, int64(1), stats(t, q.Queue).Waiting, "it is still in its queue")
				publish(t, q.Queue, message("a"), message("b"))
				synctest.Wait()
				require.Equal(t, 2, events.count(consumer.Succeeded), "others flow")
				time.Sleep(time.Hour)

				parked := events.of(consumer.Parked)
				require.Greater(t, len(parked), 8)
				require.Less(t, len(parked), 40, "with backoff")
				for i, e := range parked {
					require.ErrorIs(t, e.Err, refusal)
					require.Equal(t, policy.ReasonPermanent, e.Reason)
					require.Positive(t, e.Applied)
					require.Equal(t, e.Delay, e.Applied)
					require.LessOrEqual(t, e.Delay, 5*time.Minute)
					if i > 7 {
						require.GreaterOrEqual(t, e.Delay, 150*time.Second, "spread over the upper half")
					}
				}
				require.Zero(t, events.count(consumer.DeadLettered))
				require.Zero(t, events.count(consumer.Retried), "it has no second life")
				for _, s := range q.settled("dead") {
					require.Equal(t, s.outcome == backend.Retry, s.await)
				}

				q.DeadLetters().Refuse(nil)
				time.Sleep(5 * time.Minute)
				require.NoError(t, stop())
				require.ElementsMatch(t, []string{"dead", "a", "b"}, seen.ids(), "it is not handled again")
				require.Equal(t, 1, events.count(consumer.DeadLettered))
				e := events.of(consumer.DeadLettered)[0]
				require.Equal(t, policy.ReasonPermanent, e.Reason)
				require.EqualError(t, e.Err, "declined")
				f := deadLetter(t, q.Queue)
				require.Equal(t, "permanent", f.Reason)
				require.Equal(t, "declined", f.Error)
				require.Equal(t, 1, f.Attempts)
				require.Equal(t, "three", f.Policy)
				require.Zero(t, f.Lapses)
			})
		})
	}
}

func TestADeadLetterIsTriedAFewTimesBeforeItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		calls := 0
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			if calls++; calls <= 2 {
				return errNetwork
			}
			return next(ctx, batch)
		}
		events := &recorder{}
		stop := start(t, consume(q, three, events, byID(oneIsPermanent)))
		publish(t, q.Queue, message("dead"))
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.SettleFailed, consumer.SettleFailed, consumer.DeadLettered}, events.kinds("dead"))
		require.Len(t, deadLetters(t, q.Queue), 1)
	})
}

func TestParkingOutlivesTheConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		handler := seen.wrap(func(context.Context, *backend.Delivery) error { return errDeclined })
		stop := start(t, consume(q.Open(), three, events, handler))
		synctest.Wait()
		q.DeadLetters().Refuse(errors.New("the queue is full"))
		publish(t, q, message("m"))
		time.Sleep(3 * time.Minute)
		require.NoError(t, stop())
		require.Positive(t, events.count(consumer.Parked))

		after := &recorder{}
		changed := three
		changed.Name, changed.MaxAttempts = "changed", 99
		stop = start(t, consume(q.Open(), changed, after, seen.wrap(succeed)))
		time.Sleep(10 * time.Minute)
		require.Positive(t, after.count(consumer.Parked))
		q.DeadLetters().Refuse(nil)
		time.Sleep(10 * time.Minute)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 3, "not even a policy with more attempts runs it again")
		f := deadLetter(t, q)
		require.Equal(t, "exhausted", f.Reason)
		require.Equal(t, "declined", f.Error)
		require.Equal(t, 3, f.Attempts)
		require.Equal(t, "three", f.Policy)

		first, second := events.of(consumer.Parked), after.of(consumer.Parked)
		require.Greater(t, second[len(second)-1].Delay, first[0].Delay, "the backoff goes on where it was")
	})
}

func TestADeadLetterQueueThatHangsDelaysNoAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onSettle = deathsHang
		events := &recorder{}
		c := consume(q, three, events, byID(oneIsPermanent))
		c.Lease, c.Concurrency = 30*time.Second, 3
		stop := start(t, c)
		publish(t, q.Queue, message("dead"))
		synctest.Wait()
		for i := range 100 {
			id := fmt.Sprint(i)
			published := time.Now()
			publish(t, q.Queue, message(id))
			synctest.Wait()
			require.Equal(t, published, q.settled(id)[0].at)
			require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds(id))
			time.Sleep(200 * time.Millisecond)
		}
		require.NoError(t, stop())
	})
}

func TestADeadLetterQueueThatHangsParksTheMessageWhileItsLeaseLasts(t *testing.T) {
	for name, c := range map[string]struct {
		limits        func(*backend.Limits)
		settleTimeout time.Duration
		within        time.Duration
	}{
		"in one batch":           {nil, 0, 29 * time.Second},
		"one by one":             {func(l *backend.Limits) { l.SettleBatch = 1 }, 0, 29 * time.Second},
		"with a patient timeout": {nil, time.Hour, 29 * time.Second},
		"where leases last":      {func(l *backend.Limits) { l.LeaseExpires = false }, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				q.limits = c.limits
				var mended atomic.Bool
				q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
					if mended.Load() {
						return next(ctx, batch)
					}
					return deathsHang(ctx, batch, next)
				}
				seen, events := &journal{}, &recorder{}
				con := consume(q, three, events, seen.wrap(func(context.Context, *backend.Delivery) error { return policy.Permanent(errDeclined) }))
				con.Lease, con.Concurrency, con.SettleTimeout = 30*time.Second, 10, c.settleTimeout
				for i := range 10 {
					publish(t, q.Queue, message(fmt.Sprint(i)))
				}
				stop := start(t, con)
				time.Sleep(c.within)
				for i := range 10 {
					kinds := events.kinds(fmt.Sprint(i))
					require.Contains(t, kinds, consumer.Parked)
				}
				time.Sleep(20 * time.Minute)
				mended.Store(true)
				time.Sleep(10 * time.Minute)
				require.NoError(t, stop())
				require.Len(t, seen.all(), 10, "none is handled again")
				require.Zero(t, events.count(consumer.LeaseLost))
				dead := deadLetters(t, q.Queue)
				require.Len(t, dead, 10)
				for _, d := range dead {
					require.Equal(t, "permanent", d.Failure.Reason)
					require.Zero(t, d.Failure.Lapses)
				}
			})
		})
	}
}

func TestParkingThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		fails := 2
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			if batch[0].Outcome == backend.DeadLetter {
				return errNetwork
			}
			if fails--; fails >= 0 {
				return errNetwork
			}
			return next(ctx, batch)
		}
		events := &recorder{}
		stop := start(t, consume(q, three, events, byID(oneIsPermanent)))
		publish(t, q.Queue, message("dead"))
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, 1, events.count(consumer.Parked))
		require.Zero(t, stats(t, q.Queue).Leased)
		require.Equal(t, int64(1), stats(t, q.Queue).Waiting)
	})
}

func TestAQueueWithoutADeadLetterQueueKeepsItsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{NoDeadLetter: true})
		seen, events := &journal{}, &recorder{}
		stop := start(t, consume(q, three, events, seen.wrap(byID(oneIsPermanent))))
		publish(t, q, message("dead"), message("other"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.ElementsMatch(t, []string{"dead", "other"}, seen.ids())
		require.Positive(t, events.count(consumer.Parked))
		require.Equal(t, int64(1), stats(t, q).Waiting)
	})
}

func TestADrainParksWhatCannotBeDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onSettle = deathsHang
		seen, events := &journal{}, &recorder{}
		c := consume(q, three, events, seen.wrap(byID(oneIsPermanent)))
		c.Lease = 30 * time.Second
		publish(t, q.Queue, message("dead"))
		stop := start(t, c)
		synctest.Wait()
		began := time.Now()
		require.NoError(t, stop())
		require.LessOrEqual(t, time.Since(began), 20*time.Second)
		require.Equal(t, 1, events.count(consumer.Parked))
		require.Equal(t, int64(1), stats(t, q.Queue).Waiting)
	})
}

// Where the handler let the lease run out because it holds the message otherwise, there is no lease to save, and the
// message must park all the same.
func TestADeadLetterWithoutHeartbeatsParksToo(t *testing.T) {
	for name, fault := range map[string]func(context.Context) error{"refused": func(context.Context) error { return errNetwork }, "hanging": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				q.lease = time.Hour
				q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
					if batch[0].Outcome == backend.DeadLetter {
						return fault(ctx)
					}
					return next(ctx, batch)
				}
				events := &recorder{}
				c := consume(q, three, events, func(_ context.Context, d *backend.Delivery) error {
					d.StopExtending()
					time.Sleep(5 * time.Minute)
					return policy.Permanent(errDeclined)
				})
				c.Lease = 30 * time.Second
				publish(t, q.Queue, message("m"))
				stop := start(t, c)
				time.Sleep(5*time.Minute + 20*time.Second)
				require.NoError(t, stop())
				require.Positive(t, events.count(consumer.Parked))
				require.Equal(t, backend.DeadLetter, q.outcomes("m")[0], "it is tried first")
				for _, e := range events.of(consumer.SettleFailed) {
					require.False(t, e.GaveUp)
				}
			})
		})
	}
}
