package main

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuickstart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out))
		require.Less(t, time.Since(start), 10*time.Second)

		attempts := make(map[string]int)
		lines := bufio.NewScanner(strings.NewReader(out.String()))
		require.True(t, lines.Scan(), "a heading")
		for lines.Scan() && lines.Text() != "" {
			fields := strings.Fields(lines.Text())
			attempts[fields[1]]++
			if attempts[fields[1]] > 1 {
				require.Equal(t, fields[3], fields[4], "in virtual time nothing is late: %s", lines.Text())
			}
		}
		require.Equal(t, map[string]int{"marinara": 1, "margherita": 3, "calzone": 2, "focaccia": 2, "hawaii": 4, "liquorice": 1}, attempts)
		require.Contains(t, out.String(), `"reason": "exhausted"`)
		require.Contains(t, out.String(), `"error": "the pineapple is missing"`)
		require.Contains(t, out.String(), `"attempts": 4`)
		require.Contains(t, out.String(), `"reason": "permanent"`)
	})
}
