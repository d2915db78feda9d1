package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func TestFailuresAreRetriedAfterThePolicysDelaysAndThenDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policy.Policy{Name: "five", MaxAttempts: 5, Backoff: policy.Exponential{Base: 5 * time.Second, Max: 300 * time.Second}}
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		var last []bool
		stop := start(t, consume(q, p, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			last = append(last, d.Last)
			return errDeclined
		})))
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())

		for i, c := range seen.all() {
			require.Equal(t, i+1, c.attempt)
		}
		require.Equal(t, []bool{false, false, false, false, true}, last)
		delays := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}
		require.Equal(t, delays, seen.gaps())

		require.Equal(t, []consumer.Kind{
			consumer.Received, consumer.Retried, consumer.Received, consumer.Retried, consumer.Received, consumer.Retried,
			consumer.Received, consumer.Retried, consumer.Received, consumer.DeadLettered,
		}, events.kinds("m"))
		for i, e := range events.of(consumer.Retried) {
			require.Equal(t, "orders", e.Queue)
			require.Equal(t, policy.ReasonError, e.Reason)
			require.Equal(t, policy.ActionRetry, e.Decision.Action)
			require.Equal(t, delays[i], e.Delay)
			require.Equal(t, delays[i], e.Applied)
			require.ErrorIs(t, e.Err, errDeclined)
		}
		require.Equal(t, policy.ReasonExhausted, events.of(consumer.DeadLettered)[0].Reason)
		require.Equal(t, policy.ActionDeadLetter, events.of(consumer.DeadLettered)[0].Decision.Action)
		require.Equal(t, []backend.Outcome{backend.Retry, backend.Retry, backend.Retry, backend.Retry, backend.DeadLetter}, q.outcomes("m"))

		f := deadLetter(t, q.Queue)
		require.Equal(t, "exhausted", f.Reason)
		require.Equal(t, "declined", f.Error)
		require.Equal(t, "*errors.errorString", f.ErrorType)
		require.Empty(t, f.Stack)
		require.Equal(t, 5, f.Attempts)
		require.Equal(t, "orders", f.Origin)
		require.Equal(t, "m", f.MessageID)
		require.Equal(t, "five", f.Policy)
		require.Equal(t, "here", f.Consumer)
	})
}

func TestSuccessEndsTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		stop := start(t, consume(q, three, events, seen.wrap(func(context.Context, *backend.Delivery) error {
			time.Sleep(3 * time.Second)
			return nil
		})))
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 1)
		require.Equal(t, []backend.Outcome{backend.Ack}, q.outcomes("m"))
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("m"))
		e := events.of(consumer.Succeeded)[0]
		require.Equal(t, 3*time.Second, e.Duration)
		require.Empty(t, e.Reason)
		require.Zero(t, stats(t, q.Queue))
	})
}

func TestOneAttemptMeansNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		p := three
		p.MaxAttempts = 1
		stop := start(t, consume(q, p, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			if !d.Last {
				return errors.New("Last is not set")
			}
			return errDeclined
		})))
		publish(t, q, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 1)
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.DeadLettered}, events.kinds("m"))
		f := deadLetter(t, q)
		require.Equal(t, "exhausted", f.Reason)
		require.Equal(t, "declined", f.Error)
		require.Equal(t, 1, f.Attempts)
	})
}

func TestAnAgeAloneBoundsTheRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		p := policy.Policy{MaxAge: time.Hour, Backoff: policy.Fixed(10 * time.Minute)}
		stop := start(t, consume(q, p, events, seen.wrap(fail)))
		publish(t, q, message("m"))
		time.Sleep(24 * time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 7, "at 0, 10, ... 60 minutes")
		require.Equal(t, "expired", deadLetter(t, q).Reason)
	})
}

func TestARetryPastTheAgeIsDeadLetteredNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		seen, events := &journal{}, &recorder{}
		p := policy.Policy{MaxAttempts: 10, MaxAge: time.Hour, Backoff: policy.Steps{59 * time.Minute, 10 * time.Minute}}
		began := time.Now()
		stop := start(t, consume(q, p, events, seen.wrap(fail)))
		publish(t, q.Queue, message("m"))
		time.Sleep(24 * time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 2)
		require.Equal(t, []backend.Outcome{backend.Retry, backend.DeadLetter}, q.outcomes("m"))
		require.Equal(t, 59*time.Minute, events.when(consumer.DeadLettered)[0].Sub(began))
		require.Equal(t, "expired", deadLetter(t, q.Queue).Reason)
		require.Equal(t, policy.ReasonExpired, events.of(consumer.DeadLettered)[0].Reason)
	})
}

func TestTheAgeIncludesTheTimeInTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		p := policy.Policy{MaxAge: 10 * time.Minute, Backoff: policy.Fixed(5 * time.Minute)}
		stop := start(t, consume(q, p, events, seen.wrap(func(context.Context, *backend.Delivery) error {
			time.Sleep(6 * time.Minute)
			return errDeclined
		})))
		publish(t, q, message("m"))
		time.Sleep(24 * time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 1)
		require.Equal(t, "expired", deadLetter(t, q).Reason)
	})
}

func TestMarkedErrorsDecide(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		kind   consumer.Kind
		reason policy.Reason
		dead   int
	}{
		"permanent": {fmt.Errorf("order 7: %w", policy.Permanent(errDeclined)), consumer.DeadLettered, policy.ReasonPermanent, 1},
		"discard":   {fmt.Errorf("order 7: %w", policy.Discard(errDeclined)), consumer.Discarded, policy.ReasonDiscarded, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				seen, events := &journal{}, &recorder{}
				stop := start(t, consume(q, three, events, seen.wrap(func(context.Context, *backend.Delivery) error { return c.err })))
				publish(t, q, message("m"))
				time.Sleep(time.Hour)
				require.NoError(t, stop())
				require.Len(t, seen.all(), 1)
				require.Equal(t, []consumer.Kind{consumer.Received, c.kind}, events.kinds("m"))
				require.Equal(t, c.reason, events.of(c.kind)[0].Reason)
				require.ErrorIs(t, events.of(c.kind)[0].Err, errDeclined)
				dead := deadLetters(t, q)
				require.Len(t, dead, c.dead)
				require.Zero(t, stats(t, q).Ready+stats(t, q).Waiting+stats(t, q).Leased)
				for _, d := range dead {
					require.Equal(t, string(c.reason), d.Failure.Reason)
					require.Equal(t, "order 7: declined", d.Failure.Error)
					require.Equal(t, "*errors.errorString", d.Failure.ErrorType, "the cause below the marks")
				}
			})
		})
	}
}

func TestSnoozesWaitWithoutACharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const snoozes = 1200
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		p := policy.Policy{MaxAttempts: 3, Backoff: policy.Exponential{Base: 7 * time.Second, Max: time.Hour}}
		stop := start(t, consume(q, p, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			switch {
			case d.Snoozes < snoozes:
				return policy.Snooze(time.Second)
			case d.Attempt == 1:
				return errDeclined
			}
			return nil
		})))
		publish(t, q, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())

		calls, gaps := seen.all(), seen.gaps()
		require.Len(t, calls, snoozes+2)
		for i := range snoozes {
			require.Equal(t, 1, calls[i].attempt)
			require.Equal(t, time.Second, gaps[i])
		}
		require.Equal(t, 1, calls[snoozes].attempt)
		require.Equal(t, 7*time.Second, gaps[snoozes], "the first delay of the curve")
		require.Equal(t, 2, calls[snoozes+1].attempt)
		require.Equal(t, snoozes, events.count(consumer.Snoozed))
		require.Equal(t, 1, events.count(consumer.Retried))
		require.Equal(t, time.Second, events.of(consumer.Snoozed)[0].Applied)
	})
}

func TestTooManySnoozesDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		p := three
		p.MaxSnoozes = 4
		stop := start(t, consume(q, p, events, seen.wrap(func(context.Context, *backend.Delivery) error { return policy.Snooze(time.Second) })))
		publish(t, q, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 5)
		require.Equal(t, "snooze_limit", deadLetter(t, q).Reason)
	})
}

func TestAServersRetryAfterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		asked := []time.Duration{90 * time.Second, time.Second}
		stop := start(t, consume(q, three, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			if d.Attempt == 3 {
				return nil
			}
			return policy.RetryAfter(asked[d.Attempt-1], errDeclined)
		})))
		publish(t, q, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, []time.Duration{90 * time.Second, time.Minute}, seen.gaps(), "the longer of the hint and the policy's delay")
		for _, e := range events.of(consumer.Retried) {
			require.Equal(t, policy.ReasonRetryAfter, e.Reason)
		}
	})
}

func TestFailuresAreCountedAcrossConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		publish(t, q, message("m"))
		for range 3 {
			stop := start(t, consume(q.Open(), three, events, seen.wrap(fail)))
			time.Sleep(45 * time.Second)
			require.NoError(t, stop())
		}
		var attempts []int
		for _, c := range seen.all() {
			attempts = append(attempts, c.attempt)
		}
		require.Equal(t, []int{1, 2, 3}, attempts)
		require.Equal(t, "exhausted", deadLetter(t, q).Reason)
	})
}

func TestAWaitingRetryIsTheBrokersAndHoldsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		p := policy.Policy{MaxAttempts: policy.Unlimited, Backoff: policy.Fixed(10 * time.Minute)}
		c := consume(q, p, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			if d.ID == "fails" {
				return errDeclined
			}
			return nil
		}))
		c.Concurrency, c.Lease = 1, time.Minute
		stop := start(t, c)
		publish(t, q, message("fails"))
		synctest.Wait()
		require.Equal(t, int64(1), stats(t, q).Waiting)
		require.Zero(t, stats(t, q).Leased)
		published := time.Now()
		publish(t, q, message("works"))
		time.Sleep(55 * time.Minute)
		require.NoError(t, stop())

		require.Zero(t, seen.of("works")[0].at.Sub(published), "the other message does not wait")
		fails := seen.of("fails")
		require.Len(t, fails, 6)
		for i := 1; i < len(fails); i++ {
			require.Equal(t, 10*time.Minute, fails[i].at.Sub(fails[i-1].at))
			require.Zero(t, fails[i].lapses, "a delay longer than the lease costs no lapse")
		}
	})
}

func TestEventsTellWhatTheBrokerHoldsOfADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.MaxDelay, l.Granularity = 10*time.Second, time.Second }
		events := &recorder{}
		p := policy.Policy{MaxAttempts: 3, Backoff: policy.Steps{1500 * time.Millisecond, time.Minute}}
		stop := start(t, consume(q, p, events, fail))
		publish(t, q.Queue, message("m"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		retried := events.of(consumer.Retried)
		require.Len(t, retried, 2)
		require.Equal(t, 1500*time.Millisecond, retried[0].Delay)
		require.Equal(t, 2*time.Second, retried[0].Applied)
		require.Equal(t, time.Minute, retried[1].Delay)
		require.Equal(t, 10*time.Second, retried[1].Applied)
		require.Equal(t, []time.Duration{1500 * time.Millisecond, time.Minute, 0}, delays(q.settled("m")), "the backend is told what is wanted")
	})
}

func delays(tries []tried) (found []time.Duration) {
	for _, s := range tries {
		found = append(found, s.delay)
	}
	return found
}

func TestMessagesAreDecidedIndependently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		publish(t, q, message("ack"), message("retry"), message("dead"), message("discard"), message("snooze"), message("panic"))
		stop := start(t, consume(q, three, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			if d.Attempt > 1 || d.Snoozes > 0 {
				return nil
			}
			switch d.ID {
			case "retry":
				return errDeclined
			case "dead":
				return policy.Permanent(errDeclined)
			case "discard":
				return policy.Discard(errDeclined)
			case "snooze":
				return policy.Snooze(time.Second)
			case "panic":
				panic("x")
			}
			return nil
		})))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		for id, want := range map[string][]consumer.Kind{
			"ack":     {consumer.Succeeded},
			"retry":   {consumer.Retried, consumer.Succeeded},
			"dead":    {consumer.DeadLettered},
			"discard": {consumer.Discarded},
			"snooze":  {consumer.Snoozed, consumer.Succeeded},
			"panic":   {consumer.Retried, consumer.Succeeded},
		} {
			got := slices.DeleteFunc(events.kinds(id), func(k consumer.Kind) bool { return k == consumer.Received })
			require.Equal(t, want, got, id)
		}
		require.Len(t, deadLetters(t, q), 1)
	})
}

func TestDelaysCanBeWorkedOutFromTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen := &journal{}
		p := policy.Policy{MaxAttempts: 5, Backoff: policy.Exponential{Base: time.Minute, Max: time.Hour}, Jitter: policy.FullJitter}
		stop := start(t, consume(q, p, &recorder{}, seen.wrap(fail)))
		publish(t, q, message("a"), message("b"))
		time.Sleep(5 * time.Hour)
		require.NoError(t, stop())
		for _, id := range []string{"a", "b"} {
			calls := seen.of(id)
			require.Len(t, calls, 5)
			for i := range 4 {
				want := p.Decide(policy.Failure{Attempt: i + 1, MessageID: id}).Delay
				require.Equal(t, want, calls[i+1].at.Sub(calls[i].at))
			}
		}
		require.NotEqual(t, seen.of("a")[1].at, seen.of("b")[1].at, "two messages do not come back together")
	})
}

type declined struct{ code int }

func (d declined) Error() string { return fmt.Sprint("declined with code ", d.code) }

func TestTheEnvelopeNamesTheTypeOfTheCause(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"plain":          {declined{7}, "consumer_test.declined"},
		"wrapped":        {fmt.Errorf("order 7: %w", fmt.Errorf("charge: %w", declined{7})), "consumer_test.declined"},
		"joined":         {errors.Join(declined{7}, errDeclined), "consumer_test.declined"},
		"wrapped twice":  {fmt.Errorf("%w: %w", declined{7}, errDeclined), "consumer_test.declined"},
		"marked":         {policy.Permanent(fmt.Errorf("order 7: %w", declined{7})), "consumer_test.declined"},
		"a mark alone":   {policy.ErrPermanent, "*policy.mark"},
		"a wrapped mark": {fmt.Errorf("order 7: %w", policy.ErrPermanent), "*policy.mark"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				p := three
				p.MaxAttempts = 1
				publish(t, q, message("m"))
				stop := start(t, consume(q, p, &recorder{}, func(context.Context, *backend.Delivery) error { return c.err }))
				synctest.Wait()
				require.NoError(t, stop())
				require.Equal(t, c.want, deadLetter(t, q).ErrorType)
			})
		})
	}
}
