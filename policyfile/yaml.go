package policyfile

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// parseYAML reads a YAML document. Duplicate keys are let through here and found later, with all other faults.
func parseYAML(file string, data []byte) (n *node, faults []*Fault) {
	defer func() {
		// The parser has not met every malformed document yet.
		if v := recover(); v != nil {
			n, faults = nil, []*Fault{newFault(place{file, 1, 1}, "", "not YAML: the parser gave up: %v", v)}
		}
	}()
	r := &yamlReader{file: file, lines: strings.Split(string(data), "\n"), anchors: map[string]*node{}}
	tree, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at := place{file, 1, 1}
		var syntax yaml.Error
		problem := err.Error()
		if errors.As(err, &syntax) {
			problem = syntax.GetMessage()
			at = r.at(syntax.GetToken())
		}
		return nil, []*Fault{newFault(at, "", "not YAML: %s", problem)}
	}
	var documents []*ast.DocumentNode
	for _, doc := range tree.Docs {
		if doc.Body != nil {
			documents = append(documents, doc)
		}
	}
	switch len(documents) {
	case 0:
		return nil, []*Fault{newFault(place{file, 1, 1}, "", "the file is empty")}
	case 1:
		n = r.node(documents[0].Body)
		return n, r.faults
	default:
		return nil, []*Fault{newFault(r.at(documents[1].Body.GetToken()), "", "there is more after the document: a file holds one")}
	}
}

type yamlReader struct {
	file    string
	lines   []string
	anchors map[string]*node
	faults  []*Fault // what keeps the document from being understood
}

func (r *yamlReader) at(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{r.file, 1, 1}
	}
	// The parser may see what is missing behind the end.
	line := min(max(t.Position.Line, 1), len(r.lines))
	return place{r.file, line, min(max(t.Position.Column, 1), utf8.RuneCountInString(r.lines[line-1])+1)}
}

// refuse notes a fault, and returns a node to go on with.
func (r *yamlReader) refuse(at place, format string, args ...any) *node {
	r.faults = append(r.faults, newFault(at, "", format, args...))
	return &node{place: at}
}

func (r *yamlReader) node(v ast.Node) *node {
	at := r.at(v.GetToken())
	scalar := func(k kind, s string) *node { return &node{kind: k, scalar: s, place: at} }
	switch v := v.(type) {
	case *ast.NullNode:
		return scalar(null, "null")
	case *ast.BoolNode:
		return scalar(boolean, v.Token.Value)
	case *ast.IntegerNode:
		return scalar(number, v.Token.Value)
	case *ast.FloatNode:
		return scalar(number, v.Token.Value)
	case *ast.InfinityNode:
		return scalar(number, v.Token.Value)
	case *ast.NanNode:
		return scalar(number, v.Token.Value)
	case *ast.StringNode:
		quoted := v.Token.Type == token.SingleQuoteType || v.Token.Type == token.DoubleQuoteType
		if !quoted && decimal.MatchString(v.Value) {
			return scalar(number, v.Value) // such as 1e+300, which the parser takes for text
		}
		return scalar(text, v.Value)
	case *ast.LiteralNode:
		return scalar(text, v.Value.Value)
	case *ast.SequenceNode:
		n := &node{kind: sequence, place: at}
		for _, item := range v.Values {
			n.items = append(n.items, r.node(item))
		}
		return n
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			at = r.at(v.Values[0].Key.GetToken())
		}
		n := &node{kind: mapping, place: at}
		for _, e := range v.Values {
			n.entries = append(n.entries, r.entry(e))
		}
		return n
	case *ast.MappingValueNode:
		return &node{kind: mapping, place: r.at(v.Key.GetToken()), entries: []entry{r.entry(v)}}
	case *ast.AnchorNode:
		// Known from its end on, so that it cannot hold itself.
		n := r.node(v.Value)
		r.anchors[v.Name.GetToken().Value] = n
		return n
	case *ast.AliasNode:
		name := v.Value.GetToken().Value
		n, ok := r.anchors[name]
		if !ok {
			return r.refuse(at, "the alias *%s has no anchor &%s before it", name, name)
		}
		here := *n
		here.place = at
		return &here
	case *ast.TagNode:
		return r.refuse(at, "the tag %s is not supported: leave it out", v.Start.Value)
	default:
		return r.refuse(at, "a %s is not supported here", v.Type())
	}
}

func (r *yamlReader) entry(v *ast.MappingValueNode) entry {
	t := v.Key.GetToken()
	e := entry{place: r.at(t)}
	switch key := v.Key.(type) {
	case *ast.StringNode:
		e.key = key.Value
	case *ast.IntegerNode:
		e.key = key.Token.Value
	case *ast.MergeKeyNode:
		r.refuse(e.place, "the merge key << is not supported: let the policy extend another, by its name: extends: standard")
	default:
		r.refuse(e.place, "a key must be text: put it in quotes")
	}
	e.value = r.node(v.Value)
	return e
}
