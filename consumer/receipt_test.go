package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func TestWhatIsUsedUpIsDeadLetteredBeforeItRuns(t *testing.T) {
	one := policy.Policy{Name: "one", MaxAttempts: 1, MaxLapses: 2, Backoff: policy.Fixed(time.Second)}
	noLapses := one
	noLapses.MaxLapses = policy.NoLapses
	earlier := time.Now().Add(-time.Hour)

	for name, c := range map[string]struct {
		policy   policy.Policy
		delivery *backend.Delivery
		reason   policy.Reason
		error    string // of the envelope; "" stands for the decision's explanation
	}{
		"an attempt too many": {
			one, &backend.Delivery{Attempt: 33},
			policy.ReasonExhausted, "",
		},
		"an attempt too many, its error known": {
			one, &backend.Delivery{Attempt: 2, Failure: &backend.Failure{Reason: "panic", Error: "boom", ErrorType: "*app.Boom", Stack: "main.go:1", Attempts: 1}},
			policy.ReasonExhausted, "boom",
		},
		"a lapse too many": {
			one, &backend.Delivery{Lapses: 3},
			policy.ReasonAbandoned, "",
		},
		"a lapse too many after a failure": {
			three, &backend.Delivery{Attempt: 2, Lapses: 11, Failure: &backend.Failure{Reason: "error", Error: "boom", ErrorType: "*app.Boom", Stack: "main.go:1", Attempts: 1}},
			policy.ReasonAbandoned, "boom",
		},
		"a lapse where none is allowed": {
			noLapses, &backend.Delivery{Lapses: 1},
			policy.ReasonAbandoned, "",
		},
		"a record of an earlier dead letter is no last error": {
			one, &backend.Delivery{Lapses: 3, Failure: &backend.Failure{Reason: "exhausted", Error: "of last year", Attempts: 5, DeadLetteredAt: earlier}},
			policy.ReasonAbandoned, "",
		},
		"a record without an error says nothing": {
			one, &backend.Delivery{Lapses: 3, Failure: &backend.Failure{Reason: "error", Attempts: 5}},
			policy.ReasonAbandoned, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, seen, events := newScripted(backend.Limits{}), &journal{}, &recorder{}
				stop := start(t, consume(q, c.policy, events, seen.wrap(succeed)))
				d := &backend.Delivery{
					Message: backend.Message{ID: "m"}, Attempt: c.delivery.Attempt, Lapses: c.delivery.Lapses, Failure: c.delivery.Failure,
				}
				q.deliver(d)
				synctest.Wait()
				require.NoError(t, stop())

				require.Empty(t, seen.all())
				s := q.outcome(t, "m")
				require.Equal(t, backend.DeadLetter, s.Outcome)
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.DeadLettered}, events.kinds("m"))
				e := events.of(consumer.DeadLettered)[0]
				require.Equal(t, c.reason, e.Reason)
				require.Zero(t, e.Duration)
				require.Equal(t, string(c.reason), s.Failure.Reason)
				require.Equal(t, d.Attempt-1, s.Failure.Attempts)
				require.Equal(t, d.Lapses, s.Failure.Lapses)
				require.Equal(t, c.policy.Name, s.Failure.Policy)
				require.Equal(t, "here", s.Failure.Consumer)
				if c.error == "" {
					require.Equal(t, "dead-letter: "+s.Failure.Error, e.Decision.Explain())
					require.Empty(t, s.Failure.ErrorType)
				} else {
					require.Equal(t, c.error, s.Failure.Error)
					require.Equal(t, "*app.Boom", s.Failure.ErrorType)
					require.Equal(t, "main.go:1", s.Failure.Stack)
				}
				require.EqualError(t, e.Err, s.Failure.Error)
			})
		})
	}
}

func TestTheLastThatIsAllowedRuns(t *testing.T) {
	for name, c := range map[string]struct {
		limits backend.Limits
		given  *backend.Delivery
		runs   bool
	}{
		"the last attempt":              {backend.Limits{}, &backend.Delivery{Attempt: 3}, true},
		"the last lapse":                {backend.Limits{}, &backend.Delivery{Lapses: 10}, true},
		"receives up to both maxima":    {backend.Limits{CountsReceives: true}, &backend.Delivery{Attempt: 13}, true},
		"receives above both maxima":    {backend.Limits{CountsReceives: true}, &backend.Delivery{Attempt: 14}, false},
		"the same where all is counted": {backend.Limits{}, &backend.Delivery{Attempt: 13}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, seen, events := newScripted(c.limits), &journal{}, &recorder{}
				stop := start(t, consume(q, three, events, seen.wrap(succeed)))
				q.deliver(&backend.Delivery{Message: backend.Message{ID: "m"}, Attempt: c.given.Attempt, Lapses: c.given.Lapses})
				synctest.Wait()
				require.NoError(t, stop())
				if c.runs {
					require.Len(t, seen.all(), 1)
					require.Equal(t, backend.Ack, q.outcome(t, "m").Outcome)
				} else {
					require.Empty(t, seen.all())
					require.Equal(t, backend.DeadLetter, q.outcome(t, "m").Outcome)
					require.Equal(t, "exhausted", q.outcome(t, "m").Failure.Reason)
				}
			})
		})
	}
}

func TestAMessageThatKillsItsConsumerIsAbandoned(t *testing.T) {
	for name, c := range map[string]struct{ maxLapses, runs int }{
		"two lapses are allowed": {2, 3},
		"none is":                {policy.NoLapses, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := policy.Policy{MaxAttempts: 1, MaxLapses: c.maxLapses, Backoff: policy.Fixed(time.Second)}
				q := memory.New("orders", memory.Options{})
				publish(t, q, message("m"))
				seen := &journal{}
				for range c.runs {
					process, events := q.Open(), &recorder{}
					killer := consume(process, p, events, seen.wrap(func(ctx context.Context, _ *backend.Delivery) error {
						process.Crash()
						<-ctx.Done()
						return ctx.Err()
					}))
					killer.Grace = -1
					require.ErrorIs(t, killer.Run(t.Context()), backend.ErrClosed)
					require.Empty(t, deadLetters(t, q), "the attempt is not used up")
					time.Sleep(consumer.DefaultLease)
				}
				for i, call := range seen.all() {
					require.Equal(t, 1, call.attempt, "a crash is no attempt")
					require.Equal(t, i, call.lapses)
				}

				stop := start(t, consume(q.Open(), p, &recorder{}, seen.wrap(succeed)))
				time.Sleep(time.Hour)
				require.NoError(t, stop())
				require.Len(t, seen.all(), c.runs, "the last consumer does not run it")
				f := deadLetter(t, q)
				require.Equal(t, "abandoned", f.Reason)
				require.Equal(t, c.runs, f.Lapses)
				require.Zero(t, f.Attempts)
				require.NotEmpty(t, f.Error)
			})
		})
	}
}

func TestACrashLeavesTheAttemptsToTheInnocent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, message("m"))
		seen := &journal{}
		process := q.Open()
		victim := consume(process, three, &recorder{}, seen.wrap(func(ctx context.Context, _ *backend.Delivery) error {
			process.Crash()
			<-ctx.Done()
			return ctx.Err()
		}))
		victim.Grace = -1
		require.ErrorIs(t, victim.Run(t.Context()), backend.ErrClosed)

		stop := start(t, consume(q.Open(), three, &recorder{}, seen.wrap(fail)))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		var attempts []int
		for _, c := range seen.all() {
			attempts = append(attempts, c.attempt)
		}
		require.Equal(t, []int{1, 1, 2, 3}, attempts)
		f := deadLetter(t, q)
		require.Equal(t, "exhausted", f.Reason)
		require.Equal(t, 3, f.Attempts)
		require.Equal(t, 1, f.Lapses)
	})
}

func TestWhatWaitsForItsDeadLetterQueueNeverRunsAgain(t *testing.T) {
	record := &backend.Failure{Reason: "permanent", Error: "declined", ErrorType: "*app.Declined", Stack: "main.go:1", Attempts: 2, Policy: "of that day", Consumer: "there"}
	for name, c := range map[string]struct {
		failure *backend.Failure
		reason  policy.Reason
		check   func(*testing.T, *backend.Failure)
	}{
		"with its record": {record, policy.ReasonPermanent, func(t *testing.T, f *backend.Failure) { require.Equal(t, record, f) }},
		"with a reason that nobody knows": {
			&backend.Failure{Reason: "forged-4711", Error: "x"}, policy.ReasonError,
			func(t *testing.T, f *backend.Failure) { require.Equal(t, "forged-4711", f.Reason) },
		},
		"its record lost": {nil, policy.ReasonError, func(t *testing.T, f *backend.Failure) {
			require.Equal(t, "error", f.Reason)
			require.Contains(t, f.Error, "record")
			require.Equal(t, 1, f.Attempts)
			require.Equal(t, 4, f.Lapses)
			require.Equal(t, "here", f.Consumer)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, seen, events := newScripted(backend.Limits{}), &journal{}, &recorder{}
				stop := start(t, consume(q, three, events, seen.wrap(succeed)))
				q.deliver(&backend.Delivery{
					Message: backend.Message{ID: "m"}, Attempt: 2, Lapses: 4, DeadLetterWaits: 1, Failure: c.failure,
				})
				synctest.Wait()
				require.NoError(t, stop())
				require.Empty(t, seen.all())
				s := q.outcome(t, "m")
				require.Equal(t, backend.DeadLetter, s.Outcome)
				c.check(t, s.Failure)
				require.Equal(t, []consumer.Kind{consumer.Received, consumer.DeadLettered}, events.kinds("m"))
				e := events.of(consumer.DeadLettered)[0]
				require.Equal(t, c.reason, e.Reason, "a label of a fixed set")
				require.EqualError(t, e.Err, s.Failure.Error)
			})
		})
	}
}
