package analysis

import "time"

// A Share is a part of the messages, from 0 to 1, known up to an error: the
// true value lies between Value-Error and Value+Error.
type Share struct{ Value, Error float64 }

// Low is the least that the share can be.
func (s Share) Low() float64 { return max(s.Value-s.Error, 0) }

// High is the most that the share can be.
func (s Share) High() float64 { return min(s.Value+s.Error, 1) }

// rounding allows for floating-point sums, and for what is negligible.
const rounding = 1e-9

// between is the share that lies between two bounds. Equal bounds come of
// policies without jitter, where the sums are those of whole messages.
func between(low, high float64) Share {
	if low == high && (low == 0 || low == 1) {
		return Share{Value: low}
	}
	low, high = max(low-rounding, 0), min(high+rounding, 1)
	return Share{Value: (low + high) / 2, Error: max((high-low)/2, 0)}
}

// Survival is the share of messages that are not dead-lettered because of an
// outage.
type Survival struct {
	Outage time.Duration

	// AtStart is for messages whose first attempt is made as the outage
	// begins: the worst case.
	AtStart Share

	// Within is for messages whose first attempt falls anywhere in the outage,
	// at any time as likely as at another: what a steady stream has.
	Within Share
}

// Survival returns how messages fare in an outage: all attempts within it fail,
// the first one after it succeeds. Of an outage of 0 or less nothing dies.
//
// The errors are below 0.001 for policies of up to some twenty attempts, and
// larger for hundreds of them whose last ones are close to the end of the
// outage. They are always stated.
func (s *Schedule) Survival(outage time.Duration) Survival {
	if outage <= 0 {
		return Survival{Outage: outage, AtStart: Share{Value: 1}, Within: Share{Value: 1}}
	}
	b := s.bracket(outage)
	low, high := b.past()
	// A message that arrives u into the outage has to last for the rest, and
	// does if its last attempt comes after that. Over all u that is the mean
	// of the smaller of last attempt and outage, as a part of the outage.
	least, most := b.spent()
	length := float64(outage)
	return Survival{Outage: outage, AtStart: between(low, high), Within: between(least/length, most/length)}
}
