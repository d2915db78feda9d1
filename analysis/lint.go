package analysis

import (
	"fmt"
	"slices"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// A Code names a kind of warning. Codes do not change their meaning, and can
// be listed to be ignored.
type Code string

// The codes, and what each finds.
const (
	// NoJitter: messages that fail together are retried together, again and
	// again, as a herd.
	NoJitter Code = "no-jitter"
	// NoCap: a growing curve without Max and without MaxDelay.
	NoCap Code = "no-cap"
	// NoLimit: unlimited attempts without MaxAge. A poison message is retried
	// for ever.
	NoLimit Code = "no-limit"
	// NoRetry: one attempt. The first failure, also a passing one, is the last.
	NoRetry Code = "no-retry"
	// Hammering: more than three retries without a delay.
	Hammering Code = "hammering"
	// Descending: the waits become shorter on average, so that a dependency in
	// trouble is asked more often.
	Descending Code = "descending"
	// UnreachedAttempts: MaxAge ends nearly every message before MaxAttempts.
	UnreachedAttempts Code = "unreached-attempts"
	// OutageOutlasts: fewer messages than wanted survive the stated outage.
	OutageOutlasts Code = "outage-outlasts"
	// DelayAboveBroker: the broker cannot hold the longest wait, and cuts it.
	DelayAboveBroker Code = "delay-above-broker"
	// HintAboveBroker: what a server may ask for with Retry-After is longer
	// than the broker can hold. A note.
	HintAboveBroker Code = "hint-above-broker"
	// BrokerRounds: the broker's unit makes the mean wait of some attempt
	// longer by a tenth or more.
	BrokerRounds Code = "broker-rounds"
	// JitterRoundedAway: the broker's unit makes all waits of an attempt equal
	// although the policy spreads them.
	JitterRoundedAway Code = "jitter-rounded-away"
	// ParkingQueues: how many queues the broker needs for the waits. A note,
	// and a warning from 100 on.
	ParkingQueues Code = "parking-queues"
	// BrokerLate: a retry may be late by a share of its delay, where many wait.
	// A note.
	BrokerLate Code = "broker-late"
	// RetentionShorter: the broker drops messages that still wait to be
	// retried.
	RetentionShorter Code = "retention-shorter"
)

var codes = []Code{
	NoJitter, NoCap, NoLimit, NoRetry, Hammering, Descending, UnreachedAttempts, OutageOutlasts,
	DelayAboveBroker, HintAboveBroker, BrokerRounds, JitterRoundedAway, ParkingQueues, BrokerLate, RetentionShorter,
}

// Codes returns every code that a warning can have.
func Codes() []Code { return slices.Clone(codes) }

// A Warning is something that is probably not meant. A note is a fact to know
// that calls for no change.
type Warning struct {
	Code Code
	Text string // what is so, what follows, what to do
	Note bool
}

const (
	mostImmediate    = 3
	manyQueues       = 100
	roundingShare    = 0.1
	unreachedShare   = 0.01
	descendingMargin = 0.99
)

// Lint returns what is suspicious about a policy on a broker. Where outage is
// above 0, at least the share want of messages should survive it; a want of 0
// is 0.99. The rules of the policy are looked at as well, each as a branch of it.
// It fails where New does.
func Lint(p policy.Policy, c Conditions, outage time.Duration, want float64) ([]Warning, error) {
	s, err := New(p, c)
	if err != nil {
		return nil, err
	}
	l := &linter{s: s}
	l.policy()
	if outage > 0 {
		if want == 0 {
			want = 0.99
		}
		l.outage(outage, want)
	}
	l.broker()
	for i, rule := range p.Rules {
		if !rule.Retries() {
			continue
		}
		ruled, err := New(p.Branch(i), c)
		if err != nil {
			return nil, err
		}
		r := &linter{s: ruled}
		r.policy()
		r.broker()
		l.adopt(RuleName(p, i), r.found)
	}
	return l.found, nil
}

// adopt takes the warnings about a rule, apart from those that the policy has
// without it, and those that rules are for: one may well end at the first
// attempt.
func (l *linter) adopt(rule string, found []Warning) {
	for _, w := range found {
		known := slices.ContainsFunc(l.found, func(o Warning) bool { return o.Code == w.Code })
		if !known && w.Code != NoRetry && !w.Note {
			w.Text = fmt.Sprintf("rule %s: %s", rule, w.Text)
			l.found = append(l.found, w)
		}
	}
}

type linter struct {
	s     *Schedule
	found []Warning
}

func (l *linter) warn(code Code, format string, args ...any) {
	l.found = append(l.found, Warning{Code: code, Text: fmt.Sprintf(format, args...)})
}

func (l *linter) note(code Code, format string, args ...any) {
	l.found = append(l.found, Warning{Code: code, Text: fmt.Sprintf(format, args...), Note: true})
}

func (l *linter) policy() {
	p, attempts := l.s.Policy, l.s.Attempts
	if len(attempts) == 1 {
		l.warn(NoRetry, "there is one attempt: a passing fault dead-letters a message; allow a few attempts")
	}
	if len(attempts) > 1 && (p.Jitter.Kind == policy.JitterNone || p.Jitter.Fraction == 0 && fractional(p.Jitter.Kind)) {
		l.warn(NoJitter, "delays are not spread: messages that fail together come back together, each time; set Jitter, full or equal")
	}
	if capOf(p) == 0 && grows(p.Backoff) {
		l.warn(NoCap, "delays grow without a cap, to %s after attempt %d; set Max of the curve or MaxDelay",
			Text(l.longest()), len(attempts)-1)
	}
	if l.s.Horizon().Never {
		l.warn(NoLimit, "a message that can never succeed is retried for ever; set MaxAttempts or MaxAge")
	}
	if n := immediate(attempts); n > mostImmediate {
		l.warn(Hammering, "%d retries come without a delay: a dependency in trouble is hit %d times as hard; leave %d at most", n, n+1, mostImmediate)
	}
	for i := 2; i < len(attempts); i++ {
		before, now := attempts[i-1].Wait.Mean, attempts[i].Wait.Mean
		if float64(now) < descendingMargin*float64(before) {
			l.warn(Descending, "the wait after attempt %d is %s on average, and after attempt %d only %s; let waits grow, or stay",
				i-1, Text(before), i, Text(now))
			break
		}
	}
	last := len(attempts)
	if p.MaxAge > 0 && p.MaxAttempts > 0 && p.MaxAttempts != policy.Unlimited &&
		(last < p.MaxAttempts || attempts[last-1].Reached.High() < unreachedShare) {
		l.warn(UnreachedAttempts, "the maximum age of %s ends messages before attempt %d of %d; raise MaxAge, or lower MaxAttempts",
			Text(p.MaxAge), min(last+1, p.MaxAttempts), p.MaxAttempts)
	}
}

func fractional(k policy.JitterKind) bool {
	return k == policy.JitterProportional || k == policy.JitterAdditive
}

// grows reports whether a curve has no upper end of its own making.
func grows(b policy.Backoff) bool {
	switch c := b.(type) {
	case policy.Linear:
		return c.Step > 0
	case policy.Exponential:
		return c.Factor != 1
	case policy.Immediate:
		return grows(c.Then)
	default:
		return false
	}
}

func immediate(attempts []Attempt) int {
	n := 0
	for _, a := range attempts[1:] {
		if a.Wait.Latest == 0 {
			n++
		}
	}
	return n
}

func (l *linter) longest() (d time.Duration) {
	for i := range l.s.waits {
		d = max(d, l.s.waits[i].hi)
	}
	return d
}

func (l *linter) outage(outage time.Duration, want float64) {
	alive := l.s.Survival(outage).AtStart
	if alive.High() >= want {
		return
	}
	h := l.s.Horizon()
	l.warn(OutageOutlasts, "of the messages that fail first as an outage of %s begins %s survive it, and %.4g %% should: "+
		"the policy gives up after %s on average; it needs more attempts or longer waits", Text(outage), alive.Percent(), 100*want, Text(h.Mean))
}

func (l *linter) broker() {
	b, p := l.s.Conditions.Broker, l.s.Policy
	name := b.Name
	if name == "" {
		name = "the broker"
	}
	if most := b.Limits.MaxDelay; most > 0 {
		if d := l.longest(); d > most {
			l.warn(DelayAboveBroker, "%s holds a message for %s at most, and the longest wait is %s: it would come back sooner; set a cap of %s",
				name, Text(most), Text(d), Text(most))
		}
		if d := p.MaxWait(); d > most && d > l.longest() {
			l.note(HintAboveBroker, "%s holds a message for %s at most; an error may ask for %s with RetryAfter, and would get %s",
				name, Text(most), Text(d), Text(most))
		}
	}
	l.rounding(name)
	if b.ParkingQueues != nil {
		if n := len(b.ParkingQueues(p)); n >= manyQueues {
			l.warn(ParkingQueues, "%s needs %d queues for the waits; a narrower range of delays, or coarser bands, need fewer", name, n)
		} else if n > 0 {
			l.note(ParkingQueues, "%s needs %d queues for the waits", name, n)
		}
	}
	if share := b.Limits.Stretch; share > 0 && len(l.s.waits) > 0 {
		l.note(BrokerLate, "on %s a retry may be late by %.2g %% of its delay where many with about the same one wait", name, 100*share)
	}
	if h := l.s.Horizon(); b.Retention > 0 && (h.Never || h.Latest > b.Retention) {
		text := "up to " + Text(h.Latest)
		if h.Never {
			text = "without end"
		}
		l.warn(RetentionShorter, "%s drops messages after %s, and the policy retries them %s: they would be lost, not dead-lettered; "+
			"prolong the retention, or set MaxAge below it", name, Text(b.Retention), text)
	}
}

// rounding looks for waits that the broker's unit changes much.
func (l *linter) rounding(name string) {
	unit := l.s.Conditions.Broker.Limits.Granularity
	worst, at := 0.0, -1
	for i := range l.s.waits {
		w := &l.s.waits[i]
		wanted := float64(w.lo)/2 + float64(w.hi)/2
		if wanted == 0 || w.hi > w.limit {
			continue
		}
		if more := float64(w.mean())/wanted - 1; more > worst {
			worst, at = more, i
		}
	}
	if at >= 0 && worst >= roundingShare {
		w := &l.s.waits[at]
		l.warn(BrokerRounds, "%s takes waits in units of %s: after attempt %d a message waits %s on average, not %s; use longer delays, or another broker",
			name, Text(unit), at+1, Text(w.mean()), Text(round(float64(w.lo)/2+float64(w.hi)/2)))
	}
	for i := range l.s.waits {
		w := &l.s.waits[i]
		if w.hi > w.lo && float64(w.hi-w.lo) >= roundingShare*float64(w.hi) && w.hi <= w.limit && (w.offset == w.longest || w.lo == 0 && w.longest == unit) {
			l.warn(JitterRoundedAway, "%s takes waits in units of %s: after attempt %d every message waits %s, whatever the jitter, and those that failed together come back together; use longer delays",
				name, Text(unit), i+1, Text(w.longest))
			break
		}
	}
}
