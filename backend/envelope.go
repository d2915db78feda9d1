package backend

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// EnvelopeVersion is the version of the document that Failure.Encode writes, in its field "v".
const EnvelopeVersion = 1

// DefaultEnvelopeBudget is how many bytes an envelope takes at most where the broker has no tighter limit.
const DefaultEnvelopeBudget = 8 << 10

// minEnvelopeBudget holds the fields that are never given up, each at its shortest.
const minEnvelopeBudget = 1 << 10

// EnvelopeSchema is the JSON Schema (draft 2020-12) of the envelope.
//
//go:embed envelope.schema.json
var EnvelopeSchema string

// Failure is the envelope: the record of a failure that travels with the message, as one compact JSON document in the
// header HeaderFailure. It is the same document on every broker.
//
// FirstEnqueuedAt, FirstFailedAt, Origin and MessageID are written once and kept through retry, dead letter and redrive;
// the rest describes the last failure. Nothing accumulates.
type Failure struct {
	// Reason is why the message was dead-lettered (exhausted, permanent, expired, abandoned, ...) or, on a message that
	// waits for a retry, what its last failure was.
	Reason string
	// Error is the error's text, ErrorType the Go type of its cause, Stack that of a panic.
	Error     string
	ErrorType string
	Stack     string
	// Attempts is how many failures were reported, this one included. Lapses is how many deliveries ended without an outcome.
	Attempts int
	Lapses   int
	// Redrives is how often the message was moved back from a dead-letter queue.
	Redrives int

	FirstEnqueuedAt time.Time
	FirstFailedAt   time.Time
	DeadLetteredAt  time.Time // zero while the message is not dead-lettered

	// Origin is the queue that the message failed in first, and MessageID its ID there.
	Origin    string
	MessageID string

	Policy   string // name of the policy that decided
	Consumer string // host of the consumer

	unknown map[string]json.RawMessage
}

type document struct {
	V               int    `json:"v"`
	Reason          string `json:"reason"`
	Error           string `json:"error,omitempty"`
	ErrorType       string `json:"error_type,omitempty"`
	Stack           string `json:"stack,omitempty"`
	Attempts        int    `json:"attempts"`
	Lapses          int    `json:"lapses,omitempty"`
	Redrives        int    `json:"redrives,omitempty"`
	FirstEnqueuedAt string `json:"first_enqueued_at,omitempty"`
	FirstFailedAt   string `json:"first_failed_at,omitempty"`
	DeadLetteredAt  string `json:"dead_lettered_at,omitempty"`
	Origin          string `json:"origin"`
	MessageID       string `json:"message_id"`
	Policy          string `json:"policy,omitempty"`
	Consumer        string `json:"consumer,omitempty"`
}

var documentFields = []string{
	"v", "reason", "error", "error_type", "stack", "attempts", "lapses", "redrives", "first_enqueued_at",
	"first_failed_at", "dead_lettered_at", "origin", "message_id", "policy", "consumer",
}

// Encode returns the envelope as JSON of at most budget bytes; budgets below 1 KiB count as 1 KiB, and 0 or less as
// DefaultEnvelopeBudget.
//
// Text loses what some broker refuses: NUL and the other control characters except tab, newline and return, the code
// points U+FFFE and U+FFFF, and bytes that are not UTF-8. What does not fit is cut on a rune boundary and ends in "…":
// the stack first, then the error, then fields of a newer version, then the names.
func (f Failure) Encode(budget int) []byte {
	if budget <= 0 {
		budget = DefaultEnvelopeBudget
	}
	budget = max(budget, minEnvelopeBudget)
	d := document{
		V:               EnvelopeVersion,
		Reason:          clean(f.Reason, budget),
		Error:           clean(f.Error, budget),
		ErrorType:       clean(f.ErrorType, budget),
		Stack:           clean(f.Stack, budget),
		Attempts:        max(f.Attempts, 0),
		Lapses:          max(f.Lapses, 0),
		Redrives:        max(f.Redrives, 0),
		FirstEnqueuedAt: timestamp(f.FirstEnqueuedAt),
		FirstFailedAt:   timestamp(f.FirstFailedAt),
		DeadLetteredAt:  timestamp(f.DeadLetteredAt),
		Origin:          clean(f.Origin, budget),
		MessageID:       clean(f.MessageID, budget),
		Policy:          clean(f.Policy, budget),
		Consumer:        clean(f.Consumer, budget),
	}
	unknown := f.unknown
	doc := d.encode(unknown)
	shrink := func(s *string, keep int) {
		if excess := len(doc) - budget; excess > 0 && len(*s) > keep {
			*s = Truncate(*s, max(keep, len(*s)-excess))
			doc = d.encode(unknown)
		}
	}
	shrink(&d.Stack, 0)
	shrink(&d.Error, 0)
	if len(doc) > budget && len(unknown) > 0 {
		unknown = nil
		doc = d.encode(nil)
	}
	// The longest of what remains: 5 texts of at most 48 bytes, of which each may take 6 bytes when escaped, would not fit
	// the smallest budget; but only control characters take 6, and they are gone, or <, > and &, which are not escaped here.
	for _, s := range []*string{&d.ErrorType, &d.Policy, &d.Consumer, &d.Reason, &d.Origin, &d.MessageID} {
		shrink(s, 48)
	}
	return doc
}

func (d document) encode(unknown map[string]json.RawMessage) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		panic("backend: a document of plain fields did not encode: " + err.Error())
	}
	doc := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if len(unknown) == 0 {
		return doc
	}
	doc = doc[:len(doc)-1]
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		key, err := json.Marshal(name)
		if err != nil {
			continue
		}
		doc = append(doc, ',')
		doc = append(doc, key...)
		doc = append(doc, ':')
		doc = append(doc, unknown[name]...)
	}
	return append(doc, '}')
}

// ParseFailure reads an envelope. It accepts documents of newer versions and keeps their unknown fields, so that Encode
// writes them again. It fails if doc is not a JSON object, names no version, or holds a field of another type than it
// should; the message then counts as a foreign dead letter.
func ParseFailure(doc []byte) (*Failure, error) {
	var d document
	if err := json.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("backend: envelope is not readable: %w", err)
	}
	if d.V < 1 {
		return nil, errors.New(`backend: envelope is not readable: no version in field "v"`)
	}
	f := &Failure{
		Reason:    d.Reason,
		Error:     d.Error,
		ErrorType: d.ErrorType,
		Stack:     d.Stack,
		Attempts:  max(d.Attempts, 0),
		Lapses:    max(d.Lapses, 0),
		Redrives:  max(d.Redrives, 0),
		Origin:    d.Origin,
		MessageID: d.MessageID,
		Policy:    d.Policy,
		Consumer:  d.Consumer,
	}
	for _, t := range []struct {
		name, text string
		to         *time.Time
	}{
		{"first_enqueued_at", d.FirstEnqueuedAt, &f.FirstEnqueuedAt},
		{"first_failed_at", d.FirstFailedAt, &f.FirstFailedAt},
		{"dead_lettered_at", d.DeadLetteredAt, &f.DeadLetteredAt},
	} {
		if t.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, t.text)
		if err != nil {
			return nil, fmt.Errorf("backend: envelope is not readable: field %q: %w", t.name, err)
		}
		*t.to = at.UTC()
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(doc, &all); err != nil {
		return nil, fmt.Errorf("backend: envelope is not readable: %w", err)
	}
	for _, name := range documentFields {
		delete(all, name)
	}
	maps.DeleteFunc(all, func(name string, value json.RawMessage) bool {
		// PostgreSQL's jsonb refuses NUL, and with it the whole dead letter.
		return strings.IndexByte(name, 0) >= 0 || bytes.Contains(value, []byte(`\u0000`))
	})
	if len(all) > 0 {
		f.unknown = all
	}
	return f, nil
}

// Record completes a failure of this delivery with what the message carries: its origin, its ID and its first times, which
// are written once, its redrives, and what a newer version wrote. Backends call it when they settle, with the time of the
// settlement; deadLetter tells whether the message is dead-lettered by it.
func (d *Delivery) Record(f Failure, now time.Time, deadLetter bool) Failure {
	f.Origin, f.MessageID, f.FirstEnqueuedAt, f.Redrives = d.Queue, d.ID, d.FirstEnqueuedAt, 0
	f.FirstFailedAt = time.Time{}
	if prev := d.Failure; prev != nil {
		if prev.Origin != "" {
			f.Origin = prev.Origin
		}
		if prev.MessageID != "" {
			f.MessageID = prev.MessageID
		}
		if !prev.FirstEnqueuedAt.IsZero() {
			f.FirstEnqueuedAt = prev.FirstEnqueuedAt
		}
		f.FirstFailedAt, f.Redrives, f.unknown = prev.FirstFailedAt, prev.Redrives, prev.unknown
	}
	if f.FirstFailedAt.IsZero() && f.Attempts > 0 {
		f.FirstFailedAt = now
	}
	f.DeadLetteredAt = time.Time{}
	if deadLetter {
		f.DeadLetteredAt = now
	}
	return f
}

// Truncate cuts s to at most size bytes, on a rune boundary; what was cut ends in "…" where that fits.
func Truncate(s string, size int) string {
	const mark = "…"
	if len(s) <= size {
		return s
	}
	if size < len(mark) {
		return ""
	}
	end := size - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// clean returns text as every broker can store it. It cuts first, since an error text may be huge.
func clean(s string, budget int) string {
	s = Truncate(s, budget)
	if storableText(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if refused(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

func storableText(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, refused) < 0
}

// refused reports the runes that a broker refuses in a text: PostgreSQL takes no NUL, and SQS only what XML 1.0 allows.
func refused(r rune) bool {
	return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF
}

// timestamp is RFC 3339 in UTC with milliseconds: a fixed width, so that texts sort as times do.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
