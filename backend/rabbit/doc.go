// Package rabbit receives from and settles on queues of RabbitMQ 3.10 to 4.3, quorum and classic, over AMQP 0-9-1. It
// needs no plugin, and lets the broker hold what waits.
//
//	queue, err := rabbit.Open("amqp://user:password@host/", "orders", rabbit.Options{})
//	err = queue.Create(ctx) // once, by whoever sets the broker up: orders and orders_dlq
//
// A Queue is what a consumer takes; it also publishes, tells how full it is and checks its settings. It connects by itself,
// and again when a connection is lost.
//
// # How a message waits
//
// RabbitMQ lets a message out of a queue when its time is up only if none stands before it. So retries with about the same
// delay wait in one queue, a parking queue, which hands them on to the work queue, and those with other delays in others:
//
//	orders.retry            an exchange: leads a copy to the parking queue that its header redeliver-band names
//	orders.retry.v1.1100ms  a parking queue, for delays above 1 s and up to 1.1 s
//	orders.retry.return     an exchange: leads what has waited to orders, and to nothing else that the producer feeds
//	orders.retry.dead       an exchange: leads dead letters to orders_dlq
//
// The limits of the parking queues lie on a fixed ladder, 24 to a decade; each is declared when it is first needed, or ahead
// of need by Queue.Declare. A copy carries its own delay, so that it waits no longer where others with about its delay are
// sparse. Where they are many it can be late by the width of its band: about a tenth of the delay, see Queue.Limits and
// Options.BandsPerDecade. Queue.ParkingQueues tells which of them a policy will use.
//
// Delays are by the broker's clock. Erlang brings its clock into line with the system's by letting it run faster or slower for a
// while, by a hundredth at most. So each copy is held for a hundredth longer than its delay, 50 ms at most, and is not early
// by the consumer's clock either, unless a system's clock was set by more than that while it waited.
//
// The arguments of a parking queue depend on its name alone. Another policy uses other parking queues, and what waits in
// the old ones comes back in its time.
//
// # What is sent when
//
// A retry, a dead letter or a release is a copy of the message, which is published as mandatory and confirmed by the broker before the original is
// acked. Where nothing takes the copy the message stays. A copy keeps the body, the routing key, the
// properties and the headers with their types. It does not keep the headers CC and BCC, x-death and what belongs to it, which
// RabbitMQ writes, and the expiration and another's user_id, which move into headers. Its exchange is one
// of those above; Message shows the producer's.
//
// These headers go with a copy:
//
//	redeliver-attempt   the number of the attempt that its delivery is
//	redeliver-lapses    deliveries that ended without an outcome
//	redeliver-snoozes   waits that were asked for
//	redeliver-waits     waits for the dead-letter queue
//	redeliver-failure   the record of its last failure; with a dead letter, the envelope
//	redeliver-enqueued  when it was sent, in milliseconds since 1970
//	redeliver-exchange, redeliver-expiration, redeliver-user-id  what the producer had set
//	redeliver-band, redeliver-publish  for the way
//
// A message that was never settled by a copy has none of them, whoever sent it, but those that Queue.Publish writes. Counts of
// nothing are left out: the first attempt, no lapses. The dead letter has neither counts nor a band: it is attempt 1 of the
// dead-letter queue.
//
// All headers of a message go in one frame, 128 KiB by RabbitMQ's default. Where those of the producer leave too little room, a
// copy does without the record, or a part of it, and without what the producer had set; docs/rabbitmq.md tells what that means.
//
// # Lapses
//
// A quorum queue counts how often a delivery ended without an outcome, in x-delivery-count. A classic queue only marks the
// message as redelivered; so does any other whose type cannot be learnt. Such a message is first replaced by a copy that says one lapse
// more, and handled when that comes.
//
// A consumer's death lapses what the broker has sent it, handled or not. That is no more than
// SubscribeOptions.MaxInFlight, and while nobody receives the broker sends nothing.
//
// A release is never counted. One thing may be: until 4.2 a quorum queue counts what it sends in the few milliseconds in which a
// consumer ends. Close and Receive wait for a quiet moment, so that this is rare. Policies with policy.NoLapses should know of it.
//
// A message whose producer set no message-id is given one when it is received, which its copies keep. When it lapses before
// there is a copy, on a quorum queue, it is given another.
//
// # Parking queues by hand
//
// An empty parking queue may be deleted at any time: it is declared again when it is needed. RabbitMQ cannot make sure that a
// quorum queue is empty when it deletes it, so stop the consumers before. docs/rabbitmq.md, in this module, tells operators how
// to list them, have waiting messages back at once and delete them, and what to watch. Queue.Parked lists them without
// RabbitMQ's own tools.
//
// RabbitMQ policies that match the parking queues can break what is said here: message-ttl brings retries back early, expires
// loses them, max-length has them refused. Keep the pattern of such policies away from \.retry\.
//
// What comes due while the broker is down is handed on when it starts; if the work queue is not ready at that moment, or
// is full or missing at another, three minutes later. That is RabbitMQ's setting dead_letter_worker_publisher_confirm_timeout.
//
// An upgrade of RabbitMQ or of this package leaves parked messages where they are; they come back in their time. A version of this package
// that needs other arguments will use other names.
//
// # What it asks of the broker
//
// The user needs these permissions in the virtual host, for a queue named orders that Queue.Create makes:
//
//	configure  ^orders(_dlq|\.retry(\..*)?)?$
//	write      ^orders(_dlq|\.retry(\..*)?)?$|^amq\.default$
//	read       ^orders(_dlq|\.retry(\..*)?)?$
//
// With Options.NoDeclare it needs no permission to configure, and somebody has to import Queue.Definitions. docs/rabbitmq.md
// lists the least that each needs.
//
// RabbitMQ drops a message from a quorum queue that lapsed more often than its delivery-limit, 20 by default from 4.0 on. Keep
// the limit above the policy's MaxLapses. It takes a message back that was held for its consumer_timeout, 30 minutes by default: see Options.ConsumerTimeout.
// A node that is killed within seconds of the declaration of a quorum queue can lose what is in it: have parking queues declared ahead
// of need.
//
// A queue that is full and drops its oldest messages loses retries with them: where a maximum length is wanted, set
// x-overflow to reject-publish, on the dead-letter queue too.
package rabbit
