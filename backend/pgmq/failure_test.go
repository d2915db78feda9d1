package pgmq_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// lockQueue keeps everybody else from a queue's table until the function that it returns is called.
func lockQueue(t *testing.T, p *pgxpool.Pool, q *pgmq.Queue) (unlock func()) {
	t.Helper()
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), "LOCK TABLE pgmq.q_"+q.Name())
	require.NoError(t, err)
	return func() {
		t.Helper()
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// The server ends a session in the middle of its statement: nothing happened, and as the client cannot know that, it settles
// again.
func TestASessionThatIsKilledInMidStatement(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	kill := func() {
		t.Helper()
		await(t, "our statement waits for the lock, and is killed", func() bool {
			return scalar[int](t, p, `SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%') killed`, q.Name()) > 0
		})
	}
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	for name, s := range map[string]backend.Settlement{"retry": retry(time.Hour), "dead-letter": deadLetter("x"), "ack": ack} {
		t.Run(name, func(t *testing.T) {
			unlock := lockQueue(t, p, q)
			done := make(chan error, 1)
			go func() { done <- settle(sub, d, s) }()
			kill()
			unlock()
			err := <-done
			require.ErrorIs(t, err, backend.ErrUnknown)
			require.NotErrorIs(t, err, backend.ErrLeaseLost)
			var pg *pgconn.PgError
			require.ErrorAs(t, err, &pg)
			require.Equal(t, "57P01", pg.Code)
			require.Equal(t, 1, count(t, p, "q_"+q.Name()))
		})
	}
	require.NoError(t, settle(sub, d, ack))
	require.Equal(t, 1, count(t, p, "a_"+q.Name()))
	require.Zero(t, count(t, p, "q_"+q.Name()+"_dlq"))

	unlock := lockQueue(t, p, q)
	got := make(chan *backend.Delivery)
	go func() {
		defer close(got)
		got <- receiveOne(t, sub)
	}()
	kill()
	unlock()
	publish(t, q, `2`)
	d, ok := <-got
	require.True(t, ok)
	require.NoError(t, settle(sub, d, ack))
}

// statement_timeout ends a statement, and not its session: nothing happened, and that is known.
func TestAStatementThatTakesTooLong(t *testing.T) {
	p := pool(t)
	hasty := pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "200ms" })
	plain := queue(t, p, pgmq.Options{})
	var out logs
	q, err := pgmq.Open(hasty, plain.Name(), pgmq.Options{Logger: out.logger(), PollInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	sub := subscribe(t, q)
	publish(t, plain, `1`)
	d := receiveOne(t, sub)

	unlock := lockQueue(t, p, q)
	err = settle(sub, d, ack)
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "57014", pg.Code)
	require.NotErrorIs(t, err, backend.ErrUnknown)
	require.NotErrorIs(t, err, backend.ErrLeaseLost)
	require.False(t, d.Settled())
	got := make(chan *backend.Delivery)
	go func() {
		defer close(got)
		got <- receiveOne(t, sub)
	}()
	await(t, "a warning", func() bool { return strings.Contains(out.String(), "57014") })
	unlock()
	require.NoError(t, settle(sub, d, ack))
	publish(t, plain, `2`)
	d, ok := <-got
	require.True(t, ok)
	require.NoError(t, settle(sub, d, ack))
	require.NoError(t, q.Close(t.Context()))
}

// Another client locks the rows of its batches in any order. Whom the server breaks off is chance; ours go on.
func TestDeadlocksWithOtherClients(t *testing.T) {
	theirs := pool(t)
	p := pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["deadlock_timeout"] = "10ms" }) // so that ours notice first, and lose
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	const messages = 100
	fill(t, p, q.Name(), messages)
	ds := receive(t, sub, messages)
	deadlocks := func() int {
		return scalar[int](t, theirs, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	}
	before := deadlocks()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			_ = pgx.BeginFunc(ctx, theirs, func(tx pgx.Tx) error {
				for _, i := range rand.Perm(messages)[:2] {
					if _, err := tx.Exec(ctx, "SELECT pgmq.set_vt($1::text, $2::bigint, 60)", q.Name(), ds[i].Raw.(*pgmq.Message).MsgID); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}()
	for end := time.Now().Add(patience); deadlocks() == before; { // counted with a delay
		require.True(t, time.Now().Before(end), "there was no deadlock")
		require.NoError(t, sub.Extend(t.Context(), ds))
	}
	var batch []backend.Settlement
	for _, d := range ds {
		batch = append(batch, backend.Settlement{Delivery: d, Outcome: backend.Ack})
	}
	require.NoError(t, sub.Settle(t.Context(), batch))
	stop()
	<-stopped
	require.Equal(t, messages, count(t, p, "a_"+q.Name()))
}

// After a crash an unlogged queue is empty, numbers its messages from 1 again, and has an archive that holds those numbers.
func TestAnUnloggedQueueAfterACrash(t *testing.T) {
	t.Parallel()
	server := brokertest.Private(t)
	p := poolAt(t, server.URL())
	var out logs
	q, err := pgmq.Open(p, "orders", pgmq.Options{Logger: out.logger(), PollInterval: 10 * time.Millisecond})
	require.NoError(t, err)
	execute(t, p, "SELECT pgmq.create_unlogged('orders'), pgmq.create('orders_dlq')")
	sub := subscribe(t, q)
	send := func() *backend.Delivery {
		t.Helper()
		execute(t, p, "SELECT pgmq.send('orders', '{}')")
		return receiveOne(t, sub)
	}
	first := send()
	require.NoError(t, settle(sub, first, ack))
	held := send()
	waiting := send()
	require.NoError(t, settle(sub, waiting, retry(time.Hour)))
	server.Kill()
	server.Start()

	await(t, "the pool has forgotten its connections", func() bool { return p.Ping(t.Context()) == nil })
	require.Equal(t, []string{"unlogged"}, codes(t, q))
	require.ErrorIs(t, settle(sub, held, ack), backend.ErrLeaseLost, "it is gone, and nobody pretends that it was archived")
	again := send()
	require.Equal(t, int64(1), again.Raw.(*pgmq.Message).MsgID)
	require.NotEqual(t, first.ID, again.ID, "a handler that remembers IDs must not take it for the first")
	require.NoError(t, settle(sub, again, ack), "though the archive has its number")
	require.Zero(t, count(t, p, "q_orders"))
	require.NoError(t, q.Close(t.Context()))
}

// A server dies and its standby takes over. A pool that leads to the standby waits for that; one that knows both hosts is on
// the right one before and after, and what was claimed before is settled after.
func TestFailoverToAStandby(t *testing.T) {
	t.Parallel()
	primary := brokertest.Private(t)
	p := poolAt(t, primary.URL())
	plain, err := pgmq.Open(p, "orders", pgmq.Options{})
	require.NoError(t, err)
	require.NoError(t, plain.Create(t.Context()))
	standby := primary.Standby()

	var out logs
	far := poolAt(t, standby.URL())
	waiting, err := pgmq.Open(far, "orders", pgmq.Options{Logger: out.logger(), PollInterval: 10 * time.Millisecond, Listen: far.Config().ConnConfig})
	require.NoError(t, err)
	hosts := strings.TrimPrefix(standby.URL()[:strings.LastIndex(standby.URL(), "/")], "postgres://postgres@")
	both := poolAt(t, strings.Replace(primary.URL(), "@", "@"+hosts+",", 1)+"&target_session_attrs=read-write")
	quiet := new(logs)
	following, err := pgmq.Open(both, "orders", pgmq.Options{Logger: quiet.logger(), PollInterval: 10 * time.Millisecond})
	require.NoError(t, err)

	sub := subscribe(t, following)
	publish(t, plain, `"held"`, `"waits"`)
	held := receiveOne(t, sub)
	require.Equal(t, `"held"`, string(held.Body))
	require.Equal(t, []string{"read_only", "listen_silent"}, codes(t, waiting))
	on := subscribe(t, waiting)
	err = waiting.Publish(t.Context(), backend.Message{Body: []byte(`1`)})
	require.ErrorContains(t, err, "target_session_attrs=read-write")
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "25006", pg.Code)
	got := make(chan *backend.Delivery)
	go func() {
		defer close(got)
		got <- receiveOne(t, on)
	}()
	for _, text := range []string{"cannot receive", "cannot listen"} {
		await(t, text, func() bool { return strings.Contains(out.String(), text) && strings.Contains(out.String(), "25006") })
	}
	await(t, "the standby has the claim", func() bool { return scalar[int](t, far, "SELECT max(read_ct) FROM pgmq.q_orders") == 1 })

	primary.Kill()
	err = settle(sub, held, ack)
	require.Error(t, err)
	require.NotErrorIs(t, err, backend.ErrLeaseLost)
	standby.Promote()
	d, ok := <-got
	require.True(t, ok)
	require.Equal(t, `"waits"`, string(d.Body))
	require.NoError(t, settle(on, d, ack))
	await(t, "the delivery from before settles", func() bool { return settle(sub, held, ack) == nil })
	require.Equal(t, 2, count(t, far, "a_orders"))
	for _, q := range []*pgmq.Queue{waiting, following} {
		require.NoError(t, q.Close(t.Context()))
	}
}
