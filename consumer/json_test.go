package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

type order struct {
	Number int8
	Lines  []struct{ Price int8 }
	Due    time.Time
}

func TestJSONDecodesTheBody(t *testing.T) {
	var got order
	var delivery *backend.Delivery
	handler := consumer.JSON(func(_ context.Context, v order, d *backend.Delivery) error {
		got, delivery = v, d
		return errDeclined
	})
	d := &backend.Delivery{Message: backend.Message{Body: []byte(`{"Number": 7, "Lines": [{"Price": 3}], "More": true}`)}}
	require.Equal(t, errDeclined, handler.Handle(t.Context(), d), "the handler's own error, unchanged")
	require.Equal(t, int8(7), got.Number)
	require.Equal(t, int8(3), got.Lines[0].Price)
	require.Same(t, d, delivery)
}

func TestABodyThatDoesNotDecodeIsAPermanentFailureThatDoesNotTellIt(t *testing.T) {
	for name, c := range map[string]struct{ body, says string }{
		"empty":           {``, "the body is empty"},
		"cut off":         {`{"Number": 4711`, "byte"},
		"no JSON":         {`4711 is no JSON`, "byte"},
		"a wrong number":  {`{"Number": 4711}`, `"Number"`},
		"a wrong type":    {`{"Number": "4711"}`, `"Number"`},
		"a wrong array":   {`[4711]`, "array"},
		"a deeper one":    {`{"Lines": [{"Price": 4711}]}`, `"Lines.Price"`},
		"a custom error":  {`{"Due": "4711-13-13"}`, "*time.ParseError"},
		"only whitespace": {"  \n", "byte"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := consumer.JSON(func(context.Context, order, *backend.Delivery) error {
				return errors.New("the handler was called")
			})
			err := handler.Handle(t.Context(), &backend.Delivery{Message: backend.Message{Body: []byte(c.body)}})
			require.ErrorIs(t, err, policy.ErrPermanent)
			require.ErrorContains(t, err, "consumer_test.order")
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "4711")
			require.NotContains(t, err.Error(), "handler was called")

			var syntax *json.SyntaxError
			var mismatch *json.UnmarshalTypeError
			var parse *time.ParseError
			require.True(t, errors.As(err, &syntax) || errors.As(err, &mismatch) || errors.As(err, &parse), "the cause stays within reach")
		})
	}
}

func TestABodyThatDoesNotDecodeIsDeadLetteredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		events, logged := &recorder{}, &logs{}
		c := consume(q, three, events, nil)
		c.Logger = logged.logger()
		c.Handler = consumer.JSON(func(context.Context, order, *backend.Delivery) error { return nil })
		publish(t, q, backend.Message{ID: "bad", Body: []byte(`{"Number": 4711}`)}, backend.Message{ID: "good", Body: []byte(`{"Number": 1}`)})
		stop := start(t, c)
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.DeadLettered}, events.kinds("bad"))
		require.Equal(t, []consumer.Kind{consumer.Received, consumer.Succeeded}, events.kinds("good"))
		dead := deadLetters(t, q)
		require.Len(t, dead, 1)
		require.Equal(t, `{"Number": 4711}`, string(dead[0].Body))
		require.Equal(t, "permanent", dead[0].Failure.Reason)
		require.NotContains(t, dead[0].Failure.Error, "4711")
		require.Equal(t, "*json.UnmarshalTypeError", dead[0].Failure.ErrorType)
		require.NotContains(t, strings.Join(logged.all(), ""), "4711")
	})
}
