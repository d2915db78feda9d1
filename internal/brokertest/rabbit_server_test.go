package brokertest

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// One node for all, since each start of one takes seconds.
func TestPrivateRabbit(t *testing.T) {
	rabbitInstalled(t)
	var s *RabbitServer
	outcome := observe(func(tb testing.TB) {
		s = PrivateRabbit(tb)
		address := s.URL()
		publish(tb, dial(tb, address), "classic", "classic")
		publish(tb, dial(tb, address), "quorum", "quorum")
		requireKept(tb, s)

		// A client whose connections are closed, or blocked, is told.
		conn := dial(tb, address)
		blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
		closed := conn.NotifyClose(make(chan *amqp.Error, 1))
		ch, err := conn.Channel()
		require.NoError(tb, err)
		s.BlockPublishers()
		require.NoError(tb, ch.Publish("", "nobody's", false, false, amqp.Publishing{}))
		require.True(tb, receive(tb, blocked).Active)
		s.UnblockPublishers()
		require.False(tb, receive(tb, blocked).Active)
		s.CloseConnections()
		require.Equal(tb, amqp.ConnectionForced, receive(tb, closed).Code)

		ends := []struct {
			name string
			end  func()
		}{{"Stop", s.Stop}, {"Kill", s.Kill}}
		for _, e := range ends {
			e.end()
			_, err := amqp.Dial(address)
			require.ErrorContains(tb, err, "connection refused", e.name)
			s.Start()
			require.Equal(tb, address, s.URL(), e.name)
			requireKept(tb, s)
		}
	})
	require.Empty(t, outcome.failed)
	require.Empty(t, outcome.skipped)
	require.NoDirExists(t, s.data)
	for _, port := range s.ports {
		require.False(t, listens(port), port)
	}
}

func TestPrivateRabbitEndsWithItsProcess(t *testing.T) {
	rabbitInstalled(t)
	requireEndsWithItsProcess(t, "rabbit")
}

// requireKept requires that the node holds, or soon says that it holds, one message
// in each queue.
func requireKept(t testing.TB, s *RabbitServer) {
	t.Helper()
	require.Eventually(t, func() bool {
		queues := s.Queues()
		return len(queues) == 2 && queues["classic"].Messages == 1 && queues["quorum"].Messages == 1
	}, patience, time.Millisecond)
}

func receive[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing was received")
		panic("not reached")
	}
}
