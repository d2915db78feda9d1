package pgmq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A part of a microsecond, which PostgreSQL cannot hold, is never taken from a delay: the retry would be early.
func TestDelaysAreRoundedUpToMicroseconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, 1999: 2, time.Second: 1e6, time.Second + 1: 1e6 + 1, 1<<63 - 1: (1<<63-1)/1000 + 1,
	} {
		require.Equal(t, want, micros(d), d)
	}
}
