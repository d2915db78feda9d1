package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"
)

// parseJSON reads a JSON document. It does not go through the YAML parser: not all JSON is YAML, and much that is no JSON
// is.
func parseJSON(file string, data []byte) (*node, []*Fault) {
	r := &jsonReader{file: file, data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	n, err := r.value()
	at := r.next()
	if err == nil {
		if _, err := r.dec.Token(); err != io.EOF {
			return nil, []*Fault{newFault(at, "", "there is more after the document: a file holds one")}
		}
		return n, nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		at, err = r.at(len(data)), errors.New("the document ends too early")
	}
	return nil, []*Fault{newFault(at, "", "not JSON: %v", err)}
}

type jsonReader struct {
	file string
	data []byte
	dec  *json.Decoder
}

// at is the place of a byte of the document.
func (r *jsonReader) at(offset int) place {
	before := r.data[:min(max(offset, 0), len(r.data))]
	line := bytes.LastIndexByte(before, '\n') + 1
	return place{r.file, bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[line:]) + 1}
}

// next is the place of the token that comes next.
func (r *jsonReader) next() place {
	offset := int(r.dec.InputOffset())
	for offset < len(r.data) && bytes.IndexByte([]byte(" \t\r\n,:"), r.data[offset]) >= 0 {
		offset++
	}
	return r.at(offset)
}

func (r *jsonReader) value() (*node, error) {
	n := &node{place: r.next()}
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case nil:
		n.kind, n.scalar = null, "null"
	case bool:
		n.kind, n.scalar = boolean, "false"
		if v {
			n.scalar = "true"
		}
	case json.Number:
		n.kind, n.scalar = number, v.String()
	case string:
		n.kind, n.scalar = text, v
	case json.Delim:
		if v == '[' {
			n.kind = sequence
			return n, r.list(n)
		}
		n.kind = mapping
		return n, r.object(n)
	}
	return n, nil
}

func (r *jsonReader) list(n *node) error {
	for r.dec.More() {
		item, err := r.value()
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, err := r.dec.Token()
	return err
}

func (r *jsonReader) object(n *node) error {
	for r.dec.More() {
		e := entry{place: r.next()}
		token, err := r.dec.Token()
		if err != nil {
			return err
		}
		e.key = token.(string)
		if e.value, err = r.value(); err != nil {
			return err
		}
		n.entries = append(n.entries, e)
	}
	_, err := r.dec.Token()
	return err
}
