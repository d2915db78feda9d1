package pgmq

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/internal/jsontext"
)

func FuzzEachMember(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a": 1}`, `{"a":"b\"c","d": [1, {"e": "]}"}], "f": null}`, `{"\u00e9\\": true , "x": -1.5e3}`, `[1]`, `"a"`, ``, `{`, `{"a"`, `{"a":`, `{"a":}`,
		`{"a":"\`, `{"a":{]`, `{,}`, `{1:2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got := make(map[string]string)
		eachMember(raw, func(name string, value []byte) { got[name] = string(value) }) // must not panic, whatever raw is
		var want map[string]json.RawMessage
		if !utf8.Valid(raw) || !json.Valid(raw) || json.Unmarshal(raw, &want) != nil {
			return
		}
		require.Len(t, got, len(want))
		for name, value := range want {
			require.Equal(t, string(bytes.TrimSpace(value)), got[name])
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add("plain")
	f.Add("q\"b\\n\n\t\x01\x7f é \u2028 \U0001F600")
	f.Fuzz(func(t *testing.T, s string) {
		s = string(bytes.ToValidUTF8([]byte(s), nil))
		read, ok := text(jsontext.AppendString(nil, s))
		require.True(t, ok)
		require.Equal(t, s, read)
	})
}

func TestCountsReadWhatTheyWrite(t *testing.T) {
	for _, c := range []counts{{}, {failures: 1}, {1, 2, 3, 4}, {waits: 9}} {
		doc := c.appendTo(nil)
		require.True(t, json.Valid(doc), string(doc))
		require.Equal(t, c, readCounts(doc, 100))
	}
	require.Equal(t, `{}`, string(counts{}.appendTo(nil)))
}
