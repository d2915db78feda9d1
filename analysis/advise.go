package analysis

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// Advice is what to change so that messages outlive an outage.
type Advice struct {
	Outage time.Duration
	Want   float64 // the share that is to survive

	// Now is how the policy fares as it is. Enough tells that nothing needs to
	// change.
	Now    Survival
	Enough bool

	// Horizon is that of the policy as it is.
	Horizon Horizon

	// Options are single changes, each of which is enough, the one that
	// isolates a poison message soonest first. Empty if Enough, or if none was
	// found: then the outage is too long for this curve, or a rule decides.
	Options []Option
}

// An Option is a change of a policy, checked by computing what it leads to.
type Option struct {
	Code     string // attempts, cap, base, floor or jitter
	Text     string // what to change, in words
	Policy   policy.Policy
	Survival Survival

	// Horizon is how long a poison message now takes to be isolated: what the
	// change costs.
	Horizon Horizon
}

// The most that is advised.
const (
	longestDelay = 12 * time.Hour
	mostAttempts = 1000
)

// Advise says what to change so that at least the share want of the messages
// that fail first as an outage begins survives it: more attempts, a higher
// cap, a longer base, a floor, another jitter. Durations are rounded up to two
// digits. Where the maximum age would undo a change, it is raised with it. It
// fails where New does, and for a want that is not above 0 and at most 1.
func Advise(p policy.Policy, outage time.Duration, want float64, c Conditions) (*Advice, error) {
	if !(want > 0 && want <= 1) {
		return nil, fmt.Errorf("analysis: a share of %v cannot survive: want a number above 0 and at most 1", want)
	}
	s, err := New(p, c)
	if err != nil {
		return nil, err
	}
	a := &Advice{Outage: outage, Want: want, Now: s.Survival(outage), Horizon: s.Horizon()}
	a.Enough = a.suffices(a.Now)
	if a.Enough {
		return a, nil
	}
	for _, change := range changes(p, len(s.Attempts)) {
		a.try(p, change, c)
	}
	slices.SortStableFunc(a.Options, func(x, y Option) int { return int((x.Horizon.Mean - y.Horizon.Mean) / time.Microsecond) })
	return a, nil
}

// suffices asks for certainty, floating-point rounding aside.
func (a *Advice) suffices(s Survival) bool { return s.AtStart.Low() >= a.Want-2*rounding }

// A change is something to turn up until the policy is good enough. apply
// returns false where x is of no use.
type change struct {
	code        string
	least, most float64 // the range of x
	whole       bool    // x is a count, not a number of ns
	apply       func(p *policy.Policy, x float64) (text string, ok bool)
}

// changes are what can be turned up in a policy.
func changes(p policy.Policy, attempts int) []change {
	cs := []change{{"attempts", float64(attempts), mostAttempts, true, func(p *policy.Policy, x float64) (string, bool) {
		p.MaxAttempts = int(x)
		return fmt.Sprintf("%d attempts instead of %d", p.MaxAttempts, attempts), true
	}}}
	if limit := capOf(p); limit > 0 {
		cs = append(cs, change{"cap", float64(limit), float64(longestDelay), false, func(p *policy.Policy, x float64) (string, bool) {
			ok := setCap(p, tidy(x))
			return fmt.Sprintf("a cap of %s instead of %s", Text(capOf(*p)), Text(limit)), ok
		}})
	}
	if base := baseOf(p.Backoff); base > 0 {
		cs = append(cs, change{"base", float64(base), float64(longestDelay), false, func(p *policy.Policy, x float64) (string, bool) {
			d := tidy(x)
			p.Backoff = withBase(p.Backoff, d)
			text := fmt.Sprintf("a first delay of %s instead of %s", Text(d), Text(base))
			if limit := capOf(*p); limit > 0 && limit < d {
				setCap(p, d)
				text += fmt.Sprintf(", and a cap of %s", Text(d))
			}
			return text, true
		}})
	}
	cs = append(cs, change{"floor", float64(max(p.MinDelay, time.Millisecond)), float64(longestDelay), false, func(p *policy.Policy, x float64) (string, bool) {
		p.MinDelay = tidy(x)
		limit := capOf(*p)
		return fmt.Sprintf("a floor of %s (MinDelay) under every wait", Text(p.MinDelay)), limit == 0 || p.MinDelay <= limit
	}})
	if p.Jitter.Kind == policy.JitterFull || p.Jitter.Kind == policy.JitterDecorrelated {
		cs = append(cs, change{"jitter", 1, 1, true, func(p *policy.Policy, _ float64) (string, bool) {
			text := fmt.Sprintf("equal jitter instead of %v jitter", p.Jitter.Kind)
			p.Jitter = policy.EqualJitter
			return text, true
		}})
	}
	return cs
}

// try turns a change up until it is enough, then down again as far as it stays
// enough.
func (a *Advice) try(p policy.Policy, ch change, c Conditions) {
	test := func(x float64) (o Option, ok bool) {
		q := p
		text, ok := ch.apply(&q, x)
		if !ok {
			return o, false
		}
		if q.MaxAge > 0 {
			// A retry that falls after the outage is then never too late.
			q.MaxAge = 0
			if q.MaxAttempts <= 0 {
				q.MaxAttempts = policy.Unlimited
			}
			if needed := tidy(float64(add(a.Outage, q.MaxBackoff()))); needed > p.MaxAge {
				q.MaxAge = needed
				text += fmt.Sprintf(", and a maximum age of %s instead of %s", Text(needed), Text(p.MaxAge))
			} else {
				q.MaxAge = p.MaxAge
			}
		}
		s, err := New(q, c)
		if err != nil || s.Attempts[len(s.Attempts)-1].At.Latest < a.Outage {
			return o, false
		}
		o = Option{Code: ch.code, Text: text, Policy: q, Survival: s.Survival(a.Outage)}
		if !a.suffices(o.Survival) {
			return o, false
		}
		o.Horizon = s.Horizon()
		return o, true
	}

	low, high := ch.least, ch.least
	best, ok := test(high)
	for !ok && high < ch.most {
		low, high = high, min(high*2, ch.most)
		best, ok = test(high)
	}
	if !ok {
		return
	}
	for {
		x := math.Sqrt(low * high)
		if ch.whole {
			x = math.Floor(x)
		}
		// Two digits are as fine as durations are advised.
		if x <= low || !ch.whole && high/low < 1.01 {
			break
		}
		if o, ok := test(x); ok {
			best, high = o, x
		} else {
			low = x
		}
	}
	a.Options = append(a.Options, best)
}

// capOf is the cap of the policy or its curve, whichever holds; 0 is none.
func capOf(p policy.Policy) time.Duration {
	b := p.Backoff
	if i, ok := b.(policy.Immediate); ok {
		b = i.Then
	}
	limit := p.MaxDelay
	if c, ok := b.(policy.Capped); ok && c.Cap() > 0 && (limit <= 0 || c.Cap() < limit) {
		limit = c.Cap()
	}
	return limit
}

// setCap raises the caps, and reports whether it could.
func setCap(p *policy.Policy, d time.Duration) bool {
	if p.MaxDelay > 0 {
		p.MaxDelay = max(p.MaxDelay, d)
	}
	if i, ok := p.Backoff.(policy.Immediate); ok {
		i.Then = withCap(i.Then, d)
		p.Backoff = i
	} else {
		p.Backoff = withCap(p.Backoff, d)
	}
	return capOf(*p) >= d
}

func withCap(b policy.Backoff, d time.Duration) policy.Backoff {
	switch c := b.(type) {
	case policy.Exponential:
		if c.Max > 0 {
			c.Max = max(c.Max, d)
		}
		return c
	case policy.Linear:
		if c.Max > 0 {
			c.Max = max(c.Max, d)
		}
		return c
	default:
		return b
	}
}

// baseOf is the first delay of a curve that has one as a number; else 0.
func baseOf(b policy.Backoff) time.Duration {
	switch c := b.(type) {
	case policy.Fixed:
		return time.Duration(c)
	case policy.Linear:
		return c.Base
	case policy.Exponential:
		return c.Base
	case policy.Immediate:
		return baseOf(c.Then)
	default:
		return 0
	}
}

func withBase(b policy.Backoff, d time.Duration) policy.Backoff {
	switch c := b.(type) {
	case policy.Fixed:
		return policy.Fixed(d)
	case policy.Linear:
		c.Base = d
		return c
	case policy.Exponential:
		c.Base = d
		return c
	case policy.Immediate:
		c.Then = withBase(c.Then, d)
		return c
	default:
		return b
	}
}

// tidy rounds up to two digits: in seconds below a minute, else in whole
// minutes or hours below and above an hour and a half.
func tidy(ns float64) time.Duration {
	d := time.Duration(math.Ceil(min(ns, math.MaxInt64/2)))
	unit := time.Duration(1)
	switch {
	case d >= 90*time.Minute:
		unit = time.Hour / 2
	case d > 10*time.Minute:
		unit = time.Minute
	case d > time.Minute:
		unit = 5 * time.Second
	default:
		for d > 99*unit {
			unit *= 10
		}
	}
	return (d + unit - 1) / unit * unit
}
