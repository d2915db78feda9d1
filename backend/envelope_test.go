package backend_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
)

var update = flag.Bool("update", false, "write the golden files anew")

// at is a time in a zone that is not UTC, with more digits than an envelope keeps.
var at = time.Date(2026, 3, 4, 5, 6, 7, 89_999_999, time.FixedZone("", -3*60*60))

func envelopeSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(backend.EnvelopeSchema))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("envelope.schema.json", doc))
	schema, err := c.Compile("envelope.schema.json")
	require.NoError(t, err)
	return schema
}

func requireValid(t testing.TB, schema *jsonschema.Schema, doc []byte) {
	t.Helper()
	require.True(t, json.Valid(doc), "not JSON: %.200s", doc)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(value), "%.200s", doc)
}

func parse(t testing.TB, doc []byte) *backend.Failure {
	t.Helper()
	f, err := backend.ParseFailure(doc)
	require.NoError(t, err, "%.200s", doc)
	return f
}

// The golden files are the format: other programs read such documents, and documents written by older versions are read by
// newer ones. A change of a file is a change of the format.
func TestGoldenEnvelopes(t *testing.T) {
	full := backend.Failure{
		Reason: "exhausted", Error: `payment "7" declined: <timeout> & more`, ErrorType: "*pay.DeclinedError",
		Attempts: 5, Lapses: 2, Redrives: 1,
		FirstEnqueuedAt: at, FirstFailedAt: at.Add(time.Second), DeadLetteredAt: at.Add(time.Minute),
		Origin: "payments", MessageID: "0Z3X", Policy: "patient", Consumer: "worker-3",
	}
	panicked := full
	panicked.Reason, panicked.Error, panicked.ErrorType = "exhausted", "panic: índice 3 → fuera", "runtime.boundsError"
	panicked.Stack = "goroutine 7 [running]:\nmain.handle(...)\n\t/src/main.go:12 +0x1d\n"
	waiting := full
	waiting.Reason, waiting.Attempts, waiting.DeadLetteredAt, waiting.Lapses, waiting.Redrives = "error", 1, time.Time{}, 0, 0
	abandoned := backend.Failure{
		Reason: "abandoned", Lapses: 11, FirstEnqueuedAt: at, DeadLetteredAt: at.Add(time.Hour), Origin: "payments", MessageID: "0Z3X",
	}
	schema := envelopeSchema(t)
	for name, f := range map[string]backend.Failure{
		"dead-letter": full, "panic": panicked, "retry": waiting, "abandoned": abandoned,
		"empty": {},
	} {
		t.Run(name, func(t *testing.T) {
			doc := f.Encode(backend.DefaultEnvelopeBudget)
			requireValid(t, schema, doc)
			path := filepath.Join("testdata", name+".json")
			if *update {
				require.NoError(t, os.WriteFile(path, append(doc, '\n'), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), string(doc)+"\n")
			require.Equal(t, string(doc), string(parse(t, doc).Encode(0)))
		})
	}
}

func TestParseReadsWhatEncodeWrote(t *testing.T) {
	want := backend.Failure{
		Reason: "exhausted", Error: "no\tway\r\n", ErrorType: "*E", Stack: "s\n", Attempts: 3, Lapses: 2, Redrives: 1,
		FirstEnqueuedAt: at, FirstFailedAt: at, DeadLetteredAt: at,
		Origin: "q", MessageID: "m", Policy: "p", Consumer: "h",
	}
	got := parse(t, want.Encode(0))
	ms := time.Date(2026, 3, 4, 8, 6, 7, 89_000_000, time.UTC)
	want.FirstEnqueuedAt, want.FirstFailedAt, want.DeadLetteredAt = ms, ms, ms
	require.Equal(t, &want, got)
}

func TestNewerVersionIsPreserved(t *testing.T) {
	newer, err := os.ReadFile(filepath.Join("testdata", "newer-version.input.json"))
	require.NoError(t, err)
	f := parse(t, newer)
	require.Equal(t, "exhausted", f.Reason)
	require.Equal(t, 5, f.Attempts)

	// Another consumer fails with it: what it does not know stays.
	d := &backend.Delivery{Message: backend.Message{ID: "x"}, Queue: "payments_dlq", Failure: f}
	doc := d.Record(backend.Failure{Reason: "permanent", Attempts: 1}, at, true).Encode(0)
	requireValid(t, envelopeSchema(t), doc)
	var got map[string]any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&got))
	require.Equal(t, json.Number("1"), got["v"])
	require.Equal(t, "permanent", got["reason"])
	require.Equal(t, map[string]any{"exact": json.Number("1234567890123456789"), "ratio": json.Number("1.10"), "big": json.Number("1e400")}, got["numbers"])
	require.Equal(t, []any{"<a>", nil, true}, got["history"])
	require.Equal(t, string(doc), string(parse(t, doc).Encode(0)))
}

func TestNewerFieldsThatCannotBeStoredAreDropped(t *testing.T) {
	doc := parse(t, []byte(`{"v":2,"reason":"r","attempts":1,"origin":"q","message_id":"m",`+
		`"nul":"a\u0000b", "deep":{"x":["\u0000"]}, "n\u0000l":1, "huge":1e200000, "tiny":[{"x":-1E-20000}], "far":1e99999999999999999999, "long":`+strings.Repeat("9", 1001)+`, "noncharacter":"`+"\uFFFE"+`", "lone":"\ud800", "raw":"`+"a\xffb"+`", "kept": [ 1 , 2 ] }`)).Encode(0)
	require.JSONEq(t, `{"v":1,"reason":"r","attempts":1,"origin":"q","message_id":"m","lone":"\ufffd","raw":"a\ufffdb","kept":[1,2]}`, string(doc))
	require.True(t, utf8.Valid(doc))
	require.NotContains(t, string(doc), " ", "compact")
}

func TestNewerFieldsThatDoNotFitCostNothingElse(t *testing.T) {
	f := parse(t, []byte(`{"v":2,"reason":"r","attempts":1,"origin":"q","message_id":"m","big":"`+strings.Repeat("x", 1<<10)+`"}`))
	f.Error = "boom"
	require.JSONEq(t, `{"v":1,"reason":"r","error":"boom","attempts":1,"origin":"q","message_id":"m"}`, string(f.Encode(1)))
	require.Contains(t, string(f.Encode(3<<10)), `"big":"xxx`)
}

// A field whose name differs from a known one in case only would shadow it when the document is read again.
func TestKnownFieldsAreNotShadowed(t *testing.T) {
	f := parse(t, []byte(`{"v":1,"reason":"old","attempts":1,"origin":"q","message_id":"m","REASON":"shadow","meſsage_id":"x"}`))
	d := &backend.Delivery{Failure: f}
	again := parse(t, d.Record(backend.Failure{Reason: "new"}, at, false).Encode(0))
	require.Equal(t, "new", again.Reason)
}

func TestUnreadableEnvelopes(t *testing.T) {
	for name, doc := range map[string]string{
		"nothing":         "",
		"not JSON":        "{",
		"an array":        "[]",
		"a text":          `"v"`,
		"null":            "null",
		"no version":      `{"reason":"r"}`,
		"version 0":       `{"v":0}`,
		"version text":    `{"v":"1"}`,
		"attempts text":   `{"v":1,"attempts":"3"}`,
		"attempts 1e400":  `{"v":1,"attempts":1e400}`,
		"time with space": `{"v":1,"first_failed_at":"2026-03-04 05:06:07Z"}`,
		"more after it":   `{"v":1}{"v":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			f, err := backend.ParseFailure([]byte(doc))
			require.ErrorContains(t, err, "envelope is not readable")
			require.Nil(t, f)
		})
	}
	_, err := backend.ParseFailure([]byte(`{"v":1,"first_failed_at":"soon"}`))
	require.ErrorContains(t, err, `"first_failed_at"`)
}

func TestForgedCountsAreClamped(t *testing.T) {
	f := parse(t, []byte(`{"v":9,"attempts":-1,"lapses":-2,"redrives":-3}`))
	require.Zero(t, *f)
	requireValid(t, envelopeSchema(t), backend.Failure{Attempts: -1, Lapses: -1, Redrives: -1}.Encode(0))
}

func TestTimesOutsideTheFormatAreLeftOut(t *testing.T) {
	// A forged time may leave the four-digit years only when it is converted to UTC.
	for _, forged := range []string{"9999-12-31T23:59:59-14:00", "0000-01-01T00:00:00+14:00"} {
		f := parse(t, fmt.Appendf(nil, `{"v":1,"dead_lettered_at":%q}`, forged))
		doc := f.Encode(0)
		requireValid(t, envelopeSchema(t), doc)
		require.True(t, parse(t, doc).DeadLetteredAt.IsZero())
	}
}

func TestEncodeStripsWhatBrokersRefuse(t *testing.T) {
	dirty := "a\x00b\x1bc\uFFFEd\uFFFFe\xfff\tg\nh\ri\u2028j\u007f𝄞"
	const clean = "abcde\uFFFDf\tg\nh\ri\u2028j\u007f𝄞"
	f := parse(t, backend.Failure{
		Reason: dirty, Error: dirty, ErrorType: dirty, Stack: dirty, Origin: dirty, MessageID: dirty, Policy: dirty, Consumer: dirty,
	}.Encode(0))
	require.Equal(t, &backend.Failure{
		Reason: clean, Error: clean, ErrorType: clean, Stack: clean, Origin: clean, MessageID: clean, Policy: clean, Consumer: clean,
	}, f)
}

func TestEncodeFitsEveryBudget(t *testing.T) {
	const mib = 1 << 20
	texts := map[string]string{
		"multi-byte":   strings.Repeat("日本語→𝄞é", mib/17),
		"quotes":       strings.Repeat(`"\`, mib/2),
		"lines":        strings.Repeat("\n", mib),
		"separators":   strings.Repeat("\u2028", mib/3),
		"broken UTF-8": strings.Repeat("a\xff", mib/2),
		"continuation": strings.Repeat("\x80", mib),
		"NUL":          strings.Repeat("\x00", mib),
	}
	budgets := []int{1 << 10, 1<<10 + 1, 1<<10 + 2, 1500, 2000, 4 << 10, 8 << 10, 32 << 10}
	schema := envelopeSchema(t)
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			f := backend.Failure{
				Reason: "exhausted", Error: text, ErrorType: "*E", Stack: text, Attempts: math.MaxInt, Lapses: math.MaxInt, Redrives: math.MaxInt,
				FirstEnqueuedAt: at, FirstFailedAt: at, DeadLetteredAt: at, Origin: "q", MessageID: "m", Policy: "p", Consumer: "h",
			}
			greedy := f
			greedy.Reason, greedy.ErrorType, greedy.Origin, greedy.MessageID, greedy.Policy, greedy.Consumer = text, text, text, text, text, text
			for _, budget := range budgets {
				doc := f.Encode(budget)
				require.LessOrEqual(t, len(doc), budget)
				requireValid(t, schema, doc)
				got := parse(t, doc)
				require.Equal(t, "q", got.Origin, "the names stay whole while a text can give way")
				require.Equal(t, "m", got.MessageID)

				doc = greedy.Encode(budget)
				require.LessOrEqual(t, len(doc), budget)
				requireValid(t, schema, doc)
			}
		})
	}
}

func TestStackGivesWayBeforeTheError(t *testing.T) {
	f := backend.Failure{Error: strings.Repeat("e", 3000), Stack: strings.Repeat("s", 3000)}
	got := parse(t, f.Encode(7000))
	require.Equal(t, f, *got)
	got = parse(t, f.Encode(4000))
	require.Equal(t, f.Error, got.Error)
	require.Regexp(t, "^s+…$", got.Stack)
	got = parse(t, f.Encode(2000))
	require.Regexp(t, "^e+…$", got.Error)
	require.Empty(t, got.Stack)
}

func TestEncodeCutsOnARuneBoundary(t *testing.T) {
	text := strings.Repeat("日", 5000)
	for budget := 1 << 10; budget < 1<<10+8; budget++ {
		got := parse(t, backend.Failure{Error: text, Stack: "s", Origin: "q"}.Encode(budget))
		cut, marked := strings.CutSuffix(got.Error, "…")
		require.True(t, marked)
		require.True(t, strings.HasPrefix(text, cut))
		require.Greater(t, len(cut), budget-200, "no more is cut than has to be")
	}
}

func TestBudgetDefaultsAndMinimum(t *testing.T) {
	f := backend.Failure{Error: strings.Repeat("x", 1<<20)}
	require.Len(t, f.Encode(0), backend.DefaultEnvelopeBudget)
	require.Len(t, f.Encode(-1), backend.DefaultEnvelopeBudget)
	require.Len(t, f.Encode(1), 1<<10)
}

func TestNewerFieldsGiveWayBeforeTheNames(t *testing.T) {
	name := strings.Repeat("n", 128)
	f := parse(t, []byte(`{"v":2,"reason":"`+name+`","policy":"`+name+`","consumer":"`+name+`","origin":"`+name+`","message_id":"`+name+`","new":"`+strings.Repeat("x", 480)+`"}`))
	require.Contains(t, string(f.Encode(2<<10)), `"new"`)
	small := f.Encode(1 << 10)
	require.LessOrEqual(t, len(small), 1<<10)
	require.NotContains(t, string(small), `"new"`)
	require.Equal(t, f.Origin, parse(t, small).Origin)
	require.Equal(t, f.Consumer, parse(t, small).Consumer)
}

func TestNamesLeaveRoomForTheError(t *testing.T) {
	long := strings.Repeat("n", 100_000)
	f := backend.Failure{Reason: long, ErrorType: long, Policy: long, Consumer: long, Origin: long, MessageID: long, Error: "boom"}
	got := parse(t, f.Encode(0))
	require.Equal(t, "boom", got.Error)
	require.Len(t, got.MessageID, backend.DefaultEnvelopeBudget/16)
}

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		in   string
		size int
		want string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "…"},
		{"abcd", 2, ""},
		{"abcd", -1, ""},
		{"abcdef", 5, "ab…"},
		{"日本語", 9, "日本語"},
		{"日本語", 8, "日…"},
		{"日本語", 6, "日…"},
		{"日本語", 5, "…"},
	} {
		require.Equal(t, c.want, backend.Truncate(c.in, c.size), "%q to %d", c.in, c.size)
	}
}

// Whatever comes in a header, what is written back fits, is valid, and is read as the same.
func FuzzParseFailure(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.json"))
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, file := range files {
		doc, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(doc, 0)
		f.Add(doc, 1<<10)
	}
	f.Add([]byte(`{"v":1,"Reason":"x","nul":"\u0000","lone":"\ud800","n":1e400,"dead_lettered_at":"9999-12-31T23:59:59-14:00"}`), 1100)
	schema := envelopeSchema(f)
	f.Fuzz(func(t *testing.T, doc []byte, budget int) {
		first, err := backend.ParseFailure(doc)
		if err != nil {
			require.Nil(t, first)
			return
		}
		limit := budget
		if limit <= 0 {
			limit = backend.DefaultEnvelopeBudget
		}
		limit = max(limit, 1<<10)
		if !first.DeadLetteredAt.IsZero() {
			// A dead letter has both.
			first.Origin, first.MessageID = cmp.Or(first.Origin, "q"), cmp.Or(first.MessageID, "m")
		}
		written := first.Encode(budget)
		require.LessOrEqual(t, len(written), limit)
		require.True(t, utf8.Valid(written))
		requireValid(t, schema, written)
		again := parse(t, written)
		require.Equal(t, string(written), string(again.Encode(budget)))
		require.Equal(t, first.Attempts, again.Attempts)
		require.Equal(t, first.Lapses, again.Lapses)
		require.Equal(t, first.Redrives, again.Redrives)
	})
}

func TestEncodeKeepsAsMuchAsFitsOfATextThatNeedsEscapes(t *testing.T) {
	f := backend.Failure{Reason: "exhausted", Origin: "orders", MessageID: "m"}
	for name, text := range map[string]string{
		"quotes": strings.Repeat(`"`, 20_000), "lines": strings.Repeat("x\n", 10_000), "plain": strings.Repeat("x", 20_000),
		"separators": strings.Repeat("\u2028", 10_000),
	} {
		for _, budget := range []int{1 << 10, 8 << 10} {
			f.Error, f.Stack = text, text
			doc := f.Encode(budget)
			require.LessOrEqual(t, len(doc), budget, name)
			require.Greater(t, len(doc), budget-16, name)
			got, err := backend.ParseFailure(doc)
			require.NoError(t, err)
			require.Empty(t, got.Stack, "%s: the stack goes before the error", name)
			require.True(t, strings.HasPrefix(text, strings.TrimSuffix(got.Error, "…")), name)
		}
	}
}
