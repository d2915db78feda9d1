package consumer

import "time"

// Breaker is what a Consumer needs of a circuit breaker. The CircuitBreaker of github.com/failsafe-go/failsafe-go has
// these methods.
//
// While the breaker is open the consumer does not receive: during an outage messages wait in the broker, and nothing is
// charged to them. When RemainingDelay has passed it takes one message at a time, with a permit, until the breaker is
// closed. A message that is already here and gets no permit is released.
//
// A handler's success is recorded as such, and so is an error marked permanent or discarded, and a snooze: the dependency
// answered. Other errors are recorded with RecordError; what the shutdown or a lost lease ended is recorded as an error
// too, since each permit must be given back.
//
// Its methods are called concurrently, with themselves and with each other, and must not block: the consumer asks before it
// receives and before it calls a handler.
type Breaker interface {
	// IsClosed reports whether all is well: the consumer then receives as many messages as it has room for.
	IsClosed() bool
	// TryAcquirePermit asks for leave to call a handler, which is asked for in every state of the breaker. Each permit is given
	// back by exactly one RecordSuccess or RecordError.
	TryAcquirePermit() bool
	// RemainingDelay is how long an open breaker stays open. With 0 or less, as when it is half-open, one message is
	// received to try.
	RemainingDelay() time.Duration
	// RecordSuccess tells that the dependency answered.
	RecordSuccess()
	// RecordError tells what the handler returned instead, never nil.
	RecordError(err error)
}
