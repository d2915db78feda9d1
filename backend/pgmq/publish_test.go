package pgmq_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

func TestPublishRefusesWhatCannotBeStored(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	good := backend.Message{ID: "good", Body: []byte(`1`)}
	for name, tc := range map[string]struct {
		bad  backend.Message
		says string
	}{
		"no body":          {backend.Message{ID: "bad"}, "the body is not JSON"},
		"not JSON":         {backend.Message{ID: "bad", Body: []byte(`<a/>`)}, "the body is not JSON"},
		"two values":       {backend.Message{ID: "bad", Body: []byte(`1 2`)}, "the body is not JSON"},
		"not UTF-8":        {backend.Message{ID: "bad", Body: []byte("\"\xff\"")}, "the body is not UTF-8"},
		"NUL":              {backend.Message{ID: "bad", Body: []byte(`{"a\u0000": 1}`)}, `holds \u0000`},
		"high half":        {backend.Message{ID: "bad", Body: []byte(`"\ud83d x"`)}, "half of a surrogate pair"},
		"high half at end": {backend.Message{ID: "bad", Body: []byte(`"\ud83d"`)}, "half of a surrogate pair"},
		"two high halves":  {backend.Message{ID: "bad", Body: []byte(`"\ud83d\ud83d"`)}, "half of a surrogate pair"},
		"low half":         {backend.Message{ID: "bad", Body: []byte(`"\uDE00"`)}, "half of a surrogate pair"},
		"high half, tab":   {backend.Message{ID: "bad", Body: []byte(`"\ud83d\t"`)}, "half of a surrogate pair"},
		"number too large": {backend.Message{ID: "bad", Body: []byte(`1e200000`)}, "22003"},
		"group":            {backend.Message{ID: "bad", Body: []byte(`1`), Group: "g"}, "x-pgmq-group"},
		"our header":       {backend.Message{ID: "bad", Body: []byte(`1`), Headers: map[string]string{"Redeliver-X": "1"}}, "reserved"},
		"NUL in a header":  {backend.Message{ID: "bad", Body: []byte(`1`), Headers: map[string]string{"a": "\x00"}}, "NUL"},
	} {
		t.Run(name, func(t *testing.T) {
			err := q.Publish(t.Context(), good, tc.bad, good)
			require.ErrorIs(t, err, backend.ErrInvalidMessage)
			require.ErrorContains(t, err, tc.says)
			require.ErrorContains(t, err, `"bad"`)
			require.ErrorContains(t, err, q.Name())
			require.Equal(t, 0, count(t, p, "q_"+q.Name()))
		})
	}
	require.NoError(t, q.Publish(t.Context()))
}

func TestPublishedMessagesArriveAsTheyAre(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	headers := map[string]string{"traceparent": "00-1-2-03", "x-pgmq-group": "g", "ünï": "\u0001\n\t\"\\/</é😀", "": ""}
	delete(headers, "")
	for i := range 10_000 {
		headers[fmt.Sprintf("h%d", i)] = fmt.Sprint(i)
	}
	bodies := []string{`null`, `""`, `"\\u0000"`, `"\ud83d\ude00 \uD83D\uDE00"`, `[1.10, 12345678901234567890]`, ` { "b" : [ ] } `, `"` + strings.Repeat("x", 1<<20) + `"`}
	var msgs []backend.Message
	for i, body := range bodies {
		msgs = append(msgs, backend.Message{ID: fmt.Sprintf("id-%d", i), Body: []byte(body)})
	}
	msgs[0].Headers = headers
	msgs[1].ID = ""
	before := scalar[time.Time](t, p, "SELECT clock_timestamp()")
	require.NoError(t, q.Publish(t.Context(), msgs...))
	ds := receive(t, sub, len(msgs))
	for i, d := range ds {
		require.JSONEq(t, bodies[i], string(d.Body))
		if i != 1 {
			require.Equal(t, msgs[i].ID, d.ID)
		}
		require.False(t, d.FirstEnqueuedAt.Before(before))
	}
	require.Equal(t, `[1.10, 12345678901234567890]`, string(ds[4].Body))
	require.Len(t, ds[1].ID, 26)
	require.Equal(t, headers, ds[0].Headers)
	require.NoError(t, settle(sub, ds[0], retry(0)))
	again := receiveOne(t, sub)
	require.Equal(t, headers, again.Headers)
	require.NoError(t, settle(sub, again, deadLetter("x")))
	require.Equal(t, len(headers)+2, scalar[int](t, p, "SELECT count(*) FROM pgmq.q_"+q.Name()+"_dlq, jsonb_object_keys(headers)"))
}

func TestPublishToAQueueThatIsNotThere(t *testing.T) {
	p := pool(t)
	q, err := pgmq.Open(p, "never_created", pgmq.Options{})
	require.NoError(t, err)
	err = q.Publish(t.Context(), backend.Message{Body: []byte(`1`)})
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, "Queue.Create")
	_, err = q.Stats(t.Context())
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
}
