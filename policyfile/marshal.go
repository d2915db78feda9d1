package policyfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/internal/timetext"
	"github.com/redeliver/redeliver/policy"
)

// The documents that are written. Their keys are those that the decoder reads.
type (
	fileDocument struct {
		Default  string                    `json:"default"`
		Policies map[string]policyDocument `json:"policies"`
		Queues   map[string]queueDocument  `json:"queues,omitempty"`
		Types    map[string]string         `json:"types,omitempty"`
		Wishes   []string                  `json:"wishes,omitempty"`
	}
	queueDocument struct {
		Policy string            `json:"policy,omitempty"`
		Types  map[string]string `json:"types,omitempty"`
	}
	policyDocument struct {
		MaxAttempts   any              `json:"max_attempts,omitempty"`
		MaxLapses     any              `json:"max_lapses,omitempty"`
		MaxSnoozes    any              `json:"max_snoozes,omitempty"`
		MaxAge        string           `json:"max_age,omitempty"`
		Backoff       *backoffDocument `json:"backoff,omitempty"`
		Jitter        any              `json:"jitter,omitempty"`
		MinDelay      string           `json:"min_delay,omitempty"`
		MaxDelay      string           `json:"max_delay,omitempty"`
		MaxRetryAfter string           `json:"max_retry_after,omitempty"`
		Rules         []ruleDocument   `json:"rules,omitempty"`
	}
	ruleDocument struct {
		Name        string           `json:"name,omitempty"`
		Class       any              `json:"class"`
		Action      string           `json:"action,omitempty"`
		MaxAttempts any              `json:"max_attempts,omitempty"`
		Backoff     *backoffDocument `json:"backoff,omitempty"`
	}
	backoffDocument struct {
		Curve     string   `json:"curve"`
		Immediate int      `json:"immediate,omitempty"`
		Delay     string   `json:"delay,omitempty"`
		Base      string   `json:"base,omitempty"`
		Step      string   `json:"step,omitempty"`
		Factor    float64  `json:"factor,omitempty"`
		Max       string   `json:"max,omitempty"`
		Steps     []string `json:"steps,omitempty"`
	}
	jitterDocument struct {
		Kind     string  `json:"kind"`
		Fraction float64 `json:"fraction"`
	}
)

// JSON returns the file as JSON, which [Parse] reads back as an equal File. It fails, and says why, where the file is not
// valid or a policy holds what no file can: a curve that is a function or a user's own type, a random source, or a rule whose
// errors are told by anything but classes.
func (f *File) JSON() ([]byte, error) {
	return f.marshal("policies.json", func(data []byte) ([]byte, error) { return data, nil })
}

// YAML returns the file as YAML; see [File.JSON]. It fails as well where a name holds characters that do not survive YAML.
func (f *File) YAML() ([]byte, error) { return f.marshal("policies.yaml", yaml.JSONToYAML) }

func (f *File) marshal(name string, format func([]byte) ([]byte, error)) ([]byte, error) {
	doc, err := f.document()
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	if err == nil {
		data, err = format(append(data, '\n'))
	}
	if err != nil {
		return nil, fmt.Errorf("policyfile: %w", err)
	}
	// What is written must be readable, and the same.
	read, err := Parse(name, data, Options{Classes: f.classes})
	if err != nil {
		return nil, fmt.Errorf("policyfile: the file would not be valid: %w", err)
	}
	if again, err := read.document(); err != nil || !reflect.DeepEqual(doc, again) {
		return nil, errors.New("policyfile: the file would be read back as another: want names without control characters, or JSON")
	}
	return data, nil
}

func (f *File) document() (fileDocument, error) {
	doc := fileDocument{Default: f.Default, Policies: map[string]policyDocument{}, Queues: map[string]queueDocument{}, Types: present(f.Types), Wishes: f.Wishes}
	for name, p := range f.Policies {
		if p.Name != name {
			return doc, fmt.Errorf("policyfile: policy %q: its Name is %q: want the name that it has in Policies", name, p.Name)
		}
		d, err := documentOf(p)
		if err != nil {
			return doc, fmt.Errorf("policyfile: policy %q: %w", name, err)
		}
		doc.Policies[name] = d
	}
	for name, q := range f.Queues {
		doc.Queues[name] = queueDocument{q.Policy, present(q.Types)}
	}
	return doc, nil
}

// present is the map, or nil if it is empty: a file does not tell one from the other.
func present(types map[string]string) map[string]string {
	if len(types) == 0 {
		return nil
	}
	return types
}

func documentOf(p policy.Policy) (d policyDocument, err error) {
	if p.Rand != nil {
		return d, fmt.Errorf("a Rand is set: a file cannot hold a random source")
	}
	d = policyDocument{
		MaxAttempts: countText(p.MaxAttempts), MaxLapses: countText(p.MaxLapses), MaxSnoozes: countText(p.MaxSnoozes),
		MaxAge: durationOrNone(p.MaxAge), MinDelay: durationOrNone(p.MinDelay),
		MaxDelay: durationOrNone(p.MaxDelay), MaxRetryAfter: durationOrNone(p.MaxRetryAfter),
	}
	switch p.Jitter.Kind {
	case policy.JitterNone:
	case policy.JitterProportional, policy.JitterAdditive:
		d.Jitter = jitterDocument{p.Jitter.Kind.String(), p.Jitter.Fraction}
	default:
		d.Jitter = p.Jitter.Kind.String()
	}
	if d.Backoff, err = backoffOf(p.Backoff); err != nil {
		return d, err
	}
	for i, r := range p.Rules {
		rule, err := ruleOf(r)
		if err != nil {
			return d, fmt.Errorf("Rules[%d].%w", i, err)
		}
		d.Rules = append(d.Rules, rule)
	}
	return d, nil
}

func ruleOf(r policy.Rule) (d ruleDocument, err error) {
	d = ruleDocument{Name: r.Name, MaxAttempts: countText(r.MaxAttempts)}
	if r.Action != 0 {
		d.Action = r.Action.String()
	}
	if r.Backoff != nil {
		if d.Backoff, err = backoffOf(r.Backoff); err != nil {
			return d, err
		}
	}
	classes, ok := r.Match.(policy.AnyOf)
	if !ok {
		d.Class, err = className(r.Match)
		return d, err
	}
	var names []string
	for _, m := range classes {
		name, err := className(m)
		if err != nil {
			return d, err
		}
		names = append(names, name)
	}
	d.Class = names
	return d, nil
}

func className(m policy.Matcher) (string, error) {
	switch m := m.(type) {
	case classify.Class:
		return string(m), nil
	case own:
		return m.name, nil
	default:
		return "", fmt.Errorf("the Match is %T: a file can hold a classify.Class, or a class of Options.Classes", m)
	}
}

func backoffOf(b policy.Backoff) (*backoffDocument, error) {
	d := &backoffDocument{}
	if i, ok := b.(policy.Immediate); ok {
		d.Immediate, b = i.Attempts, i.Then
	}
	switch c := b.(type) {
	case policy.Fixed:
		d.Curve, d.Delay = "fixed", timetext.Short(time.Duration(c))
	case policy.Linear:
		d.Curve, d.Base, d.Step, d.Max = "linear", timetext.Short(c.Base), timetext.Short(c.Step), durationOrNone(c.Max)
	case policy.Exponential:
		d.Curve, d.Base, d.Factor, d.Max = "exponential", timetext.Short(c.Base), c.Factor, durationOrNone(c.Max)
	case policy.Steps:
		d.Curve = "steps"
		for _, step := range c {
			d.Steps = append(d.Steps, timetext.Short(step))
		}
	default:
		return nil, fmt.Errorf("the Backoff is %T: a file can hold Fixed, Linear, Exponential, Steps, and an Immediate before them", b)
	}
	return d, nil
}

func countText(n int) any {
	switch n {
	case 0:
		return nil
	case policy.Unlimited:
		return "unlimited"
	case policy.NoLapses:
		return "none"
	default:
		return n
	}
}

func durationOrNone(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return timetext.Short(d)
}
