package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// Observer is told of what happens to messages, for metrics, traces and alarms. Observe is called concurrently and must
// return soon. It must not keep the event's Delivery.
type Observer interface {
	// Observe is told of one event. The context carries the values of that of Run, and does not end with it. A panic is
	// logged, and harms nothing.
	Observe(ctx context.Context, e Event)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// Kind is what happened. There are few, so that it can label a metric.
type Kind string

// The kinds of event. For each delivery there is one Received and then one of the others, except SettleFailed, which
// tells of a try.
const (
	Received     Kind = "received"      // a delivery arrived
	Succeeded    Kind = "succeeded"     // the handler returned nil, and the broker confirmed the ack
	Retried      Kind = "retried"       // it failed, and the broker holds it for Applied
	Snoozed      Kind = "snoozed"       // it asked to wait, and the broker holds it for Applied
	DeadLettered Kind = "dead_lettered" // it is in the dead-letter queue
	Parked       Kind = "parked"        // its dead-letter queue does not take it; it waits in the queue for Applied
	Discarded    Kind = "discarded"     // it was removed because the handler said so
	Released     Kind = "released"      // it was given back unharmed
	LeaseLost    Kind = "lease_lost"    // it belongs to another consumer now
	SettleFailed Kind = "settle_failed" // the broker refused or did not answer; GaveUp tells whether it is tried again
)

// Event is something that happened to a delivery. Kind and Reason come from small fixed sets and can label metrics; IDs
// and error texts must not, or the number of time series grows without bound.
type Event struct {
	Kind     Kind              // what happened
	Queue    string            // the queue's name
	Delivery *backend.Delivery // what it happened to, for as long as Observe runs

	// Reason is why it was retried, snoozed, dead-lettered, parked or discarded, or was about to be when settling failed.
	// Empty otherwise.
	Reason policy.Reason

	// Wish is what became of the wishes in the message's headers; empty where it has none, and for Received and SettleFailed.
	Wish Wish

	// Decision is what the policy decided. Its zero value stands for deliveries that it was not asked about.
	Decision policy.Decision

	// Delay is the wait that was wanted, Applied what the broker can hold of it.
	Delay, Applied time.Duration

	// Stretched is how much of Delay the Budget has added to what the policy decided, because it was empty; 0 otherwise.
	Stretched time.Duration

	// Duration is how long the handler ran; 0 if it did not.
	Duration time.Duration

	// Err is the handler's error, or for LeaseLost and SettleFailed the backend's. It is not redacted.
	Err error

	// GaveUp tells, for SettleFailed, that the settlement is not tried again: the lease runs out and the broker delivers
	// the message once more.
	GaveUp bool
}

func (r *run) observe(e *Event) {
	e.Queue = r.name
	r.log(e)
	if r.c.Observer == nil {
		return
	}
	defer func() {
		// The observer is a bystander: its fault must not cost a message.
		if v := recover(); v != nil {
			r.logger.ErrorContext(r.base, "redeliver: observer panicked", "queue", r.name, "event", string(e.Kind), "panic", r.redact(fmt.Sprint(v)))
		}
	}()
	r.c.Observer.Observe(r.base, *e)
}

func (r *run) log(e *Event) {
	level := slog.LevelDebug
	switch e.Kind {
	case Received, Succeeded:
		return
	case DeadLettered:
		level = slog.LevelError
	case LeaseLost, Parked:
		level = slog.LevelWarn
	case SettleFailed:
		if e.GaveUp {
			level = slog.LevelWarn
		}
	}
	if !r.logger.Enabled(r.base, level) {
		return
	}
	d := e.Delivery
	attrs := []slog.Attr{
		slog.String("queue", e.Queue), slog.String("message_id", d.ID),
		slog.Int("attempt", d.Attempt), slog.Int("lapses", d.Lapses),
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(e.Reason)))
	}
	if e.Kind == Retried || e.Kind == Snoozed || e.Kind == Parked {
		attrs = append(attrs, slog.Duration("delay", e.Applied))
		if e.Applied != e.Delay {
			attrs = append(attrs, slog.Duration("wanted", e.Delay))
		}
		if e.Stretched > 0 {
			attrs = append(attrs, slog.Duration("stretched", e.Stretched))
		}
	}
	if e.Wish != "" {
		attrs = append(attrs, slog.String("wish", string(e.Wish)))
	}
	if e.Kind == SettleFailed {
		attrs = append(attrs, slog.Bool("gave_up", e.GaveUp))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", backend.Truncate(r.text(e.Err), maxLoggedError)))
	}
	if e.Kind == DeadLettered && e.Decision != (policy.Decision{}) {
		attrs = append(attrs, slog.String("decision", e.Decision.Explain()))
	}
	r.logger.LogAttrs(r.base, level, "redeliver: message "+string(e.Kind), attrs...)
}

// maxLoggedError keeps a log line readable; the envelope holds the rest.
const maxLoggedError = 1 << 10
