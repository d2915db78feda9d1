package policy

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// A Rule is what a policy does differently about some errors: give them up at once, retry them more often or less, or at
// other delays.
//
// The rules of a policy are asked in their order, and the first that matches decides alone. What no rule matches is treated
// as the policy itself says, and so is what a rule leaves open.
type Rule struct {
	// Name stands for the rule in [Decision.Rule] and [Decision.Explain]. Optional.
	Name string

	// Match tells which errors the rule is for: see [Is], [As], [Func] and [AnyOf], and package classify. Required.
	// Unvalidated, nil matches nothing.
	Match Matcher

	// Action is what becomes of the message: ActionRetry, within the limits; ActionDeadLetter or ActionDiscard, at once. 0
	// is ActionRetry. Unvalidated, so is any other.
	Action Action

	// MaxAttempts replaces the policy's own for these errors; 0 leaves that. It may be larger. What it is compared with
	// are all failures of the message, whatever their errors were. Unvalidated, a negative one counts as 0.
	MaxAttempts int

	// Backoff replaces the policy's own for these errors; nil leaves that. It is asked with the attempt of the message.
	// Jitter, MinDelay and MaxDelay of the policy hold for it as well.
	Backoff Backoff
}

// A Matcher tells which errors a rule is for. Match must be a pure function, safe for concurrent use. It is not called with
// nil. A panic in it is one of [Policy.Decide].
//
// Where a Matcher has a method Validate() error, [Policy.Validate] calls it. String, where it has that, says in words which
// errors it is for; those of this package have it.
type Matcher interface {
	Match(err error) bool
}

// Is matches what errors.Is finds to be the target.
func Is(target error) Matcher { return is{target} }

type is struct{ target error }

func (m is) Match(err error) (ok bool) {
	// The methods of err may be the ones that panic: see classify.
	defer func() { _ = recover() }()
	return errors.Is(err, m.target)
}

func (m is) String() string { return fmt.Sprintf("the error %q", fmt.Sprint(m.target)) }

func (m is) Validate() error {
	if m.target == nil {
		return errors.New("want an error; nil is none")
	}
	return nil
}

// As matches what errors.As finds to be of type E, a type that is an error or any interface that holds one.
func As[E error]() Matcher { return as[E]{} }

type as[E error] struct{}

func (as[E]) Match(err error) (ok bool) {
	defer func() { _ = recover() }()
	_, ok = errors.AsType[E](err)
	return ok
}

func (as[E]) String() string { return fmt.Sprintf("errors of type %v", reflect.TypeFor[E]()) }

// MatchFunc is a function as a [Matcher].
type MatchFunc func(err error) bool

// Match calls f. A nil MatchFunc, a fault, matches nothing.
func (f MatchFunc) Match(err error) bool { return f != nil && f(err) }

// String returns "a function".
func (f MatchFunc) String() string { return "a function" }

// Validate finds a nil function.
func (f MatchFunc) Validate() error {
	if f == nil {
		return errors.New("want a function, it is nil")
	}
	return nil
}

// AnyOf matches what one of several matches.
type AnyOf []Matcher

// Match asks one after the other.
func (ms AnyOf) Match(err error) bool {
	return slices.ContainsFunc(ms, func(m Matcher) bool { return m != nil && m.Match(err) })
}

// String returns those of the matchers, as in "throttled or timeout".
func (ms AnyOf) String() string {
	texts := make([]string, len(ms))
	for i, m := range ms {
		texts[i] = fmt.Sprint(m)
	}
	return strings.Join(texts, " or ")
}

// Validate finds an empty list, a nil in it, and the faults of the others.
func (ms AnyOf) Validate() error {
	if len(ms) == 0 {
		return errors.New("want at least one Matcher in AnyOf")
	}
	var errs []error
	for _, m := range ms {
		if m == nil {
			errs = append(errs, errors.New("want no nil in AnyOf"))
		} else if v, ok := m.(interface{ Validate() error }); ok {
			errs = append(errs, v.Validate())
		}
	}
	return errors.Join(errs...)
}

// match returns the index of the rule for an error; -1 if there is none.
func (p *Policy) match(err error) int {
	if err != nil {
		for i := range p.Rules {
			if m := p.Rules[i].Match; m != nil && m.Match(err) {
				return i
			}
		}
	}
	return -1
}

// apply makes p the policy for the errors of a rule.
func (p *Policy) apply(r *Rule) {
	if r.MaxAttempts > 0 {
		p.MaxAttempts = r.MaxAttempts
	}
	if r.Backoff != nil {
		p.Backoff = r.Backoff
	}
}

// Retries reports whether the rule leaves a message its retries: its action neither dead-letters nor discards.
func (r Rule) Retries() bool { return r.Action != ActionDeadLetter && r.Action != ActionDiscard }

// Branch returns the policy, without rules, that decides about the errors of rule i, counted from 0, if that retries: with the
// attempts and the backoff of the rule.
func (p Policy) Branch(i int) Policy {
	p.apply(&p.Rules[i])
	p.Rules = nil
	return p
}

// Branches returns the policies, without rules, of which p consists: first that for what no rule matches, then one for each
// rule that retries, in their order. Whatever must know all delays that p can choose, or all its limits, looks at those of
// the branches.
//
// All else that decides about a message, such as MaxAge, is the same in all of them.
func (p Policy) Branches() []Policy {
	plain := p
	plain.Rules = nil
	branches := []Policy{plain}
	for i := range p.Rules {
		if p.Rules[i].Retries() {
			branches = append(branches, p.Branch(i))
		}
	}
	return branches
}

// AttemptLimit returns the largest number of failures that a message may have: MaxAttempts, or that of a rule where it is
// larger; Unlimited where only the age of a message ends it.
func (p Policy) AttemptLimit() int { return p.attemptLimit() }

func (p *Policy) attemptLimit() int {
	limit := p.maxAttempts()
	for i := range p.Rules {
		if r := &p.Rules[i]; r.Retries() {
			limit = max(limit, r.MaxAttempts)
		}
	}
	return limit
}
