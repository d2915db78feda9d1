package rabbit_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

func TestWhatAQueueIsCanBeLearnt(t *testing.T) {
	url := brokertest.Rabbit(t)
	for name, c := range map[string]struct {
		args amqp.Table
		kind rabbit.Type
		want map[string]any
	}{
		"classic":           {amqp.Table{"x-queue-type": "classic"}, rabbit.Classic, map[string]any{}},
		"classic, untold":   {nil, rabbit.Classic, map[string]any{}},
		"classic with more": {amqp.Table{"x-max-length": int32(5), "x-dead-letter-exchange": "it's"}, rabbit.Classic, map[string]any{"x-max-length": int64(5), "x-dead-letter-exchange": "it's"}},
		"quorum":            {amqp.Table{"x-queue-type": "quorum"}, rabbit.Quorum, map[string]any{}},
		"quorum with more": {
			amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(7), "x-single-active-consumer": true, "x-overflow": "reject-publish", "x-max-length-bytes": int64(1 << 40)}, rabbit.Quorum,
			map[string]any{"x-delivery-limit": int64(7), "x-single-active-consumer": true, "x-overflow": "reject-publish", "x-max-length-bytes": int64(1 << 40)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(t, rabbit.Options{})
			deleteQueue(t, url, q.Name())
			onChannel(t, url, func(ch *amqp.Channel) {
				_, err := ch.QueueDeclare(q.Name(), true, false, false, false, c.args)
				require.NoError(t, err)
			})
			kind, args, err := q.Probe(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.kind, kind)
			require.Equal(t, c.want, args)
		})
	}
}
