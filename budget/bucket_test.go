package budget_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/budget"
)

func retry(n int, wait time.Duration) budget.Retry {
	return budget.Retry{MessageID: fmt.Sprint(n), Attempt: 1, Wait: wait}
}

// drain takes tokens until there are none, and returns how many there were.
func drain(b *budget.Bucket) (tokens int) {
	for b.Spend(retry(tokens, time.Second)) == time.Second {
		tokens++
	}
	return tokens
}

func TestTheNumbersAreThoseOfTheSDKs(t *testing.T) {
	var b budget.Bucket
	require.Equal(t, 500/5, drain(&b))
	for range 5 {
		require.Equal(t, 0, drain(&b), "less than a whole token is none")
		b.Succeeded()
	}
	require.Equal(t, 1, drain(&b), "five successes pay for a retry")
	for range 10_000 {
		b.Succeeded()
	}
	require.Equal(t, 100, drain(&b), "it does not save more than it held at first")
}

func TestAnEmptyBucketStretchesAndSpreads(t *testing.T) {
	b := budget.Bucket{Burst: 1, Stretch: 6}
	require.Equal(t, time.Second, b.Spend(retry(0, time.Second)))
	var sum time.Duration
	seen := make(map[time.Duration]bool)
	const n = 1000
	for i := range n {
		wait := b.Spend(retry(i, time.Second))
		require.GreaterOrEqual(t, wait, 3*time.Second)
		require.LessOrEqual(t, wait, 6*time.Second)
		require.Equal(t, wait, b.Spend(retry(i, time.Second)), "it is drawn from the message")
		seen[wait] = true
		sum += wait
	}
	require.Len(t, seen, n, "waits that were equal are so no more")
	require.InDelta(t, 4.5, (sum / n).Seconds(), 0.15, "evenly")
}

func TestStretchingHasBounds(t *testing.T) {
	b := budget.Bucket{Burst: 1}
	drain(&b)
	spread := make(map[time.Duration]bool)
	for i := range 100 {
		r := retry(i, time.Minute)
		r.Hold = 90 * time.Second
		wait := b.Spend(r)
		require.GreaterOrEqual(t, wait, r.Wait)
		require.LessOrEqual(t, wait, r.Hold)
		spread[wait] = true

		r.Left = 80 * time.Second
		wait = b.Spend(r)
		require.GreaterOrEqual(t, wait, r.Wait)
		require.LessOrEqual(t, wait, 70*time.Second, "half of what is left is not the budget's")

		r.Hold = 30 * time.Second
		require.Equal(t, time.Minute, b.Spend(r), "never shorter than the policy wants")

		immediate := b.Spend(retry(i, 0))
		require.GreaterOrEqual(t, immediate, 200*time.Millisecond, "an immediate retry is one of those that a budget is for")
		require.LessOrEqual(t, immediate, 400*time.Millisecond)

		require.Greater(t, b.Spend(retry(i, math.MaxInt64/2)), time.Duration(math.MaxInt64/2))
	}
	require.Greater(t, len(spread), 90, "below the bound they still spread")
	require.Equal(t, time.Duration(math.MaxInt64), b.Spend(retry(1, math.MaxInt64)))
}

func TestManyMaySpendAtOnce(t *testing.T) {
	b := budget.Bucket{Burst: 500}
	var mu sync.Mutex
	granted := 0
	var spenders sync.WaitGroup
	for range 8 {
		spenders.Go(func() {
			for i := range 100 {
				if b.Spend(retry(i, time.Second)) == time.Second {
					mu.Lock()
					granted++
					mu.Unlock()
				}
			}
		})
	}
	spenders.Wait()
	require.Equal(t, 500, granted, "of 800")
}

func TestWhatIsNoBudget(t *testing.T) {
	require.NoError(t, new(budget.Bucket).Validate())
	require.NoError(t, (&budget.Bucket{Share: 0.1, Burst: 1, Stretch: 1.5}).Validate())
	err := (&budget.Bucket{Share: -1, Burst: math.NaN(), Stretch: 1}).Validate()
	require.ErrorContains(t, err, "Share is -1: want a number above 0")
	require.ErrorContains(t, err, "Burst is NaN")
	require.ErrorContains(t, err, "Stretch is 1: want a number above 1")
	require.ErrorContains(t, (&budget.Bucket{Burst: 0.5}).Validate(), "a whole token")
	require.Error(t, (&budget.Bucket{Share: math.Inf(1)}).Validate())
}
