package policyfile_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/policyfile"
)

// morsels are what mutation puts into a file: each is right somewhere.
var morsels = []string{
	"5s", "0", "5", "-1", "1d", "unlimited", "none", "full", "~", "[]", "{}", "[1s, 2s]", "1.5", "1e3", "\"\"", "standard", "fixed", "linear",
	"max_attempts", "backoff", "curve", "delay", "extends", "default", "max_age", ":", ",", "{", "}", "[", "]", "\n", "  ", "-", "&a", "*a", "<<", "#", "|", "\"", "'", "\t",
	"ä", "\x00", "policies", "types", "wishes", "throttled", "class", "dead-letter", "9999999999999999999h", "true",
}

// mutate changes one to three places of a text.
func mutate(r *rand.Rand, text string) string {
	for range 1 + r.IntN(3) {
		words := strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" \n:,{}[]\"", c) })
		word := words[r.IntN(len(words))]
		other := words[r.IntN(len(words))]
		i := r.IntN(len(text))
		lines := strings.SplitAfter(text, "\n")
		switch r.IntN(9) {
		case 0:
			text = strings.Replace(text, word, morsels[r.IntN(len(morsels))], 1)
		case 1:
			text = strings.Replace(text, word, other, 1)
		case 2:
			text = text[:i] + morsels[r.IntN(len(morsels))] + text[i:]
		case 3:
			text = text[:i] + text[min(len(text), i+1+r.IntN(8)):]
		case 4:
			n := r.IntN(len(lines))
			text = strings.Join(append(append([]string{}, lines[:n]...), lines[min(n+1, len(lines)-1):]...), "")
		case 5:
			n := r.IntN(len(lines))
			text = strings.Join(append(append([]string{}, lines[:n+1]...), lines[n:]...), "")
		default:
			if i := strings.IndexAny(text, "123456789"[r.IntN(9):]); i >= 0 {
				text = text[:i] + strconv.Itoa(r.IntN(10)) + text[i+1:]
			}
		}
		if strings.Trim(text, " \n:,{}[]\"") == "" {
			return text
		}
	}
	return text
}

// examine checks what is true of every text, and reports whether it is a policy file.
func examine(t *testing.T, name, text string) bool {
	t.Helper()
	f, err := policyfile.Parse(name, []byte(text), policyfile.Options{})
	if err != nil {
		require.Nil(t, f)
		var all *policyfile.Error
		require.ErrorAs(t, err, &all, text)
		require.NotEmpty(t, all.Faults)
		lines := strings.Count(text, "\n") + 1
		for _, fault := range all.Faults {
			require.Equal(t, name, fault.File)
			require.True(t, fault.Line >= 1 && fault.Line <= lines, "line %d of %d: %v\n%s", fault.Line, lines, err, text)
			require.True(t, fault.Column >= 1 && fault.Column <= len(strings.Split(text, "\n")[fault.Line-1])+1, "%v\n%s", err, text)
			require.NotEmpty(t, fault.Problem)
		}
		return false
	}
	require.Contains(t, f.Policies, f.Default)
	for name, p := range f.Policies {
		require.NoError(t, p.Validate(), text)
		require.Equal(t, name, p.Name)
	}
	for queue, q := range f.Queues {
		for messageType := range q.Types {
			require.NotEmpty(t, f.For(queue, messageType).Name)
		}
	}
	for extension, marshal := range map[string]func() ([]byte, error){".json": f.JSON, ".yaml": f.YAML} {
		data, err := marshal()
		require.NoError(t, err, text)
		again, err := policyfile.Parse("again"+extension, data, policyfile.Options{})
		require.NoError(t, err, "%s\n%s", text, data)
		require.Equal(t, f, again, text)
	}
	return true
}

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(policyfile.Schema())))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("policy.schema.json", document))
	s, err := c.Compile("policy.schema.json")
	require.NoError(t, err)
	return s
}

func plainDocument() string {
	return strings.Replace(document, ", ours]", "]", 1)
}

func jsonDocument(t testing.TB) string {
	f, err := policyfile.Parse("p.yaml", []byte(plainDocument()), policyfile.Options{})
	require.NoError(t, err)
	data, err := f.JSON()
	require.NoError(t, err)
	return string(data)
}

// Each mutated file that is accepted is valid and goes round, each one that is refused names the place, and the schema
// refuses nothing that is accepted.
func TestMutatedFiles(t *testing.T) {
	s := schema(t)
	r := rand.New(rand.NewPCG(1, 2))
	files := []struct{ name, text string }{{"p.yaml", plainDocument()}, {"p.json", jsonDocument(t)}}
	accepted, agreed := 0, 0
	for range 500 {
		for _, f := range files {
			name, text := f.name, mutate(r, f.text)
			ok := examine(t, name, text)
			if ok {
				accepted++
			}
			v, err := decodeForSchema(name, text)
			if err != nil {
				require.False(t, ok && !errors.Is(err, errSkip), "%v\n%s", err, text)
				continue
			}
			valid := s.Validate(v) == nil
			require.True(t, valid || !ok, "the schema refuses what Parse accepts: %v\n%s", s.Validate(v), text)
			if valid == ok {
				agreed++
			}
		}
	}
	// The mutations must neither all be refused nor all be harmless, and the schema must tell most of them.
	require.Greater(t, accepted, 50)
	require.Less(t, accepted, 700)
	require.Greater(t, agreed, 300)
}

var errSkip = errors.New("not comparable")

// decodeForSchema reads a text by other means than Parse.
func decodeForSchema(name, text string) (v any, err error) {
	if strings.HasSuffix(name, ".json") {
		return jsonschema.UnmarshalJSON(strings.NewReader(text))
	}
	defer func() {
		if recover() != nil {
			err = errSkip
		}
	}()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil || !json.Valid(data) {
		return nil, errSkip
	}
	return jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
}

func TestTheSchemaKnowsWhatIsWrong(t *testing.T) {
	s := schema(t)
	const policy = `{"default": "p", "policies": {"p": {"max_attempts": 5, "backoff": {"curve": "fixed", "delay": "1s"}%s}}}`
	for _, tt := range []struct {
		more  string
		valid bool
	}{
		{``, true},
		{`, "max_age": "1h30m"`, true},
		{`, "max_age": 0`, true},
		{`, "jitter": "full"`, true},
		{`, "jitter": {"kind": "additive", "fraction": 0.5}`, true},
		{`, "max_lapses": "none"`, true},
		{`, "rules": [{"class": "throttled", "backoff": {"curve": "steps", "steps": ["1s"], "immediate": 2}}]`, true},
		{`, "max_age": 5`, false},
		{`, "max_age": "1d"`, false},
		{`, "max_age": "5"`, false},
		{`, "max_age": "-5s"`, false},
		{`, "max_retries": 5`, false},
		{`, "max_lapses": 0`, false},
		{`, "max_snoozes": "none"`, false},
		{`, "jitter": "proportional"`, false},
		{`, "jitter": {"kind": "full", "fraction": 0.5}`, false},
		{`, "rules": [{"action": "discard"}]`, false},
		{`, "rules": [{"class": "x", "backoff": {"curve": "fixed", "base": "1s"}}]`, false},
		{`, "rules": [{"class": "x", "backoff": {"curve": "fixed", "delay": "1s", "factor": 2}}]`, false},
	} {
		text := strings.Replace(policy, "%s", tt.more, 1)
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		require.NoError(t, err)
		if err := s.Validate(v); tt.valid {
			require.NoError(t, err, text)
		} else {
			require.Error(t, err, text)
		}
		require.Equal(t, tt.valid, examine(t, "p.json", text), text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("p.yaml", plainDocument())
	f.Add("p.json", jsonDocument(f))
	f.Fuzz(func(t *testing.T, name, text string) {
		if name == "" {
			name = "p"
		}
		examine(t, name, text)
	})
}
