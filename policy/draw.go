package policy

import (
	"math/bits"
	"math/rand/v2"
	"sync"
	"time"
)

// A Rand is a random source for [Policy.Rand], safe for concurrent use. Copies
// of a policy share it.
type Rand struct {
	mu     sync.Mutex
	source rand.Source
}

// NewRand returns a Rand that draws from source, which must then be used by
// nothing else. With a seeded source, the decisions of one goroutine are
// reproducible; those of several depend on who draws first. NewRand(nil) is
// nil, and a policy with a nil Rand draws from the hash.
func NewRand(source rand.Source) *Rand {
	if source == nil {
		return nil
	}
	return &Rand{source: source}
}

func (r *Rand) uint64() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.source.Uint64()
}

// draw returns a part of width, 0 and width included, by the hash of the
// failure or the policy's random source.
func (p *Policy) draw(width time.Duration, f *Failure) time.Duration {
	if width <= 0 {
		return 0
	}
	var u uint64
	if p.Rand != nil && p.Rand.source != nil {
		u = p.Rand.uint64()
	} else {
		u = hash(f.MessageID, f.Age, f.Attempt)
	}
	part, _ := bits.Mul64(u, uint64(width)+1)
	return time.Duration(part)
}

// golden is the odd number nearest to 2^64 divided by the golden ratio.
const golden = 0x9e3779b97f4a7c15

// hash is the draw of an attempt of a message. It is part of the contract and
// described in the package comment: a change of it changes decisions that
// someone may want to replay.
func hash(id string, age time.Duration, attempt int) uint64 {
	h := uint64(len(id))
	if id == "" {
		h = absorb(h, uint64(age))
	}
	for ; len(id) >= 8; id = id[8:] {
		h = absorb(h, uint64(id[0])|uint64(id[1])<<8|uint64(id[2])<<16|uint64(id[3])<<24|
			uint64(id[4])<<32|uint64(id[5])<<40|uint64(id[6])<<48|uint64(id[7])<<56)
	}
	if id != "" {
		var word uint64
		for i := range len(id) {
			word |= uint64(id[i]) << (8 * i)
		}
		h = absorb(h, word)
	}
	return finish(absorb(h, uint64(attempt)))
}

// absorb takes one word in. For a given h it maps no two words to one.
func absorb(h, word uint64) uint64 {
	h = (h ^ word) * golden
	return h ^ h>>32
}

// finish makes every bit depend on every other: the finaliser of splitmix64
// (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
// OOPSLA 2014), with the constants of Stafford's variant 13.
func finish(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
