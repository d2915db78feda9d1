package consumer

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// governing is a policy, with the name under which envelopes show it.
type governing struct {
	policy  policy.Policy
	name    string
	longest time.Duration // its MaxBackoff

	wish   Wish
	wished *policy.Policy // decides too; nil where the message asked for none
}

// policies are those that may govern a delivery.
type policies struct {
	standard  *governing
	overrides map[string]*governing
}

func (c *Consumer) policies() policies {
	ps := policies{&governing{policy: c.Policy, name: c.Policy.Name, longest: c.Policy.MaxBackoff()}, make(map[string]*governing, len(c.Overrides))}
	for key, p := range c.Overrides {
		name := p.Name
		if name == "" {
			name = key
		}
		ps.overrides[key] = &governing{policy: p, name: name, longest: p.MaxBackoff()}
	}
	return ps
}

func (r *run) govern(d *backend.Delivery) *governing {
	if r.c.Choose == nil {
		return r.standard
	}
	name := r.choose(d)
	if g, ok := r.overrides[name]; ok {
		return g
	}
	if name != "" {
		r.unknownPolicy.Do(func() {
			r.logger.ErrorContext(r.base, "redeliver: Choose named a policy that Overrides lacks; Policy governs the message. Further ones are not logged.",
				"queue", r.name, "policy", r.redact(name))
		})
	}
	return r.standard
}

func (r *run) choose(d *backend.Delivery) (name string) {
	defer func() {
		if v := recover(); v != nil {
			r.logger.ErrorContext(r.base, "redeliver: Choose panicked; Policy governs the message", "queue", r.name, "message_id", d.ID, "panic", r.redact(fmt.Sprint(v)))
			name = ""
		}
	}()
	return r.c.Choose(d)
}

// decide asks the policy. Curves, matchers and random sources may be the user's own code: where one panics, all are left out.
func (r *run) decide(d *policy.Decision, p *policy.Policy, f policy.Failure) {
	defer func() {
		if v := recover(); v != nil {
			r.logger.ErrorContext(r.base, "redeliver: the policy's curve, a matcher of its rules or its random source panicked; a default curve decides",
				"queue", r.name, "policy", p.Name, "message_id", f.MessageID, "panic", r.redact(fmt.Sprint(v)))
			plain := *p
			plain.Backoff, plain.Rules, plain.Rand = nil, nil, nil
			*d = plain.Decide(f)
		}
	}()
	*d = p.Decide(f)
}

// sound returns err, or another error if err's own methods panic, as those of a nil pointer in an error variable do.
func sound(err error) (checked error) {
	if err == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			checked = fmt.Errorf("consumer: the handler returned an error of type %T whose methods panic: %v", err, v)
		}
	}()
	_ = err.Error()
	_ = errors.Is(err, ErrShutdown)
	_, _ = errors.AsType[*PanicError](err)
	_, _ = policy.Hint(err)
	return err
}

// text is the error's text as it may be stored and logged.
func (r *run) text(err error) string { return r.redact(err.Error()) }

func (r *run) redact(text string) (redacted string) {
	if r.c.Redact == nil || text == "" {
		return text
	}
	defer func() {
		if v := recover(); v != nil {
			redacted = "(withheld: Redact panicked)"
		}
	}()
	return r.c.Redact(text)
}

// errorType names the outermost type in the error's chain that says something: not a wrapper of the standard library's, of
// package policy's or of JSON's.
func errorType(err error) (name string) {
	for err != nil {
		name = reflect.TypeOf(err).String()
		if !strings.HasPrefix(name, "*fmt.wrap") && !strings.HasPrefix(name, "*policy.") && name != "*errors.joinError" && name != "*consumer.decodeError" {
			return name
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			err = nil
			if causes := e.Unwrap(); len(causes) > 0 {
				err = causes[0]
			}
		default:
			return name
		}
	}
	return name
}
