package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"strconv"
	"strings"

	"github.com/redeliver/redeliver/backend"
)

// messages makes n small messages that every broker takes.
func (c *trial) messages(n int) []backend.Message {
	list := make([]backend.Message, n)
	for i := range list {
		list[i] = backend.Message{ID: fmt.Sprintf("m-%04d", i), Body: fmt.Appendf(nil, `{"n":%d}`, i)}
		if !c.limits.NoHeaders {
			list[i].Headers = map[string]string{"kind": "conformance", "n": strconv.Itoa(i)}
		}
	}
	return list
}

// sendOne publishes one small message.
func (c *trial) sendOne() backend.Message {
	m := c.messages(1)[0]
	c.send(m)
	return m
}

// same says that the sentence is not kept if a delivery is not the message that was sent.
func (c *trial) same(sentence int, sent backend.Message, got *backend.Delivery, when string) {
	if got.ID != sent.ID {
		c.fail(sentence, "%s: the ID %q came as %q", when, sent.ID, got.ID)
	}
	if err := c.sameBody(sent.Body, got.Body); err != nil {
		c.fail(sentence, "%s: message %q: %v", when, sent.ID, err)
	}
	if len(sent.Headers)+len(got.Headers) > 0 && !maps.Equal(sent.Headers, got.Headers) {
		c.fail(sentence, "%s: message %q: headers %s came as %s", when, sent.ID, quote(sent.Headers), quote(got.Headers))
	}
	if got.Group != sent.Group {
		c.fail(sentence, "%s: message %q: group %q came as %q", when, sent.ID, sent.Group, got.Group)
	}
}

// sameBody compares bodies, as values where the broker stores JSON.
func (c *trial) sameBody(sent, got []byte) error {
	if bytes.Equal(sent, got) {
		return nil
	}
	if c.limits.Body == backend.JSONBody {
		want, err := parseJSON(sent)
		if err != nil {
			return fmt.Errorf("the suite sent a body that is not JSON: %w", err)
		}
		have, err := parseJSON(got)
		if err != nil {
			return fmt.Errorf("body %s came as something that is not JSON: %s", quote(string(sent)), quote(string(got)))
		}
		if equalJSON(want, have) {
			return nil
		}
	}
	return fmt.Errorf("body %s came as %s", quote(string(sent)), quote(string(got)))
}

// quote shows text or headers at a length that a report can bear.
func quote(v any) string { return fmt.Sprintf("%.200q", v) }

func parseJSON(doc []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("text after the value")
	}
	return v, nil
}

// equalJSON compares values that were parsed with UseNumber. Numbers are equal if they are the same number, however they
// are written.
func equalJSON(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, equalJSON)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equalJSON(a[i], b[i]) {
				return false
			}
		}
		return true
	case json.Number:
		b, ok := b.(json.Number)
		return ok && equalNumber(a.String(), b.String())
	default:
		return a == b
	}
}

func equalNumber(a, b string) bool {
	x, okX := new(big.Rat).SetString(a)
	y, okY := new(big.Rat).SetString(b)
	return okX && okY && x.Cmp(y) == 0
}

// hostileMessages are messages that a careless adapter changes on the way.
func (c *trial) hostileMessages() []backend.Message {
	bodies := []string{
		`{}`,
		`[]`,
		`null`,
		`true`,
		`""`,
		`42`,
		`{"id":1234567890123456789,"max":18446744073709551615,"price":1.10,"huge":1e400,"tiny":1e-320,"negative":-0.000000000000000000001}`,
		`{"text":"Grüße, 世界, 👩‍👩‍👧, \u00e9 e\u0301, \ud83d\ude00","quote":"\"\\\/\b\f\n\r\t","html":"<b>&amp;</b>","line":"\u2028\u2029"}`,
		`{"":"empty key"," ":"space","a.b":"dot","$type":"dollar","é":"accent"}`,
		`{"nested":` + strings.Repeat(`[`, 100) + strings.Repeat(`]`, 100) + `}`,
	}
	if c.limits.Body <= backend.TextBody {
		bodies = append(bodies, "plain text", "{not json", `{"a":1,"a":2}`, ` { "spaced" : 1 } `, "line\r\nline\ttab", "Grüße 世界 👩‍👩‍👧", "1.10")
	}
	if c.limits.Body == backend.AnyBody {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		bodies = append(bodies, "", "\x00", string(every), "\xff\xfe\xfd", "\x1f\x8b\x08gzip?")
	}
	list := make([]backend.Message, len(bodies))
	for i, body := range bodies {
		list[i] = backend.Message{ID: fmt.Sprintf("body-%02d", i), Body: []byte(body)}
	}

	list = append(list,
		backend.Message{ID: `id with spaces, "quotes", \ and 世界/é?#%&=;:'<>`, Body: []byte(`{}`)},
		backend.Message{ID: "-", Body: []byte(`{}`)},
		backend.Message{ID: strings.Repeat("long", 25), Body: []byte(`{}`)},
	)
	if !c.limits.NoHeaders {
		for i, headers := range []map[string]string{
			{},
			{"empty": ""},
			{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "congo=t61rcWkgMzE"},
			{"Case": "upper", "case": "lower", "dotted.name": "1", "dash-ed": "2", "under_score": "3"},
			{"number": "1234567890123456789", "decimal": "1.10", "bool": "true", "null": "null", "json": `{"a":[1,"b"]}`},
			{"unicode": "Grüße 世界 👩‍👩‍👧", "quotes": `"'\`, "spaces": "  both ends  "},
			{"attempt": "99", "x-attempt": "99", "x-delay": "100000", "expiration": "1", "content-type": "text/plain"},
			{"long": strings.Repeat("0123456789", 200)},
			{backend.HeaderPolicy: "patient", backend.HeaderMaxAttempts: "2", backend.HeaderMaxAge: "1h"},
		} {
			list = append(list, backend.Message{ID: fmt.Sprintf("headers-%02d", i), Body: []byte(`{"h":1}`), Headers: headers})
		}
	}
	return list
}
