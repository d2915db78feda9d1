package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// A handler that kills its process does so at each delivery, and each time all that the process holds lapses with it.
func TestPoisonMessageDoesNotTakeItsNeighboursWithIt(t *testing.T) {
	for _, mix := range []struct{ concurrency, prefetch, healthy int }{{10, 0, 9}, {10, 50, 59}, {60, 0, 59}, {1, 5, 20}, {1, 0, 5}} {
		t.Run(fmt.Sprintf("concurrency %d, prefetch %d, %d healthy", mix.concurrency, mix.prefetch, mix.healthy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				publish(t, q, backend.Message{ID: "poison", Body: []byte("x")})
				for i := range mix.healthy {
					publish(t, q, backend.Message{ID: fmt.Sprint(i), Body: []byte("x")})
				}
				events := &recorder{}
				process := func() (crashed bool) {
					handle := q.Open()
					var once sync.Once
					ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
					defer stop()
					c := &consumer.Consumer{
						Queue: handle, Concurrency: mix.concurrency, Prefetch: mix.prefetch, Observer: events, Grace: -1, Logger: quiet,
						Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)},
						Handler: consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
							if d.ID == "poison" {
								once.Do(func() { crashed = true; handle.Crash() })
								<-ctx.Done()
								return ctx.Err()
							}
							time.Sleep(400 * time.Millisecond)
							return ctx.Err()
						}),
					}
					_ = c.Run(ctx)
					return crashed
				}
				crashes := 0
				for process() {
					crashes++
				}
				require.Equal(t, policy.DefaultMaxLapses+1, crashes)
				dead := deadLetters(t, q)
				require.Len(t, dead, 1)
				require.Equal(t, "poison", dead[0].ID)
				require.Equal(t, "abandoned", dead[0].Failure.Reason)
				require.Equal(t, mix.healthy, events.count(consumer.Succeeded))
			})
		})
	}
}

// A suspect that takes its time does not hold the others up for longer than two leases.
func TestSlowSuspectHoldsUpTheOthersForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, backend.Message{ID: "suspect", Body: []byte("x")})
		lapse(t, q, policy.DefaultMaxLapses/2)
		began := time.Now()
		var mu sync.Mutex
		handled := make(map[string]time.Duration)
		stop := start(t, &consumer.Consumer{
			Queue: q, Lease: time.Minute, Logger: quiet,
			Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)},
			Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
				if d.ID == "suspect" {
					time.Sleep(20 * time.Minute)
				}
				mu.Lock()
				defer mu.Unlock()
				handled[d.ID] = time.Since(began)
				return nil
			}),
		})
		time.Sleep(time.Second)
		publish(t, q, backend.Message{ID: "other", Body: []byte("x")})
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.LessOrEqual(t, handled["other"], 2*time.Minute)
		require.GreaterOrEqual(t, handled["other"], time.Minute, "it ran beside the suspect")
		require.Equal(t, 20*time.Minute, handled["suspect"])
	})
}

// Shutdown releases a suspect that waits for its turn.
func TestShutdownReleasesAWaitingSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, backend.Message{ID: "suspect", Body: []byte("x")})
		lapse(t, q, policy.DefaultMaxLapses/2)
		publish(t, q, backend.Message{ID: "slow", Body: []byte("x")})
		first, err := q.Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Hour})
		require.NoError(t, err)
		taken, err := first.Receive(t.Context(), 1)
		require.NoError(t, err)
		events := &recorder{}
		stop := start(t, &consumer.Consumer{
			Queue: q, Lease: time.Minute, Observer: events, Logger: quiet,
			Policy: policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)},
			Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
				time.Sleep(10 * time.Second)
				return nil
			}),
		})
		time.Sleep(time.Second)
		// Now that the other message is being handled, the suspect arrives.
		require.NoError(t, first.Settle(t.Context(), []backend.Settlement{{Delivery: taken[0], Outcome: backend.Release}}))
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, 1, events.count(consumer.Succeeded))
		require.Equal(t, 1, events.count(consumer.Released))
		require.NoError(t, first.Close(t.Context()))
		again := held(t, q)[0]
		require.Equal(t, "suspect", again.ID)
		require.Equal(t, policy.DefaultMaxLapses/2, again.Lapses)
	})
}

// lapse lets the message in q lapse n times.
func lapse(t *testing.T, q *memory.Queue, n int) {
	t.Helper()
	for range n {
		handle := q.Open()
		sub, err := handle.Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Second})
		require.NoError(t, err)
		_, err = sub.Receive(t.Context(), 1)
		require.NoError(t, err)
		handle.Crash()
		time.Sleep(2 * time.Second)
	}
}

func TestWhoIsASuspect(t *testing.T) {
	unlimited := three
	unlimited.MaxLapses = policy.Unlimited
	for name, c := range map[string]struct {
		limits      backend.Limits
		policy      policy.Policy
		concurrency int
		delivery    *backend.Delivery
		alone       bool
	}{
		"half of the lapses":       {backend.Limits{}, three, 10, &backend.Delivery{Lapses: 5}, true},
		"half of the default":      {backend.Limits{}, unlimited, 10, &backend.Delivery{Lapses: 5}, true},
		"less than half":           {backend.Limits{}, three, 10, &backend.Delivery{Lapses: 4}, false},
		"too many to run":          {backend.Limits{}, three, 10, &backend.Delivery{Lapses: 11}, false},
		"waits for its dead end":   {backend.Limits{}, three, 10, &backend.Delivery{Lapses: 5, DeadLetterWaits: 1, Failure: &backend.Failure{Reason: "error"}}, false},
		"where a release is dear":  {backend.Limits{ReleaseCharged: true}, three, 10, &backend.Delivery{Lapses: 5}, false},
		"where all is one number":  {backend.Limits{CountsReceives: true}, three, 10, &backend.Delivery{Lapses: 5}, false},
		"where it is alone anyway": {backend.Limits{}, three, 1, &backend.Delivery{Lapses: 5}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, logged, seen := newScripted(c.limits), &logs{}, &journal{}
				con := consume(q, c.policy, &recorder{}, seen.wrap(succeed))
				con.Concurrency, con.Logger = c.concurrency, logged.logger()
				c.delivery.ID = "suspect"
				q.deliver(c.delivery)
				q.deliver(&backend.Delivery{Message: message("other")})
				stop := start(t, con)
				synctest.Wait()
				require.NoError(t, stop())
				require.Equal(t, c.alone, q.outcome(t, "other").Outcome == backend.Release)
				told := 0
				for _, line := range logged.all() {
					if strings.Contains(line, "run alone") {
						told++
					}
				}
				require.Equal(t, c.alone, told == 1)
				if c.delivery.Lapses <= 10 && c.delivery.DeadLetterWaits == 0 {
					require.Len(t, seen.of("suspect"), 1)
				}
			})
		})
	}
}

// crowd has a suspect arrive while one message is handled for ten seconds and, with a prefetch, others wait in hand.
func crowd(t *testing.T, prefetch int) (q *faulty, events *recorder, seen *journal, stop func() error) {
	t.Helper()
	q = newFaulty("orders")
	q.limits = func(l *backend.Limits) { l.Parallel, l.SettleBatch = 4, 2 }
	events, seen = &recorder{}, &journal{}
	publish(t, q.Queue, message("suspect"))
	lapse(t, q.Queue, policy.DefaultMaxLapses/2)
	elsewhere, err := q.Open().Subscribe(t.Context(), backend.SubscribeOptions{MaxInFlight: 1, Lease: time.Hour})
	require.NoError(t, err)
	taken, err := elsewhere.Receive(t.Context(), 1)
	require.NoError(t, err)
	c := consume(q, three, events, seen.wrap(func(context.Context, *backend.Delivery) error {
		time.Sleep(10 * time.Second)
		return nil
	}))
	c.Concurrency, c.Prefetch = 1, prefetch
	publish(t, q.Queue, message("slow"))
	stop = start(t, c)
	synctest.Wait()
	publish(t, q.Queue, message("a"), message("b"))
	time.Sleep(time.Second)
	require.NoError(t, elsewhere.Settle(t.Context(), []backend.Settlement{{Delivery: taken[0], Outcome: backend.Release}}))
	require.NoError(t, elsewhere.Close(t.Context()))
	synctest.Wait()
	return q, events, seen, stop
}

func TestWhatWaitsInHandIsReleasedForASuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events, seen, stop := crowd(t, 7)
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds("a"), "at once, for others to take")
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds("b"))
		received := events.count(consumer.Received)
		publish(t, q.Queue, message("c"), message("d"), message("e"), message("f"), message("g"))
		time.Sleep(15 * time.Second)
		require.Equal(t, received, events.count(consumer.Received), "no call of Receive is left that could take one")
		require.Equal(t, []string{"slow", "suspect"}, seen.ids())
		require.Equal(t, 9*time.Second, seen.of("suspect")[0].at.Sub(events.when(consumer.Released)[0]), "once what ran has ended")
		time.Sleep(5 * time.Minute)
		require.NoError(t, stop(), "the calls that were ended for it are no error")
		require.Equal(t, 9, events.count(consumer.Succeeded))
	})
}

func TestAWaitingSuspectDelaysNoShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events, seen, stop := crowd(t, 7)
		began := time.Now()
		require.NoError(t, stop())
		require.Equal(t, []string{"slow"}, seen.ids())
		require.Equal(t, []backend.Outcome{backend.Release}, q.outcomes("suspect"))
		require.Equal(t, began, q.settled("suspect")[0].at)
		require.Equal(t, 1, events.count(consumer.Succeeded))
	})
}

// Choose may look at a delivery for as long as it likes, for other deliveries at the same time.
func TestChooseIsAskedAboutSuspectsSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.Parallel, l.SettleBatch = 2, 1 }
		publish(t, q.Queue, message("a"), message("b"))
		lapse(t, q.Queue, 1)
		lapse(t, q.Queue, 1)
		c := consume(q, three, &recorder{}, succeed)
		c.Overrides = map[string]policy.Policy{"other": three}
		asked := make(chan string, 2)
		answer := make(chan struct{})
		c.Choose = func(d *backend.Delivery) string {
			select {
			case asked <- d.ID:
			default:
			}
			<-answer
			return ""
		}
		stop := start(t, c)
		synctest.Wait()
		require.Len(t, asked, 2, "one waits for the answer about the other")
		close(answer)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Zero(t, stats(t, q.Queue))
	})
}
