package rabbit

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// fault is a finding, and what it matches with errors.Is.
type fault struct {
	backend.Finding
	is error
}

func (f fault) Error() string { return f.Text }
func (f fault) Unwrap() error { return f.is }

// sight is what a look at the broker has found.
type sight struct {
	queue, dead, exchange bool // whether they exist
	features                   // of the queue
}

// look asks the broker for what Check needs to know.
func (q *Queue) look(ctx context.Context) (seen sight, err error) {
	err = q.visit(ctx, func(v *visit) error {
		exists := func(err error) (bool, error) {
			if code(err) == amqp.NotFound && !elsewhere(err) {
				return false, nil
			}
			return err == nil, err
		}
		queue := func(name string) (bool, error) {
			return exists(v.do(func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
				return err
			}))
		}
		var err error
		if seen.queue, err = queue(q.name); err != nil {
			return err
		}
		if seen.dead, err = queue(q.dead); err != nil {
			return err
		}
		if seen.queue {
			seen.features = v.probe(q.name)
		}
		seen.exchange = true
		if name := q.opts.DeadLetterExchange; name != "" {
			seen.exchange, err = exists(v.do(func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil)
			}))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return seen, err
}

// Check compares the broker with what a queue needs.
func (q *Queue) Check(ctx context.Context, need backend.Needs) ([]backend.Finding, error) {
	seen, err := q.look(ctx)
	if err != nil {
		return nil, q.errorf("check", err)
	}
	var findings []backend.Finding
	for _, f := range q.faults(seen, need) {
		findings = append(findings, f.Finding)
	}
	return findings, nil
}

// faults finds what is wrong.
func (q *Queue) faults(seen sight, need backend.Needs) []fault {
	var found []fault
	add := func(fatal bool, code string, is error, format string, args ...any) {
		found = append(found, fault{backend.Finding{Fatal: fatal, Code: code, Text: fmt.Sprintf(format, args...)}, is})
	}
	if !seen.queue {
		add(true, "queue_not_found", backend.ErrQueueNotFound, "there is no queue %q: call Queue.Create, or declare it by other means", q.name)
	}
	if !seen.dead {
		add(true, "dead_letter_queue_not_found", backend.ErrQueueNotFound,
			"there is no dead-letter queue %q: call Queue.Create, or declare it by other means", q.dead)
	}
	if !seen.exchange {
		add(true, "dead_letter_exchange_not_found", backend.ErrQueueNotFound,
			"there is no exchange %q, which Options.DeadLetterExchange names: declare it, and bind %q to it", q.opts.DeadLetterExchange, q.dead)
	}
	if need.MaxDelay > q.opts.MaxDelay {
		add(false, "delay_above_maximum", nil, "a policy's backoff goes up to %v, and retries of queue %q wait %v at most: lower the policy's MaxDelay", need.MaxDelay, q.name, q.opts.MaxDelay)
	}
	return found
}

// refuse returns an error that holds the fatal faults.
func (q *Queue) refuse(op string, faults []fault) error {
	var fatal []error
	for _, f := range faults {
		if f.Fatal {
			fatal = append(fatal, f)
		}
	}
	if fatal == nil {
		return nil
	}
	return q.errorf(op, errors.Join(fatal...))
}
