package pgmq_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// network makes connections that can be cut at the worst moment: when the server has done what it was asked to, and its
// answer is on its way.
type network struct{ cut atomic.Bool }

func (n *network) dial(config *pgxpool.Config) {
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &link{conn, n}, nil
	}
}

type link struct {
	net.Conn
	network *network
}

func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if err == nil && l.network.cut.CompareAndSwap(true, false) {
		l.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// warm prepares the statements of a way out, so that the next cut meets the statement itself.
func warm(t *testing.T, q *pgmq.Queue, sub backend.Subscription, s backend.Settlement) {
	t.Helper()
	publish(t, q, `0`)
	s.Delay = 0
	d := receiveOne(t, sub)
	require.NoError(t, settle(sub, d, s))
	if s.Outcome == backend.Retry || s.Outcome == backend.Release {
		require.NoError(t, settle(sub, receiveOne(t, sub), ack))
	}
}

// unconfirmed settles a delivery whose confirmation is lost with the connection.
func unconfirmed(t *testing.T, s backend.Settlement, opts pgmq.Options) (*pgxpool.Pool, *pgmq.Queue, backend.Subscription, *backend.Delivery) {
	t.Helper()
	p := pool(t)
	var net network
	bad := pool(t, net.dial, func(c *pgxpool.Config) { c.MaxConns = 1 })
	plain := queue(t, p, opts)
	q, err := pgmq.Open(bad, plain.Name(), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, q.Close(context.Background()))
		bad.Close()
	})
	sub := subscribe(t, q)
	warm(t, q, sub, s)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	net.cut.Store(true)
	err = settle(sub, d, s)
	require.ErrorIs(t, err, backend.ErrUnknown)
	require.NotErrorIs(t, err, backend.ErrLeaseLost)
	require.NotErrorIs(t, err, backend.ErrSettled)
	require.False(t, d.Settled())
	require.ErrorIs(t, backend.ErrorAt(sub.Extend(t.Context(), []*backend.Delivery{d}), 0), backend.ErrUnknown)
	return p, q, sub, d
}

func TestALostConfirmationIsUnknownAndSettlesInTheEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		s    backend.Settlement
		opts pgmq.Options
	}{
		"archive": {ack, pgmq.Options{}}, "delete": {ack, pgmq.Options{DeleteOnSuccess: true}}, "discard": {discard, pgmq.Options{}}, "dead-letter": {deadLetter("x"), pgmq.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			p, q, sub, d := unconfirmed(t, tc.s, tc.opts)
			require.Equal(t, 0, count(t, p, "q_"+q.Name()), "it took effect")
			require.NoError(t, settle(sub, d, tc.s))
			require.ErrorIs(t, settle(sub, d, tc.s), backend.ErrSettled)
			if tc.s.Outcome == backend.DeadLetter {
				require.Equal(t, 2, count(t, p, "q_"+q.Name()+"_dlq"), "once, and the one before")
			}
		})
	}
}

func TestALostConfirmationOfARetryCountsOnce(t *testing.T) {
	p, q, sub, d := unconfirmed(t, retry(time.Hour), pgmq.Options{})
	require.NoError(t, settle(sub, d, retry(2*time.Hour)))
	require.JSONEq(t, `{"failures": 1}`, scalar[string](t, p, "SELECT (headers->'redeliver-counts')::text FROM pgmq.q_"+q.Name()))
	require.True(t, scalar[bool](t, p, "SELECT vt > now() + interval '90 min' FROM pgmq.q_"+q.Name()))
}

func TestALostConfirmationBeforeAnotherConsumer(t *testing.T) {
	t.Run("retry that came due", func(t *testing.T) {
		p, q, sub, d := unconfirmed(t, retry(0), pgmq.Options{})
		other, err := pgmq.Open(p, q.Name(), pgmq.Options{})
		require.NoError(t, err)
		held := receiveOne(t, subscribe(t, other))
		require.Equal(t, 2, held.Attempt)
		err = settle(sub, d, retry(0))
		require.ErrorIs(t, err, backend.ErrUnknown)
		require.NotErrorIs(t, err, backend.ErrLeaseLost)
		require.NoError(t, other.Close(t.Context()))
	})
	t.Run("removal that never happened", func(t *testing.T) {
		p, q, sub, d := unconfirmed(t, ack, pgmq.Options{})
		// As if the server had not got it, and the lease had lapsed.
		m := d.Raw.(*pgmq.Message)
		execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (msg_id, read_ct, vt, message) OVERRIDING SYSTEM VALUE VALUES ($1, $2, now() + interval '1 h', '1')", m.MsgID, m.ReadCount+1)
		require.ErrorIs(t, settle(sub, d, ack), backend.ErrLeaseLost)
	})
}

func TestPublishWhoseConfirmationIsLost(t *testing.T) {
	p := pool(t)
	var net network
	bad := pool(t, net.dial, func(c *pgxpool.Config) { c.MaxConns = 1 })
	plain := queue(t, p, pgmq.Options{})
	q, err := pgmq.Open(bad, plain.Name(), pgmq.Options{})
	require.NoError(t, err)
	publish(t, q, `1`)
	net.cut.Store(true)
	require.ErrorIs(t, q.Publish(t.Context(), backend.Message{Body: []byte(`2`)}), backend.ErrUnknown)
	require.Equal(t, 2, count(t, p, "q_"+q.Name()))
	bad.Close()
}

func TestASettlementThatWasNeverSentIsNotUnknown(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	ended, end := context.WithCancel(t.Context())
	end()
	err := sub.Settle(ended, []backend.Settlement{{Delivery: d, Outcome: backend.Ack}})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, backend.ErrUnknown)
	require.NoError(t, settle(sub, d, ack))
}

func TestASettlementThatHangsIsUnknown(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE pgmq.q_"+q.Name())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, sub.Settle(ctx, []backend.Settlement{{Delivery: d, Outcome: backend.Ack}}), backend.ErrUnknown)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, settle(sub, d, ack))
	require.Equal(t, 1, count(t, p, "a_"+q.Name()))
}

func TestAPoolThatIsClosedFirst(t *testing.T) {
	p := pool(t)
	own := pool(t)
	plain := queue(t, p, pgmq.Options{})
	q, err := pgmq.Open(own, plain.Name(), pgmq.Options{})
	require.NoError(t, err)
	sub := subscribe(t, q)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	own.Close()
	_, err = sub.Receive(t.Context(), 1)
	require.ErrorIs(t, err, backend.ErrClosed)
	require.ErrorContains(t, err, "close it after the queue")
	require.ErrorIs(t, settle(sub, d, ack), backend.ErrClosed)
	require.ErrorContains(t, q.Close(t.Context()), "return when their lease ends")
}

func TestAServerThatRestarts(t *testing.T) {
	server := brokertest.Private(t)
	p := poolAt(t, server.URL())
	var out logs
	q, err := pgmq.Open(p, "orders", pgmq.Options{Logger: out.logger(), PollInterval: 20 * time.Millisecond})
	require.NoError(t, err)
	require.NoError(t, q.Create(t.Context()))
	sub := subscribe(t, q)
	publish(t, q, `1`, `2`)
	held := receiveOne(t, sub)
	require.NoError(t, settle(sub, receiveOne(t, sub), retry(time.Second)))

	got := make(chan *backend.Delivery)
	go func() { got <- receiveOne(t, sub) }()
	server.Kill()
	err = settle(sub, held, ack)
	require.Error(t, err)
	require.NotErrorIs(t, err, backend.ErrLeaseLost)
	server.Start()

	d := <-got
	require.Equal(t, 2, d.Attempt)
	require.NoError(t, settle(sub, d, ack))
	await(t, "the delivery from before the crash settles", func() bool {
		err := settle(sub, held, ack)
		return err == nil || errors.Is(err, backend.ErrSettled)
	})
	require.Equal(t, 2, count(t, p, "a_orders"))
	require.Equal(t, 0, count(t, p, "q_orders"))
	require.NoError(t, q.Close(t.Context()))
}
