package brokertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A port stays its test's while nobody listens there. Of so many that are drawn from four thousand, some would be drawn twice.
func TestAFreePortIsHandedOutOnce(t *testing.T) {
	seen := make(map[int]bool)
	for range 500 {
		port := freePort(t)
		require.False(t, seen[port], "port %d", port)
		seen[port] = true
	}
}
