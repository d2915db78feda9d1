// Package timetext writes durations as people do.
package timetext

import (
	"strings"
	"time"
)

// Short returns d.String() without the units at its end that are 0: "1m" for "1m0s", and "2h" for "2h0m0s". time.ParseDuration
// reads it back.
func Short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
