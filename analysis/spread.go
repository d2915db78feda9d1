package analysis

import (
	"math"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// A wait is the time that a broker holds a retry: a delay of the policy, drawn
// from a closed range of nanoseconds, rounded up to the broker's unit and cut to
// its maximum. An attempt's run is added to it.
type wait struct {
	lo, hi  time.Duration // of the policy
	unit    time.Duration // of the broker; 1 or more
	limit   time.Duration // of the broker
	offset  time.Duration // the shortest wait
	longest time.Duration
	run     time.Duration
}

func newWait(lo, hi, run time.Duration, l backend.Limits) wait {
	w := wait{lo: lo, hi: max(lo, hi), unit: max(l.Granularity, 1), limit: l.MaxDelay, run: run}
	if w.limit <= 0 {
		w.limit = math.MaxInt64
	}
	w.offset, w.longest = l.Applied(w.lo), l.Applied(w.hi)
	return w
}

// width is how many delays the policy draws from.
func (w *wait) width() float64 { return float64(w.hi-w.lo) + 1 }

// mean is the mean wait, to the nanosecond.
func (w *wait) mean() time.Duration {
	if w.offset == w.longest {
		return w.offset
	}
	unit := float64(w.unit)
	// The whole units between the first and the last are equally likely.
	first, last := math.Ceil(float64(w.lo)/unit), math.Ceil(float64(w.hi)/unit)
	top := min(last, math.Ceil(float64(w.longest)/unit))
	sum := first*unit*(first*unit-float64(w.lo)+1) + (first+top)/2*unit*(top-first-1)*unit
	if w.hi >= w.limit {
		sum += float64(w.longest) * (float64(w.hi) - (top-1)*unit)
	} else {
		sum += top * unit * (float64(w.hi) - (top-1)*unit)
	}
	return min(max(round(sum/w.width()), w.offset), w.longest)
}

// A kernel is the distribution of a wait beyond its shortest, in cells of a
// grid, rounded down: the chance of the first cell, of each of those between,
// and of the last.
type kernel struct {
	edge, cell, width float64
	last              int64
}

func (w *wait) kernel(cell time.Duration) kernel {
	k := kernel{cell: float64(cell), width: w.width()}
	// Of the delays, those up to this one are rounded up to a wait in cell 0.
	k.edge = float64(w.offset) + float64(cell-w.unit) - float64(w.lo) + 1
	k.last = int64((w.longest - w.offset) / cell)
	if need := math.Ceil((k.width - k.edge) / k.cell); need < float64(k.last) {
		k.last = int64(max(need, 0))
	}
	return k
}

// upTo is the chance of a cell up to i.
func (k *kernel) upTo(i int64) float64 {
	switch {
	case i < 0:
		return 0
	case i >= k.last:
		return 1
	default:
		return min((k.edge+float64(i)*k.cell)/k.width, 1)
	}
}

// add returns the distribution of a sum: of what is in the cells, and of the
// wait, as far as it lies in the first n cells. It is written to out where that
// has room.
func (k *kernel) add(in, out []float64, n int64) []float64 {
	n = min(n, int64(add(time.Duration(len(in)), time.Duration(k.last))))
	if out = out[:0]; int64(cap(out)) < n {
		out = make([]float64, n)
	}
	out = out[:n]
	if k.last == 0 {
		copy(out, in)
		return out
	}
	first, between, last := k.upTo(0), k.cell/k.width, 1-k.upTo(k.last-1)
	inner := 0.0 // what is in the cells from which one of the cells between leads to j
	for j := range out {
		sum, here := 0.0, 0.0
		if from := int64(j) - k.last; from >= 0 && from < int64(len(in)) {
			gone := in[from]
			inner -= gone
			sum = last * gone
		}
		if j < len(in) {
			here = in[j]
		}
		out[j] = sum + first*here + max(inner, 0)*between
		inner += here
	}
	return out
}

// cells is how fine the grid is: by far the most distributions are followed in
// a few milliseconds with it, to an error of 0.001.
const cells = 1 << 15

// work bounds the grid where there are thousands of attempts.
const work = 1 << 24

// negligible is a share of messages that is not followed further.
const negligible = 1e-12

// grid returns the width of a cell for following the messages until end.
func (s *Schedule) grid(end time.Duration) time.Duration {
	var base, spread, widest time.Duration
	unit := time.Duration(1)
	for i := range s.waits {
		w := &s.waits[i]
		unit = w.unit
		base = add(base, add(w.offset, w.run))
		spread = add(spread, w.longest-w.offset)
		if base >= end {
			break
		}
		widest = max(widest, min(end-base, spread))
	}
	n := time.Duration(min(cells, max(work/(len(s.waits)+1), 1<<10)))
	cell := max(widest/n, unit)
	return (cell + unit - 1) / unit * unit
}

// slack is the most by which the roundings of the first waits may have made an
// attempt early.
func (s *Schedule) slack(cell time.Duration, waits int) time.Duration {
	total := time.Duration(0)
	for i := range s.waits[:waits] {
		if w := &s.waits[i]; w.offset != w.longest {
			total = add(total, cell-w.unit)
		}
	}
	return total
}

// A fate is what became of the messages that were followed to the end of an
// outage.
type fate struct {
	past  float64   // the share that has an attempt at the end or after
	spent float64   // the mean time of the last attempt, or the end where that is earlier; ns
	left  float64   // the share that is still on its way when the known attempts are used up
	at    float64   // the mean time of those, times their share
	alive []float64 // by attempt, from the first: the share that gets it, as far as before the end
	sum   []float64 // the mean time of those, times their share
}

// follow follows messages attempt by attempt, on the grid, until the outage
// ends or their age exceeds the limit. An age below 0 lets none live.
func (s *Schedule) follow(end, age, cell time.Duration) fate {
	if end <= 0 {
		return fate{past: 1, alive: []float64{1}, sum: []float64{0}}
	}
	f := fate{alive: []float64{1}, sum: []float64{0}}
	in, spare := []float64{1}, []float64(nil)
	base := time.Duration(0)
	for i := range s.waits {
		w := &s.waits[i]
		k := w.kernel(cell)
		next := add(base, add(w.offset, w.run))
		if old := cellsBelow(age-add(base, w.run), cell); age < math.MaxInt64 && old < int64(len(in)) {
			// Failed at the maximum age, a message is not even retried at once.
			for j, m := range in[old:] {
				f.spent += m * (float64(base) + float64(old+int64(j))*float64(cell))
			}
			in = in[:old]
		}
		during := cellsBelow(end-next, cell)  // cells that still lie in the outage
		young := cellsBelow(age-next+1, cell) // cells that are not too old
		if age == math.MaxInt64 {
			young = math.MaxInt64
		}
		// From the cells before the first, no wait leads out of the outage.
		for j := max(min(during, young)-1-k.last, 0); j < int64(len(in)); j++ {
			share, live := in[j], 0.0
			if young > j {
				live = k.upTo(young - 1 - j)
			}
			if young > during {
				f.past += share * (live - k.upTo(during-1-j))
			}
			f.spent += share * (1 - live) * (float64(base) + float64(j)*float64(cell))
		}
		in, spare, base = k.add(in, spare, min(during, young)), in, next
		share, at := 0.0, 0.0
		for j, m := range in {
			share += m
			at += m * (float64(base) + float64(j)*float64(cell))
		}
		if share < negligible {
			f.left, f.at = share, at
			f.spent += f.past * float64(end)
			return f
		}
		f.alive, f.sum = append(f.alive, share), append(f.sum, at)
	}
	f.spent += f.past * float64(end)
	n := len(f.alive) - 1
	if s.Endless {
		f.left, f.at = f.alive[n], f.sum[n]
	} else {
		f.spent += f.sum[n]
	}
	return f
}

// cellsBelow is how many cells begin below d.
func cellsBelow(d, cell time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/cell) + 1
}

// A bracket holds the fates from which bounds follow. Rounded times are early by
// at most the slack.
type bracket struct {
	end, slack time.Duration
	rounded    fate // as the grid has it
	strict     fate // with a maximum age that no rounding or cutting can have met
	lenient    fate // with an outage that no rounding can have prolonged
}

// bracket follows the messages to the end of an outage.
func (s *Schedule) bracket(end time.Duration) bracket {
	age := time.Duration(math.MaxInt64)
	if s.Policy.MaxAge > 0 {
		age = s.Policy.MaxAge
	}
	cell := s.grid(end)
	b := bracket{end: end, rounded: s.follow(end, add(age, s.rounded), cell)}
	b.strict, b.lenient = b.rounded, b.rounded
	// Only the waits that were followed were rounded.
	b.slack = s.slack(cell, min(len(b.rounded.alive), len(s.waits)))
	if b.slack > 0 {
		b.lenient = s.follow(end-b.slack, add(age, s.rounded), cell)
	}
	if age < math.MaxInt64 && b.slack+s.rounded+s.cut > 0 {
		b.strict = s.follow(end, age-b.slack-s.cut, cell)
	}
	return b
}

// past bounds the share of messages that outlive the outage.
//
// Let H be the time of the last attempt that the maximum age allows, and H' that
// of the rounded times. An attempt that is allowed is made no later than the
// maximum and what the broker rounds a wait up by. So under a maximum that is
// higher by that, H' has no fewer attempts, and H <= H' + slack. Under one that is
// lower by the slack, and by what the broker cuts a wait by, it has no more, so
// H >= H'.
func (b *bracket) past() (low, high float64) {
	return b.strict.past, min(b.lenient.past+b.lenient.left, 1)
}

// spent bounds the mean time until the last attempt or the end of the outage,
// in ns.
func (b *bracket) spent() (low, high float64) {
	low = b.strict.spent + b.strict.at
	high = b.rounded.spent + b.rounded.left*float64(b.end) + float64(b.slack)
	return low, min(high, float64(b.end))
}

// reached bounds the share of messages that get attempt i from 0 before the
// outage ends, and returns the mean time of it.
func (b *bracket) reached(i int) (low, high float64, mean time.Duration) {
	if i >= len(b.rounded.alive) {
		return 0, 0, 0
	}
	if i < len(b.strict.alive) {
		low = b.strict.alive[i]
	}
	high = b.rounded.alive[i]
	return low, high, round(b.rounded.sum[i] / high)
}

func add(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func round(ns float64) time.Duration {
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(math.Round(ns))
}
