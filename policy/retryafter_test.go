package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policy"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestRetryAfterSeconds(t *testing.T) {
	const most = 9223372036 * time.Second
	for header, want := range map[string]time.Duration{
		"0":                      0,
		"1":                      time.Second,
		"120":                    2 * time.Minute,
		"0042":                   42 * time.Second,
		" \t7 \t":                7 * time.Second,
		"9223372035":             most - time.Second,
		"9223372036":             most,
		"9223372037":             most,
		"9999999999":             most,
		"9223372036854775807":    most,
		"9223372036854775808":    most,
		"18446744073709551617":   most,
		"99999999999999999999":   most,
		strings.Repeat("9", 999): most,
	} {
		d, ok := policy.ParseRetryAfter(header, noon)
		require.True(t, ok, header)
		require.Equal(t, want, d, header)
	}
}

func TestRetryAfterDates(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"Sun, 01 Mar 2026 12:00:42 GMT":    42 * time.Second,
		" Sun, 01 Mar 2026 12:00:42 GMT ":  42 * time.Second,
		"Sunday, 01-Mar-26 12:00:42 GMT":   42 * time.Second,
		"Sun Mar  1 12:00:42 2026":         42 * time.Second,
		"Sun Mar 01 12:00:42 2026":         42 * time.Second,
		"Tue Mar 10 12:00:00 2026":         9 * 24 * time.Hour,
		"Sun, 01 Mar 2026 12:00:00 GMT":    0,
		"Sun, 01 Mar 2026 11:59:59 GMT":    0,
		"Sun, 06 Nov 1994 08:49:37 GMT":    0,
		"Sunday, 06-Nov-94 08:49:37 GMT":   0,
		"Sun Nov  6 08:49:37 1994":         0,
		"Thursday, 01-Jan-70 00:00:00 GMT": time.Date(2070, 1, 1, 0, 0, 0, 0, time.UTC).Sub(noon),
		"Sun, 01 Mar 9999 12:00:00 GMT":    maxDuration, // saturates
	} {
		d, ok := policy.ParseRetryAfter(header, noon)
		require.True(t, ok, header)
		require.Equal(t, want, d, header)
	}
}

func TestRetryAfterKeepsFractionsOfASecond(t *testing.T) {
	for left, now := range map[time.Duration]time.Time{
		400 * time.Millisecond: noon.Add(600 * time.Millisecond),
		1:                      noon.Add(time.Second - 1),
		time.Second:            noon,
	} {
		d, ok := policy.ParseRetryAfter("Sun, 01 Mar 2026 12:00:01 GMT", now.In(time.FixedZone("", -5*3600)))
		require.True(t, ok)
		require.Equal(t, left, d)
	}
}

func TestTwoDigitYears(t *testing.T) {
	for _, tt := range []struct {
		now    int
		header string
		want   int
	}{
		{2026, "06-Nov-94", 1994},
		{2026, "06-Nov-25", 2025},
		{2026, "06-Nov-26", 2026},
		{2026, "06-Nov-68", 2068},
		{2026, "06-Nov-69", 2069}, // time.Parse takes it for 1969
		{2026, "06-Nov-75", 2075},
		{2026, "06-Nov-76", 1976}, // more than 50 years ahead of March 2026
		{2026, "06-Jan-76", 2076},
		{2026, "06-Nov-77", 1977},
		{1999, "06-Nov-48", 2048},
		{1999, "06-Nov-50", 1950},
		{2060, "06-Nov-05", 2105},
		{2060, "06-Nov-94", 2094},
	} {
		now := time.Date(tt.now, 3, 1, 12, 0, 0, 0, time.UTC)
		d, ok := policy.ParseRetryAfter("Sunday, "+tt.header+" 08:49:37 GMT", now)
		require.True(t, ok)
		month := time.November
		if strings.Contains(tt.header, "Jan") {
			month = time.January
		}
		require.Equal(t, max(time.Date(tt.want, month, 6, 8, 49, 37, 0, time.UTC).Sub(now), 0), d, "%s in %d", tt.header, tt.now)
	}
}

func TestNoRetryAfter(t *testing.T) {
	for _, header := range []string{
		"", " ", "\t", "\n", "-5", "-3", "+3", "1.5", "1,5", "1e3", "0x10", "5;x", "5 s", "5s", "1 2", "５", "1_000", "\n5", "NaN", "Inf",
		"2026-03-01T12:00:42Z", "2026-03-01 12:00:42", "20260301T120042Z",
		"Sun, 01 Mar 2026 12:00:42 UTC", "Sun, 01 Mar 2026 12:00:42 EST", "Sun, 01 Mar 2026 12:00:42 +0000", "Sun, 01 Mar 2026 12:00:42",
		"Sun, 01 Mar 2026 12:00:42.5 GMT", "Sun, 1 Mar 2026 12:00:42 GMT", "Sun, 1 Mar 2026 12:00:4.5 GMT", "Sun, 32 Mar 2026 12:00:42 GMT",
		"Sun, 30 Feb 2026 12:00:42 GMT", "Sun, 01 Mar 26 12:00:42 GMT", "Sun, 01-Mar-26 12:00:42 GMT", "Sunday, 01-Mar-2026 12:00:42 GMT",
		"Sunday, 01-Mar-26 12:00:42 PST", "Sunday, 1-Mar-26 12:00:42.5 GMT", "Sun Mar 1 12:00:42 2026", "Sun Mar 1 8:00:42.5 2026",
		"Sun Mar  1 12:00:42 2026 GMT", "01 Mar 2026 12:00:42 GMT", "tomorrow", ", 01-Mar-26 12:00:42 GMT",
	} {
		d, ok := policy.ParseRetryAfter(header, noon)
		require.False(t, ok, "%q is %v", header, d)
		require.Zero(t, d, "%q", header)
	}
}
