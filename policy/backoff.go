package policy

import (
	"math"
	"math/bits"
	"reflect"
	"time"
)

// A Backoff is a curve: how long to wait after attempt n failed, before
// jitter. Attempts count from 1, and the largest is the largest int.
//
// Delay must be a pure function, safe for concurrent use: the same attempt
// has the same delay, on every machine. A negative delay counts as 0, which
// [Decision.Explain] points out. [Policy.Decide] never passes an attempt
// below 1; the curves of this package take such an attempt as 1.
//
// A curve of your own joins in with up to two more methods: see [Capped] and
// [Validator].
type Backoff interface {
	Delay(attempt int) time.Duration
}

// A Capped curve knows its largest delay. The policy takes it as a cap, as it
// does [Policy.MaxDelay], which keeps the jittered delay below it and apart.
// Without it, jitter may exceed what the curve itself would return.
type Capped interface {
	Backoff

	// Cap returns the largest delay. 0 or less means that there is none.
	Cap() time.Duration
}

// A Validator is a curve that can tell what is wrong with it.
type Validator interface {
	Backoff

	// Validate returns nil or an error. The faults of a *ValidationError
	// appear in that of the policy, their paths below the curve's own.
	Validate() error
}

// MaxImmediate is the largest [Immediate.Attempts].
const MaxImmediate = 100

const (
	maxDuration = time.Duration(math.MaxInt64)

	// fallbackBase stands in for a delay that must be positive and is not.
	fallbackBase = time.Second

	// minGrowth is the least that a fractional factor may exceed 1 by. The
	// powers that fit an int64 of nanoseconds then have exponents below
	// 44/minGrowth, and the relative error of a power by squaring is that
	// times 2^-53, 5e-9. As that is far less than one step of the curve, no
	// delay can be below the one before.
	minGrowth = 1e-6
)

// fallback is the curve that an unvalidated policy without one has.
var fallback = Exponential{Base: fallbackBase, Max: 5 * time.Minute}

// Fixed is the same delay after every attempt. It must be positive; where it
// is not, Validate says so, and Delay takes one second.
type Fixed time.Duration

// Delay returns the fixed delay.
func (f Fixed) Delay(int) time.Duration { return positive(time.Duration(f)) }

// Linear grows by the same step after each attempt: Base + Step*(n-1), at
// most Max, and at most the largest Duration.
type Linear struct {
	Base time.Duration // after attempt 1; positive
	Step time.Duration // added for each later attempt; 0 or more
	Max  time.Duration // 0 is no cap; not below Base
}

// Delay returns the delay after the attempt. Where Validate would find a
// fault, a Base that is not positive counts as one second, a negative Step as
// 0, a negative Max as none; a Max below Base wins over it.
func (l Linear) Delay(attempt int) time.Duration {
	growth := saturatingMul(max(l.Step, 0), uint64(max(attempt, 1)-1))
	return min(saturatingAdd(positive(l.Base), growth), ceiling(l.Max))
}

// Cap returns Max.
func (l Linear) Cap() time.Duration { return l.Max }

// Exponential grows by the same factor after each attempt:
// Base * Factor^(n-1), at most Max, and at most the largest Duration.
//
// With a whole factor every delay is exact to the nanosecond. With another it
// is computed in float64, by multiplications alone, rounded to the nearest
// nanosecond, and the same on every architecture. Either way no delay is
// shorter than the one before it. That is why factors between 1 and 1.000001
// are refused: their steps could drown in rounding.
type Exponential struct {
	Base   time.Duration // after attempt 1; positive
	Factor float64       // 0 is 2; else 1, or 1.000001 and up
	Max    time.Duration // 0 is no cap; not below Base
}

// Delay returns the delay after the attempt. Where Validate would find a
// fault, a Base that is not positive counts as one second, a Factor that is
// not a number or below 1.000001 as 1, a negative Max as none; a Max below
// Base wins over it.
func (e Exponential) Delay(attempt int) time.Duration {
	base, limit := positive(e.Base), ceiling(e.Max)
	exponent := uint64(max(attempt, 1) - 1)
	switch factor := e.Factor; {
	case exponent == 0 || base >= limit:
		return min(base, limit)
	case factor == 0 || factor == 2:
		if exponent >= uint64(bits.LeadingZeros64(uint64(base))) {
			return limit
		}
		// The sign bit may be set now, so the comparison is unsigned.
		return time.Duration(min(uint64(base)<<exponent, uint64(limit)))
	case !(factor >= 1+minGrowth):
		return base
	case factor >= 1<<63:
		return limit
	case factor == math.Trunc(factor):
		for d := base; ; exponent-- {
			if exponent == 0 || d >= limit {
				return min(d, limit)
			}
			d = saturatingMul(d, uint64(factor))
		}
	default:
		d := math.Round(float64(base) * power(factor, exponent))
		if d >= float64(limit) {
			return limit
		}
		return min(time.Duration(d), limit)
	}
}

// Cap returns Max.
func (e Exponential) Cap() time.Duration { return e.Max }

// power is x to the n by squaring: at most 63 rounds. There is no addition
// that an architecture could fuse with a multiplication and so round
// differently.
func power(x float64, n uint64) float64 {
	p := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			p *= x
		}
		x *= x
	}
	return p
}

// Steps is an explicit list: the delay after attempt 1, after attempt 2, and
// so on. The last one repeats, so it must be positive. The others may be 0,
// and a later step may be shorter than an earlier one.
type Steps []time.Duration

// Delay returns the step of the attempt. Where Validate would find a fault, a
// negative step counts as 0, a last step that is not positive as one second,
// and an empty list as Exponential{Base: time.Second, Max: 5 * time.Minute}.
func (s Steps) Delay(attempt int) time.Duration {
	attempt = max(attempt, 1)
	switch {
	case len(s) == 0:
		return fallback.Delay(attempt)
	case attempt < len(s):
		return max(s[attempt-1], 0)
	default:
		return positive(s[len(s)-1])
	}
}

// Func is a curve given as a function, of which [Backoff] says what it must
// keep to.
type Func func(attempt int) time.Duration

// Delay calls f, with an attempt of at least 1. A nil Func, a fault, counts as
// Exponential{Base: time.Second, Max: 5 * time.Minute}.
func (f Func) Delay(attempt int) time.Duration {
	attempt = max(attempt, 1)
	if f == nil {
		return fallback.Delay(attempt)
	}
	return f(attempt)
}

// Immediate retries at once for the first attempts, and then follows another
// curve from that curve's own attempt 1. Its first retries have no delay, no
// jitter, and no floor: [Policy.MinDelay] holds from Then on. What an error
// asks for with [RetryAfter] still holds.
type Immediate struct {
	Attempts int     // retries without a delay, 0 to MaxImmediate
	Then     Backoff // from there on; not nil, not another Immediate
}

// Delay returns 0 for the first attempts, then the delay of Then. Where
// Validate would find a fault, Attempts is taken to the nearest legal number,
// and a Then of nil counts as Exponential{Base: time.Second, Max: 5 *
// time.Minute}.
func (i Immediate) Delay(attempt int) time.Duration {
	curve, n, immediate := resolve(i, max(attempt, 1))
	if immediate {
		return 0
	}
	return curve.Delay(n)
}

// resolve looks through Immediate: it returns the curve that attempt n falls
// to, and n as that curve counts it. Of an immediate attempt it returns the
// first attempt of the curve that comes after. The curve is never nil.
func resolve(b Backoff, n int) (curve Backoff, attempt int, immediate bool) {
	// A pointer can nest an Immediate in itself.
	const deepest = 8
	for range deepest {
		var i Immediate
		switch c := b.(type) {
		case Exponential, Linear, Fixed:
			return b, n, immediate
		case Steps:
			if len(c) == 0 {
				return fallback, n, immediate
			}
			return b, n, immediate
		case Func:
			if c == nil {
				return fallback, n, immediate
			}
			return b, n, immediate
		case Immediate:
			i = c
		default:
			if absent(b) {
				return fallback, n, immediate
			}
			p, ok := b.(*Immediate)
			if !ok {
				return b, n, immediate
			}
			i = *p
		}
		if first := min(max(i.Attempts, 0), MaxImmediate); n > first {
			n -= first
		} else {
			n, immediate = 1, true
		}
		b = i.Then
	}
	return fallback, n, immediate
}

// absent reports whether there is no curve: nil, or a nil pointer in b.
func absent(b Backoff) bool {
	if b == nil {
		return true
	}
	v := reflect.ValueOf(b)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// positive returns d, or the fallback where d is not a delay to retry at for
// ever.
func positive(d time.Duration) time.Duration {
	if d <= 0 {
		return fallbackBase
	}
	return d
}

// ceiling reads a maximum of which 0 means none.
func ceiling(d time.Duration) time.Duration {
	if d <= 0 {
		return maxDuration
	}
	return d
}

// saturatingAdd adds two durations that are not negative.
func saturatingAdd(a, b time.Duration) time.Duration {
	if a > maxDuration-b {
		return maxDuration
	}
	return a + b
}

// saturatingMul multiplies a duration that is not negative.
func saturatingMul(d time.Duration, n uint64) time.Duration {
	if hi, lo := bits.Mul64(uint64(d), n); hi == 0 && lo <= math.MaxInt64 {
		return time.Duration(lo)
	}
	return maxDuration
}
