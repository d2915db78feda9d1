package pgmq_test

import (
	"testing"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/stretchr/testify/require"
)

func TestAMessageGoesTheWholeWay(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	require.NoError(t, q.Publish(t.Context(), backend.Message{ID: "m1", Body: []byte(`{"a": 1}`), Headers: map[string]string{"k": "v"}}))

	first := receiveOne(t, sub)
	require.Equal(t, "m1", first.ID)
	require.JSONEq(t, `{"a": 1}`, string(first.Body))
	require.Equal(t, map[string]string{"k": "v"}, first.Headers)
	require.Equal(t, 1, first.Attempt)
	require.Nil(t, first.Failure)
	require.NoError(t, sub.Extend(t.Context(), []*backend.Delivery{first}))
	called := time.Now()
	require.NoError(t, settle(sub, first, retry(50*time.Millisecond)))

	second := receiveOne(t, sub)
	require.GreaterOrEqual(t, time.Since(called), 50*time.Millisecond)
	require.Equal(t, "m1", second.ID)
	require.Equal(t, 2, second.Attempt)
	require.Equal(t, 0, second.Lapses)
	require.Equal(t, "boom", second.Failure.Error)
	require.Equal(t, map[string]string{"k": "v"}, second.Headers)
	require.NoError(t, settle(sub, second, deadLetter("the end")))

	require.Equal(t, 0, count(t, p, "q_"+q.Name()))
	require.Equal(t, 0, count(t, p, "a_"+q.Name()))
	require.Equal(t, 1, count(t, p, "q_"+q.Name()+"_dlq"))
}
