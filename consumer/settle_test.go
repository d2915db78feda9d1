package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

var errNetwork = errors.New("no route to host")

func TestASettlementThatFailsIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		fault   func(context.Context) error
		handler handle
		outcome backend.Outcome
		kind    consumer.Kind
	}{
		"an ack":                    {func(context.Context) error { return errNetwork }, succeed, backend.Ack, consumer.Succeeded},
		"an ack of unknown outcome": {func(context.Context) error { return backend.ErrUnknown }, succeed, backend.Ack, consumer.Succeeded},
		"an ack that hangs":         {hangs, succeed, backend.Ack, consumer.Succeeded},
		"a retry":                   {func(context.Context) error { return errNetwork }, fail, backend.Retry, consumer.Retried},
		"a discard": {
			func(context.Context) error { return errNetwork },
			func(context.Context, *backend.Delivery) error { return policy.Discard(errDeclined) }, backend.Discard, consumer.Discarded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				calls := 0
				q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
					if calls++; calls <= 2 {
						return c.fault(ctx)
					}
					return next(ctx, batch)
				}
				events := &recorder{}
				con := consume(q, three, events, c.handler)
				con.SettleTimeout = 2 * time.Second
				publish(t, q.Queue, message("m"))
				stop := start(t, con)
				time.Sleep(20 * time.Second)
				require.NoError(t, stop())
				require.Equal(t, []backend.Outcome{c.outcome, c.outcome, c.outcome}, q.outcomes("m"))
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.SettleFailed, consumer.SettleFailed, c.kind}, events.kinds("m"))
				for _, e := range events.of(consumer.SettleFailed) {
					require.False(t, e.GaveUp)
					require.Error(t, e.Err)
				}
				tries := q.settled("m")
				require.Greater(t, tries[2].at.Sub(tries[1].at), tries[1].at.Sub(tries[0].at), "with backoff")
			})
		})
	}
}

func TestASettlementThatNeverGetsThroughIsLeftToTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		broken := true
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			if broken {
				return errNetwork
			}
			return next(ctx, batch)
		}
		seen, events, logged := &journal{}, &recorder{}, &logs{}
		c := consume(q, three, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			if d.Lapses > 0 {
				broken = false
			}
			return nil
		}))
		c.Lease, c.Logger = 30*time.Second, logged.logger()
		publish(t, q.Queue, message("m"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(29 * time.Second)
		require.Empty(t, q.extensions("m"), "a heartbeat would spoil a settlement that took effect unheard")
		time.Sleep(31 * time.Second)
		require.NoError(t, stop())

		failed := events.of(consumer.SettleFailed)
		require.Greater(t, len(failed), 5)
		require.Less(t, len(failed), 20, "not a tight loop")
		for i, e := range failed {
			require.Equal(t, i == len(failed)-1, e.GaveUp)
			require.ErrorIs(t, e.Err, errNetwork)
		}
		given := slices.DeleteFunc(logged.at(slog.LevelWarn), func(line string) bool { return !strings.Contains(line, "gave_up=true") })
		require.Len(t, given, 1)
		require.Contains(t, given[0], "message_id=m")
		gaveUp := events.when(consumer.SettleFailed)[len(failed)-1].Sub(began)
		require.LessOrEqual(t, gaveUp, 30*time.Second)
		require.Greater(t, gaveUp, 20*time.Second, "not while there is time for another try")

		calls := seen.all()
		require.Len(t, calls, 2)
		require.Equal(t, call{"m", 1, 1, began.Add(30 * time.Second)}, calls[1], "a lapse, not a failure")
		require.Equal(t, 1, events.count(consumer.Succeeded))
	})
}

func TestABadItemOfABatchLeavesTheOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		bad := 2
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			errs := make([]error, len(batch))
			for i, s := range batch {
				if s.Delivery.ID == "3" && bad > 0 {
					bad--
					errs[i] = fmt.Errorf("item 3: %w", errNetwork)
					continue
				}
				errs[i] = next(ctx, []backend.Settlement{s})
			}
			return backend.NewBatchError(errs)
		}
		events := &recorder{}
		c := consume(q, three, events, succeed)
		for i := range 10 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(time.Second)
		require.NoError(t, stop())
		for i := range 10 {
			id := fmt.Sprint(i)
			if id == "3" {
				require.Len(t, q.outcomes(id), 3)
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.SettleFailed, consumer.SettleFailed, consumer.Succeeded}, events.kinds(id))
			} else {
				require.Len(t, q.outcomes(id), 1)
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds(id))
			}
		}
		require.ErrorContains(t, events.of(consumer.SettleFailed)[0].Err, "item 3", "its own error")
		require.Zero(t, stats(t, q.Queue))
	})
}

func TestASettlementThatCannotSucceedIsNotRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		kind consumer.Kind
	}{
		"settled before": {fmt.Errorf("message: %w", backend.ErrSettled), consumer.SettleFailed},
		"closed":         {fmt.Errorf("orders: %w", backend.ErrClosed), consumer.SettleFailed},
		"lease lost":     {fmt.Errorf("message: %w", backend.ErrLeaseLost), consumer.LeaseLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				q.onSettle = func(context.Context, []backend.Settlement, settleFunc) error { return c.err }
				events := &recorder{}
				con := consume(q, three, events, func(context.Context, *backend.Delivery) error {
					time.Sleep(2 * time.Second)
					return nil
				})
				publish(t, q.Queue, message("m"))
				stop := start(t, con)
				time.Sleep(20 * time.Second)
				require.NoError(t, stop(), "nothing is held for it")
				require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
				require.Equal(t, []consumer.Kind{consumer.Received, c.kind}, events.kinds("m"))
				e := events.of(c.kind)[0]
				require.ErrorIs(t, e.Err, c.err)
				require.Equal(t, 2*time.Second, e.Duration)
				require.Equal(t, c.kind == consumer.SettleFailed, e.GaveUp)
			})
		})
	}
}

func TestWhatTheHandlerSettledIsLeftAlone(t *testing.T) {
	for name, returns := range map[string]error{"with success": nil, "with an error": errDeclined} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				events := &recorder{}
				stop := start(t, consume(q, three, events, func(_ context.Context, d *backend.Delivery) error {
					if d.ID == "marked" {
						d.MarkSettled()
						return returns
					}
					return nil
				}))
				publish(t, q.Queue, message("marked"), message("other"))
				time.Sleep(20 * time.Second)
				require.NoError(t, stop())
				require.Empty(t, q.settled("marked"))
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("marked"))
				require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("other"))
			})
		})
	}
}

func TestSettlementsGoOutTogether(t *testing.T) {
	for _, parallel := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d calls at most", parallel), func(t *testing.T) { settlementsGoOutTogether(t, parallel) })
	}
}

func settlementsGoOutTogether(t *testing.T, parallel int) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.Parallel = parallel }
		var batches list[int]
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			batches.add(len(batch))
			time.Sleep(time.Second)
			return next(ctx, batch)
		}
		c := consume(q, three, &recorder{}, func(_ context.Context, d *backend.Delivery) error {
			if d.ID != "0" {
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		})
		c.Concurrency = 50
		for i := range 50 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		began := time.Now()
		stop := start(t, c)
		time.Sleep(10 * time.Second)
		require.NoError(t, stop())
		require.Equal(t, []int{1, 49}, batches.all(), "what gathered while the last batch was under way goes next, at once")
		require.Equal(t, began, q.settled("0")[0].at)
		require.Equal(t, began.Add(time.Second), q.settled("1")[0].at)
	})
}

func TestABatchIsNoLargerThanTheBrokerTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.SettleBatch = 10 }
		var settles, extends, receives list[int]
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			settles.add(len(batch))
			return next(ctx, batch)
		}
		q.onExtend = func(ctx context.Context, batch []*backend.Delivery, next extendFunc) error {
			extends.add(len(batch))
			return next(ctx, batch)
		}
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			receives.add(max)
			return next(ctx, max)
		}
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(15 * time.Second)
			return nil
		})
		c.Concurrency = 25
		for i := range 25 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(16 * time.Second)
		require.NoError(t, stop())
		for _, sizes := range [][]int{settles.all(), extends.all(), receives.all()} {
			total := 0
			for _, n := range sizes {
				require.LessOrEqual(t, n, 10)
				total += n
			}
			require.GreaterOrEqual(t, total, 25)
		}
		require.Len(t, extends.all(), 3)
		require.Zero(t, stats(t, q.Queue))
	})
}

func TestWhereCallsCostMoneyABatchIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.SettleLinger, l.SettleBatch = 100*time.Millisecond, 10 }
		var batches list[int]
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			batches.add(len(batch))
			return next(ctx, batch)
		}
		c := consume(q, three, &recorder{}, func(_ context.Context, d *backend.Delivery) error {
			if d.ID > "5" {
				time.Sleep(50 * time.Millisecond)
			}
			return nil
		})
		ids := []string{"0", "1", "2", "3", "4", "5", "6", "7"}
		for _, id := range ids {
			publish(t, q.Queue, message(id))
		}
		began := time.Now()
		stop := start(t, c)
		time.Sleep(time.Second)
		require.Equal(t, []int{8}, batches.all())
		require.Equal(t, began.Add(100*time.Millisecond), q.settled("0")[0].at)

		// A full batch does not wait.
		ids = append(ids, "8", "9")
		began = time.Now()
		for i := range ids {
			publish(t, q.Queue, message(fmt.Sprint("1", i)))
		}
		time.Sleep(time.Second)
		require.Equal(t, []int{8, 10}, batches.all())
		require.Equal(t, began, q.settled("10")[0].at)

		// And leaves nothing behind that hurries the next.
		began = time.Now()
		publish(t, q.Queue, message("20"))
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, []int{8, 10, 1}, batches.all())
		require.Equal(t, began.Add(100*time.Millisecond), q.settled("20")[0].at)
	})
}
