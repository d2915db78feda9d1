package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/budget"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func TestAnEmptyBudgetStretchesTheWaitAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events, logged := memory.New("orders", memory.Options{}), &recorder{}, &logs{}
		c := consume(q, three, events, fail)
		c.Budget, c.Logger = &budget.Bucket{Burst: 1}, logged.logger()
		c.Concurrency = 1
		publish(t, q, message("a"), message("b"))
		stop := start(t, c)
		synctest.Wait()
		retried := events.of(consumer.Retried)
		require.Len(t, retried, 2)
		require.Equal(t, time.Minute, retried[0].Delay)
		require.Zero(t, retried[0].Stretched, "there was a token")
		e := retried[1]
		require.Equal(t, time.Minute, e.Decision.Delay)
		require.GreaterOrEqual(t, e.Delay, 2*time.Minute)
		require.LessOrEqual(t, e.Delay, 4*time.Minute)
		require.Equal(t, e.Delay, e.Applied)
		require.Equal(t, e.Delay-time.Minute, e.Stretched)
		lines := logged.at(slog.LevelDebug)
		require.NotContains(t, lines[0], "stretched")
		require.Contains(t, lines[1], "stretched")

		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, 2, events.count(consumer.DeadLettered), "by their attempts, as without it")
		require.Equal(t, 4, events.count(consumer.Retried))
	})
}

// A snooze is no failure, and a dead letter no load.
func TestABudgetIsForRetriesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events := memory.New("orders", memory.Options{}), &recorder{}
		c := consume(q, three, events, func(_ context.Context, d *backend.Delivery) error {
			switch {
			case d.ID == "snooze" && d.Snoozes < 5:
				return policy.Snooze(time.Second)
			case d.ID == "fails":
				return errDeclined
			}
			return policy.Permanent(errDeclined)
		})
		c.Budget = &budget.Bucket{Burst: 1}
		publish(t, q, message("snooze"), message("permanent"))
		stop := start(t, c)
		time.Sleep(time.Minute)
		publish(t, q, message("fails"))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, 5, events.count(consumer.Snoozed))
		retried := events.of(consumer.Retried)
		require.Len(t, retried, 2)
		require.Zero(t, retried[0].Stretched, "snoozes and dead letters have left the token")
		require.Positive(t, retried[1].Stretched)
	})
}

func TestASuccessPaysForRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events := memory.New("orders", memory.Options{}), &recorder{}
		c := consume(q, three, events, func(_ context.Context, d *backend.Delivery) error {
			if d.Attempt == 1 && d.ID != "good" {
				return errDeclined
			}
			return nil
		})
		c.Budget = &budget.Bucket{Burst: 1, Share: 1}
		stop := start(t, c)
		for _, id := range []string{"a", "good", "b", "c"} {
			publish(t, q, message(id))
			time.Sleep(time.Second)
		}
		require.NoError(t, stop())
		var stretched []bool
		for _, e := range events.of(consumer.Retried) {
			stretched = append(stretched, e.Stretched > 0)
		}
		require.Equal(t, []bool{false, false, true}, stretched)
	})
}

func TestABudgetHeedsMaxAgeAndTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, events := newScripted(backend.Limits{MaxDelay: 90 * time.Second}), &recorder{}
		c := consume(q, three, events, fail)
		c.Policy.MaxAge = 10 * time.Minute
		c.Budget = &budget.Bucket{Burst: 1, Stretch: 100}
		for i := range 20 {
			q.deliver(&backend.Delivery{Message: message(fmt.Sprint("young ", i))})
		}
		for i := range 20 {
			q.deliver(&backend.Delivery{Message: message(fmt.Sprint("old ", i)), Age: 8*time.Minute + 40*time.Second})
		}
		stop := start(t, c)
		synctest.Wait()
		require.NoError(t, stop())
		retried := events.of(consumer.Retried)
		require.Len(t, retried, 40, "nothing is given up")
		spread := make(map[time.Duration]bool)
		for _, e := range retried {
			require.GreaterOrEqual(t, e.Delay, time.Minute)
			require.LessOrEqual(t, e.Delay, 90*time.Second)
			if e.Delivery.Age > 0 {
				require.LessOrEqual(t, e.Delay, 70*time.Second, "half of the 20 seconds that the wait leaves")
			}
			spread[e.Delay] = true
		}
		require.Greater(t, len(spread), 35)
	})
}

func TestThePreflightKnowsOfStretchedWaits(t *testing.T) {
	for name, c := range map[string]struct {
		hold, want time.Duration
	}{"no limit": {0, 4 * time.Minute}, "what the broker can hold": {2 * time.Minute, 2 * time.Minute}, "the policy's own": {30 * time.Second, time.Minute}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newScripted(backend.Limits{MaxDelay: c.hold})
				checked := &checking{scripted: q}
				con := consume(checked, three, &recorder{}, succeed)
				con.Budget = new(budget.Bucket)
				require.NoError(t, start(t, con)())
				require.Equal(t, c.want, checked.need.MaxDelay)
			})
		})
	}
}

// checking notes what the consumer asks the broker for.
type checking struct {
	*scripted
	need backend.Needs
}

func (q *checking) Check(_ context.Context, need backend.Needs) ([]backend.Finding, error) {
	q.need = need
	return nil, nil
}

func TestAMistakenBudgetDoesNotStart(t *testing.T) {
	c := consume(memory.New("orders", memory.Options{}), three, &recorder{}, succeed)
	c.Budget = &budget.Bucket{Share: math.NaN()}
	require.ErrorContains(t, c.Run(t.Context()), "consumer: Budget: budget: Share is NaN")
}

// dependency serves so many calls in each second, after an outage.
type dependency struct {
	upAt     time.Time
	capacity int

	mu    sync.Mutex
	calls map[int64]int // by second
}

var errOverloaded = errors.New("overloaded")

func (d *dependency) call() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	second := time.Now().Unix()
	d.calls[second]++
	if time.Now().Before(d.upAt) || d.calls[second] > d.capacity {
		return errOverloaded
	}
	return nil
}

// peak is the largest number of calls in one second since it is back.
func (d *dependency) peak() (most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for second, n := range d.calls {
		if second >= d.upAt.Unix() {
			most = max(most, n)
		}
	}
	return most
}

// What the budget is for. Two consumers share it.
func TestABudgetLowersThePeakOnRecovery(t *testing.T) {
	outage := func(t *testing.T, shared *budget.Bucket) (peak int) {
		synctest.Test(t, func(t *testing.T) {
			q, events := memory.New("orders", memory.Options{}), &recorder{}
			dep := &dependency{upAt: time.Now().Add(20 * time.Second), capacity: 30, calls: make(map[int64]int)}
			p := policy.Policy{MaxAttempts: 30, Backoff: policy.Exponential{Base: 500 * time.Millisecond, Max: 8 * time.Second}, Jitter: policy.FullJitter}
			var stops []func() error
			for range 2 {
				c := consume(q, p, events, func(context.Context, *backend.Delivery) error { return dep.call() })
				c.Budget, c.Concurrency = shared, 100
				stops = append(stops, start(t, c))
			}
			const messages = 600
			for i := range messages {
				publish(t, q, message(fmt.Sprint(i)))
			}
			time.Sleep(time.Hour)
			for _, stop := range stops {
				require.NoError(t, stop())
			}
			require.Equal(t, messages, events.count(consumer.Succeeded), "nothing is given up for it")
			peak = dep.peak()
		})
		return peak
	}
	without, with := outage(t, nil), outage(t, &budget.Bucket{Burst: 30})
	t.Logf("calls in the worst second after the outage: %d without a budget, %d with one", without, with)
	require.Less(t, with, without*6/10)
}
