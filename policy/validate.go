package policy

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// A Fault is one field of a policy or of a curve that is not valid.
type Fault struct {
	// Path is the field, as from the policy, such as "Backoff.Then.Base" or
	// "Backoff[3]"; as from the curve where the curve was asked itself.
	Path string

	// Value is what the field holds.
	Value any

	// Want says what would be right.
	Want string

	// Err is the error of a curve of the user's own, or nil.
	Err error
}

// Error returns path, value and what would be right.
func (f *Fault) Error() string {
	path := f.Path
	if path == "" {
		path = "value"
	}
	if f.Err != nil {
		return path + ": " + f.Want
	}
	return fmt.Sprintf("%s is %v: %s", path, f.Value, f.Want)
}

// Unwrap returns Err.
func (f *Fault) Unwrap() error { return f.Err }

// A ValidationError holds everything that is wrong with a policy.
type ValidationError struct {
	Policy string   // the name of the policy, where it has one
	Faults []*Fault // at least one
}

// Error returns all faults in one line.
func (e *ValidationError) Error() string {
	var b strings.Builder
	b.WriteString("policy")
	if e.Policy != "" {
		fmt.Fprintf(&b, " %q", e.Policy)
	}
	b.WriteString(": ")
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(f.Error())
	}
	return b.String()
}

// Unwrap returns the faults, so that errors.As finds the first of them.
func (e *ValidationError) Unwrap() []error {
	errs := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		errs[i] = f
	}
	return errs
}

// faults collects what is wrong.
type faults []*Fault

func (fs *faults) add(path string, value any, format string, args ...any) {
	*fs = append(*fs, &Fault{Path: path, Value: value, Want: fmt.Sprintf(format, args...)})
}

// notNegative adds a fault for a negative duration.
func (fs *faults) notNegative(path string, d time.Duration, zero any) {
	if d < 0 {
		fs.add(path, d, "want 0 (%v) or more", zero)
	}
}

// below adds the faults of a field that validates itself.
func (fs *faults) below(path string, err error) {
	if err == nil {
		return
	}
	var inner *ValidationError
	if !errors.As(err, &inner) {
		*fs = append(*fs, &Fault{Path: path, Want: err.Error(), Err: err})
		return
	}
	for _, f := range inner.Faults {
		g := *f
		switch {
		case g.Path == "":
			g.Path = path
		case g.Path[0] == '[':
			g.Path = path + g.Path
		default:
			g.Path = path + "." + g.Path
		}
		*fs = append(*fs, &g)
	}
}

func (fs faults) err(name string) error {
	if len(fs) == 0 {
		return nil
	}
	return &ValidationError{Policy: name, Faults: fs}
}

// Validate returns nil or a *ValidationError that holds every fault of the
// policy and its curve.
func (p Policy) Validate() error {
	var fs faults
	switch {
	case p.MaxAttempts < 0:
		fs.add("MaxAttempts", p.MaxAttempts, "want 1 or more, or Unlimited")
	case p.MaxAttempts == 0 && p.MaxAge <= 0:
		fs.add("MaxAttempts", p.MaxAttempts, "want 1 (no retry) or more, or Unlimited; 0 only with a MaxAge, which is then the only limit")
	}
	if p.MaxLapses < NoLapses {
		fs.add("MaxLapses", p.MaxLapses, "want 1 or more, 0 (%d), NoLapses or Unlimited", DefaultMaxLapses)
	}
	if p.MaxSnoozes < 0 {
		fs.add("MaxSnoozes", p.MaxSnoozes, "want 1 or more, 0 (%d) or Unlimited", DefaultMaxSnoozes)
	}
	fs.notNegative("MaxAge", p.MaxAge, "no limit")
	fs.notNegative("MinDelay", p.MinDelay, "no floor")
	fs.notNegative("MaxDelay", p.MaxDelay, "no cap")
	fs.notNegative("MaxRetryAfter", p.MaxRetryAfter, DefaultMaxRetryAfter)
	p.validateJitter(&fs)
	p.validateRules(&fs)

	if absent(p.Backoff) {
		fs.add("Backoff", p.Backoff, "want a curve, such as Exponential{Base: time.Second, Max: time.Minute}")
		return fs.err(p.Name)
	}
	before := len(fs)
	if v, ok := p.Backoff.(Validator); ok {
		fs.below("Backoff", v.Validate())
	}
	if len(fs) > before {
		// The rest would judge the curve by its stand-ins.
		return fs.err(p.Name)
	}
	p.validateDelays(&fs)
	for i := range p.Rules {
		if r := &p.Rules[i]; r.sound() {
			branch := p
			branch.apply(r)
			branch.validateRuleDelays(&fs, fmt.Sprintf("Rules[%d].Backoff", i))
		}
	}
	return fs.err(p.Name)
}

// validateRules looks at each rule by itself.
func (p *Policy) validateRules(fs *faults) {
	for i := range p.Rules {
		r, path := &p.Rules[i], fmt.Sprintf("Rules[%d]", i)
		if r.Match == nil {
			fs.add(path+".Match", r.Match, "want which errors it is for, such as Is(io.EOF)")
		} else if v, ok := r.Match.(interface{ Validate() error }); ok {
			fs.below(path+".Match", v.Validate())
		}
		if r.MaxAttempts < 0 {
			fs.add(path+".MaxAttempts", r.MaxAttempts, "want 1 (no retry) or more, Unlimited, or 0 for the policy's own")
		}
		if v, ok := r.Backoff.(Validator); ok && !absent(r.Backoff) {
			fs.below(path+".Backoff", v.Validate())
		} else if r.Backoff != nil && absent(r.Backoff) {
			fs.add(path+".Backoff", r.Backoff, "want a curve, or no value at all for the policy's own")
		}
		switch r.Action {
		case 0, ActionRetry:
		case ActionDeadLetter, ActionDiscard:
			if r.MaxAttempts != 0 || r.Backoff != nil {
				fs.add(path+".Action", r.Action, "want a retry, since the rule has MaxAttempts or a Backoff, which are for retries; or leave those out")
			}
		default:
			fs.add(path+".Action", r.Action, "want 0 or ActionRetry, ActionDeadLetter or ActionDiscard")
		}
	}
}

// sound reports whether the rule has a curve of its own, and no fault in it.
func (r *Rule) sound() bool {
	if absent(r.Backoff) || !r.Retries() {
		return false
	}
	v, ok := r.Backoff.(Validator)
	return !ok || v.Validate() == nil
}

func (p *Policy) validateJitter(fs *faults) {
	j := p.Jitter
	switch j.Kind {
	case JitterProportional, JitterAdditive:
		if !(j.Fraction >= 0 && j.Fraction <= 1) {
			fs.add("Jitter.Fraction", j.Fraction, "want 0 to 1; 0.15 is 15 %%")
		}
	case JitterNone, JitterFull, JitterEqual, JitterDecorrelated:
		if j.Fraction != 0 {
			fs.add("Jitter.Fraction", j.Fraction, "want 0 with %v jitter, which has no fraction; Proportional and Additive have", j.Kind)
		}
	default:
		fs.add("Jitter.Kind", j.Kind, "want none, full, equal, proportional, additive or decorrelated")
	}
}

// validateDelays looks at how the fields go together.
func (p *Policy) validateDelays(fs *faults) {
	curve, _, immediate := resolve(p.Backoff, 1)
	limit := p.limit(curve)
	if p.MinDelay > limit {
		fs.add("MinDelay", p.MinDelay, "want at most the cap of %v, the lower of MaxDelay and the curve's own", limit)
		return
	}
	first := p.first(curve, limit)
	if p.MaxAge > 0 && first > p.MaxAge && !immediate {
		fs.add("MaxAge", p.MaxAge, "want at least the first delay of %v, or no message is ever retried", first)
	}
	if p.Jitter.Kind == JitterDecorrelated && first >= limit {
		fs.add("Jitter.Kind", p.Jitter.Kind, "want a first delay below the cap of %v, as it spreads from the one to the other; or another jitter", limit)
	}
}

// validateRuleDelays looks at how the curve of a rule goes together with the
// other fields. The fault is the curve's: they are right for the policy's own.
func (p *Policy) validateRuleDelays(fs *faults, path string) {
	curve, _, immediate := resolve(p.Backoff, 1)
	limit := p.limit(curve)
	first := p.first(curve, limit)
	switch {
	case p.MinDelay > limit:
		fs.add(path, p.Backoff, "want a cap of at least the MinDelay of %v", p.MinDelay)
	case p.MaxAge > 0 && first > p.MaxAge && !immediate:
		fs.add(path, p.Backoff, "want a first delay of at most the MaxAge of %v, or no message is ever retried", p.MaxAge)
	case p.Jitter.Kind == JitterDecorrelated && first >= limit:
		fs.add(path, p.Backoff, "want a first delay below the cap of %v, as decorrelated jitter spreads from the one to the other", limit)
	}
}

func (p *Policy) first(curve Backoff, limit time.Duration) time.Duration {
	return max(min(curve.Delay(1), limit), p.MinDelay, 0)
}

// Validate finds a delay that is not positive.
func (f Fixed) Validate() error {
	var fs faults
	fs.base("", time.Duration(f))
	return fs.err("")
}

// Validate finds a Base that is not positive, a negative Step or Max, and a
// Max below Base.
func (l Linear) Validate() error {
	var fs faults
	fs.base("Base", l.Base)
	fs.notNegative("Step", l.Step, "no growth")
	fs.max(l.Base, l.Max)
	return fs.err("")
}

// Validate finds a Base that is not positive, a Factor that is not 0, 1 or
// from 1.000001 to the largest float64, a negative Max, and a Max below Base.
func (e Exponential) Validate() error {
	var fs faults
	fs.base("Base", e.Base)
	switch {
	case e.Factor == 0 || e.Factor == 1:
	case !(e.Factor >= 1) || math.IsInf(e.Factor, 0):
		fs.add("Factor", e.Factor, "want a number of 1 or more; 0 is 2")
	case e.Factor < 1+minGrowth:
		fs.add("Factor", e.Factor, "want 1, or at least 1.000001, so that rounding cannot make a delay shorter than the one before")
	}
	fs.max(e.Base, e.Max)
	return fs.err("")
}

// Validate finds an empty list, negative steps, and a last step that is not
// positive.
func (s Steps) Validate() error {
	var fs faults
	if len(s) == 0 {
		fs.add("", s, "want at least one step")
	}
	for i, d := range s {
		path := fmt.Sprintf("[%d]", i)
		switch {
		case i == len(s)-1:
			fs.base(path, d)
		case d < 0:
			fs.add(path, d, "want 0 or more")
		}
	}
	return fs.err("")
}

// Validate finds a nil function. What it returns is not looked at.
func (f Func) Validate() error {
	var fs faults
	if f == nil {
		fs.add("", "nil", "want a function")
	}
	return fs.err("")
}

// Validate finds Attempts out of range, a Then of nil or another Immediate,
// and the faults of Then.
func (i Immediate) Validate() error {
	var fs faults
	if i.Attempts < 0 || i.Attempts > MaxImmediate {
		fs.add("Attempts", i.Attempts, "want 0 to %d; retries without a delay hammer what has failed", MaxImmediate)
	}
	if absent(i.Then) {
		fs.add("Then", i.Then, "want the curve to follow after the immediate attempts")
		return fs.err("")
	}
	switch then := i.Then.(type) {
	case Immediate, *Immediate:
		fs.add("Then", fmt.Sprintf("%T", then), "want a curve that waits; add its Attempts to the outer ones")
	case Validator:
		fs.below("Then", then.Validate())
	}
	return fs.err("")
}

// base adds a fault for a delay that must be positive.
func (fs *faults) base(path string, d time.Duration) {
	switch {
	case d == 0:
		fs.add(path, d, "want more than 0; for retries without a delay use Immediate, which bounds them")
	case d < 0:
		fs.add(path, d, "want more than 0")
	}
}

// max adds a fault for a Max that is negative or below Base.
func (fs *faults) max(base, limit time.Duration) {
	fs.notNegative("Max", limit, "no cap")
	if limit > 0 && base > limit {
		fs.add("Max", limit, "want at least Base, which is %v", base)
	}
}
