package backend

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redeliver/redeliver/internal/jsontext"
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

	// Origin is the queue that the message failed in first, and MessageID its ID there. A dead letter has both; on a message
	// that waits for a retry they may be left out while they are the queue and the ID that it has anyway.
	Origin    string
	MessageID string

	Policy   string // name of the policy that decided
	Consumer string // host of the consumer

	unknown map[string]json.RawMessage
}

// document is what ParseFailure reads.
type document struct {
	V               int    `json:"v"`
	Reason          string `json:"reason"`
	Error           string `json:"error"`
	ErrorType       string `json:"error_type"`
	Stack           string `json:"stack"`
	Attempts        int    `json:"attempts"`
	Lapses          int    `json:"lapses"`
	Redrives        int    `json:"redrives"`
	FirstEnqueuedAt string `json:"first_enqueued_at"`
	FirstFailedAt   string `json:"first_failed_at"`
	DeadLetteredAt  string `json:"dead_lettered_at"`
	Origin          string `json:"origin"`
	MessageID       string `json:"message_id"`
	Policy          string `json:"policy"`
	Consumer        string `json:"consumer"`
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
// the stack first, then the error, then the names.
//
// Nobody can send a message that leaves no room for the error: names and IDs are cut at a sixteenth of the budget, but not below
// 128 bytes, and fields of a newer version are left out if they take more than half of it.
func (f Failure) Encode(budget int) []byte { return f.AppendEncode(nil, budget) }

// AppendEncode appends to b what Encode returns, and returns the longer slice. The budget is for what is appended.
func (f Failure) AppendEncode(b []byte, budget int) []byte {
	if budget <= 0 {
		budget = DefaultEnvelopeBudget
	}
	budget = max(budget, minEnvelopeBudget)
	f.Attempts, f.Lapses, f.Redrives = max(f.Attempts, 0), max(f.Lapses, 0), max(f.Redrives, 0)
	names := []*string{&f.ErrorType, &f.Policy, &f.Consumer, &f.Reason, &f.Origin, &f.MessageID}
	for _, s := range names {
		*s = clean(*s, max(budget/16, 128))
	}
	f.Error, f.Stack = clean(f.Error, budget), clean(f.Stack, budget)
	if f.unknownSize() > budget/2 {
		f.unknown = nil
	}
	start := len(b)
	b = f.appendDocument(b)
	// How much a cut saves depends on the runes that need an escape, so the longest text that fits is searched for.
	shrink := func(s *string, keep int) {
		if len(b)-start <= budget || len(*s) <= keep {
			return
		}
		whole := *s
		cut := func(n int) {
			*s = Truncate(whole, len(whole)-n)
			b = f.appendDocument(b[:start])
		}
		most := len(whole) - keep
		if cut(most); len(b)-start <= budget {
			cut(sort.Search(most, func(n int) bool {
				cut(n)
				return len(b)-start <= budget
			}))
		}
	}
	shrink(&f.Stack, 0)
	shrink(&f.Error, 0)
	if len(b)-start > budget && f.unknown != nil {
		f.unknown = nil
		b = f.appendDocument(b[:start])
	}
	// The smallest budget holds the longest of what then remains: 6 texts of at most 48 bytes, which double at most when
	// escaped (what takes 6 bytes for one, the other control characters, is gone), beside names, numbers and times.
	for _, s := range names {
		shrink(s, 48)
	}
	return b
}

// appendDocument writes the fields that a document struct reads, in its order. It is on the way of every failure, and
// encoding/json takes twice as long.
func (f *Failure) appendDocument(b []byte) []byte {
	const names = 384 // with numbers and times
	b = slices.Grow(b, names+len(f.Reason)+len(f.Error)+len(f.ErrorType)+len(f.Stack)+len(f.Origin)+len(f.MessageID)+len(f.Policy)+len(f.Consumer))
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, EnvelopeVersion, 10)
	b = append(b, `,"reason":`...)
	b = jsontext.AppendString(b, f.Reason)
	b = appendText(b, `,"error":`, f.Error)
	b = appendText(b, `,"error_type":`, f.ErrorType)
	b = appendText(b, `,"stack":`, f.Stack)
	b = append(b, `,"attempts":`...)
	b = strconv.AppendInt(b, int64(f.Attempts), 10)
	b = appendCount(b, `,"lapses":`, f.Lapses)
	b = appendCount(b, `,"redrives":`, f.Redrives)
	b = appendTime(b, `,"first_enqueued_at":`, f.FirstEnqueuedAt)
	b = appendTime(b, `,"first_failed_at":`, f.FirstFailedAt)
	b = appendTime(b, `,"dead_lettered_at":`, f.DeadLetteredAt)
	b = appendText(b, `,"origin":`, f.Origin)
	b = appendText(b, `,"message_id":`, f.MessageID)
	b = appendText(b, `,"policy":`, f.Policy)
	b = appendText(b, `,"consumer":`, f.Consumer)
	if f.unknown == nil {
		return append(b, '}')
	}
	for _, name := range slices.Sorted(maps.Keys(f.unknown)) {
		b = append(b, ',')
		b = jsontext.AppendString(b, name)
		b = append(b, ':')
		b = append(b, f.unknown[name]...)
	}
	return append(b, '}')
}

// unknownSize is how many bytes the fields of a newer version take.
func (f *Failure) unknownSize() (n int) {
	for name, value := range f.unknown {
		n += len(`,"":`) + len(name) + len(value)
	}
	return n
}

func appendText(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	return jsontext.AppendString(append(b, name...), text)
}

func appendCount(b []byte, name string, n int) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), int64(n), 10)
}

// appendTime writes RFC 3339 in UTC with milliseconds: a fixed width, so that texts sort as times do. RFC 3339 ends with the
// year 9999.
func appendTime(b []byte, name string, t time.Time) []byte {
	t = t.UTC()
	if t.IsZero() || t.Year() < 0 || t.Year() > 9999 {
		return b
	}
	b = append(append(b, name...), '"')
	// The layout with ".000" takes four times as long.
	b = t.AppendFormat(b, time.RFC3339)
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(b[:len(b)-1], '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z', '"')
}

// marshal is json.Marshal without escapes for HTML.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
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
		// What nothing is left of counts as absent.
		Origin:    clean(d.Origin, len(d.Origin)),
		MessageID: clean(d.MessageID, len(d.MessageID)),
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
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool {
		// Decoding takes a field's name in any case, so a variant of a known name was read as that field.
		return slices.ContainsFunc(documentFields, func(known string) bool { return strings.EqualFold(name, known) })
	})
	for name, value := range all {
		value, err := storableValue(name, value)
		if err != nil {
			delete(all, name)
			continue
		}
		all[name] = value
	}
	if len(all) > 0 {
		f.unknown = all
	}
	return f, nil
}

// storableValue returns the value of an unknown field as every broker can store it: compact, in valid UTF-8, without the
// runes that some refuse and numbers that are out of PostgreSQL's range. Numbers stay exact.
func storableValue(name string, value json.RawMessage) (json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	doc, err := marshal(v)
	if err != nil {
		return nil, err
	}
	if !storableText(name) || !storableText(string(doc)) || bytes.Contains(doc, []byte(`\u0000`)) || !storableNumbers(v) {
		return nil, errors.New("not storable")
	}
	return doc, nil
}

// maxExponent and maxDigits keep a number within PostgreSQL's numeric, which has 131,072 digits before the decimal point and
// 16,383 after it.
const (
	maxExponent = 1000
	maxDigits   = 1000
)

// storableNumbers reports whether all numbers in a JSON value that was decoded with UseNumber are within bounds.
func storableNumbers(v any) bool {
	switch v := v.(type) {
	case json.Number:
		digits, exponent, scaled := strings.Cut(strings.ToLower(v.String()), "e")
		n, err := 0, error(nil)
		if scaled {
			n, err = strconv.Atoi(exponent)
		}
		return err == nil && len(digits) <= maxDigits && -maxExponent <= n && n <= maxExponent
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { return !storableNumbers(e) })
	case map[string]any:
		for _, e := range v {
			if !storableNumbers(e) {
				return false
			}
		}
	}
	return true
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
	return printableASCII(s) || utf8.ValidString(s) && strings.IndexFunc(s, refused) < 0
}

// printableASCII is the quick test that nearly every text passes.
func printableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// refused reports the runes that a broker refuses in a text: PostgreSQL takes no NUL, and SQS only what XML 1.0 allows.
func refused(r rune) bool {
	return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF
}
