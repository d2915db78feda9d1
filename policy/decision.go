package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// An Action is what a decision is for.
type Action uint8

const (
	// ActionRetry: deliver the message again, after the delay.
	ActionRetry Action = iota + 1
	// ActionDeadLetter: move the message to the dead-letter queue.
	ActionDeadLetter
	// ActionDiscard: remove the message.
	ActionDiscard
)

// String returns "retry", "dead-letter" or "discard", and "none" for the zero
// Action.
func (a Action) String() string {
	switch a {
	case 0:
		return "none"
	case ActionRetry:
		return "retry"
	case ActionDeadLetter:
		return "dead-letter"
	case ActionDiscard:
		return "discard"
	default:
		return fmt.Sprintf("Action(%d)", uint8(a))
	}
}

// A Decision is what to do with a message. Decisions can be compared with ==.
type Decision struct {
	Action Action // what to do

	// Delay is the wait before a retry, counted from the decision; never
	// negative. It is 0 for the other actions.
	Delay time.Duration

	Reason Reason // why

	// Uncharged is set for a retry that is no failure, a snooze: the attempt
	// number stays.
	Uncharged bool

	why why
}

// A why keeps what Explain needs, as plain values, so that a decision costs
// nothing to explain unless someone asks.
type why struct {
	cause             Reason
	mark              markKind
	curve             curveKind
	jitter            JitterKind
	received          bool // not yet handled
	attempt, attempts int
	rule              int // its position, from 1; 0 for none
	ruleName          string
	count, most       int // of snoozes or lapses
	age, maxAge       time.Duration
	delay             time.Duration // of a retry that would be too late
	window            window
	floor             time.Duration
	hint, maxHint     time.Duration
}

// Rule returns the name of the rule that the decision followed, or "#2" for the
// second of the policy where it has no name. It is empty where no rule matched,
// or was not asked, as where a mark such as [Permanent] decided.
func (d Decision) Rule() string {
	if d.why.rule > 0 && d.why.ruleName == "" {
		return "#" + strconv.Itoa(d.why.rule)
	}
	return d.why.ruleName
}

type curveKind uint8

const (
	curveNone curveKind = iota
	curveImmediate
	curveFixed
	curveLinear
	curveExponential
	curveSteps
	curveOther
)

func curveOf(b Backoff) curveKind {
	switch b.(type) {
	case Exponential:
		return curveExponential
	case Fixed:
		return curveFixed
	case Linear:
		return curveLinear
	case Steps:
		return curveSteps
	default:
		return curveOther
	}
}

// Explain tells in one line, for people, how the decision came about, such as
// "retry in 1.7s: attempt 3 of 8 failed; exponential backoff 2s, full jitter
// from 0s to 2s". It holds neither the error's text nor anything of the
// message. The wording may change. It is built when asked for.
func (d Decision) Explain() string {
	var b strings.Builder
	w := &d.why
	switch {
	case d.Action != ActionRetry:
		b.WriteString(d.Action.String())
	case d.Delay == 0:
		b.WriteString("retry at once")
	default:
		fmt.Fprintf(&b, "retry in %v", d.Delay)
	}
	if d.Uncharged {
		b.WriteString(", uncharged")
	}

	switch d.Reason {
	case ReasonAbandoned:
		fmt.Fprintf(&b, ": %d deliveries ended without an outcome, at most %d may", w.count, w.most)
	case ReasonSnoozeLimit:
		fmt.Fprintf(&b, ": snoozed %d times already, at most %d are allowed", w.count, w.most)
	case ReasonSnoozed:
		fmt.Fprintf(&b, ": %s %s, snooze %d%s", w.attemptText(), w.verb(), w.count+1, ofLimit(w.most))
		w.delayText(&b)
	case ReasonExhausted:
		switch {
		case w.received:
			fmt.Fprintf(&b, ": received as %s, already beyond the last", w.attemptText())
		case w.attempt > w.attempts:
			fmt.Fprintf(&b, ": %s %s, beyond the last", w.attemptText(), w.verb())
		default:
			fmt.Fprintf(&b, ": %s %s, the last", w.attemptText(), w.verb())
		}
	case ReasonPermanent:
		fmt.Fprintf(&b, ": %s %s", w.attemptText(), w.verb())
		if w.rule == 0 {
			b.WriteString(" with an error marked permanent")
		}
	case ReasonDiscarded:
		fmt.Fprintf(&b, ": %s %s", w.attemptText(), w.verb())
		if w.rule == 0 {
			b.WriteString(" with an error marked to discard")
		}
	case ReasonExpired:
		fmt.Fprintf(&b, ": %s %s at an age of %v", w.attemptText(), w.verb(), w.age)
		if w.age < w.maxAge {
			fmt.Fprintf(&b, ", and a retry in %v would be past", w.delay)
		} else {
			b.WriteString(", no less than")
		}
		fmt.Fprintf(&b, " the maximum age of %v", w.maxAge)
		w.delayText(&b)
	case ReasonError, ReasonTimeout, ReasonPanic, ReasonRetryAfter:
		fmt.Fprintf(&b, ": %s %s", w.attemptText(), w.verb())
		w.delayText(&b)
	}
	if w.rule > 0 {
		fmt.Fprintf(&b, "; by rule %s", d.Rule())
	}
	return b.String()
}

func (w *why) attemptText() string {
	return fmt.Sprintf("attempt %d%s", w.attempt, ofLimit(w.attempts))
}

func ofLimit(most int) string {
	if most == Unlimited {
		return ""
	}
	return fmt.Sprintf(" of %d", most)
}

func (w *why) verb() string {
	switch {
	case w.mark == snoozed:
		return "asked to wait"
	case w.cause == ReasonTimeout:
		return "timed out"
	case w.cause == ReasonPanic:
		return "panicked"
	default:
		return "failed"
	}
}

func (w *why) delayText(b *strings.Builder) {
	switch w.curve {
	case curveImmediate:
		b.WriteString("; an immediate retry")
	case curveFixed:
		b.WriteString("; fixed backoff ")
	case curveLinear:
		b.WriteString("; linear backoff ")
	case curveExponential:
		b.WriteString("; exponential backoff ")
	case curveSteps:
		b.WriteString("; backoff by steps ")
	case curveOther:
		b.WriteString("; backoff ")
	}
	if w.curve > curveImmediate {
		w.windowText(b)
	}
	if w.hint > 0 {
		fmt.Fprintf(b, "; the error asked for %v", w.hint)
		if width := w.window.hi - w.window.lo; width > 0 {
			fmt.Fprintf(b, ", spread by up to %v", width)
		}
		if w.hint > w.maxHint {
			fmt.Fprintf(b, ", at most %v is allowed", w.maxHint)
		}
	}
}

func (w *why) windowText(b *strings.Builder) {
	b.WriteString(w.window.raw.String())
	switch {
	case w.window.raw < 0:
		b.WriteString(" taken as 0s")
	case w.window.raw > w.window.limit:
		fmt.Fprintf(b, " capped at %v", w.window.limit)
	}
	if w.jitter > JitterNone && w.jitter <= JitterDecorrelated {
		fmt.Fprintf(b, ", %v jitter from %v to %v", w.jitter, w.window.lo, w.window.hi)
	}
	if w.floor > 0 && w.window.lo == min(w.floor, w.window.limit) {
		fmt.Fprintf(b, ", not below %v", w.window.lo)
	}
}
