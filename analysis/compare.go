package analysis

import (
	"fmt"
	"math"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// Outages are the lengths that Compare looks at: a hiccup, a failover, a
// deploy, an incident that is seen to, one that is slept through.
var Outages = []time.Duration{
	10 * time.Second, 30 * time.Second, 90 * time.Second, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour,
}

// A Comparison is what a change of policy means.
type Comparison struct {
	Old, New *Schedule

	// Changes says in words what differs, most important first: what is
	// configured, then what it leads to. Empty if nothing does.
	Changes []string

	// Survivals are for the outages whose survival differs.
	Survivals []SurvivalChange
}

// A SurvivalChange is how messages fare under both policies.
type SurvivalChange struct{ Old, New Survival }

// Compare says what changes from one policy to another, under the same
// conditions. The outages are those to compare the survival of; without any,
// Outages. It fails where New does.
func Compare(older, newer policy.Policy, c Conditions, outages ...time.Duration) (*Comparison, error) {
	a, err := New(older, c)
	if err != nil {
		return nil, fmt.Errorf("the old policy: %w", err)
	}
	b, err := New(newer, c)
	if err != nil {
		return nil, fmt.Errorf("the new policy: %w", err)
	}
	if len(outages) == 0 {
		outages = Outages
	}
	diff := &Comparison{Old: a, New: b}
	diff.configured()
	diff.consequences()
	for _, outage := range outages {
		x, y := a.Survival(outage), b.Survival(outage)
		if x.AtStart.differs(y.AtStart) || x.Within.differs(y.Within) {
			diff.Survivals = append(diff.Survivals, SurvivalChange{x, y})
		}
	}
	return diff, nil
}

// differs reports whether two shares are certainly not the same.
func (s Share) differs(t Share) bool { return s.High() < t.Low() || t.High() < s.Low() }

func (c *Comparison) note(format string, args ...any) {
	c.Changes = append(c.Changes, fmt.Sprintf(format, args...))
}

// configured notes the fields that differ.
func (c *Comparison) configured() {
	a, b := c.Old.Policy, c.New.Policy
	for _, field := range []struct{ name, old, new string }{
		{"attempts", attemptsText(a), attemptsText(b)},
		{"backoff", curveText(a.Backoff), curveText(b.Backoff)},
		{"jitter", jitterText(a.Jitter), jitterText(b.Jitter)},
		{"floor", limitText(a.MinDelay), limitText(b.MinDelay)},
		{"cap", limitText(a.MaxDelay), limitText(b.MaxDelay)},
		{"maximum age", limitText(a.MaxAge), limitText(b.MaxAge)},
		{"longest Retry-After", Text(orDefault(a.MaxRetryAfter, policy.DefaultMaxRetryAfter)), Text(orDefault(b.MaxRetryAfter, policy.DefaultMaxRetryAfter))},
		{"lapses", countText(a.LapseLimit()), countText(b.LapseLimit())},
		{"snoozes", countText(orDefault(a.MaxSnoozes, policy.DefaultMaxSnoozes)), countText(orDefault(b.MaxSnoozes, policy.DefaultMaxSnoozes))},
		{"rules", rulesText(a), rulesText(b)},
	} {
		if field.old != field.new {
			c.note("%s: %s, before: %s", field.name, field.new, field.old)
		}
	}
}

func limitText(d time.Duration) string {
	if d <= 0 {
		return "none"
	}
	return Text(d)
}

func orDefault[T int | time.Duration](v, standard T) T {
	if v == 0 {
		return standard
	}
	return v
}

func countText(n int) string {
	if n == policy.Unlimited {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// consequences notes what the changes lead to.
func (c *Comparison) consequences() {
	a, b := c.Old.Horizon(), c.New.Horizon()
	switch {
	case a.Never && !b.Never:
		c.note("a poison message is given up now, after %s on average; it was retried for ever", Text(b.Mean))
	case b.Never && !a.Never:
		c.note("a poison message is retried for ever; it was given up after %s on average", Text(a.Mean))
	case a.Mean != b.Mean && !a.Never:
		c.note("a poison message is given up after %s on average (%s to %s), before: %s (%s to %s): %s",
			Text(b.Mean), Text(b.Earliest), Text(b.Latest), Text(a.Mean), Text(a.Earliest), Text(a.Latest),
			times(b.Mean, a.Mean))
	}
	if a.Attempts != b.Attempts && !a.Never && !b.Never {
		c.note("it costs %.3g calls, before: %.3g", b.Attempts, a.Attempts)
	}
	if x, y := c.Old.first(), c.New.first(); x != y {
		c.note("the first retry comes after %s on average, before: %s", Text(y), Text(x))
	}
	if x, y := c.Old.Policy.MaxBackoff(), c.New.Policy.MaxBackoff(); x != y {
		c.note("the longest wait is %s, before: %s", Text(y), Text(x))
	}
}

// first is the mean wait of the first retry.
func (s *Schedule) first() time.Duration {
	if len(s.Attempts) < 2 {
		return 0
	}
	return s.Attempts[1].Wait.Mean
}

// times says how much longer or shorter a time has become.
func times(now, before time.Duration) string {
	ratio := float64(now) / float64(before)
	if before == 0 || now == 0 || math.Abs(ratio-1) < 0.005 {
		return "about as long"
	}
	return fmt.Sprintf("%.3g times as long", ratio)
}
