package policyfile

import (
	"strconv"
	"strings"
)

// A place is where something stands: in a file, or in the environment, which has no lines.
type place struct {
	file         string
	line, column int
}

// A kind is what a node of a document is.
type kind uint8

const (
	null kind = iota
	boolean
	number
	text
	sequence
	mapping
)

var kindNames = [...]string{null: "null", boolean: "a boolean", number: "a number", text: "text", sequence: "a list", mapping: "a mapping"}

func (k kind) String() string { return kindNames[k] }

// A node is a value of a document, whichever format it was written in.
type node struct {
	kind    kind
	scalar  string // as it was written, without quotes
	items   []*node
	entries []entry
	place   place
}

// An entry is a key of a mapping with its value.
type entry struct {
	key   string
	place place // of the key
	value *node
}

// get returns the value of the key; nil if there is none.
func (n *node) get(key string) *node {
	if n != nil {
		for _, e := range n.entries {
			if e.key == key {
				return e.value
			}
		}
	}
	return nil
}

// at returns the value at a path, such as "rules[1].backoff.max", or the last one on the way to it; nil if there is none.
func (n *node) at(path string) *node {
	var found *node
	for step := range strings.SplitSeq(path, ".") {
		name, index, indexed := strings.Cut(strings.TrimSuffix(step, "]"), "[")
		if n = n.get(name); n == nil {
			break
		}
		if indexed {
			i, err := strconv.Atoi(index)
			if err != nil || i >= len(n.items) {
				break
			}
			n = n.items[i]
		}
		found = n
	}
	return found
}

// describe is the node as a fault shows it.
func (n *node) describe() string {
	switch n.kind {
	case text:
		return strconv.Quote(abridged(n.scalar))
	case number, boolean:
		return abridged(n.scalar)
	default:
		return n.kind.String()
	}
}

func abridged(s string) string {
	const most = 80
	runes := []rune(s)
	if len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return s
}
