package rabbit

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// code returns RabbitMQ's reply code in err, or 0.
func code(err error) int {
	if e, ok := errors.AsType[*amqp.Error](err); ok {
		return e.Code
	}
	return 0
}

// elsewhere reports whether a queue that was not found is only out of reach, on a node that is down.
func elsewhere(err error) bool { return strings.Contains(err.Error(), "down or inaccessible") }

// tooLarge reports whether a connection ended because the library was sent a larger frame than it takes.
func tooLarge(err error) bool {
	return err != nil && strings.Contains(err.Error(), amqp.ErrFrameTooLarge.Reason)
}

// lasting reports whether an error will still be there when it is tried again.
func lasting(err error) bool {
	switch code(err) {
	case amqp.NotFound:
		return !elsewhere(err)
	case amqp.AccessRefused, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.NotImplemented:
		return true
	}
	return false
}

// explain adds to the broker's error what it means for a queue and what to do.
func (q *Queue) explain(err error) error {
	switch code(err) {
	case amqp.NotFound:
		if elsewhere(err) {
			return fmt.Errorf("the node that has the queue is down: bring it back, or use quorum queues: %w", err)
		}
		if strings.Contains(err.Error(), "no exchange") {
			return fmt.Errorf("%w: an exchange is missing: import Queue.Definitions, or let this package declare it: %w", backend.ErrQueueNotFound, err)
		}
		return fmt.Errorf("%w: call Queue.Create, or declare the queue by other means: %w", backend.ErrQueueNotFound, err)
	case amqp.AccessRefused:
		return fmt.Errorf("the user lacks a permission: grant it configure, write and read on %q, or set Options.NoDeclare and leave configure out: %w",
			"^"+q.name+"(_dlq|\\.retry.*)?$", err)
	case amqp.ResourceLocked:
		return fmt.Errorf("another connection has the queue for itself: %w", err)
	case amqp.PreconditionFailed:
		if strings.Contains(err.Error(), "inequivalent arg") {
			return fmt.Errorf("it exists with other arguments: use it as it is, or delete it and have it declared again: %w", err)
		}
	case amqp.NotAllowed:
		return fmt.Errorf("the virtual host is missing, or the user may not use it: create it, or grant the user access: %w", err)
	}
	return err
}

// errorf says in which operation on which queue err happened.
func (q *Queue) errorf(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("rabbit: %s queue %q: %w", op, q.name, err)
}
