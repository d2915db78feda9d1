package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// sight is what a look at the broker has found.
type sight struct {
	version

	work, dead looked
	exchange   bool     // Options.DeadLetterExchange exists, or is not set
	missing    []string // of the topology, where this package may not declare it
	refused    error    // why this package cannot declare it
}

// looked is what is known of a queue.
type looked struct {
	exists bool
	features
}

// look asks the broker for what Check needs to know.
func (q *Queue) look(ctx context.Context) (seen sight, err error) {
	err = q.visit(ctx, func(v *visit) error {
		seen.version = v.link.version()
		for name, to := range map[string]*looked{q.name: &seen.work, q.dead: &seen.dead} {
			var err error
			if to.exists, err = v.hasQueue(name); err != nil {
				return fmt.Errorf("look at queue %q: %w", name, q.explain(err))
			}
			if to.exists {
				to.features = v.probe(name)
			}
		}
		seen.exchange = true
		if name := q.opts.DeadLetterExchange; name != "" {
			var err error
			if seen.exchange, err = v.hasExchange(name); err != nil {
				return fmt.Errorf("look at exchange %q: %w", name, q.explain(err))
			}
		}
		if q.opts.NoDeclare {
			var err error
			seen.missing, err = q.lacking(v)
			return err
		}
		// Nothing of that type can be made: what matters is whether the user may.
		err := v.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q.top.parking(q.ladder[0]), true, false, false, false, amqp.Table{argType: noSuchThing})
			return err
		})
		if code(err) == amqp.AccessRefused {
			seen.refused = err
		}
		return nil
	})
	return seen, err
}

func (v *visit) hasQueue(name string) (bool, error) {
	return found(v.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	}))
}

func (v *visit) hasExchange(name string) (bool, error) {
	return found(v.do(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil) // of whatever type
	}))
}

func found(err error) (bool, error) {
	if code(err) == amqp.NotFound && !elsewhere(err) {
		return false, nil
	}
	return err == nil, err
}

// lacking returns the names of what is not there of the topology. Bindings cannot be seen.
func (q *Queue) lacking(v *visit) (missing []string, err error) {
	t := q.top
	look := func(name string, has func(string) (bool, error)) {
		if err != nil {
			return
		}
		var is bool
		if is, err = has(name); err != nil {
			err = fmt.Errorf("look at %q: %w", name, q.explain(err))
		} else if !is {
			missing = append(missing, name)
		}
	}
	look(t.retry, v.hasExchange)
	look(t.back, v.hasExchange)
	if t.dead != "" {
		look(t.graves, v.hasExchange)
	}
	for _, b := range q.ladder {
		look(t.parking(b), v.hasQueue)
	}
	return missing, err
}

// defaultDeliveryLimit is how often a quorum queue lets a message lapse from RabbitMQ 4.0 on, if nobody says otherwise.
const defaultDeliveryLimit = 20

// Check compares the broker with what a queue needs. Fatal findings, all but the last two of which Subscribe refuses too:
// queue_not_found, dead_letter_queue_not_found, dead_letter_exchange_not_found, queue_type, auto_delete, topology_missing,
// configure_refused, delivery_limit_too_low, consumer_timeout_too_short. Others are warnings: delivery_limit_unknown,
// delay_above_maximum, transient, drop_head, message_ttl, expires; auto_delete too, where it is the dead-letter queue.
//
// To learn a queue's type and arguments it has the broker refuse a few declarations, which the broker logs. It can learn neither
// what RabbitMQ's policies set nor the broker's consumer_timeout.
func (q *Queue) Check(ctx context.Context, need backend.Needs) ([]backend.Finding, error) {
	seen, err := q.look(ctx)
	if err != nil {
		return nil, q.errorf("check", err)
	}
	return q.findings(seen, need), nil
}

// findings tells what is wrong.
func (q *Queue) findings(seen sight, need backend.Needs) []backend.Finding {
	var found []backend.Finding
	add := func(fatal bool, code string, is error, format string, args ...any) {
		found = append(found, backend.Finding{Fatal: fatal, Code: code, Text: fmt.Sprintf(format, args...), Err: is})
	}
	if !seen.work.exists {
		add(true, "queue_not_found", backend.ErrQueueNotFound, "there is no queue %q: call Queue.Create, or declare it by other means", q.name)
	}
	if !seen.dead.exists {
		add(true, "dead_letter_queue_not_found", backend.ErrQueueNotFound,
			"there is no dead-letter queue %q: call Queue.Create, or declare it by other means", q.dead)
	}
	if !seen.exchange {
		add(true, "dead_letter_exchange_not_found", backend.ErrQueueNotFound,
			"there is no exchange %q, which Options.DeadLetterExchange names: declare it, and bind %q to it", q.opts.DeadLetterExchange, q.dead)
	}
	if kind := seen.work.kind; kind != "" && kind != Quorum && kind != Classic {
		add(true, "queue_type", nil, "queue %q is of type %s, where messages are not settled one by one: use a quorum or a classic queue", q.name, kind)
	}
	if n := len(seen.missing); n > 0 {
		add(true, "topology_missing", backend.ErrQueueNotFound,
			"%d exchanges or queues are missing that Options.NoDeclare keeps from being declared, %q first: have somebody import Queue.Definitions", n, seen.missing[0])
	}
	if seen.refused != nil {
		add(true, "configure_refused", nil, "retries of queue %q could not be parked: %v", q.name, q.explain(seen.refused))
	}
	if seen.work.kind == Quorum {
		limit, known := seen.work.arguments["x-delivery-limit"].(int64)
		switch {
		case known && limit >= 0 && limit <= int64(need.MaxLapses):
			add(true, "delivery_limit_too_low", nil,
				"queue %q has an x-delivery-limit of %d, so that RabbitMQ drops a message before a policy's MaxLapses of %d is passed, or dead-letters it by itself: "+
					"declare the queue with a limit above that, or lower MaxLapses below the limit", q.name, limit, need.MaxLapses)
		case !known && seen.limitsLapses() && need.MaxLapses >= defaultDeliveryLimit:
			add(false, "delivery_limit_unknown", nil,
				"queue %q has no x-delivery-limit, so that RabbitMQ %v drops a message after %d lapses, or dead-letters it by itself, and a policy has a MaxLapses of %d: "+
					"lower that, or give the queue a limit above it, as an argument or by a RabbitMQ policy", q.name, seen.version, defaultDeliveryLimit, need.MaxLapses)
		}
	}
	if ms, _ := seen.work.arguments[argTimeout].(int64); ms > 0 {
		if hold := time.Duration(ms) * time.Millisecond; need.HandlerBound >= hold {
			add(true, "consumer_timeout_too_short", nil,
				"a handler of queue %q may run for %v, and the queue's x-consumer-timeout has RabbitMQ take a message back after %v: "+
					"lower Consumer.Timeout, or declare the queue without that argument", q.name, need.HandlerBound, hold)
		}
	} else if hold := q.opts.ConsumerTimeout; hold > 0 && need.HandlerBound >= hold {
		add(true, "consumer_timeout_too_short", nil,
			"a handler of queue %q may run for %v, and RabbitMQ takes a message back after its consumer_timeout of %v: "+
				"lower Consumer.Timeout, or raise consumer_timeout and say so in Options.ConsumerTimeout", q.name, need.HandlerBound, hold)
	}
	if need.MaxDelay > q.opts.MaxDelay {
		add(false, "delay_above_maximum", nil,
			"a policy's backoff goes up to %v, and a retry of queue %q waits for %v at most: lower the policy's MaxDelay", need.MaxDelay, q.name, q.opts.MaxDelay)
	}
	for _, l := range []struct {
		name string
		looked
	}{{q.name, seen.work}, {q.dead, seen.dead}} {
		is := func(name string) bool { _, ok := l.arguments[name]; return ok }
		if l.transient {
			add(false, "transient", nil, "queue %q is not durable, and goes with its messages when the broker stops: declare it as durable", l.name)
		}
		if l.autoDelete {
			// A consumer here leaves whenever nobody receives.
			add(l.name == q.name, "auto_delete", nil, "queue %q is deleted with its messages when its last consumer leaves: declare it without auto-delete", l.name)
		}
		if overflow, _ := l.arguments["x-overflow"].(string); (is("x-max-length") || is("x-max-length-bytes")) && !strings.HasPrefix(overflow, "reject-publish") {
			add(false, "drop_head", nil,
				"queue %q has a maximum length, and drops its oldest messages beyond that: declare it with x-overflow=reject-publish, so that nothing is lost", l.name)
		}
		if is("x-message-ttl") {
			add(false, "message_ttl", nil, "queue %q has an x-message-ttl, after which messages are dropped, or dead-lettered by RabbitMQ itself: declare it without", l.name)
		}
		if is("x-expires") {
			add(false, "expires", nil, "queue %q has an x-expires, and goes with its messages when it is not used for that long: declare it without", l.name)
		}
	}
	return found
}

// refuse returns an error that holds the fatal findings.
func (q *Queue) refuse(op string, findings []backend.Finding) error {
	var fatal []error
	for _, f := range findings {
		if f.Fatal {
			fatal = append(fatal, f)
		}
	}
	if fatal == nil {
		return nil
	}
	return q.errorf(op, errors.Join(fatal...))
}
