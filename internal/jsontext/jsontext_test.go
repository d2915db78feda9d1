package jsontext_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/internal/jsontext"
)

func TestAppendStringEscapesNoMoreThanItMust(t *testing.T) {
	for text, want := range map[string]string{
		"":                           `""`,
		"connection refused":         `"connection refused"`,
		`a "quote" and a \backslash`: `"a \"quote\" and a \\backslash"`,
		"\t\n\r\x00\x1f\x7f":         "\"\\t\\n\\r\\u0000\\u001f\x7f\"",
		"<&>\u2028é𝄞\uFFFD":          "\"<&>\u2028é𝄞\uFFFD\"",
		"a\xffb\xf0\x9d":             "\"a\uFFFDb\uFFFD\uFFFD\"",
	} {
		require.Equal(t, want, string(jsontext.AppendString(nil, text)), "%q", text)
	}
	require.Equal(t, `{"a":"b"`, string(jsontext.AppendString([]byte(`{"a":`), "b")))
}

func FuzzAppendString(f *testing.F) {
	for _, text := range []string{"", "plain", "\x00\"\\\n", "é\xff𝄞", "\uFFFD"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		doc := jsontext.AppendString(nil, text)
		var read string
		require.NoError(t, json.Unmarshal(doc, &read))
		require.Equal(t, string([]rune(text)), read)
	})
}
