package brokertest

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestRabbitParksInQuorumQueues(t *testing.T) {
	conn := dial(t, Rabbit(t))
	queue := fmt.Sprintf("brokertest-%d", time.Now().UnixNano())
	publish(t, conn, queue, "quorum")
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDelete(queue, false, false, false)
	require.NoError(t, err)
}

func TestRabbitIsSkippedOrRequired(t *testing.T) {
	t.Setenv("REDELIVER_RABBIT_URL", "")

	t.Setenv("REDELIVER_REQUIRE_BROKERS", "")
	outcome := observe(func(tb testing.TB) { Rabbit(tb) })
	require.Contains(t, outcome.skipped, "REDELIVER_RABBIT_URL is not set")
	require.Empty(t, outcome.failed)

	t.Setenv("REDELIVER_REQUIRE_BROKERS", "1")
	outcome = observe(func(tb testing.TB) { Rabbit(tb) })
	require.Contains(t, outcome.failed, "REDELIVER_RABBIT_URL is not set")
	require.Empty(t, outcome.skipped)
}

func TestRabbitThatIsNamedMustAnswer(t *testing.T) {
	t.Setenv("REDELIVER_REQUIRE_BROKERS", "")
	t.Setenv("REDELIVER_RABBIT_URL", fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", freePort(t)))
	outcome := observe(func(tb testing.TB) { Rabbit(tb) })
	require.Contains(t, outcome.failed, "connection refused")
	require.Empty(t, outcome.skipped)
}

func TestLinkCutsRabbit(t *testing.T) {
	link := Proxy(t, Rabbit(t))
	conn := dial(t, link.URL())
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	link.Refuse()
	link.Cut()
	require.NotNil(t, <-closed)
	_, err := amqp.Dial(link.URL())
	require.Error(t, err)
	link.Restore()
	dial(t, link.URL())
}

func dial(t testing.TB, url string) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // which fails where the test has cut it
	return conn
}

// publish declares a queue of the given type and publishes one message to it, which
// the broker confirms.
func publish(t testing.TB, conn *amqp.Connection, queue, kind string) {
	t.Helper()
	ch, err := conn.Channel()
	require.NoError(t, err)
	defer ch.Close()
	require.NoError(t, ch.Confirm(false))
	_, err = ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": kind})
	require.NoError(t, err)
	confirmation, err := ch.PublishWithDeferredConfirm("", queue, true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("kept")})
	require.NoError(t, err)
	require.True(t, confirmation.Wait())
}
