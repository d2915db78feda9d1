// Package policy decides what happens to a message whose handler failed: retry
// it, and when, or give it up. It does no I/O, reads no clock and keeps no
// state. Whoever consumes messages calls it, and carries the decision out with
// the means of the broker.
//
//	var payments = policy.Policy{
//		MaxAttempts: 8,
//		Backoff:     policy.Exponential{Base: 500 * time.Millisecond, Max: 30 * time.Second},
//		Jitter:      policy.FullJitter,
//	}
//
//	d := payments.Decide(policy.Failure{Attempt: 3, Err: err, MessageID: id, Age: age})
//	switch d.Action {
//	case policy.ActionRetry: // after d.Delay
//	case policy.ActionDeadLetter: // d.Reason says why
//	case policy.ActionDiscard:
//	}
//
// # What is counted
//
// The first delivery of a message is attempt 1, and every failure adds one.
// [Policy.MaxAttempts] counts failures: with 5 the fifth is the last, after
// four retries. The delay that a curve gives for attempt n is the wait after
// attempt n failed.
//
// A delivery that ends without an outcome, because its consumer died, hung or
// was cut off, is a lapse and no failure. Lapses have a limit of their own,
// [Policy.MaxLapses]: a crash or a deploy does not use up the attempts of the
// messages that it interrupts, and a message that kills its consumers comes to
// an end as well. It is checked when a message is received, before it can do
// so again, by [Policy.Admit].
//
// A snooze is the wish of a handler to be called later although nothing
// failed, and [Policy.MaxSnoozes] limits it. [Policy.MaxAge] limits all of it
// together, by time.
//
// # What an error says
//
// An error means a retry, unless it is marked, anywhere in what it wraps or
// joins: by [Permanent] (dead-letter now), [Discard] (remove), [Snooze] (wait
// without a charge) or [RetryAfter] (not before). Of several marks the most
// severe decides, Discard before Permanent before Snooze before RetryAfter. The
// cause stays within reach of errors.Is and errors.As. Only the marks of this
// package count; an error that is merely printed into another one, with %v,
// loses its mark.
//
// # How long to wait
//
// A [Backoff] gives the delay by attempt. It is taken to the cap, spread by
// [Jitter], and taken to the floor. The cap bounds the delay after jitter, and
// yet the delays that have reached it do not all become the same: a range is
// fitted below the cap, and the delay drawn from it. The floor likewise moves
// the range. All arithmetic saturates at the largest Duration: an attempt can
// be any int.
//
// The wait that a server asked for, by RetryAfter, is a lower bound. It may
// exceed the cap, up to [Policy.MaxRetryAfter]. Jitter prolongs it, by up to
// the width of the range that the attempt would have had without it, so that
// the clients of a server that says "in 30 seconds" do not all return in
// second 30. It is taken to MaxRetryAfter exactly, which does not spread.
//
// A retry that could only run after MaxAge is given up now instead of after
// the wait.
//
// # How jitter is drawn
//
// Jitter comes from a hash of message ID and attempt, not from a random
// source: the same failure has the same delay in every process, so that a
// decision can be tested, replayed and audited, while different messages
// spread evenly. Two messages with the same ID do not spread. An empty ID
// would be such, so the age of the message stands in for it; give messages an
// ID nevertheless. [Policy.Rand] is for those who want randomness.
//
// The draw will not change. All words are unsigned, of 64 bits, and wrap:
//
//	h = number of bytes in the ID
//	for each 8 bytes of the ID, little-endian, the last ones padded with zeros,
//	or for the age in nanoseconds where the ID is empty,
//	and then for the attempt:
//		h = (h XOR word) * 0x9e3779b97f4a7c15
//		h = h XOR h>>32
//	h = (h XOR h>>30) * 0xbf58476d1ce4e5b9
//	h = (h XOR h>>27) * 0x94d049bb133111eb
//	h = h XOR h>>31
//	delay = lowest + (h * (highest - lowest + 1)) >> 64
//
// The product of the last line has 128 bits. Fractions of a delay, as for
// proportional jitter, are computed in integers as well, in units of 2^-62.
package policy
