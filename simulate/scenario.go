package simulate

import (
	"errors"
	"fmt"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/budget"
	"github.com/redeliver/redeliver/policy"
)

// The defaults of a Scenario.
const (
	DefaultMessages  = 10_000
	DefaultConsumers = 100
	DefaultWork      = 20 * time.Millisecond
	DefaultStep      = time.Second
)

// The bounds of a Scenario.
const (
	MaxMessages = 10_000_000
	maxSteps    = 1_000_000 // of the load that is kept
)

// A Scenario is what a policy is tried on. The zero value of a field is its
// default.
type Scenario struct {
	// Messages is how many there are, DefaultMessages by default.
	Messages int

	// Over is the time that they arrive in, evenly. 0 is all at once.
	Over time.Duration

	// Consumers is how many messages are handled at the same time,
	// DefaultConsumers by default.
	Consumers int

	// Work is how long a call takes, DefaultWork by default; Fail is how long
	// one takes that fails, Work by default. A timeout makes it longer.
	Work, Fail time.Duration

	// Capacity is how many calls a second the dependency serves. 0 is no limit.
	Capacity float64

	// Outage is when every call fails.
	Outage Outage

	// Err is what calls fail with; nil is any error without a mark.
	Err error

	// Budget makes the retry budget of a run. Nil is none.
	Budget func() *budget.Bucket

	// Limits are those of the broker that holds the waits; the zero value
	// holds them exactly.
	Limits backend.Limits

	// Seed picks the arrivals and the IDs that the jitter is drawn from.
	Seed uint64

	// Step is the width of the steps of Result.Load, DefaultStep by default.
	Step time.Duration
}

// An Outage begins some time after the first message.
type Outage struct{ From, For time.Duration }

// End is when the dependency is back.
func (o Outage) End() time.Duration { return o.From + o.For }

func (o Outage) during(t time.Duration) bool { return t >= o.From && t < o.End() }

var errDown = errors.New("the dependency is down")

// complete checks the scenario and fills in the defaults.
func (s *Scenario) complete() error {
	orDefault(&s.Messages, DefaultMessages)
	orDefault(&s.Consumers, DefaultConsumers)
	orDefault(&s.Work, DefaultWork)
	orDefault(&s.Fail, s.Work)
	orDefault(&s.Step, DefaultStep)
	if s.Err == nil {
		s.Err = errDown
	}
	const longest = 10 * 365 * 24 * time.Hour // far from where sums overflow
	switch {
	case s.Messages < 1 || s.Messages > MaxMessages:
		return fmt.Errorf("simulate: Messages is %d: want 1 to %d", s.Messages, MaxMessages)
	case s.Consumers < 1:
		return fmt.Errorf("simulate: Consumers is %d: want 1 or more", s.Consumers)
	case !(s.Capacity >= 0):
		return fmt.Errorf("simulate: Capacity is %v calls a second: want a positive number, or 0 for no limit", s.Capacity)
	}
	for _, field := range []struct {
		name  string
		d     time.Duration
		least time.Duration
	}{
		{"Over", s.Over, 0}, {"Work", s.Work, 1}, {"Fail", s.Fail, 1}, {"Step", s.Step, time.Millisecond},
		{"Outage.From", s.Outage.From, 0}, {"Outage.For", s.Outage.For, 0},
	} {
		if field.d < field.least || field.d > longest {
			return fmt.Errorf("simulate: %s is %v: want %v to %v", field.name, field.d, field.least, longest)
		}
	}
	return nil
}

func orDefault[T comparable](field *T, value T) {
	if zero := *new(T); *field == zero {
		*field = value
	}
}

// A Variant is something to try, and how to call it.
type Variant struct {
	Name   string
	Policy policy.Policy
	Budget func() *budget.Bucket // nil is none
}

// Run plays the scenario with the variant's policy and budget.
func (v Variant) Run(s Scenario) (*Result, error) {
	s.Budget = v.Budget
	return Run(v.Policy, s)
}

// Variants returns the policy as it is, with other jitters, and with a budget,
// the zero Bucket, for a comparison of what each does to the same dependency.
func Variants(p policy.Policy) []Variant {
	vs := []Variant{{Name: "as it is", Policy: p}}
	for _, v := range []struct {
		name   string
		jitter policy.Jitter
	}{
		{"no jitter", policy.NoJitter}, {"±20 %", policy.Proportional(0.2)},
		{"equal jitter", policy.EqualJitter}, {"full jitter", policy.FullJitter},
	} {
		if v.jitter != p.Jitter {
			q := p
			q.Jitter = v.jitter
			vs = append(vs, Variant{Name: v.name, Policy: q})
		}
	}
	return append(vs, Variant{Name: "with budget", Policy: p, Budget: func() *budget.Bucket { return new(budget.Bucket) }})
}
