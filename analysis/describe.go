package analysis

import (
	"fmt"
	"strings"
	"time"

	"github.com/redeliver/redeliver/internal/timetext"
	"github.com/redeliver/redeliver/policy"
)

// Describe says in one line what a policy does, such as "8 attempts; 500ms,
// doubling, at most 30s; full jitter". The wording may change.
func Describe(p policy.Policy) string {
	parts := []string{attemptsText(p), curveText(p.Backoff), jitterText(p.Jitter)}
	for _, limit := range []struct {
		d    time.Duration
		text string
	}{
		{p.MinDelay, "no wait below %s"}, {p.MaxDelay, "none above %s"}, {p.MaxAge, "no message older than %s"},
	} {
		if limit.d > 0 {
			parts = append(parts, fmt.Sprintf(limit.text, Text(limit.d)))
		}
	}
	return strings.Join(parts, "; ")
}

func attemptsText(p policy.Policy) string {
	switch {
	case p.MaxAttempts == policy.Unlimited, p.MaxAttempts == 0 && p.MaxAge > 0:
		return "unlimited attempts"
	case p.MaxAttempts == 1:
		return "one attempt"
	default:
		return fmt.Sprintf("%d attempts", p.MaxAttempts)
	}
}

func curveText(b policy.Backoff) string {
	switch c := b.(type) {
	case policy.Fixed:
		return Text(time.Duration(c))
	case policy.Linear:
		return fmt.Sprintf("%s, growing by %s%s", Text(c.Base), Text(c.Step), atMost(c.Max))
	case policy.Exponential:
		growth := fmt.Sprintf("growing by the factor %v", c.Factor)
		if c.Factor == 0 || c.Factor == 2 {
			growth = "doubling"
		}
		return fmt.Sprintf("%s, %s%s", Text(c.Base), growth, atMost(c.Max))
	case policy.Steps:
		var steps []string
		for _, d := range c {
			steps = append(steps, Text(d))
		}
		return "steps of " + strings.Join(steps, ", ")
	case policy.Func:
		return "delays from a function"
	case policy.Immediate:
		return fmt.Sprintf("%d at once, then %s", c.Attempts, curveText(c.Then))
	default:
		return fmt.Sprintf("delays from %T", b)
	}
}

func atMost(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return ", at most " + Text(d)
}

func jitterText(j policy.Jitter) string {
	switch j.Kind {
	case policy.JitterNone:
		return "no jitter"
	case policy.JitterProportional:
		return fmt.Sprintf("jitter ±%.4g %%", j.Fraction*100)
	case policy.JitterAdditive:
		return fmt.Sprintf("jitter +%.4g %%", j.Fraction*100)
	default:
		return j.Kind.String() + " jitter"
	}
}

// Text writes a duration for people: to three digits, or to the second where
// there are minutes, and without units of zero, as in "1m30s", "12.5s", "2h".
func Text(d time.Duration) string {
	switch size := d.Abs(); {
	case size >= 365*24*time.Hour:
		return fmt.Sprintf("%.3g years", d.Hours()/24/365.25)
	case size >= time.Hour:
		d = d.Round(time.Minute)
	case size >= time.Minute:
		d = d.Round(time.Second)
	default:
		for unit := time.Duration(1); ; unit *= 10 {
			if size < 1000*unit {
				d = d.Round(unit)
				break
			}
		}
	}
	return timetext.Short(d)
}

// Percent writes a share for people, as in "52.5 %". Only what is certain is
// called 0 % or 100 %: other shares that are close to the ends are "< 0.1 %"
// and "> 99.9 %".
func (s Share) Percent() string {
	percent := 100 * s.Value
	switch {
	case s.High() == 0:
		return "0 %"
	case s.Low() >= 1-2*rounding:
		return "100 %"
	case percent < 0.1:
		return "< 0.1 %"
	case percent > 99.9:
		return "> 99.9 %"
	default:
		return fmt.Sprintf("%.1f %%", percent)
	}
}

// RuleName is the name of rule i of the policy in quotes, or its number from 1.
func RuleName(p policy.Policy, i int) string {
	if name := p.Rules[i].Name; name != "" {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprint(i + 1)
}

// DescribeRule says in one line which errors rule i of a policy is for, and what
// becomes of them, such as "for throttled or timeout: dead-letter at once".
func DescribeRule(p policy.Policy, i int) string {
	rule := p.Rules[i]
	what := rule.Action.String() + " at once"
	if rule.Retries() {
		what = Describe(p.Branch(i))
	}
	if errs, ok := rule.Match.(fmt.Stringer); ok {
		return fmt.Sprintf("for %v: %s", errs, what)
	}
	return fmt.Sprintf("for what %T matches: %s", rule.Match, what)
}

func rulesText(p policy.Policy) string {
	var rules []string
	for i := range p.Rules {
		rules = append(rules, RuleName(p, i)+" "+DescribeRule(p, i))
	}
	if len(rules) == 0 {
		return "none"
	}
	return strings.Join(rules, ", ")
}
