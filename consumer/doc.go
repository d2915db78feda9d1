// Package consumer runs a handler over the messages of a queue under a retry policy.
//
// A Consumer receives from a backend.Queue, calls the Handler, asks the policy.Policy what a failure means, and settles
// the delivery accordingly:
//
//	c := &consumer.Consumer{
//		Queue:   queue,
//		Policy:  payments,
//		Handler: consumer.HandlerFunc(handle),
//	}
//	err := c.Run(ctx) // until ctx ends, then drains
//
// # What a handler's end means
//
//	returns nil                        the message is acked
//	returns an error                   a failure: the policy decides on retry, dead letter or discard
//	panics, or ends its goroutine      a failure, with the stack in the envelope
//	outlives Consumer.Timeout          cancelled, and a failure with reason timeout
//	ends because of the shutdown       released: neither a failure nor a lapse
//	loses its lease                    cancelled; the message belongs to another consumer now, nothing is settled
//
// A context.Canceled or context.DeadlineExceeded of the handler's own making is a failure like any other.
//
// # What is promised
//
// Every message is handled at least once. It is handled again after a failure, and also when a consumer dies before it
// could tell the broker of its success: a handler with effects outside the broker has to be idempotent, with the message
// ID as its key. A message that fails too often, or that takes its consumer down too often, ends in the dead-letter queue
// with a record of why. If the dead-letter queue is missing, full or down, the message stays in its queue, waits, and goes
// there later without being handled again.
//
// When a consumer dies, the broker cannot tell which of the messages that it held was the reason, so all of them count a
// lapse. A message that has used up half of the lapses that its policy allows is therefore run alone: nothing else is
// received, and what runs is waited for, for the length of a lease at most. So the guilty one ends by itself, and the
// innocent are handled. Where the broker charges a release (backend.Limits.ReleaseCharged) this is not done.
//
// No retry delay is waited out in the process: the broker holds the message, so that a restart loses nothing and a
// waiting message costs no memory here.
package consumer
