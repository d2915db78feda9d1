package rabbit

import (
	"regexp"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

// features is what a queue was declared with, as far as it is known.
type features struct {
	kind       Type // empty if it is not known
	arguments  map[string]any
	transient  bool // it goes when the broker stops
	autoDelete bool // it goes when its last consumer does
}

// probe finds out what a queue was declared with. AMQP has no method that tells; but RabbitMQ refuses to declare a queue
// again with other arguments, and says of one at a time what it is. The type that is asked for does not exist, so that
// nothing is made should the queue be gone meanwhile. It needs the permission to configure the queue; without it, or where
// the broker says something else, less is known.
func (v *visit) probe(queue string) features {
	const most = 40 // more arguments than RabbitMQ knows
	f := features{arguments: make(map[string]any)}
	args := amqp.Table{argType: noSuchThing}
	durable, autoDelete := true, false
	for range most {
		err := v.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, durable, autoDelete, false, false, args)
			return err
		})
		if code(err) != amqp.PreconditionFailed {
			return f
		}
		name, value, ok := inequivalent(err.Error())
		switch _, again := f.arguments[name]; {
		case name == argLocator:
			if value == nil {
				delete(args, argLocator)
			} else {
				args[argLocator] = value
			}
			if ms, ok := v.probeTimeout(queue, durable, autoDelete, args); ok {
				f.arguments[argTimeout] = ms
			}
			return f
		case !ok || again:
			return f
		case name == "durable":
			durable = value == "true"
			f.transient = !durable
		case name == "auto_delete":
			autoDelete = value == "true"
			f.autoDelete = autoDelete
		case name == argType:
			kind, _ := value.(string)
			if f.kind = Type(kind); kind == "" {
				f.kind = Classic
			}
			if f.kind != Quorum {
				return f
			}
			// There are arguments behind the type. What does not exist now is the locator.
			args[argType], args[argLocator] = value, noSuchThing
		default:
			f.arguments[name], args[name] = value, value
		}
	}
	return f
}

// probeTimeout finds out the consumer timeout that a quorum queue was declared with, which the broker looks at after the
// arguments that it was found to have. A text is no timeout, so that nothing can be made with one where it is known at all.
func (v *visit) probeTimeout(queue string, durable, autoDelete bool, args amqp.Table) (ms int64, ok bool) {
	if !v.link.version().hasQueueTimeouts() {
		return 0, false
	}
	args[argTimeout] = noSuchThing
	err := v.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, durable, autoDelete, false, false, args)
		return err
	})
	if code(err) != amqp.PreconditionFailed {
		return 0, false
	}
	name, value, _ := inequivalent(err.Error())
	if text, is := value.(string); is && name == argTimeout {
		ms, err = strconv.ParseInt(text, 10, 64)
		return ms, err == nil
	}
	return 0, false
}

const (
	argType    = "x-queue-type"
	argLocator = "x-queue-leader-locator"
	argTimeout = "x-consumer-timeout"

	noSuchThing = "redeliver-probe"
)

var inequivalence = regexp.MustCompile(`inequivalent arg '([^']+)' for queue .* but current is (?:(none)|the value '(.*)' of type '(\w+)'|'(.*)')"?$`)

// inequivalent reads from an error which argument of a queue is another than the one asked for, and what it is: nil if there
// is none.
func inequivalent(text string) (name string, value any, ok bool) {
	m := inequivalence.FindStringSubmatch(text)
	switch {
	case m == nil:
		return "", nil, false
	case m[2] != "":
		return m[1], nil, true
	case m[4] == "":
		return m[1], m[5], true // of the type of the one asked for, a string
	case m[4] == "longstr":
		return m[1], m[3], true
	case m[4] == "bool":
		return m[1], m[3] == "true", true
	}
	n, err := strconv.ParseInt(m[3], 10, 64)
	return m[1], n, err == nil
}
