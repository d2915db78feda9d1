package policyfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/policy"
)

// A File is what a policy file says. One that [Load] or [Parse] returned is valid.
type File struct {
	// Default is the name of the policy that governs what nothing else names.
	Default string

	// Policies are all policies by name. [policy.Policy.Name] is the same name.
	Policies map[string]policy.Policy

	// Queues are the exceptions by queue.
	Queues map[string]Queue

	// Types are the names of the policies of types of message, whatever the queue.
	Types map[string]string

	// Wishes are the names of the policies that a message may ask for in its header redeliver-policy; for [consumer.Consumer].Wishes.
	//
	// [consumer.Consumer]: https://pkg.go.dev/github.com/redeliver/redeliver/consumer#Consumer
	Wishes []string

	classes map[string]policy.Matcher // of the options that it was read with
}

// A Queue names the policies of a queue.
type Queue struct {
	Policy string            // empty: that of the type, else the default
	Types  map[string]string // by type of message
}

// Options change how a file is read. The zero value reads the file alone.
type Options struct {
	// Environ are variables as of os.Environ, "NAME=value", that override values of the file.
	Environ []string

	// Classes are classes of errors by name that rules may use beside those of package classify; they go before those.
	Classes map[string]policy.Matcher
}

// Load reads the file at path. A name that ends in .json is read as JSON, one that ends in .yaml or .yml as YAML, and another
// as JSON if its first character is a brace. Where the file is at fault the error is an *Error.
func Load(path string, opts Options) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("policyfile: %w", err)
	}
	return Parse(path, data, opts)
}

// Parse is Load for what was read elsewhere. The name stands in errors, and tells the format.
func Parse(name string, data []byte, opts Options) (*File, error) {
	if name == "" {
		name = "policy file"
	}
	if i := invalidUTF8(data); i >= 0 {
		r := jsonReader{file: name, data: data}
		return nil, &Error{[]*Fault{newFault(r.at(i), "", "the file is not UTF-8 text")}}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	parse := parseYAML
	if isJSON(name, data) {
		parse = parseJSON
	}
	root, faults := parse(name, data)
	if faults != nil {
		return nil, &Error{arranged(faults)}
	}
	d := &decoder{opts: opts}
	f := d.file(root)
	if len(d.faults) > 0 {
		return nil, &Error{arranged(d.faults)}
	}
	return f, nil
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

func isJSON(name string, data []byte) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json":
		return true
	case ".yaml", ".yml":
		return false
	default:
		return bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{"))
	}
}

// NameFor returns the name of the policy that governs a message: that of its type in this queue, else of its type, else of
// the queue, else the default. Where the type is not known it is empty.
func (f *File) NameFor(queue, messageType string) string {
	q := f.Queues[queue]
	for _, name := range []string{q.Types[messageType], f.Types[messageType], q.Policy} {
		if name != "" {
			return name
		}
	}
	return f.Default
}

// For returns the policy that NameFor names.
func (f *File) For(queue, messageType string) policy.Policy {
	return f.Policies[f.NameFor(queue, messageType)]
}

// Choose returns a function for [consumer.Consumer].Choose, with Policies as the Overrides. A message's type is what its
// header of the given name holds; a header that is missing is no type.
//
// [consumer.Consumer]: https://pkg.go.dev/github.com/redeliver/redeliver/consumer#Consumer
func (f *File) Choose(typeHeader string) func(*backend.Delivery) string {
	return func(d *backend.Delivery) string { return f.NameFor(d.Queue, d.Headers[typeHeader]) }
}
