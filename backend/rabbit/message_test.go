package rabbit_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// A counting header may have been written by anybody.
func TestCountsInAnyTypeAreRead(t *testing.T) {
	for _, v := range []any{3, int8(3), int16(3), int32(3), int64(3), uint8(3), uint16(3), uint32(3), float32(3), float64(3), "3", []byte("3"), 3.9} {
		require.Equal(t, 3, rabbit.Count(v), "%T", v)
	}
	for _, v := range []any{nil, -1, int64(math.MinInt64), amqp.Table{"n": 3}, []any{3}, true, "abc", "", "1.5", "-7", math.NaN(), math.Inf(-1), time.Unix(3, 0), amqp.Decimal{Value: 3}} {
		require.Equal(t, 0, rabbit.Count(v), "%T %v", v, v)
	}
	for _, v := range []any{int64(math.MaxInt64), uint32(math.MaxUint32), math.Inf(1), 1e300, "99999999999999999999"} {
		n := rabbit.Count(v)
		require.Greater(t, n, 1<<20, "%T %v", v, v)
		require.Less(t, n, math.MaxInt32, "it must be possible to count on")
	}
}

func TestHeadersAreShownAsText(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{"text", "text"},
		{[]byte("bytes"), "bytes"},
		{nil, "null"},
		{true, "true"},
		{int8(-8), "-8"},
		{uint8(8), "8"},
		{int64(math.MinInt64), "-9223372036854775808"},
		{float32(0.1), "0.1"},
		{1e300, "1e+300"},
		{amqp.Decimal{Scale: 2, Value: 110}, "1.10"},
		{amqp.Decimal{Scale: 3, Value: -5}, "-0.005"},
		{amqp.Decimal{Value: 7}, "7"},
		{time.Unix(1700000000, 0), "2023-11-14T22:13:20Z"},
		{[]any{int64(1), "2", nil, amqp.Table{"a": []byte("b")}}, `[1,"2",null,{"a":"b"}]`},
		{amqp.Table{"nan": math.NaN(), "at": time.Unix(0, 0)}, `{"at":"1970-01-01T00:00:00Z","nan":"NaN"}`},
	} {
		require.Equal(t, c.want, rabbit.Text(c.value))
	}
}

// headers is every type that AMQP has.
func headers() amqp.Table {
	return amqp.Table{
		"table":   amqp.Table{"nested": amqp.Table{"deep": int32(1)}, "list": []any{int64(1), "two"}},
		"tables":  []any{amqp.Table{"a": "b"}, amqp.Table{"c": true}},
		"time":    time.Unix(1700000000, 0),
		"decimal": amqp.Decimal{Scale: 2, Value: 12345},
		"bytes":   []byte{0, 1, 255}, "nil": nil, "bool": true,
		"int8": int8(-8), "uint8": uint8(8), "int16": int16(-16), "uint16": uint16(16), "int32": int32(-32), "uint32": uint32(32), "int64": int64(-64),
		"float32": float32(0.5), "float64": 0.25, "text": strings.Repeat("x", 1024), "": "empty name", "x-custom": int64(7),
	}
}

// What a message's headers take is worked out before they are sent, since the library and the broker end the connection over
// headers that are too large.
func TestTheSizeOfHeadersIsKnown(t *testing.T) {
	for name, msg := range map[string]amqp.Publishing{
		"empty": {Headers: amqp.Table{}},
		"all": {
			Headers: headers(), ContentType: "text/plain", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 3, CorrelationId: "c", ReplyTo: "r", Expiration: "1",
			MessageId: "m", Timestamp: time.Unix(1700000000, 0), Type: "t", UserId: "guest", AppId: "a",
		},
		"large": {Headers: amqp.Table{"large": strings.Repeat("x", 100_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, headerFrameOf(t, msg), rabbit.HeaderFrameSize(msg))
		})
	}
}

// headerFrameOf publishes a message and returns the size of the frame in which the library sends its headers.
func headerFrameOf(t *testing.T, msg amqp.Publishing) int {
	var sent bytes.Buffer
	conn, err := amqp.DialConfig(brokertest.Rabbit(t), amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		c, err := net.Dial(network, address)
		return recorder{c, &sent}, err
	}})
	require.NoError(t, err)
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Publish("", "nobody", false, false, msg))
	require.NoError(t, conn.Close())
	r := bytes.NewReader(sent.Bytes()[8:]) // after the protocol's own header
	for {
		var head [7]byte
		_, err := io.ReadFull(r, head[:])
		require.NoError(t, err)
		size := int(binary.BigEndian.Uint32(head[3:]))
		_, err = r.Seek(int64(size)+1, io.SeekCurrent)
		require.NoError(t, err)
		if head[0] == 2 {
			return size + 8
		}
	}
}

type recorder struct {
	net.Conn
	to *bytes.Buffer
}

func (r recorder) Write(p []byte) (int, error) {
	r.to.Write(p)
	return r.Conn.Write(p)
}

// send publishes as a foreign producer does.
func send(tb testing.TB, exchange, key string, msgs ...amqp.Publishing) {
	tb.Helper()
	onChannel(tb, brokertest.Rabbit(tb), func(ch *amqp.Channel) {
		require.NoError(tb, ch.Confirm(false))
		for _, m := range msgs {
			confirm, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, m)
			require.NoError(tb, err)
			require.True(tb, confirm.Wait())
		}
	})
}

func TestNothingOfAMessageIsLostOnTheWay(t *testing.T) {
	t.Parallel()
	for _, kind := range []rabbit.Type{rabbit.Quorum, rabbit.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			q := queue(t, rabbit.Options{Type: kind})
			topic := topicFor(t, q.Name())
			sent := amqp.Publishing{
				Headers: headers(), ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 3,
				CorrelationId: "correlation", ReplyTo: "replies", Expiration: "3600000", MessageId: "m1", Timestamp: time.Unix(1700000000, 0),
				Type: "order", UserId: "guest", AppId: "shop", Body: []byte{0, 1, 2, 255},
			}
			send(t, topic, "a.b", sent)
			sub := subscribe(t, q)
			whole := func(d *backend.Delivery, when string) {
				t.Helper()
				m := d.Raw.(*rabbit.Message)
				require.Equal(t, "m1", d.ID, when)
				require.Equal(t, sent.Body, d.Body, when)
				require.Equal(t, "a.b", m.RoutingKey, when)
				require.Equal(t, topic, m.Exchange, when)
				got := amqp.Publishing{
					Headers: amqp.Table{}, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, DeliveryMode: m.DeliveryMode, Priority: m.Priority,
					CorrelationId: m.CorrelationId, ReplyTo: m.ReplyTo, Expiration: m.Expiration, MessageId: m.MessageId, Timestamp: m.Timestamp,
					Type: m.Type, UserId: m.UserId, AppId: m.AppId, Body: m.Body,
				}
				for name, value := range m.Headers {
					if !strings.HasPrefix(name, backend.HeaderPrefix) && !isDeath(name) {
						got.Headers[name] = value
					}
				}
				require.Equal(t, sent, got, when)
				require.Len(t, d.Headers, len(headers()), when)
				require.Equal(t, "123.45", d.Headers["decimal"], when)
			}
			d := receiveOne(t, sub)
			whole(d, "as it was sent")
			require.Equal(t, time.Unix(1700000000, 0), d.FirstEnqueuedAt)
			for _, s := range []backend.Settlement{retry(0), retry(20 * time.Millisecond), release, retry(time.Millisecond)} {
				require.NoError(t, settle(sub, d, s))
				d = receiveOne(t, sub)
				whole(d, "after "+s.Outcome.String())
			}
			require.Equal(t, 4, d.Attempt)
			require.NoError(t, settle(sub, d, deadLetter("the end")))
			graves := graves(t, q)
			dead := receiveOne(t, subscribe(t, graves))
			whole(dead, "dead")
			require.Equal(t, 1, dead.Attempt)
			require.Equal(t, "the end", dead.Failure.Error)
			require.Equal(t, q.Name(), dead.Failure.Origin)
			require.Equal(t, time.Unix(1700000000, 0).UTC(), dead.Failure.FirstEnqueuedAt)
			for name := range dead.Raw.(*rabbit.Message).Headers {
				require.NotContains(t, []string{"redeliver-attempt", "redeliver-lapses", "redeliver-band", "x-death"}, name)
			}
		})
	}
}

func isDeath(name string) bool {
	return name == "x-death" || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-") || name == "x-delivery-count" || name == "x-acquired-count"
}

// topicFor makes an exchange that leads all to a queue.
func topicFor(t *testing.T, queues ...string) string {
	t.Helper()
	url, name := brokertest.Rabbit(t), "x-"+queues[0]
	onChannel(t, url, func(ch *amqp.Channel) {
		require.NoError(t, ch.ExchangeDeclare(name, amqp.ExchangeTopic, false, false, false, false, nil))
		for _, queue := range queues {
			require.NoError(t, ch.QueueBind(queue, "#", name, false, nil))
		}
	})
	t.Cleanup(func() {
		onChannel(t, url, func(ch *amqp.Channel) { require.NoError(t, ch.ExchangeDelete(name, false, false)) })
	})
	return name
}

// graves opens the dead-letter queue of a queue.
func graves(t *testing.T, q *rabbit.Queue) *rabbit.Queue {
	t.Helper()
	g, err := rabbit.Open(brokertest.Rabbit(t), q.Name()+"_dlq", rabbit.Options{DeadLetterQueue: q.Name()})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, g.Close(context.Background()))
		remove(t, brokertest.Rabbit(t), g)
	})
	return g
}

// A retry must not go through the producer's exchange again.
func TestARetryReachesTheFailedQueueAlone(t *testing.T) {
	a, b := queue(t, rabbit.Options{}), queue(t, rabbit.Options{Type: rabbit.Classic})
	send(t, topicFor(t, a.Name(), b.Name()), "orders.new", amqp.Publishing{MessageId: "m", Headers: amqp.Table{"CC": []any{b.Name()}}})
	subA, subB := subscribe(t, a), subscribe(t, b)
	require.NoError(t, settle(subB, receiveOne(t, subB), ack))
	for _, s := range []backend.Settlement{retry(0), retry(10 * time.Millisecond), release, deadLetter("x")} {
		require.NoError(t, settle(subA, receiveOne(t, subA), s))
	}
	require.Equal(t, "x", receiveOne(t, subscribe(t, graves(t, a))).Failure.Error)
	requireNothing(t, subB)
	requireNothing(t, subA)
}

// requireNothing fails if something comes.
func requireNothing(t *testing.T, sub backend.Subscription) {
	t.Helper()
	ds, err := receiveFor(sub, 200*time.Millisecond)
	require.ErrorIs(t, err, errTimeout)
	require.Empty(t, ds)
}

// Others write headers too, and what they say is not to be trusted further than it has to be.
func TestForgedHeadersDoNoHarm(t *testing.T) {
	t.Parallel()
	for _, kind := range []rabbit.Type{rabbit.Quorum, rabbit.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			q := queue(t, rabbit.Options{Type: kind})
			sub := subscribe(t, q)
			death := amqp.Table{"count": int64(7), "reason": "expired", "queue": q.Name(), "exchange": q.Name() + ".retry", "routing-keys": []any{"a"}, "time": time.Unix(1, 0)}
			var msgs []amqp.Publishing
			for _, h := range []amqp.Table{
				{"redeliver-attempt": "3"}, {"redeliver-attempt": int64(-1)}, {"redeliver-attempt": int32(99)}, {"redeliver-attempt": amqp.Table{}},
				{"redeliver-lapses": int64(math.MaxInt64), "redeliver-snoozes": float64(2)},
				{"redeliver-waits": int64(3)}, // without a record
				{"redeliver-failure": "{broken", "redeliver-enqueued": "yesterday", "redeliver-exchange": int64(1), "redeliver-band": "1s"},
				{"x-death": []any{death, death}, "x-first-death-queue": "q", "x-last-death-reason": "expired", "x-delivery-count": int64(50)},
				{"x-death": "nonsense", "CC": []any{"nowhere"}},
			} {
				msgs = append(msgs, amqp.Publishing{MessageId: "m" + string(rune('0'+len(msgs))), Headers: h})
			}
			send(t, "", q.Name(), msgs...)
			got := make(map[string]*backend.Delivery)
			for _, d := range receive(t, sub, len(msgs)) {
				got[d.ID] = d
				require.Nil(t, d.Failure)
				require.Zero(t, d.DeadLetterWaits)
				require.Empty(t, d.Headers)
			}
			attempts := map[string]int{"m0": 3, "m2": 99}
			for id, d := range got {
				require.Equal(t, max(attempts[id], 1), d.Attempt, id)
				if id != "m4" {
					require.Zero(t, d.Lapses, id)
				}
			}
			require.Equal(t, 2, got["m4"].Snoozes)
			// RabbitMQ drops messages that it thinks go round in circles, and follows CC again.
			const rounds = 10
			for range rounds {
				var batch []backend.Settlement
				for _, d := range got {
					s := retry(time.Millisecond)
					s.Delivery = d
					batch = append(batch, s)
				}
				require.NoError(t, sub.Settle(t.Context(), batch))
				clear(got)
				for _, d := range receive(t, sub, len(msgs)) {
					require.NotContains(t, got, d.ID)
					got[d.ID] = d
				}
			}
			for id, d := range got {
				require.Equal(t, max(attempts[id], 1)+rounds, d.Attempt, id)
			}
		})
	}
}
