package consumer

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// Wish is what became of the wishes that a message carries in its headers. There are few, so that it can label a metric.
//
// A producer may wish for less patience than the policy has that governs its message, in any of three headers:
//
//	redeliver-policy        the name of a policy, one of Consumer.Wishes
//	redeliver-max-attempts  a number from 1: how many failures there may be
//	redeliver-max-age       a duration with its unit, such as 90s or 1h30m: how old the message may get
//
// A wish never gives a message more than its policy allows. Both policies decide about each failure: the message is retried if both
// retry it, after the longer of the two waits, which is no longer than the longest that its own policy may choose; and the lowest
// limit holds, of attempts, lapses, snoozes and age. Nothing is discarded that its own policy would keep: what only the wished
// policy discards is dead-lettered.
//
// A wish that cannot be read, or that names what may not be asked for, is ignored: it is reported with the event and logged, without
// its text, the first time as a warning. Wishes stay with the message in retries and in the dead-letter queue.
type Wish string

const (
	WishGranted Wish = "granted" // all wishes of the message are heeded, within the bounds
	WishIgnored Wish = "ignored" // at least one of them is not
)

// grant returns what governs a delivery with its wishes, where it has any, within the bounds of what governs it without.
func (r *run) grant(g *governing, d *backend.Delivery) *governing {
	name, named := d.Headers[backend.HeaderPolicy]
	attemptsText, limited := d.Headers[backend.HeaderMaxAttempts]
	ageText, aged := d.Headers[backend.HeaderMaxAge]
	if !named && !limited && !aged {
		return g
	}
	granted := &governing{policy: g.policy, name: g.name, wish: WishGranted}
	ignore := func(header, why string) {
		granted.wish = WishIgnored
		r.ignoredWish(d, header, why)
	}
	var attempts int
	var age time.Duration
	var err error
	if limited {
		if attempts, err = strconv.Atoi(attemptsText); err != nil || attempts < 1 {
			attempts = 0
			ignore(backend.HeaderMaxAttempts, "it is no number from 1")
		}
	}
	if aged {
		if age, err = time.ParseDuration(ageText); err != nil || age <= 0 {
			age = 0
			ignore(backend.HeaderMaxAge, "it is no duration above 0 with a unit, such as 90s or 1h30m")
		}
	}
	if named {
		if slices.Contains(r.c.Wishes, name) {
			wished := r.overrides[name]
			within := wished.policy
			age = lower(age, within.MaxAge)
			within.MaxDelay = lower(within.MaxDelay, max(g.longest, 1)) // as 0 would be no cap
			within.MaxRetryAfter = g.policy.MaxRetryAfter
			granted.wished, granted.name = &within, wished.name
		} else {
			ignore(backend.HeaderPolicy, "it names no policy that may be asked for: see Consumer.Wishes")
		}
	}
	age = lower(age, g.policy.MaxAge)
	tighten(&granted.policy, attempts, age)
	if granted.wished != nil {
		tighten(granted.wished, attempts, age)
	}
	return granted
}

// tighten lowers the limits of a policy; 0 leaves one as it is.
func tighten(p *policy.Policy, attempts int, age time.Duration) {
	p.MaxAge = lower(p.MaxAge, age)
	if attempts == 0 {
		return
	}
	p.MaxAttempts = lower(p.MaxAttempts, attempts)
	p.Rules = slices.Clone(p.Rules)
	for i := range p.Rules {
		// 0 stays: it is the policy's own.
		if rule := &p.Rules[i]; rule.MaxAttempts > attempts {
			rule.MaxAttempts = attempts
		}
	}
}

// lower returns the lower of two limits, of which 0 is none.
func lower[T int | time.Duration](a, b T) T {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	default:
		return min(a, b)
	}
}

func (r *run) ignoredWish(d *backend.Delivery, header, why string) {
	log := r.logger.DebugContext
	r.firstIgnoredWish.Do(func() { log = r.logger.WarnContext })
	log(r.base, "redeliver: a wish of a message is ignored. Further ones are debug lines.", "queue", r.name, "message_id", d.ID, "header", header, "why", why)
}

// isLast reports whether a failure of this attempt is the last.
func (g *governing) isLast(attempt int) bool {
	return g.policy.IsLast(attempt) || g.wished != nil && g.wished.IsLast(attempt)
}

// lapseLimit is how many lapses a message may have and still be handled.
func (g *governing) lapseLimit() int {
	limit := g.policy.LapseLimit()
	if g.wished != nil {
		limit = min(limit, g.wished.LapseLimit())
	}
	return limit
}

// admit says whether a message may run that was just received.
func (g *governing) admit(d *backend.Delivery, countsReceives bool) (policy.Decision, bool) {
	decision, ok := admit(&g.policy, d, countsReceives)
	if ok && g.wished != nil {
		decision, ok = admit(g.wished, d, countsReceives)
	}
	return decision, ok
}

func admit(p *policy.Policy, d *backend.Delivery, countsReceives bool) (policy.Decision, bool) {
	receipt := policy.Receipt{Attempt: d.Attempt, Lapses: d.Lapses}
	if countsReceives {
		// One number stands for failures and lapses there, so only what exceeds both maxima together is surely too much.
		receipt.Attempt = max(1, d.Attempt-p.LapseLimit())
	}
	return p.Admit(receipt)
}

// rule asks the policy, and the wished one where there is one.
func (r *run) rule(d *policy.Decision, g *governing, f policy.Failure) {
	r.decide(d, &g.policy, f)
	if g.wished == nil || d.Action != policy.ActionRetry {
		return
	}
	var wished policy.Decision
	r.decide(&wished, g.wished, f)
	switch {
	case wished.Action == policy.ActionDiscard:
		wished.Action, wished.Reason = policy.ActionDeadLetter, policy.ReasonPermanent
		*d = wished
	case wished.Action != policy.ActionRetry || wished.Delay > d.Delay:
		*d = wished
	}
}

// checkWishes finds names that no override has.
func (c *Consumer) checkWishes() (faults []error) {
	for _, name := range c.Wishes {
		if _, ok := c.Overrides[name]; !ok {
			faults = append(faults, fmt.Errorf("consumer: Wishes has %q, which Overrides lacks: want names of Overrides", name))
		}
	}
	return faults
}
