package policy

import (
	"fmt"
	"math/bits"
	"time"
)

// Jitter spreads the delays of messages that failed together, so that they do
// not come back together. The zero Jitter does not. Use [NoJitter],
// [FullJitter], [EqualJitter], [DecorrelatedJitter], [Proportional] or
// [Additive].
//
// Of d, the delay on the curve, each makes a closed range in which every
// nanosecond is as likely as the next. A cap bounds the range, not the drawn
// delay: nothing exceeds the cap, and what has reached it still spreads. See
// [Policy.MaxDelay].
type Jitter struct {
	Kind     JitterKind
	Fraction float64 // proportional and additive only; 0 to 1
}

// NoJitter is d itself. Messages that fail together are retried together.
var NoJitter = Jitter{}

// FullJitter is 0 to d: the widest spread, and half the wait on average.
var FullJitter = Jitter{Kind: JitterFull}

// EqualJitter is d/2 to d.
var EqualJitter = Jitter{Kind: JitterEqual}

// DecorrelatedJitter is the first delay of the curve to three times the one
// before d, where the first delay comes before the first. The formula is from
// Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog,
// 2015): sleep = min(cap, random_between(base, sleep * 3)). There, sleep is
// what was drawn the last time; here it is the curve's delay, because a
// decision depends on the attempt alone and nothing is kept.
//
// On a curve that descends, three times the delay before d may be the lower
// bound and the first delay the upper one.
var DecorrelatedJitter = Jitter{Kind: JitterDecorrelated}

// Proportional is d*(1-fraction) to d*(1+fraction), so d on average. The
// fraction is 0 to 1: 0.15 is d give or take 15 %.
func Proportional(fraction float64) Jitter {
	return Jitter{Kind: JitterProportional, Fraction: fraction}
}

// Additive is d to d*(1+fraction), so never before the curve has it. The
// fraction is 0 to 1.
func Additive(fraction float64) Jitter {
	return Jitter{Kind: JitterAdditive, Fraction: fraction}
}

// A JitterKind names a way to spread delays; [Jitter] describes them.
type JitterKind uint8

// The kinds of jitter. Policies are written with the jitters that are named beside each.
const (
	JitterNone         JitterKind = iota // NoJitter
	JitterFull                           // FullJitter
	JitterEqual                          // EqualJitter
	JitterProportional                   // Proportional, which sets Jitter.Fraction
	JitterAdditive                       // Additive, which sets Jitter.Fraction
	JitterDecorrelated                   // DecorrelatedJitter
)

var jitterNames = [...]string{
	JitterNone:         "none",
	JitterFull:         "full",
	JitterEqual:        "equal",
	JitterProportional: "proportional",
	JitterAdditive:     "additive",
	JitterDecorrelated: "decorrelated",
}

// String returns the kind in one word, such as "full".
func (k JitterKind) String() string {
	if int(k) < len(jitterNames) {
		return jitterNames[k]
	}
	return fmt.Sprintf("JitterKind(%d)", uint8(k))
}

// A window is the range that the delay after one attempt is drawn from.
type window struct {
	raw    time.Duration // what the curve returned
	limit  time.Duration // cap; the largest duration where there is none
	lo, hi time.Duration // closed
}

// window returns the range for attempt n of a curve that resolve returned.
// The receiver is a pointer because the policy is large, not to change it.
func (p *Policy) window(curve Backoff, n int) window {
	raw := curve.Delay(n)
	limit := p.limit(curve)
	d := min(max(raw, 0), limit)
	w := window{raw: raw, limit: limit, lo: d, hi: d}

	switch p.Jitter.Kind {
	case JitterFull:
		w.lo = 0
	case JitterEqual:
		w.lo = d / 2
	case JitterProportional, JitterAdditive:
		f := ratioOf(p.Jitter.Fraction)
		spread := f.of(d)
		if spread > limit-d {
			// Were only the upper end cut, delays near the cap would keep
			// less and less of their spread.
			d = f.below(limit)
			spread = f.of(d)
		}
		w.lo, w.hi = d, d+spread
		if p.Jitter.Kind == JitterProportional {
			w.lo = d - spread
		}
	case JitterDecorrelated:
		first := min(max(curve.Delay(1), 0), limit)
		last := min(saturatingMul(max(curve.Delay(max(n-1, 1)), 0), 3), limit)
		w.lo, w.hi = min(first, last), max(first, last)
	}

	if floor := min(p.MinDelay, limit); w.lo < floor {
		// A range that lies below the floor moves up to it whole. Lifting
		// each delay instead would put them all on the floor, together.
		width := w.hi - w.lo
		w.lo = floor
		if w.hi <= floor {
			w.hi = floor + min(width, limit-floor)
		}
	}
	return w
}

// limit returns the lower of the policy's cap and the curve's own.
func (p *Policy) limit(curve Backoff) time.Duration {
	limit := ceiling(p.MaxDelay)
	switch c := curve.(type) {
	case Exponential:
		return min(limit, ceiling(c.Max))
	case Capped:
		return min(limit, ceiling(c.Cap()))
	default:
		return limit
	}
}

// A ratio is a fraction from 0 to 1 in units of 2^-62. Floating point would
// round differently where the architecture fuses multiplication and addition.
type ratio uint64

const one ratio = 1 << 62

// ratioOf takes what is not a number as 0, and what is out of range to its
// nearest end.
func ratioOf(f float64) ratio {
	switch {
	case f >= 1:
		return one
	case f > 0:
		return ratio(int64(f * float64(one)))
	default:
		return 0
	}
}

// of returns that part of d, rounded to the nearest nanosecond, half up.
func (r ratio) of(d time.Duration) time.Duration {
	hi, lo := bits.Mul64(uint64(d), uint64(r))
	lo, carry := bits.Add64(lo, uint64(one)/2, 0)
	return time.Duration((hi+carry)<<2 | lo>>62)
}

// below returns the largest d for which d plus that part of it is at most
// limit.
func (r ratio) below(limit time.Duration) time.Duration {
	d, _ := bits.Div64(uint64(limit)>>2, uint64(limit)<<62, uint64(one+r))
	return time.Duration(d)
}
