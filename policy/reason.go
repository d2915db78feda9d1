package policy

import "slices"

// A Reason says in a word why a decision fell as it did. There is a fixed set
// of them, which [Reasons] lists, so a reason can be the label of a metric.
type Reason string

// Reasons for a retry.
const (
	// ReasonError: the handler returned an error, or nothing more is known.
	ReasonError Reason = "error"
	// ReasonTimeout: the handler outlived its bound.
	ReasonTimeout Reason = "timeout"
	// ReasonPanic: the handler panicked.
	ReasonPanic Reason = "panic"
	// ReasonRetryAfter: the error was marked by RetryAfter.
	ReasonRetryAfter Reason = "retry_after"
	// ReasonSnoozed: the handler asked to wait, with Snooze.
	ReasonSnoozed Reason = "snoozed"
)

// Reasons for a dead letter.
const (
	// ReasonExhausted: the attempt was the last that MaxAttempts allows, that of
	// the rule where one matched.
	ReasonExhausted Reason = "exhausted"
	// ReasonPermanent: the error was marked by Permanent, or a rule gives it up.
	ReasonPermanent Reason = "permanent"
	// ReasonExpired: the message is older than MaxAge, or would be by the
	// time of its retry.
	ReasonExpired Reason = "expired"
	// ReasonAbandoned: more deliveries ended without an outcome than
	// MaxLapses allows.
	ReasonAbandoned Reason = "abandoned"
	// ReasonSnoozeLimit: the handler asked to wait more often than MaxSnoozes
	// allows.
	ReasonSnoozeLimit Reason = "snooze_limit"
)

// ReasonDiscarded is the reason for a discard: the error was marked by
// Discard, or a rule discards it.
const ReasonDiscarded Reason = "discarded"

var reasons = []Reason{
	ReasonError, ReasonTimeout, ReasonPanic, ReasonRetryAfter, ReasonSnoozed,
	ReasonExhausted, ReasonPermanent, ReasonExpired, ReasonAbandoned, ReasonSnoozeLimit,
	ReasonDiscarded,
}

// Reasons returns every reason that a decision can have.
func Reasons() []Reason { return slices.Clone(reasons) }
