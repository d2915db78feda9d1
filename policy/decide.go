package policy

import "time"

// A Failure is what Decide is asked about: a handler that did not succeed.
type Failure struct {
	// Attempt is 1 plus the failures before this one. Below 1 counts as 1.
	Attempt int

	// Err is what the handler returned, or what stands for its panic. It may
	// carry a mark: see [Permanent], [Discard], [RetryAfter], [Snooze]. Any
	// other error, nil too, can be retried.
	Err error

	// Cause is ReasonTimeout or ReasonPanic, or else counts as ReasonError.
	// It becomes the reason of a retry that has no other.
	Cause Reason

	// MessageID is what the jitter is drawn from, with Attempt. Where it is
	// empty, Age stands in for it.
	MessageID string

	// Age is the time since the first enqueue or the last redrive. Negative,
	// as clocks may have it, counts as 0.
	Age time.Duration

	// Snoozes is how many times the message was snoozed before.
	Snoozes int
}

// A Receipt is what Admit is asked about: a message just received.
type Receipt struct {
	Attempt int // 1 plus the failures reported so far
	Lapses  int // deliveries that ended without an outcome
}

// Decide says what to do about a failure. The first that applies decides:
//
//  1. [Discard]: discard.
//  2. [Permanent]: dead-letter.
//  3. [Snooze]: retry, uncharged, after what it asks for, at most
//     MaxRetryAfter; or dead-letter, where MaxSnoozes or MaxAge is exceeded.
//  4. The first of the Rules that matches, and its action: dead-letter or
//     discard. Not so where the error is marked by [RetryAfter]: the handler,
//     which knows more, wants a retry.
//  5. The attempt is the last of MaxAttempts, the rule's where it has one:
//     dead-letter.
//  6. The delay of the retry is found, and MaxAge would be exceeded:
//     dead-letter.
//  7. Retry.
//
// The delay is that of Backoff, taken to the cap, spread by Jitter, taken to
// the floor. What [RetryAfter] asks for is spread by as much, towards later,
// and taken to MaxRetryAfter; the longer of the two holds.
//
// Decide is a pure function as long as Rand is nil: it reads no clock and
// keeps no state, and the same failure gets the same decision in every
// process. It is safe for concurrent use, with a Rand too.
func (p Policy) Decide(f Failure) (d Decision) {
	f.Attempt = max(f.Attempt, 1)
	f.Age = max(f.Age, 0)
	f.Snoozes = max(f.Snoozes, 0)

	d.Action = ActionDeadLetter
	d.why.cause = f.Cause
	found := classify(f.Err)
	d.why.mark = found.kind
	d.why.attempt, d.why.attempts = f.Attempt, p.maxAttempts()
	switch found.kind {
	case discarded:
		d.Action, d.Reason = ActionDiscard, ReasonDiscarded
		return d
	case permanent:
		d.Reason = ReasonPermanent
		return d
	case snoozed:
		d.why.count, d.why.most = f.Snoozes, p.maxSnoozes()
		if d.why.most != Unlimited && f.Snoozes >= d.why.most {
			d.Reason = ReasonSnoozeLimit
			return d
		}
	default:
		if len(p.Rules) > 0 {
			if d.Action, d.Reason = p.follow(f.Err, found, &d.why); d.Action != ActionRetry {
				return d
			}
			d.Action = ActionDeadLetter
		}
		if exhausts(d.why.attempts, f.Attempt) {
			d.Reason = ReasonExhausted
			return d
		}
	}

	delay := p.delay(&f, found, &d.why)
	if p.MaxAge > 0 && (f.Age >= p.MaxAge || delay > p.MaxAge-f.Age) {
		d.Reason = ReasonExpired
		d.why.delay, d.why.age, d.why.maxAge = delay, f.Age, p.MaxAge
		return d
	}
	d.Action, d.Delay = ActionRetry, delay
	switch {
	case found.kind == snoozed:
		d.Reason, d.Uncharged = ReasonSnoozed, true
	case found.kind == retryAfter:
		d.Reason = ReasonRetryAfter
	case f.Cause == ReasonTimeout || f.Cause == ReasonPanic:
		d.Reason = f.Cause
	default:
		d.Reason = ReasonError
	}
	return d
}

// follow finds the rule for an error and makes p the policy for it. The action is
// ActionRetry unless the rule gives the message up, for the reason beside it.
func (p *Policy) follow(err error, found finding, why *why) (Action, Reason) {
	i := p.match(err)
	if i < 0 {
		return ActionRetry, ""
	}
	r := &p.Rules[i]
	if r.Retries() {
		p.apply(r)
		why.attempts = p.maxAttempts()
	} else if found.kind == retryAfter {
		return ActionRetry, ""
	}
	why.rule, why.ruleName = i+1, r.Name
	switch r.Action {
	case ActionDiscard:
		return ActionDiscard, ReasonDiscarded
	case ActionDeadLetter:
		return ActionDeadLetter, ReasonPermanent
	default:
		return ActionRetry, ""
	}
}

// delay finds the delay before MaxAge is asked, and notes how.
func (p *Policy) delay(f *Failure, found finding, why *why) time.Duration {
	longest := p.maxRetryAfter()
	why.hint, why.maxHint = found.wait, longest
	if found.kind == snoozed && found.wait > 0 {
		return min(found.wait, longest)
	}

	curve, n, immediate := resolve(p.Backoff, f.Attempt)
	if immediate && found.kind == unmarked {
		why.curve = curveImmediate
		return 0
	}
	w := p.window(curve, n)
	part := p.draw(w.hi-w.lo, f)
	delay := w.lo + part
	why.curve, why.jitter, why.window, why.floor = curveOf(curve), p.Jitter.Kind, w, p.MinDelay
	switch {
	case found.kind == snoozed:
		return min(delay, longest)
	case immediate:
		why.curve, delay = curveImmediate, 0
	}
	if found.wait > 0 {
		// One draw serves both waits, so that the longer one keeps the whole
		// spread.
		delay = max(delay, min(saturatingAdd(found.wait, part), longest))
	}
	return delay
}

// Admit says whether a message may run that was just received, before its
// handler does. ok is false where it may not, and the decision is then to
// dead-letter it: with ReasonAbandoned where it lapsed more often than
// MaxLapses allows, else with ReasonExhausted where its attempt is above
// MaxAttempts, the largest where rules have their own. Where ok is true the
// decision is the zero Decision. Age plays no part: a message that was late from
// the start still runs once.
func (p Policy) Admit(r Receipt) (d Decision, ok bool) {
	if most := p.maxLapses(); most != Unlimited && r.Lapses > most {
		return Decision{Action: ActionDeadLetter, Reason: ReasonAbandoned, why: why{
			count: r.Lapses, most: most,
		}}, false
	}
	if most := p.attemptLimit(); most != Unlimited && r.Attempt > most {
		return Decision{Action: ActionDeadLetter, Reason: ReasonExhausted, why: why{
			received: true, attempt: r.Attempt, attempts: most,
		}}, false
	}
	return Decision{}, true
}
