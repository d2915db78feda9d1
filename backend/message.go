package backend

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// HeaderPrefix starts the name of every header that has a meaning for this library. Those that it writes itself are Reserved;
// the others are wishes.
const HeaderPrefix = "redeliver-"

// Headers that are the same on every broker that has headers.
const (
	// HeaderFailure holds the envelope: see Failure.
	HeaderFailure = HeaderPrefix + "failure"
	// HeaderID holds the message ID where the broker has no property for it.
	HeaderID = HeaderPrefix + "id"
)

// Headers with which a producer wishes for limits of its own for a message; what they may hold and how far they are heeded, the
// consumer says. They are the user's headers in every respect: publishers take them, handlers see them, and they stay with the
// message in retries and in the dead-letter queue.
const (
	// HeaderPolicy asks for a policy, by name.
	HeaderPolicy = HeaderPrefix + "policy"
	// HeaderMaxAttempts asks for fewer attempts.
	HeaderMaxAttempts = HeaderPrefix + "max-attempts"
	// HeaderMaxAge asks to be given up sooner.
	HeaderMaxAge = HeaderPrefix + "max-age"
)

// Reserved reports whether a header of that name is this library's own: one under HeaderPrefix, whatever the case of its letters,
// that is no wish. Message.Headers never holds one: publishers refuse them and backends keep them out of what a handler sees.
func Reserved(name string) bool {
	if len(name) < len(HeaderPrefix) || !strings.EqualFold(name[:len(HeaderPrefix)], HeaderPrefix) {
		return false
	}
	return name != HeaderPolicy && name != HeaderMaxAttempts && name != HeaderMaxAge
}

// Message is what a producer sends and a handler receives.
type Message struct {
	// ID identifies the message through retry, dead letter and redrive. A publisher that finds it empty draws one with
	// NewID. A message from a foreign producer that has none gets one from the backend at receipt, the same at every
	// delivery.
	ID string

	// Body is the payload. Limits.Body tells which kinds the broker takes.
	Body []byte

	// Headers are the user's headers, as strings. A header that has another type in the broker is shown as text here and
	// keeps its type underneath, also in retried and dead-lettered copies.
	Headers map[string]string

	// Group names the ordered group that the message belongs to; empty means none. Only a backend whose Limits.Ordered is
	// true accepts it.
	Group string
}

// NewID draws a message ID: 26 characters with at least 128 bits of randomness.
func NewID() string { return rand.Text() }

// Validate reports what no broker accepts in a message, as an error that matches ErrInvalidMessage: an ID, group or header
// that is not UTF-8 or holds a NUL, a header without a name, a header that is Reserved. Backends call it before they
// publish and add the rules of their broker.
func (m Message) Validate() error {
	if !storable(m.ID) {
		return fmt.Errorf("%w: ID %q is not UTF-8 text without NUL", ErrInvalidMessage, m.ID)
	}
	if !storable(m.Group) {
		return fmt.Errorf("%w: message %q: group %q is not UTF-8 text without NUL", ErrInvalidMessage, m.ID, m.Group)
	}
	for name, value := range m.Headers {
		switch {
		case name == "":
			return fmt.Errorf("%w: message %q: a header has an empty name", ErrInvalidMessage, m.ID)
		case Reserved(name):
			return fmt.Errorf("%w: message %q: header %q: names that start with %q are reserved; choose another name",
				ErrInvalidMessage, m.ID, name, HeaderPrefix)
		case !storable(name):
			return fmt.Errorf("%w: message %q: header name %q is not UTF-8 text without NUL", ErrInvalidMessage, m.ID, name)
		case !storable(value):
			return fmt.Errorf("%w: message %q: header %q: its value is not UTF-8 text without NUL", ErrInvalidMessage, m.ID, name)
		}
	}
	return nil
}

func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Delivery is one hand-over of a message to a consumer, under a lease. Backends make deliveries; handlers read them, and may
// scribble on Body and Headers, which therefore are the delivery's own. A handler's unit test may use a literal. The fields
// are set before the handler is called and not written after that; the methods are safe for concurrent use.
type Delivery struct {
	Message

	// Queue is the name of the queue that the delivery came from.
	Queue string

	// Attempt is 1 plus the failures reported so far, never below 1.
	Attempt int

	// Lapses counts the earlier deliveries that ended without a settlement.
	Lapses int

	// Snoozes counts the uncharged retries so far.
	Snoozes int

	// Age is the time from the first enqueue, or from the last redrive, to this receipt, by the broker's clock.
	Age time.Duration

	// ReceivedAt is when the delivery arrived here, by this process's clock (with its monotonic reading).
	ReceivedAt time.Time

	// LeasedAt is a moment before the lease began, by this process's clock: when the backend asked for the message. The lease
	// surely lasts until it and the lease's length are over, however long the answer was on its way. Zero stands for
	// ReceivedAt.
	LeasedAt time.Time

	// FirstEnqueuedAt is when the producer sent the message, by the broker's clock; zero where the broker does not tell.
	FirstEnqueuedAt time.Time

	// Last tells a handler that a failure of this attempt is the last one that its policy allows. The consumer sets it.
	Last bool

	// Failure is the record that the message carries: of its last failure where the backend keeps it with a retry, or of
	// an earlier dead-lettering if it was redriven. Nil if there is none.
	Failure *Failure

	// DeadLetterWaits, if above 0, tells that the message has failed for good and waits for its dead-letter queue; it
	// counts the waits. Such a delivery is dead-lettered with Failure and never handled again.
	DeadLetterWaits int

	// Raw is the broker's own message, of a type that the backend documents. Backends also keep here what they need to
	// settle the delivery: do not change it.
	Raw any

	mu       sync.Mutex
	settle   settleState
	noExtend bool
	lost     bool
	onLost   func()
}

type settleState uint8

const (
	open settleState = iota
	settling
	settled
)

// BeginSettle claims the delivery for one settlement. It fails with ErrSettled if the delivery is settled, or is being
// settled by another call. Every success must be followed by EndSettle. Backends call it first in Settle.
func (d *Delivery) BeginSettle() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settle != open {
		return fmt.Errorf("message %q of queue %q: %w", d.ID, d.Queue, ErrSettled)
	}
	d.settle = settling
	return nil
}

// EndSettle ends what BeginSettle began: with a nil error the delivery is settled, with any other it may be settled again.
// MarkSettled prevails over a settlement that was under way and failed.
func (d *Delivery) EndSettle(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.settle = settled
	case d.settle == settling:
		d.settle = open
	}
}

// MarkSettled tells that the delivery was settled by other means than Subscription.Settle, for example inside the
// handler's own database transaction, after its commit. The consumer then settles nothing.
func (d *Delivery) MarkSettled() { d.EndSettle(nil) }

// Settled reports whether the delivery was settled.
func (d *Delivery) Settled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settle == settled
}

// StopExtending tells the consumer to send no more heartbeats for this delivery, because something else holds it: a row
// lock, for example. An extension that is under way is not recalled.
func (d *Delivery) StopExtending() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noExtend = true
}

// Extending reports whether heartbeats are wanted: until StopExtending.
func (d *Delivery) Extending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.noExtend
}

// OnLost arranges for f to be called, once and in its own goroutine, when the backend learns that the lease is gone, for
// example because the connection that holds it was cut; at once if it has learnt that already. Where the broker does not
// tell, f is never called. A later call replaces f.
func (d *Delivery) OnLost(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onLost = f
	if d.lost && f != nil {
		go f()
	}
}

// MarkLost tells that the lease is gone. Backends call it; calling it again does nothing.
func (d *Delivery) MarkLost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost {
		return
	}
	d.lost = true
	if d.onLost != nil {
		go d.onLost()
	}
}
