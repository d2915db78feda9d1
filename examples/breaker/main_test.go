package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestTheOutageCostsNoOrderItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out))
		t.Log("\n" + out.String())
		require.Contains(t, out.String(), "120 orders: 120 handled in ")
		require.Contains(t, out.String(), ", 0 dead-lettered")

		// While it is open, what failed does not run again, and what arrives waits.
		var open int
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, "down") && strings.Contains(line, " open ") {
				open++
			}
		}
		require.GreaterOrEqual(t, open, 4, "half seconds of the outage, of six")
	})
}

// Otherwise the example would show nothing.
func TestWithoutTheBreakerOrdersDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		without, err := serve(t.Context(), &out, nil)
		require.NoError(t, err)
		with, err := serve(t.Context(), &out, newBreaker())
		require.NoError(t, err)
		require.Greater(t, without.dead, orders/4)
		require.Zero(t, with.dead)
		require.Less(t, with.failed*5, without.failed, "calls that the dependency is spared")
	})
}
