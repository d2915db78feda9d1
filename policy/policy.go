package policy

import (
	"math"
	"time"
)

// Unlimited, as MaxAttempts, MaxLapses or MaxSnoozes, is no limit.
const Unlimited = math.MaxInt

// NoLapses, as MaxLapses, dead-letters a message at its first lapse.
const NoLapses = -1

// What the zero value of a field means.
const (
	DefaultMaxLapses     = 10
	DefaultMaxSnoozes    = 10_000
	DefaultMaxRetryAfter = 24 * time.Hour
)

// fallbackAttempts bounds an unvalidated policy that nothing else bounds.
const fallbackAttempts = 10

// A Policy says what happens to a message whose handler failed. It is a plain
// value: copy it, change the copy, share it between goroutines. The zero value
// is not valid; see [Policy.Validate].
//
// The methods can be called on a policy that is not valid, too. They neither
// return a negative delay then nor panic, unless a curve of the user's own
// does, and read each field as its comment says.
type Policy struct {
	// Name appears in logs and in the record of a dead letter. Optional.
	Name string

	// MaxAttempts is how many failures a message may have; the last of them
	// dead-letters it. So 1 is no retry, and 5 is four of them. Unlimited is
	// no limit. 0 is legal with a MaxAge, which then is the only limit.
	// Unvalidated, what is not positive counts as Unlimited with a MaxAge,
	// and as 10 without.
	MaxAttempts int

	// MaxLapses is how many deliveries may end without an outcome, as when
	// the consumer dies, before the message is dead-lettered. 0 is
	// DefaultMaxLapses; NoLapses, for work that must not run twice, is none
	// at all; Unlimited is no limit. Unvalidated, a number below NoLapses
	// counts as 0.
	MaxLapses int

	// MaxSnoozes is how many times the handler may ask to wait with Snooze. 0
	// is DefaultMaxSnoozes; Unlimited is no limit. Unvalidated, a negative
	// number counts as 0.
	MaxSnoozes int

	// MaxAge is how old a message may get, counted from its first enqueue or
	// its last redrive, with all that it waited and ran. A failed message
	// that is as old, or would be older by the time of its retry, is
	// dead-lettered at once. A message is never turned away for its age
	// before it ran. 0 is no limit. Unvalidated, so is a negative one.
	MaxAge time.Duration

	// Backoff is the delay by attempt, before jitter. Required. Unvalidated,
	// nil counts as Exponential{Base: time.Second, Max: 5 * time.Minute}.
	Backoff Backoff

	// Jitter spreads the delays. The zero value does not. Unvalidated, a
	// fraction out of range counts as the nearest one in range, one that is
	// not a number as 0, and an unknown kind as none.
	Jitter Jitter

	// MinDelay is a floor under the delays, jittered ones included, apart
	// from those of an Immediate. It raises the lower end of the range that
	// the jitter draws from; a range that is below the floor altogether moves
	// up to it, and keeps its width as far as the cap allows. 0 is none.
	// Unvalidated, so is a negative one, and the cap wins over the floor.
	MinDelay time.Duration

	// MaxDelay is a cap over the delays, jittered ones included. Where the
	// curve has a cap of its own, the lower one holds. Delays at the cap
	// still spread: their range ends there. Proportional and additive jitter
	// take the delay on the curve to at most cap/(1+fraction) first. 0 is
	// none. Unvalidated, so is a negative one. What an error asks for with
	// RetryAfter or Snooze may exceed the cap, up to MaxRetryAfter.
	MaxDelay time.Duration

	// MaxRetryAfter is a cap over what an error asks for with RetryAfter or
	// Snooze. 0 is DefaultMaxRetryAfter. Unvalidated, so is a negative one.
	MaxRetryAfter time.Duration

	// Rules are what the policy does differently about some errors. The first
	// that matches decides.
	Rules []Rule

	// Rand is where jitter is drawn from instead of the hash of message ID
	// and attempt. With it, Decide is no longer a pure function.
	Rand *Rand
}

// IsLast reports whether a failure of this attempt would be the last that
// MaxAttempts allows, its own and that of every rule. An attempt below 1 counts
// as 1. MaxAge may end a message sooner, and so may a rule.
func (p Policy) IsLast(attempt int) bool { return exhausts(p.attemptLimit(), max(attempt, 1)) }

// LapseLimit returns how many lapses a message may have and still be handled:
// MaxLapses with its default filled in, 0 for NoLapses. Unlimited stays.
func (p Policy) LapseLimit() int { return p.maxLapses() }

// MaxBackoff returns the longest delay that the backoff can choose, its own and
// that of every rule, jitter included, over the attempts that MaxAttempts and
// MaxAge leave. For a curve that is not of this package it looks at the first
// thousand attempts; where there can be more, it returns the cap, or the largest
// Duration without one.
func (p Policy) MaxBackoff() time.Duration {
	longest := p.longest()
	if p.MaxAge > 0 {
		longest = min(longest, p.MaxAge)
	}
	return longest
}

// MaxWait returns the longest delay that Decide can choose: MaxBackoff, or
// what an error may ask for with RetryAfter or Snooze. It is what a broker
// must be able to hold for the policy to have its way in every case.
func (p Policy) MaxWait() time.Duration {
	longest := max(p.longest(), p.maxRetryAfter())
	if p.MaxAge > 0 {
		longest = min(longest, p.MaxAge)
	}
	return longest
}

func (p *Policy) longest() time.Duration {
	if len(p.Rules) == 0 {
		return p.longestOfBranch()
	}
	longest := time.Duration(0)
	for _, b := range p.Branches() {
		longest = max(longest, b.longestOfBranch())
	}
	return longest
}

func (p *Policy) longestOfBranch() time.Duration {
	last := p.maxAttempts()
	if last != Unlimited {
		last-- // the last failure is not retried
	}
	if last < 1 {
		return 0
	}

	curve, n, immediate := resolve(p.Backoff, last)
	if immediate {
		return 0
	}
	look := n
	switch c := curve.(type) {
	case Fixed, Linear, Exponential:
		return p.window(curve, n).hi
	case Steps:
		// Decorrelated jitter looks one step back.
		look = min(n, len(c)+1)
	default:
		const most = 1000
		if n > most {
			return p.limit(curve)
		}
	}
	longest := time.Duration(0)
	for i := range look {
		longest = max(longest, p.window(curve, i+1).hi)
	}
	return longest
}

func (p *Policy) maxAttempts() int {
	switch {
	case p.MaxAttempts > 0:
		return p.MaxAttempts
	case p.MaxAge > 0:
		return Unlimited
	default:
		return fallbackAttempts
	}
}

func exhausts(limit, attempt int) bool { return limit != Unlimited && attempt >= limit }

func (p *Policy) maxLapses() int {
	switch {
	case p.MaxLapses == NoLapses:
		return 0
	case p.MaxLapses <= 0:
		return DefaultMaxLapses
	default:
		return p.MaxLapses
	}
}

func (p *Policy) maxSnoozes() int {
	if p.MaxSnoozes <= 0 {
		return DefaultMaxSnoozes
	}
	return p.MaxSnoozes
}

func (p *Policy) maxRetryAfter() time.Duration {
	if p.MaxRetryAfter <= 0 {
		return DefaultMaxRetryAfter
	}
	return p.MaxRetryAfter
}
