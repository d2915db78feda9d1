package backend

import (
	"fmt"
	"strings"
	"time"
)

// Outcome is how a delivery ends.
type Outcome uint8

// The outcomes. The zero Outcome is invalid, so that a forgotten one is not taken for a success.
const (
	Ack        Outcome = iota + 1 // the message is done, and never comes back
	Retry                         // it comes back after Settlement.Delay
	DeadLetter                    // it moves to the dead-letter queue, with Settlement.Failure as its envelope
	Discard                       // it is removed, without a dead letter
	Release                       // it goes back unharmed and at once
)

// String returns the outcome's name in lower case, as logs and errors show it.
func (o Outcome) String() string {
	switch o {
	case Ack:
		return "ack"
	case Retry:
		return "retry"
	case DeadLetter:
		return "dead-letter"
	case Discard:
		return "discard"
	case Release:
		return "release"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Settlement ends one delivery.
type Settlement struct {
	// Delivery is what ends. It must come from the subscription that settles it.
	Delivery *Delivery
	// Outcome is how it ends. The other fields say more about some of the outcomes.
	Outcome Outcome

	// Delay is how long a retried message stays away, from the call of Settle on; 0 means at once, negative counts as 0.
	// Backends round it up to what their broker can hold, never down, except to Limits.MaxDelay.
	Delay time.Duration

	// Uncharged marks a Retry that is no failure: a snooze, which leaves the attempt as it is.
	Uncharged bool

	// AwaitDeadLetter marks a Retry of a message that has failed for good but could not be dead-lettered: it charges
	// nothing, adds one to Delivery.DeadLetterWaits and keeps Failure whole with the message.
	AwaitDeadLetter bool

	// Failure is what is written to the envelope of a DeadLetter; with a charged Retry it is kept with the message where
	// the broker can. The backend completes it with Delivery.Record.
	Failure *Failure
}

// Validate reports a settlement that makes no sense: no delivery, no outcome, or a flag that belongs to another outcome.
// Backends refuse such an item alone and leave its delivery open.
func (s Settlement) Validate() error {
	switch {
	case s.Delivery == nil:
		return fmt.Errorf("backend: %s settlement without a delivery", s.Outcome)
	case s.Outcome < Ack || s.Outcome > Release:
		return fmt.Errorf("backend: message %q of queue %q: %s is not an outcome: set Settlement.Outcome", s.Delivery.ID, s.Delivery.Queue, s.Outcome)
	case s.Outcome != Retry && (s.Uncharged || s.AwaitDeadLetter):
		return fmt.Errorf("backend: message %q of queue %q: Uncharged and AwaitDeadLetter belong to a retry, not to %s", s.Delivery.ID, s.Delivery.Queue, s.Outcome)
	case s.Failure == nil && (s.Outcome == DeadLetter || s.AwaitDeadLetter):
		return fmt.Errorf("backend: message %q of queue %q: %s needs a Failure, or the dead letter would say nothing", s.Delivery.ID, s.Delivery.Queue, s.Outcome)
	}
	return nil
}

// BatchError tells which items of a batch failed, and why. Items that it does not name succeeded. Match the causes of all
// items with errors.Is and errors.As, or ask for one item with At.
type BatchError struct {
	// Items are in the order of the batch.
	Items []ItemError
	// Size is the number of items in the batch.
	Size int
}

// ItemError is the failure of one item of a batch.
type ItemError struct {
	Index int // position in the batch
	Err   error
}

// NewBatchError returns a *BatchError made of errs, which holds one error or nil for each item of a batch, or nil if all
// of them are nil.
func NewBatchError(errs []error) error {
	var items []ItemError
	for i, err := range errs {
		if err != nil {
			items = append(items, ItemError{Index: i, Err: err})
		}
	}
	if items == nil {
		return nil
	}
	return &BatchError{Items: items, Size: len(errs)}
}

// Error names the number of failed items and the first few of them.
func (e *BatchError) Error() string {
	const shown = 3
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d items failed", len(e.Items), e.Size)
	for i, item := range e.Items {
		if i == shown {
			b.WriteString("; ...")
			break
		}
		fmt.Fprintf(&b, "; item %d: %v", item.Index, item.Err)
	}
	return b.String()
}

// Unwrap returns the items' errors.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, len(e.Items))
	for i, item := range e.Items {
		errs[i] = item.Err
	}
	return errs
}

// At returns the error of the item at position i of the batch, or nil if it succeeded.
func (e *BatchError) At(i int) error {
	for _, item := range e.Items {
		if item.Index == i {
			return item.Err
		}
	}
	return nil
}

// ErrorAt returns what the error of a batch call means for the item at position i: nil, the item's own error if err is a
// *BatchError, or err itself, which then concerns every item.
func ErrorAt(err error, i int) error {
	if batch, ok := err.(*BatchError); ok {
		return batch.At(i)
	}
	return err
}
