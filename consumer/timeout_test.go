package consumer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func TestAHandlerPastItsTimeIsCancelledAndHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		c := consume(q, three, events, seen.wrap(func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		c.Timeout = 10 * time.Second
		stop := start(t, c)
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())

		require.Equal(t, []time.Duration{70 * time.Second, 70 * time.Second}, seen.gaps())
		require.Equal(t, []backend.Outcome{backend.Retry, backend.Retry, backend.DeadLetter}, q.outcomes("m"))
		for _, e := range events.of(consumer.Retried) {
			require.Equal(t, policy.ReasonTimeout, e.Reason)
			require.Equal(t, 10*time.Second, e.Duration)
			require.ErrorIs(t, e.Err, context.DeadlineExceeded)
			var timeout *consumer.TimeoutError
			require.ErrorAs(t, e.Err, &timeout)
			require.Equal(t, 10*time.Second, timeout.Timeout)
			require.ErrorIs(t, timeout.Err, context.DeadlineExceeded, "what the handler returned")
		}
		require.Equal(t, policy.ReasonExhausted, events.of(consumer.DeadLettered)[0].Reason)
		f := deadLetter(t, q.Queue)
		require.Equal(t, "exhausted", f.Reason)
		require.Contains(t, f.Error, "longer than its timeout of 10s")
		require.Equal(t, "*consumer.TimeoutError", f.ErrorType)
	})
}

func TestTheContextTellsOfTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		var deadline time.Time
		var cause, err error
		began := time.Now()
		c := consume(q, three, &recorder{}, func(ctx context.Context, _ *backend.Delivery) error {
			deadline, _ = ctx.Deadline()
			<-ctx.Done()
			cause, err = context.Cause(ctx), ctx.Err()
			return nil
		})
		c.Timeout = 10 * time.Second
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, began.Add(10*time.Second), deadline)
		require.Equal(t, context.DeadlineExceeded, err)
		var timeout *consumer.TimeoutError
		require.ErrorAs(t, cause, &timeout)
		require.NoError(t, timeout.Err)
		require.EqualError(t, timeout, "consumer: handler ran longer than its timeout of 10s")
	})
}

func TestASuccessPastTheTimeIsASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, _ *backend.Delivery) error {
			<-ctx.Done()
			return nil
		})
		c.Timeout = 10 * time.Second
		stop := start(t, c)
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("m"))
	})
}

func TestAMarkWinsOverTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		events := &recorder{}
		c := consume(q, three, events, func(ctx context.Context, d *backend.Delivery) error {
			<-ctx.Done()
			switch d.ID {
			case "permanent":
				return policy.Permanent(errDeclined)
			case "discard":
				return policy.Discard(errDeclined)
			case "snooze":
				return policy.Snooze(time.Hour)
			}
			panic("late")
		})
		c.Timeout = 10 * time.Second
		stop := start(t, c)
		publish(t, q.Queue, message("permanent"), message("discard"), message("snooze"), message("panic"))
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.DeadLettered}, events.kinds("permanent"))
		require.Equal(t, "permanent", deadLetter(t, q.Queue).Reason)
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Discarded}, events.kinds("discard"))
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Snoozed}, events.kinds("snooze"))
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Retried}, events.kinds("panic"))
		require.Equal(t, policy.ReasonPanic, events.of(consumer.Retried)[0].Reason)
	})
}

// The outcome is decided by when the handler returned, not by when the heartbeat that was under way then had ended.
func TestAFailureBeforeTheTimeIsNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onExtend = func(ctx context.Context, _ []*backend.Delivery, _ extendFunc) error { return hangs(ctx) }
		events := &recorder{}
		c := consume(q, three, events, func(context.Context, *backend.Delivery) error {
			time.Sleep(11 * time.Second)
			return errDeclined
		})
		c.Lease, c.Timeout = 30*time.Second, 12*time.Second
		stop := start(t, c)
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		e := events.of(consumer.Retried)[0]
		require.Equal(t, policy.ReasonError, e.Reason)
		require.Equal(t, 11*time.Second, e.Duration)
	})
}

func TestAHandlerThatIgnoresItsTimeoutIsLeftToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		var running, most int
		c := consume(q, three, events, seen.wrap(func(context.Context, *backend.Delivery) error {
			running++
			most = max(most, running)
			defer func() { running-- }()
			if len(seen.all()) == 1 {
				time.Sleep(10 * time.Minute)
			}
			return nil
		}))
		c.Concurrency, c.Lease, c.Timeout = 1, 30*time.Second, 10*time.Second
		began := time.Now()
		stop := start(t, c)
		publish(t, q.Queue, message("m"), message("other"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())

		require.Equal(t, []backend.Outcome{backend.Retry, backend.Ack}, q.outcomes("m"), "the late return settles nothing")
		retried := events.of(consumer.Retried)[0]
		require.Equal(t, policy.ReasonTimeout, retried.Reason)
		require.LessOrEqual(t, events.when(consumer.Retried)[0].Sub(began), 40*time.Second, "soon after the timeout")
		var timeout *consumer.TimeoutError
		require.ErrorAs(t, retried.Err, &timeout)
		require.NoError(t, timeout.Err, "it returned nothing")
		require.Equal(t, 1, most)
		require.Equal(t, began.Add(10*time.Minute), seen.of("other")[0].at, "it keeps its place while it runs")
		require.Equal(t, 2, seen.of("m")[1].attempt)
		require.Equal(t, 2, events.count(consumer.Succeeded))
	})
}

func TestTheDefaultTimeoutStaysBelowTheBrokersOwn(t *testing.T) {
	for name, c := range map[string]struct{ hold, timeout, want time.Duration }{
		"no limit":        {0, 0, consumer.DefaultTimeout},
		"a tight limit":   {10 * time.Minute, 0, 9 * time.Minute},
		"a wide limit":    {12 * time.Hour, 0, consumer.DefaultTimeout},
		"set by the user": {10 * time.Minute, time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFaulty("orders")
				q.limits = func(l *backend.Limits) { l.MaxHold = c.hold }
				var left time.Duration
				con := consume(q, three, &recorder{}, func(ctx context.Context, _ *backend.Delivery) error {
					deadline, ok := ctx.Deadline()
					if !ok {
						return errors.New("no deadline")
					}
					left = time.Until(deadline)
					return nil
				})
				con.Timeout = c.timeout
				publish(t, q.Queue, message("m"))
				stop := start(t, con)
				synctest.Wait()
				require.NoError(t, stop())
				require.Equal(t, c.want, left)
			})
		})
	}
}
