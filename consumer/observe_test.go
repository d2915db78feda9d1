package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
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

var kinds = []consumer.Kind{
	consumer.Received, consumer.Succeeded, consumer.Retried, consumer.Snoozed, consumer.DeadLettered, consumer.Parked,
	consumer.Discarded, consumer.Released, consumer.LeaseLost, consumer.SettleFailed,
}

func TestLabelsStayFewOverManyFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		type labels struct {
			queue  string
			kind   consumer.Kind
			reason policy.Reason
		}
		var seen list[labels]
		p := policy.Policy{MaxAttempts: 20, Backoff: policy.Fixed(time.Second)}
		c := consume(q, p, nil, func(_ context.Context, d *backend.Delivery) error {
			err := fmt.Errorf("order %s, attempt %d, at %v", d.ID, d.Attempt, time.Now())
			switch d.Attempt % 4 {
			case 0:
				panic(err)
			case 1:
				return policy.RetryAfter(time.Millisecond, err)
			}
			return err
		})
		c.Concurrency = 100
		c.Observer = consumer.ObserverFunc(func(_ context.Context, e consumer.Event) { seen.add(labels{e.Queue, e.Kind, e.Reason}) })
		for range 500 {
			publish(t, q, backend.Message{})
		}
		stop := start(t, c)
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		series := map[labels]int{}
		failures := 0
		for _, l := range seen.all() {
			series[l]++
			require.Contains(t, kinds, l.kind)
			if l.reason != "" {
				require.Contains(t, policy.Reasons(), l.reason)
			}
			if l.kind == consumer.Retried || l.kind == consumer.DeadLettered {
				failures++
			}
		}
		require.Equal(t, 10_000, failures)
		require.Equal(t, map[labels]int{
			{"orders", consumer.Received, ""}:                         10_000,
			{"orders", consumer.Retried, policy.ReasonError}:          5000,
			{"orders", consumer.Retried, policy.ReasonRetryAfter}:     2500,
			{"orders", consumer.Retried, policy.ReasonPanic}:          2000,
			{"orders", consumer.DeadLettered, policy.ReasonExhausted}: 500,
		}, series)
	})
}

const canary = "c4n4ry"

// whole runs messages whose body and headers hold the canary through every kind of event.
func whole(t *testing.T, configure func(*consumer.Consumer), errs func(error) error) (*recorder, *logs, *faulty) {
	t.Helper()
	q := newFaulty("orders")
	events, logged := &recorder{}, &logs{}
	var tries atomic.Int32
	q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
		if tries.Add(1) == 3 {
			return errNetwork
		}
		return next(ctx, batch)
	}
	c := consume(q, three, events, func(ctx context.Context, d *backend.Delivery) error {
		switch d.ID {
		case "fails":
			return errs(fmt.Errorf("cannot parse order"))
		case "dies":
			return errs(policy.Permanent(errors.New("no such customer")))
		case "parks":
			q.DeadLetters().Refuse(errors.New("the queue is full"))
			return errs(policy.Permanent(errors.New("no such customer")))
		case "discards":
			return errs(policy.Discard(errors.New("too old to matter")))
		case "snoozes":
			if d.Snoozes == 0 {
				return policy.Snooze(time.Second)
			}
		case "panics":
			if d.Attempt == 1 {
				panic(errs(errors.New("index out of range")))
			}
		case "loses":
			d.MarkLost()
			<-ctx.Done()
			return ctx.Err()
		case "waits":
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	c.Logger = logged.logger()
	if configure != nil {
		configure(c)
	}
	stop := start(t, c)
	for _, id := range []string{"succeeds", "fails", "dies", "parks", "discards", "snoozes", "panics", "loses", "waits"} {
		publish(t, q.Queue, backend.Message{ID: id, Body: []byte(canary), Headers: map[string]string{"h-" + canary: canary}})
		time.Sleep(time.Second)
		q.DeadLetters().Refuse(nil)
	}
	time.Sleep(20 * time.Minute)
	require.NoError(t, stop())
	for _, k := range kinds {
		require.Positive(t, events.count(k), k)
	}
	return events, logged, q
}

func asIs(err error) error { return err }

func TestBodiesAndHeadersAreNeverLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, logged, _ := whole(t, nil, asIs)
		lines := logged.all()
		require.Greater(t, len(lines), 10)
		for _, line := range lines {
			require.NotContains(t, line, canary)
		}
	})
}

func TestWhatIsLoggedAtWhichLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, logged, _ := whole(t, nil, asIs)

		dead := logged.at(slog.LevelError)
		require.Equal(t, events.count(consumer.DeadLettered), len(dead), "one error line for each dead letter, and no other")
		for _, line := range dead {
			require.Contains(t, line, "dead_lettered")
			require.Contains(t, line, "queue=orders")
			require.Contains(t, line, "message_id=")
			require.Contains(t, line, "reason=")
			require.Contains(t, line, "error=")
			require.Contains(t, line, "attempt=")
		}
		warnings := logged.at(slog.LevelWarn)
		given := 0
		for _, e := range events.of(consumer.SettleFailed) {
			if e.GaveUp {
				given++
			}
		}
		tries, alone := 0, 0
		for _, line := range warnings {
			if strings.Contains(line, "settling failed") {
				tries++
			}
			if strings.Contains(line, "run alone") {
				alone++
			}
		}
		require.Positive(t, tries)
		require.Equal(t, events.count(consumer.LeaseLost)+events.count(consumer.Parked)+given+tries+alone, len(warnings))
		for _, line := range warnings {
			require.NotContains(t, line, "message retried")
			require.NotContains(t, line, "message snoozed")
		}
		debug := logged.at(slog.LevelDebug)
		require.Equal(t, events.count(consumer.Retried)+events.count(consumer.Snoozed)+events.count(consumer.Discarded)+events.count(consumer.Released)+events.count(consumer.SettleFailed)-given, len(debug))
		require.Equal(t, len(dead)+len(warnings)+len(debug), len(logged.all()), "nothing else")
		find := func(lines []string, part string) string {
			i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, part) })
			require.GreaterOrEqual(t, i, 0, part)
			return lines[i]
		}
		require.Contains(t, find(debug, "message retried"), "delay=1m0s")
		require.Contains(t, find(debug, "message snoozed"), "delay=1s")
		require.Contains(t, find(debug, "settle_failed"), "gave_up=false")
		require.Contains(t, find(warnings, "parked"), "delay=")
		require.Contains(t, find(dead, "message_id=fails"), "decision=")
	})
}

func TestAHigherLevelSilencesRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logs
		events, _, _ := whole(t, func(c *consumer.Consumer) {
			c.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))
		}, asIs)
		require.Len(t, out.all(), events.count(consumer.DeadLettered))
	})
}

func TestADelayThatIsCutIsLoggedAsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.MaxDelay = 10 * time.Second }
		logged := &logs{}
		c := consume(q, three, nil, fail)
		c.Logger, c.Observer = logged.logger(), nil
		publish(t, q.Queue, message("m"))
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Contains(t, logged.at(slog.LevelDebug)[0], "delay=10s wanted=1m0s")
	})
}

func TestRedactActsOnAllThatIsStoredAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redact := func(s string) string {
			return strings.ReplaceAll(strings.ReplaceAll(s, canary, "[gone]"), "observe_test.go", "[gone]")
		}
		secret := func(err error) error { return fmt.Errorf("dsn=postgres://u:%s@db: %w", canary, err) }
		events, logged, q := whole(t, func(c *consumer.Consumer) { c.Redact = redact }, secret)
		for _, line := range logged.all() {
			require.NotContains(t, line, canary)
		}
		require.Contains(t, strings.Join(logged.all(), ""), "[gone]")
		dead := deadLetters(t, q.Queue)
		require.Len(t, dead, 4)
		for _, d := range dead {
			if d.Failure.Reason == "abandoned" {
				continue // no handler's error
			}
			require.Contains(t, d.Failure.Error, "postgres://u:[gone]@db")
			require.NotContains(t, d.Failure.Error, canary)
		}
		require.ErrorContains(t, events.of(consumer.Retried)[0].Err, canary, "the event has the error as it is")
	})
}

func TestRedactActsOnStacks(t *testing.T) {
	for name, c := range map[string]struct {
		redact func(string) string
		error  string
		stack  string
	}{
		"replaces": {func(s string) string { return strings.ReplaceAll(s, "observe_test.go", "[gone]") }, "consumer: handler panicked: x", "[gone]"},
		"panics":   {func(string) string { panic("redact") }, "(withheld: Redact panicked)", "(withheld: Redact panicked)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				p := three
				p.MaxAttempts = 1
				con := consume(q, p, &recorder{}, func(context.Context, *backend.Delivery) error { panic("x") })
				con.Redact = c.redact
				publish(t, q, message("m"))
				stop := start(t, con)
				synctest.Wait()
				require.NoError(t, stop())
				f := deadLetter(t, q)
				require.Equal(t, c.error, f.Error)
				require.Contains(t, f.Stack, c.stack)
				require.NotContains(t, f.Stack, "observe_test.go")
			})
		})
	}
}

func TestLongErrorsAreCutInTheLogAndTheEnvelope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		logged := &logs{}
		p := three
		p.MaxAttempts = 1
		c := consume(q, p, &recorder{}, func(context.Context, *backend.Delivery) error { return errors.New(strings.Repeat("é", 1<<20)) })
		c.Logger = logged.logger()
		publish(t, q, message("m"))
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		require.Less(t, len(logged.at(slog.LevelError)[0]), 2<<10)
		require.LessOrEqual(t, len(deadLetter(t, q).Error), backend.DefaultEnvelopeBudget)
		require.True(t, strings.HasSuffix(deadLetter(t, q).Error, "é…"))
	})
}

func TestAnObserverThatPanicsIsHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, logged := &journal{}, &logs{}
		calls := &list[consumer.Kind]{}
		c := consume(q, three, nil, seen.wrap(fail))
		c.Logger = logged.logger()
		c.Redact = func(s string) string { return strings.ReplaceAll(s, canary, "***") }
		c.Observer = consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			calls.add(e.Kind)
			panic(canary)
		})
		publish(t, q, message("m"))
		stop := start(t, c)
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Len(t, seen.all(), 3)
		require.Len(t, calls.all(), 6)
		require.Equal(t, "exhausted", deadLetter(t, q).Reason)
		require.Contains(t, strings.Join(logged.all(), ""), "observer panicked")
		require.NotContains(t, strings.Join(logged.all(), ""), canary)
	})
}

// A failed require in an observer ends the goroutine that called it.
func TestAnObserverThatEndsItsGoroutineCostsNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		c := consume(q, three, nil, seen.wrap(succeed))
		c.Concurrency = 20
		c.Observer = consumer.ObserverFunc(func(ctx context.Context, e consumer.Event) {
			events.Observe(ctx, e)
			if e.Kind == consumer.Succeeded {
				runtime.Goexit()
			}
		})
		for i := range 100 {
			publish(t, q, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(time.Hour)
		require.Len(t, seen.all(), 100)
		require.Equal(t, 100, events.count(consumer.Succeeded))
		require.Zero(t, stats(t, q))
		began := time.Now()
		require.NoError(t, stop())
		require.Zero(t, time.Since(began))
	})
}

func TestAnObserverThatEndsTheIntakeEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		c := consume(q, three, nil, succeed)
		c.Observer = consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
			if e.Kind == consumer.Received {
				runtime.Goexit()
			}
		})
		publish(t, q, message("m"))
		began := time.Now()
		require.ErrorContains(t, c.Run(t.Context()), "runtime.Goexit")
		require.Zero(t, time.Since(began), "nothing is left in hand")
	})
}

type key struct{}

func TestTheContextsValuesReachHandlersAndObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		var got list[any]
		c := consume(q, three, nil, func(ctx context.Context, _ *backend.Delivery) error {
			got.add(ctx.Value(key{}))
			return nil
		})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		c.Observer = consumer.ObserverFunc(func(ctx context.Context, e consumer.Event) {
			got.add(ctx.Value(key{}))
			if e.Kind == consumer.Succeeded {
				cancel()
			}
		})
		publish(t, q, message("m"))
		require.NoError(t, c.Run(ctx))
		require.Equal(t, []any{"value", "value", "value"}, got.all())
	})
}

// Every delivery has one Received and one other event, whatever happens, tries to settle aside.
func TestEachDeliveryHasOneEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, _, _ := whole(t, nil, asIs)
		open := map[*backend.Delivery]int{}
		for _, e := range events.all() {
			switch e.Kind {
			case consumer.Received:
				require.NotContains(t, open, e.Delivery)
				open[e.Delivery] = 1
			case consumer.SettleFailed:
				require.Equal(t, 1, open[e.Delivery])
			default:
				require.Equal(t, 1, open[e.Delivery], "%s of %s", e.Kind, e.Delivery.ID)
				open[e.Delivery] = 0
			}
		}
		for d, n := range open {
			require.Zero(t, n, d.ID)
		}
	})
}
