package analysis

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// MaxAttempts is how many attempts of a policy without limit are looked at.
const MaxAttempts = 10_000

// Conditions are what a schedule depends on beside the policy. The zero value
// is a broker without limits, and attempts that fail at once with an error that
// carries no mark.
type Conditions struct {
	// Err is what each attempt fails with. It picks the rule of a policy that
	// has rules. It must be retried without a wish of its own: an error marked
	// by Snooze or RetryAfter has no schedule of the policy's making.
	Err error

	// Run is how long an attempt takes until it has failed, such as the timeout
	// of the call. Negative counts as 0.
	Run time.Duration

	// Broker is what holds the waits.
	Broker Broker
}

// A Broker is what matters of a message broker to the times of retries.
type Broker struct {
	// Name is how findings call it.
	Name string

	// Limits are those of the backend: Queue.Limits.
	Limits backend.Limits

	// Retention is how long the broker keeps a message, waits included. 0 is
	// for ever.
	Retention time.Duration

	// ParkingQueues returns the names of the queues that the retries of
	// policies wait in, where the broker needs some: the method of that name of
	// RabbitMQ's queue. Nil is none.
	ParkingQueues func(...policy.Policy) []string
}

// A Range is a time that depends on the jitter.
type Range struct{ Earliest, Mean, Latest time.Duration }

// An Attempt is one attempt of a message that has failed at all before.
type Attempt struct {
	Number int // from 1

	// Wait is how long the message is held before this attempt. Zero for the
	// first.
	Wait Range

	// At is when it begins, from the beginning of the first. Where MaxAge may
	// prevent it, At is that of the messages that get it.
	At Range

	// Reached is the share of messages that get this attempt: 1, unless MaxAge
	// dead-letters some before.
	Reached Share
}

// A Schedule is when the attempts of a message fall. It is not changed after
// New, and safe for concurrent use.
type Schedule struct {
	Policy     policy.Policy
	Conditions Conditions

	// Attempts are all attempts that the policy allows, or the first
	// MaxAttempts of them. The last has no chance of another after it, unless
	// Endless.
	Attempts []Attempt

	// Endless tells that there are more.
	Endless bool

	waits []wait   // between the attempts
	aged  *bracket // of the horizon, where MaxAge cuts it short

	// MaxAge is compared with the delay that the policy decides on. The broker
	// may hold a message longer by up to rounded, or shorter by up to cut.
	rounded, cut time.Duration
}

// New works the policy out. It fails if the policy is not valid, if
// Conditions.Err is never retried, and if it carries a wish of its own.
func New(p policy.Policy, c Conditions) (*Schedule, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if c.Err == nil {
		c.Err = errAny
	}
	c.Run = max(c.Run, 0)
	s := &Schedule{Policy: p, Conditions: c}

	// Age is followed here, so that a message that is young enough by chance
	// gets its attempt.
	timeless := p
	if p.MaxAge > 0 {
		timeless.MaxAge = 0
		if p.MaxAttempts <= 0 {
			timeless.MaxAttempts = policy.Unlimited
		}
	}
	s.Attempts = []Attempt{{Number: 1, Reached: Share{Value: 1}}}
	for n := 1; ; n++ {
		first, last := extreme(timeless, n, c.Err, 0), extreme(timeless, n, c.Err, math.MaxUint64)
		if first.Action != policy.ActionRetry {
			if n == 1 && first.Reason != policy.ReasonExhausted {
				return nil, fmt.Errorf("analysis: %s: there is no schedule for an error that is not retried", first.Explain())
			}
			break
		}
		if first.Reason == policy.ReasonSnoozed || first.Reason == policy.ReasonRetryAfter {
			return nil, fmt.Errorf("analysis: the error %q asks for a wait of its own, which no policy plans: leave the mark away", c.Err)
		}
		w := newWait(first.Delay, last.Delay, c.Run, c.Broker.Limits)
		at := s.Attempts[n-1].At
		if failed := add(at.Earliest, c.Run); p.MaxAge > 0 && (failed >= p.MaxAge || add(failed, w.lo) > p.MaxAge) {
			break
		}
		at.Earliest = add(at.Earliest, add(w.offset, c.Run))
		at.Mean = add(at.Mean, add(w.mean(), c.Run))
		at.Latest = add(at.Latest, add(w.longest, c.Run))
		if n == MaxAttempts {
			s.Endless = true
			break
		}
		s.waits = append(s.waits, w)
		s.Attempts = append(s.Attempts, Attempt{
			Number: n + 1, Wait: Range{w.offset, w.mean(), w.longest}, At: at, Reached: Share{Value: 1},
		})
	}
	s.rounded = max(c.Broker.Limits.Granularity, 1) - 1
	for i := range s.waits {
		s.cut = max(s.cut, s.waits[i].hi-s.waits[i].longest)
	}
	if p.MaxAge > 0 && (s.Endless || add(s.Attempts[len(s.Attempts)-1].At.Latest, s.cut) >= p.MaxAge) {
		s.age()
	}
	return s, nil
}

var errAny = errors.New("any error")

// A draw is a random source that always draws the same.
type draw uint64

func (d draw) Uint64() uint64 { return uint64(d) }

// extreme returns the decision after attempt n if the jitter draws the lowest
// or the highest number.
func extreme(p policy.Policy, n int, err error, u draw) policy.Decision {
	p.Rand = policy.NewRand(u)
	return p.Decide(policy.Failure{Attempt: n, Err: err})
}

// age restricts the attempts to what MaxAge leaves of them.
func (s *Schedule) age() {
	limit := s.Policy.MaxAge
	latest := add(limit, s.rounded)
	unit := s.rounded + 1
	b := s.bracket(add(latest, 1))
	s.aged = &b
	for i := range s.Attempts {
		a := &s.Attempts[i]
		if add(a.At.Latest, s.cut) < limit {
			continue
		}
		low, high, mean := b.reached(i)
		if high == 0 {
			s.Attempts, s.waits, s.Endless = s.Attempts[:i], s.waits[:i-1], false
			return
		}
		a.Reached = between(low, high)
		a.At.Latest = min(a.At.Latest, a.At.Earliest+(latest-a.At.Earliest)/unit*unit)
		a.At.Mean = min(max(mean, a.At.Earliest), a.At.Latest)
	}
}

// A Horizon is when a message that always fails is given up: when its last
// attempt has failed.
type Horizon struct {
	Range

	// Attempts is how many attempts such a message makes on average.
	Attempts float64

	// Never tells that the policy has no limit. Range and Attempts are then
	// what its first MaxAttempts attempts come to.
	Never bool

	// Error is the most by which Mean may be wrong.
	Error time.Duration
}

// Horizon returns when the policy gives up, which is how long it takes until a
// poison message is isolated.
func (s *Schedule) Horizon() Horizon {
	last := s.Attempts[len(s.Attempts)-1].At
	h := Horizon{Range: last, Never: s.Endless && s.Policy.MaxAge <= 0}
	for _, a := range s.Attempts {
		h.Attempts += a.Reached.Value
	}
	if s.aged != nil {
		h.Earliest, h.Latest = s.ends()
		low, high := s.aged.spent()
		h.Mean = min(max(round((low+high)/2), h.Earliest), h.Latest)
		h.Error = round((high-low)/2) + 1
	}
	h.Earliest = add(h.Earliest, s.Conditions.Run)
	h.Mean = add(h.Mean, s.Conditions.Run)
	h.Latest = add(h.Latest, s.Conditions.Run)
	return h
}

// ends returns the earliest and the latest time of a last attempt under MaxAge.
// Sums of ranges have no gaps, so every attempt can be as early or late as its
// own range says, as long as the next wait can then lead past the limit.
func (s *Schedule) ends() (earliest, latest time.Duration) {
	limit, most := s.Policy.MaxAge, add(s.Policy.MaxAge, s.rounded)
	earliest = most
	if s.Endless {
		// What comes after the attempts that are looked at may end anywhere.
		earliest, latest = s.Attempts[len(s.Attempts)-1].At.Earliest, most
	}
	for i, a := range s.Attempts {
		first, last := a.At.Earliest, min(a.At.Latest, most)
		if i < len(s.waits) {
			first = max(first, limit+1-min(limit+1, add(max(s.waits[i].hi, 1), s.Conditions.Run)))
		}
		if first <= last {
			earliest, latest = min(earliest, first), max(latest, last)
		}
	}
	return earliest, latest
}
