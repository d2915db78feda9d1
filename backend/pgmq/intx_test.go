package pgmq_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// effects creates a table beside the queue, with a row for each effect of a handler.
func effects(tb testing.TB, p *pgxpool.Pool, q *pgmq.Queue) (table string) {
	tb.Helper()
	table = "effects_" + q.Name()
	execute(tb, p, "CREATE TABLE "+table+" (id text, CONSTRAINT "+table+"_once UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)")
	tb.Cleanup(func() { execute(tb, p, "DROP TABLE "+table) })
	return table
}

// take has a handler of InTx that leaves one effect for each message, and then ends as then says.
func take(table string, then func(ctx context.Context, tx pgx.Tx) error) func(context.Context, *backend.Delivery) error {
	return pgmq.InTx(func(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error {
		if _, err := tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", d.ID); err != nil {
			return err
		}
		return then(ctx, tx)
	})
}

var errBoom = errors.New("boom")

func succeed(context.Context, pgx.Tx) error { return nil }
func fail(context.Context, pgx.Tx) error    { return errBoom }

func TestEffectAndAckAreCommittedTogether(t *testing.T) {
	for name, tc := range map[string]struct {
		opts pgmq.Options
		mode pgx.QueryExecMode
	}{
		"archive": {mode: pgx.QueryExecModeCacheStatement}, "delete": {pgmq.Options{DeleteOnSuccess: true}, pgx.QueryExecModeCacheStatement},
		// What poolers need.
		"cached descriptions": {mode: pgx.QueryExecModeCacheDescribe}, "no preparation": {mode: pgx.QueryExecModeExec}, "simple protocol": {mode: pgx.QueryExecModeSimpleProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			opts := tc.opts
			p := pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = tc.mode })
			q := queue(t, p, opts)
			table := effects(t, p, q)
			sub := subscribe(t, q)
			publish(t, q, `1`)
			d := receiveOne(t, sub)
			require.NoError(t, take(table, func(ctx context.Context, tx pgx.Tx) error {
				require.Zero(t, scalar[int](t, p, "SELECT count(*) FROM "+table))
				require.Equal(t, 1, count(t, p, "q_"+q.Name()))
				var left int
				require.NoError(t, tx.QueryRow(ctx, "SELECT count(*) FROM pgmq.q_"+q.Name()).Scan(&left))
				require.Zero(t, left, "the message is out of the queue before the handler begins")
				return nil
			})(t.Context(), d))
			require.True(t, d.Settled())
			require.Equal(t, 1, scalar[int](t, p, "SELECT count(*) FROM "+table))
			require.Zero(t, count(t, p, "q_"+q.Name()))
			publish(t, q, `2`)
			failed := receiveOne(t, sub)
			require.ErrorIs(t, take(table, fail)(t.Context(), failed), errBoom)
			require.NoError(t, settle(sub, failed, retry(time.Hour)))
			require.Equal(t, 1, count(t, p, "q_"+q.Name()))
			if !opts.DeleteOnSuccess {
				require.Equal(t, 1, count(t, p, "a_"+q.Name()))
			}
			require.ErrorIs(t, settle(sub, d, ack), backend.ErrSettled)
			require.ErrorIs(t, take(table, succeed)(t.Context(), d), backend.ErrSettled)
		})
	}
}

func TestAHandlerThatFailsLeavesNothing(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	table := effects(t, p, q)
	sub := subscribe(t, q)
	for name, tc := range map[string]struct {
		then func(ctx context.Context, tx pgx.Tx) error
		says string
	}{
		"error":                            {fail, "boom"},
		"statement fails":                  {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "SELECT 1/0"); return err }, "division by zero"},
		"statement's error is passed over": {func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil }, "return the statement's error"},
		"its own savepoint":                {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Begin(ctx); return errors.Join(err, errBoom) }, "boom"},
		"refused at commit": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+table+" SELECT id FROM "+table)
			return err
		}, "_once"},
		"ends it by itself":     {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, "InTx ends this transaction"},
		"ends it the other way": {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, "InTx ends this transaction"},
		"connection killed":     {kill, "57P01"},
		"connection closed":     {func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) }, "closed"},
		"context over": {func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		}, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			publish(t, q, `1`)
			d := receiveOne(t, sub)
			require.ErrorContains(t, take(table, tc.then)(t.Context(), d), tc.says)
			require.False(t, d.Settled())
			// Where the connection broke, the server may need a moment to see it.
			await(t, "the failure is settled", func() bool {
				err := settle(sub, d, retry(time.Hour))
				require.True(t, err == nil || errors.Is(err, backend.ErrUnknown), "%v", err)
				return err == nil
			})
			require.Zero(t, scalar[int](t, p, "SELECT count(*) FROM "+table))
			require.Zero(t, count(t, p, "a_"+q.Name()))
			require.True(t, scalar[bool](t, p, "SELECT bool_and(vt > now() + interval '59 min' AND headers->'redeliver-counts'->>'failures' = '1') FROM pgmq.q_"+q.Name()))
		})
	}
}

// kill ends the handler's connection from the server's side, as an administrator or a crash would.
func kill(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
	return err
}

func TestAPanicRollsBack(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	table := effects(t, p, q)
	sub := subscribe(t, q)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	require.PanicsWithError(t, "boom", func() {
		_ = take(table, func(context.Context, pgx.Tx) error { panic(errBoom) })(t.Context(), d)
	})
	require.NoError(t, settle(sub, d, retry(0)))
	d = receiveOne(t, sub)
	require.Equal(t, 2, d.Attempt)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = take(table, func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil })(t.Context(), d)
	}()
	<-ended
	require.NoError(t, settle(sub, d, retry(0)))
	require.NoError(t, take(table, succeed)(t.Context(), receiveOne(t, sub)))
	require.Equal(t, 1, scalar[int](t, p, "SELECT count(*) FROM "+table))
	require.Zero(t, p.Stat().AcquiredConns(), "the connections are back in the pool")
}

// after calls a function when a statement that holds some text has ended, before the client sends anything else.
type after struct {
	text string
	call func()
}

func (a *after) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, a, data.SQL)
}

func (a *after) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(a).(string); strings.Contains(sql, a.text) {
		a.call()
	}
}

// The row lock is the lease: claims pass the message by after its vt, and a failure is settled by the one who held it.
func TestALockedRowIsPassedByAfterItsLease(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{PollInterval: 5 * time.Millisecond})
	table := effects(t, p, q)
	thief := subscribe(t, q)
	looks := 0
	look := func() {
		looks++
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := thief.Receive(ctx, 10)
		require.ErrorIs(t, err, context.DeadlineExceeded, "the message is there for others")
	}
	traced := pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &after{"ROLLBACK TO SAVEPOINT", look} })
	own, err := pgmq.Open(traced, q.Name(), pgmq.Options{})
	require.NoError(t, err)
	publish(t, q, `1`)
	sub := subscribeFor(t, own, 2*time.Second)
	d := receiveOne(t, sub)
	overdue := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep_until($1)", d.Raw.(*pgmq.Message).VisibleAt.Add(100*time.Millisecond))
		look()
		return errors.Join(err, errBoom)
	}
	require.ErrorIs(t, take(table, overdue)(t.Context(), d), errBoom)
	look()
	require.Equal(t, 3, looks, "in the handler, amid the rollback, and after it")
	require.NoError(t, settle(sub, d, retry(time.Hour)))
	require.Equal(t, `{"failures": 1}`, scalar[string](t, p, "SELECT (headers->'redeliver-counts')::text FROM pgmq.q_"+q.Name()))
}

// No statement that deals with other messages too may wait for a handler's transaction.
func TestNeighboursDoNotWaitForATransaction(t *testing.T) {
	for name, run := range map[string]func(p *pgxpool.Pool, d *backend.Delivery, inside func() error) error{
		"InTx": func(_ *pgxpool.Pool, d *backend.Delivery, inside func() error) error {
			return pgmq.InTx(func(context.Context, pgx.Tx, *backend.Delivery) error { return inside() })(context.Background(), d)
		},
		"CompleteTx": func(p *pgxpool.Pool, d *backend.Delivery, inside func() error) error {
			return complete(context.Background(), p, d, inside)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := pool(t)
			q := queue(t, p, pgmq.Options{})
			sub := subscribe(t, q)
			publish(t, q, `1`, `2`, `3`)
			ds := receive(t, sub, 3)
			err := run(p, ds[0], func() error {
				require.False(t, ds[0].Extending())
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				err := sub.Extend(ctx, ds)
				require.ErrorIs(t, backend.ErrorAt(err, 0), backend.ErrSettled)
				require.NoError(t, backend.ErrorAt(err, 1))
				require.NoError(t, backend.ErrorAt(err, 2))

				// A consumer that gives a handler up settles its message while the transaction is still open.
				given := retry(time.Hour)
				given.Delivery = ds[0]
				other := ack
				other.Delivery = ds[1]
				err = sub.Settle(ctx, []backend.Settlement{given, other})
				require.ErrorIs(t, backend.ErrorAt(err, 0), backend.ErrUnknown)
				require.NoError(t, backend.ErrorAt(err, 1))
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 2, count(t, p, "a_"+q.Name()))
			require.Equal(t, name == "InTx", ds[0].Settled())
			require.ErrorIs(t, settle(sub, ds[0], retry(time.Hour)), backend.ErrSettled)
			require.NoError(t, settle(sub, ds[2], ack))
			require.NoError(t, sub.Close(t.Context()))
		})
	}
}

func complete(ctx context.Context, p *pgxpool.Pool, d *backend.Delivery, inside func() error) error {
	return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
		if err := pgmq.CompleteTx(ctx, tx, d); err != nil {
			return err
		}
		return inside()
	})
}

func TestALostLeaseIsSeenBeforeTheHandlerRuns(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	for name, run := range map[string]func(*backend.Delivery, func() error) error{
		"InTx": func(d *backend.Delivery, inside func() error) error {
			return pgmq.InTx(func(context.Context, pgx.Tx, *backend.Delivery) error { return inside() })(t.Context(), d)
		},
		"CompleteTx": func(d *backend.Delivery, inside func() error) error { return complete(t.Context(), p, d, inside) },
	} {
		t.Run(name, func(t *testing.T) {
			publish(t, q, `1`)
			stale := receiveOne(t, subscribeFor(t, q, time.Millisecond))
			sub := subscribe(t, q)
			d := receiveOne(t, sub)
			err := run(stale, func() error { t.Error("the handler ran"); return nil })
			require.ErrorIs(t, err, backend.ErrLeaseLost)
			require.ErrorContains(t, run(&backend.Delivery{}, nil), "was not received from PGMQ")
			require.NoError(t, run(d, func() error { return nil }))
			require.Zero(t, count(t, p, "q_"+q.Name()))
			require.Zero(t, p.Stat().AcquiredConns())
		})
	}
}

// When the connection breaks in COMMIT, the queue tells what became of it.
func TestACommitWhoseAnswerIsLost(t *testing.T) {
	for name, tookEffect := range map[string]bool{"took effect": true, "did not": false} {
		t.Run(name, func(t *testing.T) {
			p := pool(t)
			var net network
			bad := pool(t, net.dial, func(c *pgxpool.Config) { c.MaxConns = 1 })
			plain := queue(t, p, pgmq.Options{})
			table := effects(t, p, plain)
			q, err := pgmq.Open(bad, plain.Name(), pgmq.Options{})
			require.NoError(t, err)
			sub := subscribe(t, q)
			publish(t, q, `1`)
			d := receiveOne(t, sub)
			if !tookEffect {
				execute(t, p, "INSERT INTO "+table+" VALUES ($1)", d.ID) // the server will refuse the commit
			}
			err = take(table, func(context.Context, pgx.Tx) error {
				net.cut.Store(true)
				return nil
			})(t.Context(), d)
			if tookEffect {
				require.NoError(t, err)
				require.True(t, d.Settled())
				require.Equal(t, 1, scalar[int](t, p, "SELECT count(*) FROM "+table))
			} else {
				require.ErrorContains(t, err, "rolled back")
				require.NotErrorIs(t, err, backend.ErrUnknown, "it was found out")
				require.NoError(t, settle(sub, d, retry(time.Hour)))
				require.Equal(t, 1, count(t, p, "q_"+q.Name()))
			}
			require.NoError(t, q.Close(t.Context()))
			bad.Close()
		})
	}
}

func TestCompleteTxSettlesWithTheHandlersOwnTransaction(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	require.ErrorIs(t, complete(t.Context(), p, d, func() error { return errBoom }), errBoom)
	require.NoError(t, settle(sub, d, retry(0)))

	d = receiveOne(t, sub)
	require.Equal(t, 2, d.Attempt)
	require.NoError(t, complete(t.Context(), p, d, func() error { return nil }))
	require.ErrorIs(t, complete(t.Context(), p, d, func() error { return nil }), backend.ErrSettled)
	require.NoError(t, settle(sub, d, ack), "it is a success")
	require.ErrorIs(t, settle(sub, d, ack), backend.ErrSettled)
	require.Equal(t, 1, count(t, p, "a_"+q.Name()))
}

// A consumer that shuts down cancels handlers; their messages are given back unharmed.
func TestAShutdownRollsBackAndReleases(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	table := effects(t, p, q)
	publish(t, q, `1`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := &consumer.Consumer{
		Queue: q, Policy: policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(time.Second)}, Grace: -1,
		Handler: consumer.HandlerFunc(take(table, func(ctx context.Context, tx pgx.Tx) error {
			stop()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)") // which may begin after the request to cancel it
			return err
		})),
	}
	require.NoError(t, c.Run(ctx))
	require.Zero(t, scalar[int](t, p, "SELECT count(*) FROM "+table))
	d := receiveOne(t, subscribe(t, q))
	require.Equal(t, 1, d.Attempt)
	require.Zero(t, d.Lapses)
}

// The server ends a transaction whose client is out of reach, when its handler's time is up.
func TestATransactionIsNotLeftIdleForEver(t *testing.T) {
	const setting = "idle_in_transaction_session_timeout"
	p := pool(t)
	plain := queue(t, p, pgmq.Options{})
	for name, tc := range map[string]struct{ server, inside string }{
		"no limit":         {"0", `^35\d{5}ms$`},
		"the server's own": {"7s", "^7s$"},
	} {
		t.Run(name, func(t *testing.T) {
			own := pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[setting] = tc.server })
			q, err := pgmq.Open(own, plain.Name(), pgmq.Options{})
			require.NoError(t, err)
			sub := subscribe(t, q)
			publish(t, q, `1`)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			var inside string
			require.NoError(t, pgmq.InTx(func(ctx context.Context, tx pgx.Tx, _ *backend.Delivery) error {
				return tx.QueryRow(ctx, "SHOW "+setting).Scan(&inside)
			})(ctx, receiveOne(t, sub)))
			require.Regexp(t, tc.inside, inside)
			require.Equal(t, tc.server, scalar[string](t, own, "SHOW "+setting), "after it")
		})
	}
}

// The stress of effects: handlers that outlive their lease, panic, and lose their connection after the effect, with and
// without the message going back by itself.
func TestEffectsHappenOnceUnderStress(t *testing.T) {
	const messages, consumers, handlers = 500, 4, 4
	p := pool(t, func(c *pgxpool.Config) { c.MaxConns = 24 })
	q := queue(t, p, pgmq.Options{})
	table := "effects_" + q.Name()
	execute(t, p, "CREATE TABLE "+table+" (id text)")
	t.Cleanup(func() { execute(t, p, "DROP TABLE "+table) })

	var running sync.Map // of message ID to the number of its handlers that run
	var overlaps, died, overran atomic.Int32
	handle := func(n *atomic.Int32) func(context.Context, *backend.Delivery) error {
		return pgmq.InTx(func(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error {
			now, _ := running.LoadOrStore(d.ID, new(atomic.Int32))
			if now.(*atomic.Int32).Add(1) > 1 {
				overlaps.Add(1)
			}
			defer now.(*atomic.Int32).Add(-1)
			if _, err := tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", d.ID); err != nil {
				return err
			}
			switch i := n.Add(1); {
			case i%10 == 0:
				overran.Add(1)
				_, err := tx.Exec(ctx, "SELECT pg_sleep(0.45)")
				return err
			case i%20 == 1:
				died.Add(1)
				return kill(ctx, tx)
			case i%20 == 2:
				died.Add(1)
				panic("died")
			case i%20 == 3:
				overran.Add(1)
				_, err := tx.Exec(ctx, "SELECT pg_sleep(0.45)")
				return errors.Join(err, errBoom)
			}
			return nil
		})
	}
	bodies := make([]string, messages)
	for i := range bodies {
		bodies[i] = fmt.Sprint(i)
	}
	publish(t, q, bodies...)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var runs sync.WaitGroup
	var n atomic.Int32
	for range consumers {
		own, err := pgmq.Open(p, q.Name(), pgmq.Options{PollInterval: 20 * time.Millisecond})
		require.NoError(t, err)
		c := &consumer.Consumer{
			Queue: own, Handler: consumer.HandlerFunc(handle(&n)), Concurrency: handlers, Lease: 200 * time.Millisecond, Logger: new(logs).logger(),
			Policy: policy.Policy{MaxAttempts: 50, MaxLapses: 50, Backoff: policy.Fixed(20 * time.Millisecond)},
		}
		runs.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	await(t, "the queue is empty", func() bool { return count(t, p, "q_"+q.Name()) == 0 })
	stop()
	runs.Wait()
	require.Equal(t, messages, scalar[int](t, p, "SELECT count(DISTINCT id) FROM "+table), "no effect is missing")
	require.Equal(t, messages, scalar[int](t, p, "SELECT count(*) FROM "+table), "no effect is there twice")
	require.Equal(t, messages, count(t, p, "a_"+q.Name()))
	require.Zero(t, overlaps.Load(), "executions at the same time")
	require.NotZero(t, died.Load())
	require.NotZero(t, overran.Load())
}

func TestMessagesSentInATransaction(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	next := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	forward := func(then error) func(context.Context, *backend.Delivery) error {
		return pgmq.InTx(func(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error {
			err := next.PublishTx(ctx, tx, backend.Message{ID: "a", Body: []byte(`1`)}, backend.Message{ID: "b", Body: []byte(`2`), Headers: map[string]string{"k": "v"}})
			return errors.Join(err, then)
		})
	}
	d := receiveOne(t, sub)
	require.ErrorIs(t, forward(errBoom)(t.Context(), d), errBoom)
	require.Zero(t, count(t, p, "q_"+next.Name()))
	require.NoError(t, settle(sub, d, retry(0)))

	d = receiveOne(t, sub)
	require.NoError(t, forward(nil)(t.Context(), d))
	got := receive(t, subscribe(t, next), 2)
	require.Equal(t, []string{"a", "b"}, []string{got[0].ID, got[1].ID})
	require.Equal(t, map[string]string{"k": "v"}, got[1].Headers)

	require.NoError(t, pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		require.NoError(t, q.PublishTx(t.Context(), tx))
		require.ErrorIs(t, q.PublishTx(t.Context(), tx, backend.Message{Body: []byte(`no JSON`)}), backend.ErrInvalidMessage)
		return q.PublishTx(t.Context(), tx, backend.Message{Body: []byte(`3`)}) // the transaction is as it was
	}))
	require.Equal(t, "3", string(receiveOne(t, sub).Body))
	err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		return q.PublishTx(t.Context(), tx, backend.Message{Body: []byte(`1e999999`)})
	})
	require.ErrorIs(t, err, backend.ErrInvalidMessage)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	missing, err := pgmq.Open(p, "missing", pgmq.Options{})
	require.NoError(t, err)
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		return missing.PublishTx(t.Context(), tx, backend.Message{Body: []byte(`1`)})
	}), backend.ErrQueueNotFound)
}

// BenchmarkEffect handles one message an op, with one effect in the database: in a transaction of its own before the ack, or
// in that of InTx.
func BenchmarkEffect(b *testing.B) {
	for _, bc := range []struct {
		name    string
		handler func(p *pgxpool.Pool, insert string) func(context.Context, *backend.Delivery) error
	}{
		{"before the ack", func(p *pgxpool.Pool, insert string) func(context.Context, *backend.Delivery) error {
			return func(ctx context.Context, d *backend.Delivery) error {
				_, err := p.Exec(ctx, insert, d.ID)
				return err
			}
		}},
		{"InTx", func(_ *pgxpool.Pool, insert string) func(context.Context, *backend.Delivery) error {
			return pgmq.InTx(func(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error {
				_, err := tx.Exec(ctx, insert, d.ID)
				return err
			})
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			p := pool(b, func(c *pgxpool.Config) { c.MaxConns = 16 })
			q := queue(b, p, pgmq.Options{})
			table := "effects_" + q.Name()
			execute(b, p, "CREATE TABLE "+table+" (id text)")
			defer execute(b, p, "DROP TABLE "+table)
			fill(b, p, q.Name(), b.N)
			handler := bc.handler(p, "INSERT INTO "+table+" VALUES ($1)")
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			var done atomic.Int64
			c := &consumer.Consumer{
				Queue: q, Concurrency: 8, Policy: policy.Policy{MaxAttempts: 1, Backoff: policy.Fixed(time.Second)},
				Handler: consumer.HandlerFunc(handler),
				Observer: consumer.ObserverFunc(func(_ context.Context, e consumer.Event) {
					if e.Kind == consumer.Succeeded && done.Add(1) == int64(b.N) {
						stop()
					}
				}),
			}
			b.ResetTimer()
			require.NoError(b, c.Run(ctx))
			b.StopTimer()
			require.Equal(b, b.N, scalar[int](b, p, "SELECT count(*) FROM "+table))
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
