package rabbit_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// A message that was retried twice, released and dead-lettered is what the producer sent, to the last property and type.
func TestCopiesKeepPropertiesHeadersAndRoutingKey(t *testing.T) {
	for _, kind := range []rabbit.Type{rabbit.Quorum, rabbit.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			url := brokertest.Rabbit(t)
			q := queue(t, rabbit.Options{Type: kind})
			exchange := fmt.Sprintf("x%d", rand.Uint64())
			other := exchange + "_other"
			sent := amqp.Publishing{
				Headers: amqp.Table{
					"nested": amqp.Table{"a": int32(1), "list": []any{amqp.Table{"b": true}, "c"}},
					"time":   time.Unix(1700000000, 0), "decimal": amqp.Decimal{Scale: 2, Value: 110}, "bytes": []byte{0, 255},
					"nil": nil, "bool": true, "int8": int8(-8), "uint8": uint8(8), "int16": int16(-16), "int32": int32(-32), "int64": int64(1) << 60,
					"float32": float32(1.5), "float64": 2.25, "long": strings.Repeat("é", 512),
				},
				ContentType: "application/json", ContentEncoding: "identity", DeliveryMode: amqp.Persistent, Priority: 3, CorrelationId: "c",
				ReplyTo: "r", MessageId: "m", Timestamp: time.Unix(1700000000, 0), Type: "order", UserId: "guest", AppId: "shop", Body: []byte("hello"),
			}
			onChannel(t, url, func(ch *amqp.Channel) {
				require.NoError(t, ch.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
				_, err := ch.QueueDeclare(other, true, false, false, false, nil)
				require.NoError(t, err)
				for _, name := range []string{q.Name(), other} {
					require.NoError(t, ch.QueueBind(name, "", exchange, false, nil))
				}
				confirm := make(chan amqp.Confirmation, 1)
				require.NoError(t, ch.Confirm(false))
				ch.NotifyPublish(confirm)
				require.NoError(t, ch.PublishWithContext(t.Context(), exchange, "a.b", true, false, sent))
				require.True(t, (<-confirm).Ack)
			})
			t.Cleanup(func() {
				deleteQueue(t, url, other)
				onChannel(t, url, func(ch *amqp.Channel) { require.NoError(t, ch.ExchangeDelete(exchange, false, false)) })
			})

			sub := subscribe(t, q)
			for i, s := range []time.Duration{0, 100 * time.Millisecond} {
				d := receiveOne(t, sub)
				require.Equal(t, i+1, d.Attempt)
				require.NoError(t, settle(sub, d, retry(s)))
			}
			d := receiveOne(t, sub)
			require.NoError(t, settle(sub, d, release))
			d = receiveOne(t, sub)
			require.Equal(t, 3, d.Attempt)
			require.Equal(t, "m", d.ID)
			require.NoError(t, settle(sub, d, deadLetter("boom")))

			onChannel(t, url, func(ch *amqp.Channel) {
				dead, ok, err := ch.Get(q.Name()+"_dlq", true)
				require.NoError(t, err)
				require.True(t, ok, "no dead letter")
				for name, value := range sent.Headers {
					require.Equal(t, value, dead.Headers[name], name)
				}
				for name := range dead.Headers {
					_, own := sent.Headers[name]
					own = own || strings.HasPrefix(name, "redeliver-") || name == "x-delivery-count" // which a quorum queue adds as it delivers
					require.True(t, own, "header %q came from nowhere", name)
				}
				require.Equal(t, "a.b", dead.RoutingKey)
				require.Equal(t,
					[]any{sent.ContentType, sent.ContentEncoding, sent.DeliveryMode, sent.Priority, sent.CorrelationId, sent.ReplyTo, sent.MessageId, sent.Type, sent.UserId, sent.AppId, string(sent.Body)},
					[]any{dead.ContentType, dead.ContentEncoding, dead.DeliveryMode, dead.Priority, dead.CorrelationId, dead.ReplyTo, dead.MessageId, dead.Type, dead.UserId, dead.AppId, string(dead.Body)})
				require.Equal(t, sent.Timestamp.Unix(), dead.Timestamp.Unix())

				// The exchange's other queue had the message once, and none of the copies.
				_, ok, err = ch.Get(other, true)
				require.NoError(t, err)
				require.True(t, ok)
				_, ok, err = ch.Get(other, true)
				require.NoError(t, err)
				require.False(t, ok, "a copy went to another queue")
			})
		})
	}
}

// A short wait is not held up behind a long one.
func TestShortWaitPassesALongOne(t *testing.T) {
	q := queue(t, rabbit.Options{})
	require.NoError(t, q.Publish(t.Context(), backend.Message{Body: []byte("long")}, backend.Message{Body: []byte("short")}))
	sub := subscribe(t, q)
	ds := receive(t, sub, 2)
	require.NoError(t, settle(sub, ds[0], retry(time.Hour)))
	began := time.Now()
	require.NoError(t, settle(sub, ds[1], retry(time.Second)))
	back := receiveOne(t, sub)
	require.Equal(t, ds[1].ID, back.ID)
	require.GreaterOrEqual(t, time.Since(began), time.Second)
}
