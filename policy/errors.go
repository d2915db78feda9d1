package policy

import (
	"errors"
	"time"
)

// The marks, for errors.Is: errors.Is(err, ErrPermanent) reports whether err
// holds an error that [Permanent] made, and so on.
//
// They may be returned themselves, wrapped as any error, and an error type of
// your own can take part with a method Is that says it is one of them. Such a
// mark carries no duration: an ErrRetryAfter without one leaves the delay to
// the policy, and so does an ErrSnooze, which stays uncharged.
var (
	ErrDiscard    error = &mark{kind: discarded}
	ErrPermanent  error = &mark{kind: permanent}
	ErrSnooze     error = &mark{kind: snoozed}
	ErrRetryAfter error = &mark{kind: retryAfter}
)

// Permanent marks err as one that no retry can mend: the message is
// dead-lettered at once. The text and the cause are those of err. Permanent of
// nil is nil; of an error that Permanent returned, that error.
func Permanent(err error) error { return wrap(permanent, 0, err) }

// Discard marks err as one after which the message is of no use to anyone: it
// is removed, without a dead letter. The text and the cause are those of err.
// Discard of nil is nil; of an error that Discard returned, that error.
func Discard(err error) error { return wrap(discarded, 0, err) }

// RetryAfter marks err with the wait that a server asked for, such as one that
// [ParseRetryAfter] has read. The retry comes no sooner than d from now. Jitter
// makes it later, and the policy's own delay holds where that is longer. A d
// above [Policy.MaxRetryAfter] counts as that; one of 0 or less asks for
// nothing. The text and the cause are those of err. RetryAfter of nil is nil,
// whatever d.
func RetryAfter(d time.Duration, err error) error { return wrap(retryAfter, d, err) }

// Snooze returns an error for a handler that cannot go on yet though nothing
// failed. The message comes back after d, with the same attempt number. A d
// above [Policy.MaxRetryAfter] counts as that. There is no jitter on d and no
// floor under it. Where d is 0 or less the message waits as long as after a
// failure of this attempt, rather than come back in a tight loop.
// [Policy.MaxSnoozes] bounds how often.
func Snooze(d time.Duration) error { return &mark{kind: snoozed, wait: max(d, 0)} }

// Hint returns the wait that err asks for, d of [RetryAfter] or of [Snooze],
// as Decide would read it: ok is false where err holds neither, and where a
// mark beside it decides, [Discard] over [Permanent] over Snooze over
// RetryAfter. Of several the longest counts.
func Hint(err error) (d time.Duration, ok bool) {
	found := classify(err)
	if found.kind == snoozed || found.kind == retryAfter {
		return found.wait, true
	}
	return 0, false
}

// A markKind orders the marks: where there are several, the highest decides.
type markKind uint8

const (
	unmarked markKind = iota
	retryAfter
	snoozed
	permanent
	discarded
)

// A mark is what the constructors above wrap an error in.
type mark struct {
	kind  markKind
	wait  time.Duration // retryAfter and snoozed; never negative
	cause error
}

func wrap(kind markKind, wait time.Duration, err error) error {
	if err == nil {
		return nil
	}
	if m, ok := err.(*mark); ok && m.kind == kind && (kind == permanent || kind == discarded) {
		return err
	}
	return &mark{kind: kind, wait: max(wait, 0), cause: err}
}

func (m *mark) Error() string {
	switch {
	case m.cause != nil:
		return m.cause.Error()
	case m.kind == discarded:
		return "discard the message"
	case m.kind == permanent:
		return "permanent failure"
	case m.kind == retryAfter:
		return "retry later"
	case m.wait == 0:
		return "snooze"
	default:
		return "snooze for " + m.wait.String()
	}
}

func (m *mark) Unwrap() error { return m.cause }

// Is matches the mark's own sentinel, and itself.
func (m *mark) Is(target error) bool {
	t, ok := target.(*mark)
	return ok && t.cause == nil && t.wait == 0 && t.kind == m.kind
}

// A finding is what an error tree says about the retry.
type finding struct {
	kind markKind
	wait time.Duration
}

func (f *finding) add(kind markKind, wait time.Duration) {
	switch {
	case kind > f.kind:
		f.kind, f.wait = kind, wait
	case kind == f.kind:
		f.wait = max(f.wait, wait)
	}
}

// classify looks through the whole tree of err, as errors.Is and errors.As
// do, because the highest mark decides wherever it is. A walk of its own
// finds all kinds at once, and without the allocation of errors.As.
//
// Methods of err may panic, as they do where a handler returned a nil pointer
// as an error. The decision then rests on what was found before: better than
// to take down the consumer, which would receive the same message again.
func classify(err error) (f finding) {
	defer func() { _ = recover() }()
	f.walk(err)
	return f
}

func (f *finding) walk(err error) {
	for err != nil {
		// One switch costs one look-up, which counts on the way of every
		// failure. What is rare comes in pieces.
		switch x := err.(type) {
		case *mark:
			f.add(x.kind, x.wait)
			err = x.cause
		case interface{ Is(error) bool }, interface{ As(any) bool }:
			f.ask(err)
			f.walkMany(err)
			err = errors.Unwrap(err)
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		default:
			f.walkMany(err)
			return
		}
	}
}

// walkMany looks through an error that holds several.
func (f *finding) walkMany(err error) {
	if x, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range x.Unwrap() {
			f.walk(err)
		}
	}
}

// ask gives an error with methods of its own for errors.Is and errors.As the
// word.
func (f *finding) ask(err error) {
	if x, ok := err.(interface{ Is(error) bool }); ok {
		for _, sentinel := range [...]error{ErrDiscard, ErrPermanent, ErrSnooze, ErrRetryAfter} {
			if x.Is(sentinel) {
				f.add(sentinel.(*mark).kind, 0)
				break
			}
		}
	}
	if x, ok := err.(interface{ As(any) bool }); ok {
		var m *mark
		if x.As(&m) && m != nil {
			f.walk(m)
		}
	}
}
