package policy

import (
	"math"
	"strings"
	"time"
)

// ParseRetryAfter reads the value of an HTTP Retry-After header (RFC 9110,
// section 10.2.3): a number of seconds, or a date, of which it returns the
// time left after now, to the nanosecond. ok is false for anything else,
// signs, fractions and an empty value among it: leave the delay to the policy
// then.
//
// A number of seconds beyond the largest Duration is taken to its largest
// whole second, 9223372036. A date that has passed is 0. All three forms of a
// date are read (section 5.6.7); in the obsolete one with a two-digit year,
// the year is the latest that is not more than 50 years ahead of now. Spaces
// and tabs around the value are ignored.
func ParseRetryAfter(header string, now time.Time) (d time.Duration, ok bool) {
	value := strings.Trim(header, " \t")
	if value == "" {
		return 0, false
	}
	if seconds, ok := parseSeconds(value); ok {
		return seconds, true
	}
	if t, ok := parseDate(value, now); ok {
		return max(t.Sub(now), 0), true
	}
	return 0, false
}

func parseSeconds(digits string) (time.Duration, bool) {
	const most = math.MaxInt64 / int64(time.Second)
	var n int64
	for i := range len(digits) {
		c := digits[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), most)
	}
	return time.Duration(n) * time.Second, true
}

func parseDate(value string, now time.Time) (time.Time, bool) {
	const (
		fixed   = "Mon, 02 Jan 2006 15:04:05 GMT"
		asctime = "Mon Jan _2 15:04:05 2006"
		// RFC 850, after the name of the day, which has no fixed length.
		rfc850 = ", 02-Jan-06 15:04:05 GMT"
	)
	// time.Parse accepts fractions of a second and hours of one digit, which
	// no form has. The length of the text and the place of a colon exclude
	// them.
	switch {
	case len(value) == len(fixed):
		if t, err := time.Parse(fixed, value); err == nil {
			return t, true
		}
	case len(value) == len(asctime) && value[len("Mon Jan _2 15")] == ':':
		if t, err := time.Parse(asctime, value); err == nil {
			return t, true
		}
	}
	if comma := len(value) - len(rfc850); comma > 0 && value[comma] == ',' {
		if t, err := time.Parse("Monday"+rfc850, value); err == nil {
			return inCentury(t, now), true
		}
	}
	return time.Time{}, false
}

// inCentury moves t by whole centuries to the latest year that is not more
// than 50 years after now. time.Parse has a fixed pivot, 1969.
func inCentury(t, now time.Time) time.Time {
	latest := now.UTC().AddDate(50, 0, 0)
	at := func(year int) time.Time {
		return time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	}
	year := latest.Year()/100*100 + t.Year()%100
	if at(year).After(latest) {
		year -= 100
	}
	return at(year)
}
