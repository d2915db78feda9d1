package backend

import (
	"context"
	"time"
)

// Queue is one queue of one broker. Implementations are safe for concurrent use.
type Queue interface {
	// Name is the queue's name, as it stands in logs and in the envelope's origin.
	Name() string

	// Subscribe begins to receive. It fails, with an error that says what to do, if the queue or its dead-letter queue does
	// not exist (ErrQueueNotFound) or if its settings defeat the contract. It creates nothing in the broker.
	Subscribe(ctx context.Context, opts SubscribeOptions) (Subscription, error)

	// Limits tells what the broker can and cannot do. It is constant and does no I/O.
	Limits() Limits

	// Close closes the queue's subscriptions, which give back what they hold, and frees what the backend itself opened.
	// Closing again does nothing.
	Close(ctx context.Context) error
}

// SubscribeOptions says how a subscription receives.
type SubscribeOptions struct {
	// MaxInFlight is the largest number of deliveries that the consumer will hold unsettled at once. A backend whose broker
	// pushes messages holds no more than that.
	MaxInFlight int

	// Lease is how long a delivery is kept from other consumers, from its receipt and again from each Extend. It does not
	// change while the subscription lasts.
	Lease time.Duration
}

// Subscription receives from a queue and settles what it received. Its methods may be called concurrently, also with
// themselves.
type Subscription interface {
	// Receive waits until at least one message is due, and returns up to max of them. It returns as soon as there is
	// something; a message that comes due while it waits wakes it, so callers do not poll. It reconnects by itself and
	// returns only errors that end the subscription: ctx's error, ErrClosed, or a fault that waiting will not mend, such as
	// ErrQueueNotFound.
	//
	// When ctx ends, Receive returns soon, and nothing is lost or hidden: what it had taken is available to consumers again
	// at once, uncharged.
	//
	// The caller may keep the slice.
	Receive(ctx context.Context, max int) ([]*Delivery, error)

	// Settle ends each delivery of the batch with its outcome. It returns nil if all succeeded, a *BatchError that names the
	// items that failed, or another error if the whole batch failed. One item's failure does not affect the others.
	//
	// Items that were acked never come back. A retry comes back not before its Delay has passed since the call. A dead
	// letter is in the dead-letter queue once, with its envelope, before it is out of the queue. An item whose lease is lost
	// fails with ErrLeaseLost and changes nothing for the message's new holder; one that was settled before fails with
	// ErrSettled; one whose outcome the broker did not tell fails with ErrUnknown. After any other error the delivery is
	// still held, and Settle may be called again, with another outcome too.
	//
	// Items of one group apply in slice order. Settle does not keep the slice.
	Settle(ctx context.Context, batch []Settlement) error

	// Extend renews the leases of the batch to their full length from now. Errors are as for Settle: ErrLeaseLost for an
	// item whose lease is gone, ErrSettled or ErrLeaseLost for one that was settled, whose message, and the delay that it
	// waits for, stay as they are. Where leases do not expire (Limits.LeaseExpires) it may do nothing.
	Extend(ctx context.Context, batch []*Delivery) error

	// Close stops receiving and gives back, uncharged where the broker allows, what was received and not settled. Receive
	// returns ErrClosed from then on. Closing again does nothing.
	Close(ctx context.Context) error
}

// Publisher is implemented by queues that can send, as those of this module can.
type Publisher interface {
	// Publish sends the messages to the queue and returns when the broker confirmed them. It fails with ErrInvalidMessage,
	// before anything is sent, if one of them cannot be stored. A message without an ID is given one.
	Publish(ctx context.Context, msgs ...Message) error
}

// Statser is implemented by queues that can tell how full they are.
type Statser interface {
	// Stats counts what the queue and its dead-letter queue hold. It changes nothing; it fails if the broker cannot be asked,
	// and with ErrQueueNotFound or ErrClosed. Where counting takes time, the backend says how much.
	Stats(ctx context.Context) (Stats, error)
}

// Stats is how full a queue is. The counts are a snapshot, not exact while consumers work.
type Stats struct {
	Ready   int64 // due, and held by nobody
	Waiting int64 // held back by a delay, or leased where the broker cannot tell the two apart
	Leased  int64 // held by a consumer; 0 where the broker cannot tell
	Dead    int64 // in the dead-letter queue
	// OldestDue is for how long the longest-due ready message has been waiting for a consumer; 0 if none is ready.
	OldestDue time.Duration
}

// Checker is implemented by queues that can compare what a consumer needs with what the broker is set to.
type Checker interface {
	// Check reports every finding; the error is for a check that could not be made.
	Check(ctx context.Context, need Needs) ([]Finding, error)
}

// Needs is what a consumer is going to ask of a queue.
type Needs struct {
	MaxDelay     time.Duration // longest backoff of the policies, jitter included; an error's own wish may exceed it
	MaxAttempts  int           // largest MaxAttempts of the policies
	MaxLapses    int           // largest MaxLapses of the policies
	Lease        time.Duration // as in SubscribeOptions
	HandlerBound time.Duration // longest time that a handler may run
}

// Finding is something that a check found. It is an error too: those that are fatal make up the error of a start that is
// refused, where errors.As finds them.
type Finding struct {
	// Fatal findings defeat the contract: a consumer does not start with one.
	Fatal bool
	// Code names the kind of finding, for machines: "delay_above_maximum".
	Code string
	// Text says what is wrong, where, and what to do.
	Text string
	// Err is what the finding matches with errors.Is: ErrQueueNotFound where the queue, its dead-letter queue or what holds
	// the two is missing. Nil if nothing in particular.
	Err error
}

// Error returns Text.
func (f Finding) Error() string { return f.Text }

// Unwrap returns Err.
func (f Finding) Unwrap() error { return f.Err }

// BodyKind is what a broker accepts as a body.
type BodyKind uint8

// The kinds of body, each a subset of the one before.
const (
	AnyBody  BodyKind = iota // any bytes
	TextBody                 // UTF-8 text
	JSONBody                 // JSON; stored as a value, so that spacing and key order may change while numbers stay exact
)

// Limits is what a broker can and cannot do. The zero value of each field is the ideal, or, for the fields that steer how
// a consumer calls, a sensible default.
type Limits struct {
	// MaxDelay is the longest delay of a retry; longer ones are cut to it. 0 means no limit.
	MaxDelay time.Duration
	// Granularity is the unit to which delays are rounded up. A retry is late by that much at most, and by scheduling.
	Granularity time.Duration
	// Stretch is the share of its delay by which a retry may be later still, where retries of about the same delay stand in
	// each other's way: 0.1 is a tenth.
	Stretch float64
	// MaxHold is the longest that a broker lets a delivery be held in all, extended or not. 0 means no limit.
	MaxHold time.Duration
	// Body is what the broker takes as a body.
	Body BodyKind
	// NoHeaders: the broker keeps no headers for users.
	NoHeaders bool
	// Ordered: groups are kept in order, one message of a group at a time.
	Ordered bool
	// LeaseExpires: a lease ends by time. Where it is false it lasts as long as the connection.
	LeaseExpires bool
	// ReleaseCharged: a release counts as an attempt or a lapse.
	ReleaseCharged bool
	// CountsReceives: the broker counts receives only, so that failures, lapses and releases are one number.
	CountsReceives bool
	// NoRetryRecord: the broker cannot keep a failure with a retried message, so envelopes lack first_failed_at.
	NoRetryRecord bool
	// ShortRetryRecord: a message that waits for a retry keeps of its failure no stack, and of a long error text no less than
	// the first 250 bytes. That is all that its envelope tells of the failure if no other follows: a message that is abandoned
	// is dead-lettered without running again.
	ShortRetryRecord bool

	// SettleBatch is the largest batch that Settle and Extend handle in one call to the broker. 0 means 100.
	SettleBatch int
	// SettleLinger is how long to gather settlements before a batch goes out. It is for brokers where a call costs money: 0
	// sends at once what gathered while the last batch was under way.
	SettleLinger time.Duration
	// Parallel is how many calls to Receive, and to Settle, are worth making at the same time. 0 means 1.
	Parallel int
	// MaxWaiting is how many messages may be unsettled, waits included, before the broker stops delivering. 0 means no limit.
	MaxWaiting int
}

// Applied returns the delay that the broker will really hold for a wanted one: rounded up to the granularity, cut to the
// maximum, never negative.
func (l Limits) Applied(want time.Duration) time.Duration {
	want = max(want, 0)
	if g := l.Granularity; g > 1 {
		if rest := want % g; rest != 0 {
			if up := want + (g - rest); up > want {
				want = up
			}
		}
	}
	if l.MaxDelay > 0 {
		want = min(want, l.MaxDelay)
	}
	return want
}
