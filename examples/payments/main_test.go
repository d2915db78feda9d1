package main

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// At its true speed, in virtual time. What was predicted is what happened, up to what chance does to 300 payments.
func TestWhatThePlanPredictsHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, 1))
		t.Log("\n" + out.String())
		find := func(what string) (predicted, happened string) {
			found := regexp.MustCompile(regexp.QuoteMeta(what) + `\s{2,}((?:from |to )?\S+(?: %)?)\s{2,}(\S+(?: %)?)\n`).FindStringSubmatch(out.String())
			require.NotNil(t, found, what)
			return found[1], found[2]
		}
		for _, what := range []string{"charged, though the gateway was down for 30s", "dead-lettered after 8 attempts"} {
			predicted, happened := find(what)
			require.InDelta(t, percent(t, predicted), percent(t, happened), 4*50/math.Sqrt(ordinary), what)
		}
		_, refused := find("with an amount of -5: dead at attempt 1")
		require.Equal(t, fmt.Sprint(invalid), refused)

		_, shortest := find("429 with Retry-After 10s: shortest wait")
		_, longest := find("429 with Retry-After 10s: longest wait")
		require.GreaterOrEqual(t, duration(t, shortest), 10*time.Second)
		require.LessOrEqual(t, duration(t, longest), 10500*time.Millisecond)
		require.NotEqual(t, shortest, longest, "they are spread")

		for attempt := 2; attempt <= 8; attempt++ {
			what := fmt.Sprintf("mean wait before attempt %d", attempt)
			predicted, happened := find(what)
			want := duration(t, predicted)
			// A uniform variable from 0 deviates by its mean divided by the root of 3; four of them, of the mean of 150.
			require.InDelta(t, want, duration(t, happened), 4*float64(want)/math.Sqrt(3*150), what)
		}
	})
}

func percent(t *testing.T, s string) float64 {
	v, err := strconv.ParseFloat(s[:len(s)-len(" %")], 64)
	require.NoError(t, err)
	return v
}

func duration(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(t, err)
	return d
}
