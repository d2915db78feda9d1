// Package backend is the contract between a consumer and a message broker.
//
// It holds the types that travel between the two (Message, Delivery, Settlement), the interfaces that a
// broker's adapter implements (Queue and Subscription, eight methods in all, and a few optional ones), the errors
// that they share, and the envelope: the failure record that travels with a dead-lettered message.
//
// # The model
//
// A message is what a producer sent. A delivery is one hand-over of it to a consumer, under a lease: for that time no
// other consumer gets it. A delivery ends with exactly one settlement:
//
//	Ack         done, the message never comes back
//	Retry       it failed, or asked to wait; it comes back after a delay, never earlier
//	DeadLetter  it failed for good; it moves to the dead-letter queue with its envelope
//	Discard     it is removed
//	Release     it goes back unharmed and at once: neither a failure nor a lapse
//
// or with none at all, when its consumer dies: then the lease runs out, the message comes back, and that is a lapse.
//
// Three counts keep these apart. The attempt is 1 plus the failures reported so far. Lapses are deliveries that ended
// without a settlement. Snoozes are waits that were asked for. Only failures use up a policy's attempts.
//
// # What a backend owes
//
// The duties are stated at the methods of Queue and Subscription. Package conformance checks them, against our backends
// and against anyone's. The rule above all others: a message is removed from where it was only after the broker confirmed
// where it is now. Where a duplicate and a loss are the only choices, the duplicate is right.
//
// The message ID survives retry, dead letter and redrive. It is the idempotency key of a handler: since a duplicate is
// possible whenever a confirmation is lost, a handler whose effect must not happen twice has to remember the IDs that it
// has handled.
package backend
