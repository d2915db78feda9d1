package timetext_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/internal/timetext"
)

func TestUnitsOfZeroAreLeftOut(t *testing.T) {
	for text, d := range map[string]time.Duration{
		"0s": 0, "1ns": 1, "1.5s": 1500 * time.Millisecond, "10s": 10 * time.Second, "1m": time.Minute, "10m": 10 * time.Minute,
		"1m0.5s": time.Minute + time.Second/2, "1h": time.Hour, "100h": 100 * time.Hour, "1h30m": 90 * time.Minute, "1h0m30s": time.Hour + 30*time.Second,
		"-2h": -2 * time.Hour,
	} {
		require.Equal(t, text, timetext.Short(d))
	}
}

func TestWhatIsShortIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(t, "d")) / time.Duration(rapid.SampledFrom([]int64{1, 1e3, 1e9, 60e9, math.MaxInt64}).Draw(t, "unit"))
		read, err := time.ParseDuration(timetext.Short(d))
		require.NoError(t, err)
		require.Equal(t, d, read)
	})
}
