package rabbit_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// commands returns the block of commands of the page for operators that holds a text.
func commands(t *testing.T, holds string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/rabbitmq.md")
	require.NoError(t, err)
	var found []string
	for _, block := range strings.Split(string(page), "```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.Contains(block, holds) {
			found = append(found, block)
		}
	}
	require.Len(t, found, 1, holds)
	return found[0]
}

// The package comment names the permissions that the page has.
func TestPermissionsAreToldTwiceTheSame(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, comment, found := strings.Cut(string(source), "//	configure  ")
	require.True(t, found)
	fields := strings.Fields(comment)
	require.Equal(t, []string{"//", "write"}, fields[1:3])
	require.Equal(t, []string{"//", "read"}, fields[4:6])
	granted := "'" + fields[0] + "' '" + fields[3] + "' '" + fields[6] + "'"
	require.Equal(t, "rabbitmqctl set_permissions orders_all "+granted+"\n", commands(t, "set_permissions orders_all"))
}

// What docs/rabbitmq.md tells operators to type does what it says there.
func TestOperatorsSeeBringBackAndDeleteWhatWaits(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	q, err := rabbit.Open(s.URL(), "orders", rabbit.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close(context.Background())) })
	require.NoError(t, q.Create(t.Context()))
	sub := subscribe(t, q)
	park := func() {
		t.Helper()
		publish(t, q, "m1", "m2")
		require.NoError(t, sub.Settle(t.Context(), all(retry(time.Hour), receive(t, sub, 2))))
	}
	sees := func(line string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return strings.Contains(s.Shell(commands(t, "list_queues name messages messages_ready")), line)
		}, patience, time.Millisecond, line)
	}
	park()
	sees("orders.retry.v1.3830s\t2\t2\n")

	s.Shell(commands(t, "set_parameter shovel"))
	for _, d := range receive(t, sub, 2) {
		require.Equal(t, 2, d.Attempt)
		raw := d.Raw.(*rabbit.Message)
		require.Empty(t, raw.Delivery.Expiration, "nothing drops it")
		require.Equal(t, "orders", raw.RoutingKey)
		require.NoError(t, settle(sub, d, ack))
	}
	sees("orders.retry.v1.3830s\t0\t0\n")

	s.Shell(commands(t, "delete_queue orders.retry.v1.3830s"))
	require.NotContains(t, s.Queues(), "orders.retry.v1.3830s")
	park()
	sees("orders.retry.v1.3830s\t2\t2\n")
	publish(t, q, "m3")
	d := receiveOne(t, sub)
	require.NoError(t, settle(sub, d, retry(time.Minute)))
	s.Shell(commands(t, "xargs"))
	require.Len(t, s.Queues(), 2, "orders and its dead letters")

	// What is looked up there is found.
	require.Contains(t, s.Shell(commands(t, "list_policies")), "1800000")
	s.Shell(commands(t, "delivery-limit"))
	require.Contains(t, s.Shell(commands(t, "list_policies")), `{"delivery-limit":1000}`)
	require.Contains(t, s.Shell(commands(t, "rabbitmq-diagnostics")), "no alarms")
}

// What waits outlives that its way back is deleted, and Declare mends that.
func TestDeclareMendsWhatWasDeleted(t *testing.T) {
	t.Parallel()
	s := brokertest.PrivateRabbit(t)
	s.Ctl("eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 500).") // instead of three minutes
	q := queueAt(t, s.URL(), rabbit.Options{})
	sub := subscribe(t, q)
	publish(t, q, "m")
	require.NoError(t, settle(sub, receiveOne(t, sub), retry(time.Second)))
	onChannel(t, s.URL(), func(ch *amqp.Channel) { require.NoError(t, ch.ExchangeDelete(q.Name()+".retry.return", false, false)) })
	require.Eventually(t, func() bool {
		// As the page says: more messages than are ready.
		parked := s.Queues()[q.Name()+".retry.v1.1s"]
		return parked.Messages == 1 && parked.Ready == 0
	}, patience, time.Millisecond)
	_, err := receiveFor(sub, 100*time.Millisecond)
	require.ErrorIs(t, err, errTimeout)
	require.NoError(t, q.Declare(t.Context()))
	require.Equal(t, "m", receiveOne(t, sub).ID)
	require.NoError(t, sub.Close(t.Context()))
}
