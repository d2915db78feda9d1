package policyfile

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/policy"
)

// A decoder makes a File of a document, and collects what is wrong with it.
type decoder struct {
	opts   Options
	faults []*Fault
}

func (d *decoder) fault(at place, path, format string, args ...any) {
	d.faults = append(d.faults, newFault(at, path, format, args...))
}

// A field is a key that a mapping may have, with what reads its value.
type field struct {
	key  string
	read func(n *node, path string)
}

// mapping reads the fields of a mapping, and reports whether it is one.
func (d *decoder) mapping(n *node, path string, fields ...field) bool {
	return d.each(n, path, func(e entry, path string) {
		if i := slices.IndexFunc(fields, func(f field) bool { return f.key == e.key }); i >= 0 {
			fields[i].read(e.value, path)
			return
		}
		keys := make([]string, len(fields))
		for i, f := range fields {
			keys[i] = f.key
		}
		d.fault(e.place, path, "unknown key%s; known are %s", nearest(e.key, keys), strings.Join(keys, ", "))
	})
}

// each calls read for every key of a mapping, and reports whether it is one.
func (d *decoder) each(n *node, path string, read func(e entry, path string)) bool {
	if n.kind != mapping {
		d.fault(n.place, path, "is %s: want a mapping", n.describe())
		return false
	}
	first := map[string]place{}
	for _, e := range n.entries {
		below := abridged(e.key)
		if path != "" {
			below = path + "." + below
		}
		if at, ok := first[e.key]; ok {
			d.fault(e.place, below, "the key stands in line %d already: leave one of the two out", at.line)
			continue
		}
		first[e.key] = e.place
		read(e, below)
	}
	return true
}

func (d *decoder) text(into *string) func(*node, string) {
	return func(n *node, path string) {
		if n.kind != text {
			d.fault(n.place, path, "is %s: want text; put it in quotes", n.describe())
			return
		}
		*into = n.scalar
	}
}

func (d *decoder) file(root *node) *File {
	f := &File{Policies: map[string]policy.Policy{}, Queues: map[string]Queue{}, Types: map[string]string{}, classes: d.opts.Classes}
	if root.kind != mapping {
		d.fault(root.place, "", "the document is %s: want a mapping with the keys default and policies", root.describe())
		return f
	}
	// Which policies there are has to be known before they are referred to.
	policies := root.get("policies")
	var ignored string
	standard := d.reference(policies, &f.Default)
	d.mapping(root, "",
		field{"$schema", d.text(&ignored)},
		field{"default", standard},
		field{"policies", func(n *node, path string) { d.policies(f, n, path) }},
		field{"queues", func(n *node, path string) {
			d.each(n, path, func(e entry, path string) {
				q := Queue{Types: map[string]string{}}
				if d.mapping(e.value, path,
					field{"policy", d.reference(policies, &q.Policy)},
					field{"types", d.references(policies, q.Types)},
				) {
					f.Queues[e.key] = q
				}
			})
		}},
		field{"types", d.references(policies, f.Types)},
		field{"wishes", func(n *node, path string) { f.Wishes = d.wishes(policies, n, path) }},
	)
	if policies == nil {
		d.fault(root.place, "policies", "is missing: want at least one policy, by its name")
	}
	if root.get("default") == nil {
		d.fault(root.place, "default", "is missing: want the name of the policy that governs what nothing else names")
	}
	return f
}

// reference reads the name of a policy that the document has.
func (d *decoder) reference(policies *node, into *string) func(*node, string) {
	return func(n *node, path string) {
		var name string
		d.text(&name)(n, path)
		switch {
		case n.kind != text:
		case policies.get(name) == nil:
			var known []string
			if policies != nil {
				for _, e := range policies.entries {
					known = append(known, e.key)
				}
			}
			d.fault(n.place, path, "no policy is named %q%s; policies has %s", abridged(name), nearest(name, known), list(known))
		default:
			*into = name
		}
	}
}

func (d *decoder) references(policies *node, into map[string]string) func(*node, string) {
	return func(n *node, path string) {
		d.each(n, path, func(e entry, path string) {
			var name string
			if d.reference(policies, &name)(e.value, path); name != "" {
				into[e.key] = name
			}
		})
	}
}

// wishes reads a list of names of policies.
func (d *decoder) wishes(policies *node, n *node, path string) (names []string) {
	if n.kind != sequence {
		d.fault(n.place, path, "is %s: want a list of the names of policies, such as [patient]", n.describe())
		return nil
	}
	for i, item := range n.items {
		var name string
		path := fmt.Sprintf("%s[%d]", path, i)
		d.reference(policies, &name)(item, path)
		switch {
		case name == "":
		case slices.Contains(names, name):
			d.fault(item.place, path, "the policy %q stands in the list already: leave one of the two out", name)
		default:
			names = append(names, name)
		}
	}
	return names
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// policyName is what a policy may be named: what can stand in a header, a log and, nearly, a variable.
var policyName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$`)

func (d *decoder) policies(f *File, n *node, path string) {
	if n.kind == mapping && len(n.entries) == 0 {
		d.fault(n.place, path, "is empty: want at least one policy, by its name")
	}
	resolved := map[string]*node{}
	if !d.each(n, path, func(e entry, path string) {
		if !policyName.MatchString(e.key) {
			d.fault(e.place, path, "is no name for a policy: want 1 to 64 letters, digits, dots, hyphens and underscores, a letter or digit first and last")
			return
		}
		if p := d.extended(n, e, path); p != nil {
			resolved[e.key] = p
		}
	}) {
		return
	}
	d.environ(resolved)
	for _, e := range n.entries {
		if p, ok := resolved[e.key]; ok {
			f.Policies[e.key] = d.policy(e, p, path+"."+e.key)
			delete(resolved, e.key)
		}
	}
}

// extended returns the mapping of a policy with the fields of those that it extends, each at the place where it was set; or
// nil if there is none.
func (d *decoder) extended(policies *node, e entry, path string) *node {
	if e.value.kind != mapping {
		d.fault(e.value.place, path, "is %s: want a mapping", e.value.describe())
		return nil
	}
	own := &node{kind: mapping, place: e.place, entries: slices.Clone(e.value.entries)}
	seen := []string{e.key}
	for from := e.value; ; {
		base := from.get("extends")
		if base == nil {
			return own
		}
		var name string
		if d.reference(policies, &name)(base, path+".extends"); name == "" {
			return nil
		}
		if slices.Contains(seen, name) {
			d.fault(base.place, path+".extends", "goes round in a circle: %s extends %s", strings.Join(seen, " extends "), name)
			return nil
		}
		seen = append(seen, name)
		if from = policies.get(name); from.kind != mapping {
			return nil // a fault of that policy's own
		}
		for _, inherited := range from.entries {
			if own.get(inherited.key) == nil {
				own.entries = append(own.entries, inherited)
			}
		}
	}
}

func (d *decoder) policy(e entry, n *node, path string) policy.Policy {
	p := policy.Policy{Name: e.key}
	before := len(d.faults)
	var ignored string
	d.mapping(n, path,
		field{"extends", d.text(&ignored)},
		field{"max_attempts", d.count(&p.MaxAttempts, "1 (no retry) or more, or unlimited")},
		field{"max_lapses", d.count(&p.MaxLapses, "1 or more, none, or unlimited", "none")},
		field{"max_snoozes", d.count(&p.MaxSnoozes, "1 or more, or unlimited")},
		field{"max_age", d.duration(&p.MaxAge, orNone)},
		field{"backoff", func(n *node, path string) { p.Backoff = d.backoff(n, path) }},
		field{"jitter", func(n *node, path string) { p.Jitter = d.jitter(n, path) }},
		field{"min_delay", d.duration(&p.MinDelay, orNone)},
		field{"max_delay", d.duration(&p.MaxDelay, orNone)},
		field{"max_retry_after", d.duration(&p.MaxRetryAfter, positive)},
		field{"rules", func(n *node, path string) { p.Rules = d.rules(n, path) }},
	)
	if n.get("backoff") == nil {
		d.fault(e.place, path+".backoff", "is missing: want a curve, such as {curve: exponential, base: 500ms, max: 30s}")
	}
	if n.get("max_attempts") == nil && n.get("max_age") == nil {
		d.fault(e.place, path+".max_attempts", "is missing: want %s; it may be left out where there is a max_age", "1 (no retry) or more, or unlimited")
	}
	if len(d.faults) == before {
		d.validate(p, e, n, path)
	}
	return p
}

// validate adds what the policy finds to be wrong with how its fields go together.
func (d *decoder) validate(p policy.Policy, e entry, n *node, path string) {
	err := p.Validate()
	if err == nil {
		return
	}
	var invalid *policy.ValidationError
	if !errors.As(err, &invalid) {
		d.fault(e.place, path, "%v", err)
		return
	}
	for _, f := range invalid.Faults {
		below := inFile(f.Path)
		at := e.place
		if v := n.at(below); v != nil {
			at = v.place
		}
		problem := inFileWords.Replace(f.Want)
		if _, ok := f.Value.(policy.Backoff); !ok && f.Err == nil {
			problem = fmt.Sprintf("is %v: %s", f.Value, problem)
		}
		d.fault(at, path+"."+below, "%s", problem)
	}
}

// inFile is the path of a field of policy.Policy as a file has it: "rules[1].backoff.max" for "Rules[1].Backoff.Max".
func inFile(path string) string {
	path = strings.ReplaceAll(path, "Backoff.Then", "Backoff")
	return strings.ToLower(hump.ReplaceAllString(path, "${1}_${2}"))
}

var hump = regexp.MustCompile(`([a-z])([A-Z])`)

// inFileWords writes the fields that policy.Policy.Validate names as a file does.
var inFileWords = strings.NewReplacer("MaxAttempts", "max_attempts", "MaxAge", "max_age", "MinDelay", "min_delay", "MaxDelay", "max_delay", "Backoff", "backoff", "Base", "base")

// count reads a number of 1 or more, or a word for one.
func (d *decoder) count(into *int, want string, words ...string) func(*node, string) {
	return func(n *node, path string) {
		switch v, err := strconv.Atoi(n.scalar); {
		case n.kind == number && err == nil && v >= 1 && v < policy.Unlimited && strconv.Itoa(v) == n.scalar:
			*into = v
		case n.kind == text && n.scalar == "unlimited":
			*into = policy.Unlimited
		case n.kind == text && n.scalar == "none" && slices.Contains(words, "none"):
			*into = policy.NoLapses
		default:
			d.fault(n.place, path, "is %s: want %s", n.describe(), want)
		}
	}
}

// What a duration may be, beside positive.
const (
	positive = false
	orNone   = true // 0, for none
)

var (
	durationText = regexp.MustCompile(`^(\d+(\.\d+)?(ns|us|µs|μs|ms|s|m|h))+$`)
	otherUnit    = regexp.MustCompile(`(?i)^\s*(\d+(?:\.\d+)?)\s*([a-zµμ]+)\s*$`)
)

// unitNames are what people write for the units that a duration has.
var unitNames = map[string]string{
	"sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
	"hr": "h", "hrs": "h", "hour": "h", "hours": "h", "msec": "ms", "msecs": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
	"s": "s", "m": "m", "h": "h", "ms": "ms", "us": "us", "ns": "ns",
}

// hoursOf are the units that a duration does not have, because a day is not always as long as the next.
var hoursOf = map[string]float64{"d": 24, "day": 24, "days": 24, "w": 168, "wk": 168, "week": 168, "weeks": 168}

// duration reads text with a unit.
func (d *decoder) duration(into *time.Duration, zero bool) func(*node, string) {
	return func(n *node, path string) {
		v, problem := parseDuration(n)
		switch {
		case problem != "":
			d.fault(n.place, path, "%s", problem)
		case v == 0 && !zero:
			d.fault(n.place, path, "is 0: want more than 0")
		default:
			*into = v
		}
	}
}

func parseDuration(n *node) (v time.Duration, problem string) {
	s := n.scalar
	switch {
	case n.kind == number && s == "0":
		return 0, ""
	case n.kind == number && strings.HasPrefix(s, "-"), n.kind == text && strings.HasPrefix(s, "-"):
		return 0, fmt.Sprintf("is %s: a duration must not be negative", n.describe())
	case n.kind == number:
		if _, err := strconv.ParseFloat(s, 64); err != nil {
			return 0, fmt.Sprintf(`is %s: want a duration with a unit, such as "500ms" or "1h30m"`, n.describe())
		}
		return 0, fmt.Sprintf("is %s, without a unit: write %ss for seconds or %sms for milliseconds", n.describe(), abridged(s), abridged(s))
	case n.kind != text:
		return 0, fmt.Sprintf(`is %s: want a duration, such as "500ms" or "1h30m"`, n.describe())
	case durationText.MatchString(s):
		v, err := time.ParseDuration(s)
		if err != nil {
			return 0, fmt.Sprintf("is %s: more than the largest duration, %v", n.describe(), time.Duration(math.MaxInt64))
		}
		return v, ""
	}
	problem = fmt.Sprintf(`is %s: want a duration with a unit of ns, us, ms, s, m or h, such as "500ms" or "1h30m"`, n.describe())
	if m := otherUnit.FindStringSubmatch(s); m != nil {
		unit := strings.ToLower(m[2])
		if hours, ok := hoursOf[unit]; ok {
			if v, err := strconv.ParseFloat(m[1], 64); err == nil {
				problem += fmt.Sprintf("; there are no days: write %gh", v*hours)
			}
		} else if unit, ok := unitNames[unit]; ok {
			problem += fmt.Sprintf(" (did you mean %s%s?)", m[1], unit)
		}
	}
	return 0, problem
}

func (d *decoder) fraction(into *float64, valid func(float64) bool, want string) func(*node, string) {
	return func(n *node, path string) {
		v, err := strconv.ParseFloat(n.scalar, 64)
		if n.kind != number || !decimal.MatchString(n.scalar) || err != nil || !valid(v) {
			d.fault(n.place, path, "is %s: want %s", n.describe(), want)
			return
		}
		*into = v
	}
}

// decimal is a number as JSON has it.
var decimal = regexp.MustCompile(`^-?\d+(\.\d+)?([eE][+-]?\d+)?$`)

var actions = map[string]policy.Action{"retry": policy.ActionRetry, "dead-letter": policy.ActionDeadLetter, "discard": policy.ActionDiscard}

func (d *decoder) rules(n *node, path string) []policy.Rule {
	if n.kind != sequence {
		d.fault(n.place, path, "is %s: want a list of rules, such as [{class: permanent, action: dead-letter}]", n.describe())
		return nil
	}
	var rules []policy.Rule
	for i, item := range n.items {
		rules = append(rules, d.rule(item, fmt.Sprintf("%s[%d]", path, i)))
	}
	return rules
}

func (d *decoder) rule(n *node, path string) (r policy.Rule) {
	names := slices.Sorted(maps.Keys(actions))
	if !d.mapping(n, path,
		field{"name", d.text(&r.Name)},
		field{"class", func(n *node, path string) { r.Match = d.class(n, path) }},
		field{"action", func(n *node, path string) {
			action, ok := actions[n.scalar]
			if n.kind != text || !ok {
				d.fault(n.place, path, "is %s%s: want %s", n.describe(), nearest(n.scalar, names), strings.Join(names, ", "))
			}
			r.Action = action
		}},
		field{"max_attempts", d.count(&r.MaxAttempts, "1 (no retry) or more, or unlimited")},
		field{"backoff", func(n *node, path string) { r.Backoff = d.backoff(n, path) }},
	) {
		return r
	}
	if n.get("class") == nil {
		d.fault(n.place, path+".class", "is missing: want the class of errors that the rule is for, such as throttled or http-503, or a list of classes")
	}
	return r
}

// class reads a class or a list of classes.
func (d *decoder) class(n *node, path string) policy.Matcher {
	if n.kind != sequence {
		return d.matcher(n, path)
	}
	if len(n.items) == 0 {
		d.fault(n.place, path, "is empty: want at least one class")
	}
	var classes policy.AnyOf
	for i, item := range n.items {
		classes = append(classes, d.matcher(item, fmt.Sprintf("%s[%d]", path, i)))
	}
	return classes
}

func (d *decoder) matcher(n *node, path string) policy.Matcher {
	var name string
	d.text(&name)(n, path)
	if m, ok := d.opts.Classes[name]; ok {
		return own{name, m}
	}
	class := classify.Class(name)
	if err := class.Validate(); err != nil && n.kind == text {
		groups := []string{"transient", "throttled", "timeout", "permanent", "canceled"}
		d.fault(n.place, path, "%v%s", err, nearest(name, append(groups, slices.Sorted(maps.Keys(d.opts.Classes))...)))
	}
	return class
}

// own is a class of the user's own.
type own struct {
	name string
	policy.Matcher
}

func (o own) String() string { return o.name }

var curves = []string{"fixed", "linear", "exponential", "steps"}

func (d *decoder) backoff(n *node, path string) policy.Backoff {
	var (
		base, step, limit, delay time.Duration
		factor                   float64
		steps                    policy.Steps
		immediate                int
		curve                    string
	)
	before := len(d.faults)
	if n.kind == mapping {
		if c := n.get("curve"); c == nil {
			d.fault(n.place, path+".curve", "is missing: want %s", strings.Join(curves, ", "))
			return nil
		} else if curve = c.scalar; c.kind != text || !slices.Contains(curves, curve) {
			d.fault(c.place, path+".curve", "is %s%s: want %s", c.describe(), nearest(curve, curves), strings.Join(curves, ", "))
			return nil
		}
	}
	fields := []field{
		{"curve", func(*node, string) {}},
		{"immediate", func(n *node, path string) {
			if v, err := strconv.Atoi(n.scalar); n.kind == number && err == nil && v >= 0 && v <= policy.MaxImmediate {
				immediate = v
				return
			}
			d.fault(n.place, path, "is %s: want the number of retries without a delay, 0 to %d", n.describe(), policy.MaxImmediate)
		}},
	}
	var required []string
	switch curve {
	case "fixed":
		required = []string{"delay"}
		fields = append(fields, field{"delay", d.duration(&delay, positive)})
	case "linear":
		required = []string{"base", "step"}
		fields = append(fields, field{"base", d.duration(&base, positive)}, field{"step", d.duration(&step, orNone)}, field{"max", d.duration(&limit, orNone)})
	case "exponential":
		required = []string{"base"}
		factors := d.fraction(&factor, func(v float64) bool { return v == 1 || v >= 1.000001 && !math.IsInf(v, 0) }, "1, or a number of at least 1.000001")
		fields = append(fields, field{"base", d.duration(&base, positive)}, field{"factor", factors}, field{"max", d.duration(&limit, orNone)})
	case "steps":
		required = []string{"steps"}
		fields = append(fields, field{"steps", func(n *node, path string) { steps = d.steps(n, path) }})
	}
	if !d.mapping(n, path, fields...) {
		return nil
	}
	for _, key := range required {
		if n.get(key) == nil {
			d.fault(n.place, path+"."+key, "is missing: the curve %s needs it", curve)
		}
	}
	if len(d.faults) > before {
		return nil
	}
	var b policy.Backoff
	switch curve {
	case "fixed":
		b = policy.Fixed(delay)
	case "linear":
		b = policy.Linear{Base: base, Step: step, Max: limit}
	case "exponential":
		b = policy.Exponential{Base: base, Factor: factor, Max: limit}
	case "steps":
		b = steps
	}
	if immediate > 0 {
		b = policy.Immediate{Attempts: immediate, Then: b}
	}
	return b
}

func (d *decoder) steps(n *node, path string) policy.Steps {
	if n.kind != sequence || len(n.items) == 0 {
		d.fault(n.place, path, "is %s: want a list of at least one duration, such as [1s, 10s, 1m]", n.describe())
		return nil
	}
	steps := make(policy.Steps, len(n.items))
	for i, item := range n.items {
		// The last one repeats.
		d.duration(&steps[i], i < len(n.items)-1)(item, fmt.Sprintf("%s[%d]", path, i))
	}
	return steps
}

// jitters are the kinds that have no fraction.
var jitters = map[string]policy.Jitter{
	"none": policy.NoJitter, "full": policy.FullJitter, "equal": policy.EqualJitter, "decorrelated": policy.DecorrelatedJitter,
}

// fractional are the kinds that have one.
var fractional = map[string]func(float64) policy.Jitter{"proportional": policy.Proportional, "additive": policy.Additive}

func (d *decoder) jitter(n *node, path string) policy.Jitter {
	kinds := slices.Sorted(maps.Keys(jitters))
	with := slices.Sorted(maps.Keys(fractional))
	if n.kind != mapping {
		if j, ok := jitters[n.scalar]; ok && n.kind == text {
			return j
		}
		if _, ok := fractional[n.scalar]; ok {
			d.fault(n.place, path, "is %s, which needs a fraction: write {kind: %s, fraction: 0.15}", n.describe(), n.scalar)
			return policy.NoJitter
		}
		d.fault(n.place, path, "is %s%s: want %s, or {kind: proportional, fraction: 0.15}", n.describe(), nearest(n.scalar, kinds), strings.Join(kinds, ", "))
		return policy.NoJitter
	}
	var name string
	var fraction float64
	before := len(d.faults)
	d.mapping(n, path,
		field{"kind", d.text(&name)},
		field{"fraction", d.fraction(&fraction, func(v float64) bool { return v >= 0 && v <= 1 }, "0 to 1; 0.15 is 15 %")},
	)
	of, ok := fractional[name]
	if kind := n.get("kind"); kind == nil {
		d.fault(n.place, path+".kind", "is missing: want %s", strings.Join(with, " or "))
	} else if !ok && kind.kind == text {
		d.fault(kind.place, path+".kind", "is %s%s: want %s; the others have no fraction and stand alone, as in jitter: full",
			kind.describe(), nearest(name, with), strings.Join(with, " or "))
	}
	if n.get("fraction") == nil {
		d.fault(n.place, path+".fraction", "is missing: want 0 to 1; 0.15 is 15 %%")
	}
	if len(d.faults) > before {
		return policy.NoJitter
	}
	return of(fraction)
}
