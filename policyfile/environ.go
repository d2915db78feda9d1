package policyfile

import (
	"maps"
	"slices"
	"strings"
)

const environPrefix = "REDELIVER_POLICY_"

// environ sets what the environment overrides in the policies, before they are read: whatever a variable holds is judged as
// if it stood in the file.
func (d *decoder) environ(policies map[string]*node) {
	names := slices.Sorted(maps.Keys(policies))
	known := map[string][]string{} // the policies by their names as variables have them
	for _, name := range names {
		known[variable(name)] = append(known[variable(name)], name)
	}
	for _, assignment := range slices.Sorted(slices.Values(d.opts.Environ)) {
		name, value, ok := strings.Cut(assignment, "=")
		rest, ours := strings.CutPrefix(name, environPrefix)
		if !ok || !ours {
			continue
		}
		at := place{file: "environment variable " + name}
		var policy string
		for prefix := range known {
			// The longest, as one name may begin with another.
			if strings.HasPrefix(rest, prefix+"_") && len(prefix) > len(policy) {
				policy = prefix
			}
		}
		switch of := known[policy]; len(of) {
		case 0:
			d.fault(at, "", "it names no policy: want %s, the name of a policy and a field; policies are %s", environPrefix, list(names))
		case 1:
			d.override(policies[of[0]], of[0], strings.TrimPrefix(rest, policy+"_"), value, at)
		default:
			d.fault(at, "", "the policies %s look the same in a variable's name: rename one of them", strings.Join(of, " and "))
		}
	}
}

// variable is a name as it stands in the name of a variable.
func variable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, name)
}

// overridable are the paths of what a variable can set. What is below backoff or jitter needs one in the file.
var overridable = []string{
	"max_attempts", "max_lapses", "max_snoozes", "max_age", "min_delay", "max_delay", "max_retry_after", "jitter", "jitter.kind", "jitter.fraction",
	"backoff.curve", "backoff.immediate", "backoff.base", "backoff.factor", "backoff.step", "backoff.max", "backoff.delay",
}

func (d *decoder) override(n *node, policy, name, value string, at place) {
	var variables []string
	for _, path := range overridable {
		variables = append(variables, variable(path))
	}
	i := slices.Index(variables, name)
	if i < 0 {
		d.fault(at, "policies."+policy, "it names no field%s; a variable ends in one of %s", nearest(name, variables), strings.Join(variables, ", "))
		return
	}
	kind := text
	if decimal.MatchString(value) {
		kind = number
	}
	v := &node{kind: kind, scalar: value, place: at}
	key, below, nested := strings.Cut(overridable[i], ".")
	if nested {
		outer := n.get(key)
		if outer == nil || outer.kind != mapping {
			d.fault(at, "policies."+policy+"."+key, "there is no mapping of that name in the file, of which a part could be set")
			return
		}
		inner := &node{kind: mapping, place: outer.place, entries: slices.Clone(outer.entries)} // the file's may be shared
		set(inner, below, v)
		v = inner
	}
	set(n, key, v)
}

// set gives the first entry of that key the value, or adds one.
func set(n *node, key string, v *node) {
	for i := range n.entries {
		if n.entries[i].key == key {
			n.entries[i].value = v
			return
		}
	}
	n.entries = append(n.entries, entry{key, v.place, v})
}
