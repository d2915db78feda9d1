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
type Breaker interface {
	IsClosed() bool
	TryAcquirePermit() bool
	RemainingDelay() time.Duration
	RecordSuccess()
	RecordError(err error)
}
