package backend

import "errors"

// Errors that every backend uses, to be matched with errors.Is. Backends wrap them with the operation, the queue and the
// message that they concern; the broker's own error stays reachable with errors.As.
var (
	// ErrLeaseLost: the lease ran out or the connection that held it is gone, so the message is, or soon will be, another
	// consumer's. The call changed nothing.
	ErrLeaseLost = errors.New("lease lost")

	// ErrSettled: the delivery was settled before. The call changed nothing.
	ErrSettled = errors.New("delivery already settled")

	// ErrUnknown: the broker did not say whether the call took effect. Trying again is safe and may duplicate the message,
	// never lose it.
	ErrUnknown = errors.New("outcome unknown")

	// ErrQueueNotFound: the queue or its dead-letter queue does not exist, or what holds them is not installed.
	ErrQueueNotFound = errors.New("queue not found")

	// ErrInvalidMessage: the message, or what was to be written with it, cannot be stored by the broker.
	ErrInvalidMessage = errors.New("invalid message")

	// ErrClosed: the queue or subscription was closed.
	ErrClosed = errors.New("closed")
)
