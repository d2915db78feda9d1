package main

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/internal/brokertest"
)

func TestOrdersGoThroughRabbitMQ(t *testing.T) {
	url := brokertest.Rabbit(t)
	name := "example_" + strings.ToLower(backend.NewID()[:10])
	brokertest.RemoveRabbitQueue(t, url, name)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, url, name))
	text := out.String()
	require.Equal(t, 4, strings.Count(text, "baked"), text)
	require.Contains(t, text, `"reason": "permanent"`)
	require.Contains(t, text, `"error": "the pineapple is missing"`)
	require.Contains(t, text, `"attempts": 6`)
	require.Contains(t, text, "redeliver-enqueued: ")
	require.Contains(t, text, "rabbitmqctl delete_queue "+name+".retry.v1.4220ms")

	// The waits double, and none is shorter than planned.
	attempts := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[1] != "hawaii" {
			continue
		}
		attempts++
		require.Equal(t, strconv.Itoa(attempts), fields[2], line)
		if attempts == 1 {
			continue
		}
		planned, err := time.ParseDuration(fields[3])
		require.NoError(t, err, line)
		waited, err := time.ParseDuration(fields[4])
		require.NoError(t, err, line)
		require.InEpsilon(t, 250*time.Millisecond<<(attempts-2), planned, 0.11, line)
		require.GreaterOrEqual(t, waited, planned, line)
	}
	require.Equal(t, 6, attempts, text)
}

func TestRabbitMQIsRequired(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), io.Discard, "", "orders"), "REDELIVER_RABBIT_URL")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	err = run(t.Context(), io.Discard, "amqp://guest:guest@"+l.Addr().String()+"/", "orders")
	require.ErrorContains(t, err, "connection refused")
}
