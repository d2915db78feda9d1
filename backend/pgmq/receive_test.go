package pgmq_test

import (
	"context"
	"math/rand/v2"
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
)

// slowPoll is an interval that no test waits for, so that only a timer or a wake-up explains an early message.
const slowPoll = time.Hour

// statements counts the statements that a pool sends.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) trace(config *pgxpool.Config) { config.ConnConfig.Tracer = s }

// await waits until ok, which must come about.
func await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	require.Eventually(tb, ok, patience, 5*time.Millisecond, what)
}

func TestAMessageThatComesDueWakesReceive(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{PollInterval: slowPoll})
	sub := subscribe(t, q)
	execute(t, p, "SELECT pgmq.send($1::text, '1'::jsonb, 1)", q.Name())
	due := scalar[time.Time](t, p, "SELECT vt FROM pgmq.q_"+q.Name())
	d := receiveOne(t, sub)
	claimed := d.Raw.(*pgmq.Message).VisibleAt.Add(-lease)
	require.False(t, claimed.Before(due))
	require.Less(t, claimed.Sub(due), 5*time.Second)
}

func TestRetriesWakeReceiveInTheirOrder(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{PollInterval: slowPoll})
	sub := subscribe(t, q)
	publish(t, q, `1`, `2`, `3`)
	ds := receive(t, sub, 3)
	// Receive waits already when the retries are settled, a long one first.
	got := make(chan []*backend.Delivery)
	go func() { got <- receive(t, sub, 3) }()
	for i, delay := range []time.Duration{600 * time.Millisecond, 300 * time.Millisecond, 100 * time.Millisecond} {
		require.NoError(t, settle(sub, ds[i], retry(delay)))
	}
	var bodies []string
	for _, d := range <-got {
		bodies = append(bodies, string(d.Body))
	}
	require.Equal(t, []string{"3", "2", "1"}, bodies)
}

func TestWhatThisProcessSendsWakesReceive(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{PollInterval: slowPoll})
	a, b := subscribe(t, q), subscribe(t, q)
	for _, sub := range []backend.Subscription{a, b} {
		got := make(chan *backend.Delivery)
		go func() { got <- receiveOne(t, sub) }()
		await(t, "the subscription looked once", func() bool { return p.Stat().AcquiredConns() == 0 })
		publish(t, q, `1`)
		require.NoError(t, settle(sub, <-got, ack))
	}

	// A release in one subscription wakes the other.
	publish(t, q, `2`)
	d := receiveOne(t, a)
	got := make(chan *backend.Delivery)
	go func() { got <- receiveOne(t, b) }()
	require.NoError(t, settle(a, d, release))
	require.Equal(t, "2", string((<-got).Body))
}

func TestWhatOthersSendIsFoundByPolling(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{PollInterval: 20 * time.Millisecond})
	sub := subscribe(t, q)
	got := make(chan *backend.Delivery)
	go func() { got <- receiveOne(t, sub) }()
	execute(t, p, "SELECT pgmq.send($1::text, '1'::jsonb)", q.Name())
	<-got
}

func TestAnIdleQueueIsAskedSeldom(t *testing.T) {
	var sent statements
	p := pool(t, sent.trace)
	q := queue(t, p, pgmq.Options{PollInterval: 100 * time.Millisecond})
	sub := subscribe(t, q)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message) VALUES ('infinity', '1'), (now() + interval '1 h', '2')")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	before := sent.n.Load()
	var waiting sync.WaitGroup
	const calls = 8
	for range calls {
		waiting.Go(func() {
			_, err := sub.Receive(ctx, 10)
			if err == nil {
				t.Error("there was nothing to receive")
			}
		})
	}
	waiting.Wait()
	n := sent.n.Load() - before
	// Each call claims once, the leader claims and looks once more; then one look each interval, shortened by a tenth at most.
	require.LessOrEqual(t, n, int64(calls+2+2000/90+1))
	require.Greater(t, n, int64(calls))
}

// A row that a transaction holds locked is due, and nobody's to claim: that must not become a busy loop.
func TestALockedMessageIsNoBusyLoop(t *testing.T) {
	var sent statements
	p := pool(t, sent.trace)
	q := queue(t, p, pgmq.Options{PollInterval: 200 * time.Millisecond})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM pgmq.q_"+q.Name()+" FOR UPDATE")
	require.NoError(t, err)
	before := sent.n.Load()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = sub.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, sent.n.Load()-before, int64(60))

	// And a message that comes due behind it is not held up.
	execute(t, p, "SELECT pgmq.send($1::text, '2'::jsonb)", q.Name())
	require.Equal(t, "2", string(receiveOne(t, sub).Body))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, "1", string(receiveOne(t, sub).Body))
}

func TestReceiveTakesAtMostWhatIsAskedForInOrder(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	const n = 250
	fill(t, p, q.Name(), n)
	var last int64
	for range 2 {
		ds, err := sub.Receive(t.Context(), 100)
		require.NoError(t, err)
		require.Len(t, ds, 100)
		for _, d := range ds {
			id := d.Raw.(*pgmq.Message).MsgID
			require.Greater(t, id, last)
			last = id
		}
	}
	ds, err := sub.Receive(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, ds, 1)
	ds, err = sub.Receive(t.Context(), 1<<40)
	require.NoError(t, err)
	require.Len(t, ds, 49)
}

func TestManySubscribersHandleEachMessageOnce(t *testing.T) {
	p := pool(t, func(c *pgxpool.Config) { c.MaxConns = 16 })
	const subscribers, messages = 8, 1000
	q := queue(t, p, pgmq.Options{})
	fill(t, p, q.Name(), messages)
	var mu sync.Mutex
	handled := make(map[string]int)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	parallel(subscribers, func() {
		other, err := pgmq.Open(p, q.Name(), pgmq.Options{})
		require.NoError(t, err)
		sub := subscribe(t, other)
		for {
			ds, err := sub.Receive(ctx, 7)
			if err != nil {
				break
			}
			var batch []backend.Settlement
			mu.Lock()
			for _, d := range ds {
				handled[d.ID]++
				batch = append(batch, backend.Settlement{Delivery: d, Outcome: backend.Ack})
			}
			if len(handled) == messages {
				cancel()
			}
			mu.Unlock()
			require.NoError(t, sub.Settle(context.Background(), batch))
		}
		require.NoError(t, other.Close(context.Background()))
	})
	require.Len(t, handled, messages)
	for id, times := range handled {
		require.Equal(t, 1, times, id)
	}
	require.Equal(t, messages, count(t, p, "a_"+q.Name()))
}

func TestACancelledReceiveHidesNothing(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	const messages = 500
	fill(t, p, q.Name(), messages)
	var taken []*backend.Delivery
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(3000))*time.Microsecond)
		ds, err := sub.Receive(ctx, 3)
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded, i)
			require.Empty(t, ds)
		}
		taken = append(taken, ds...)
	}
	// What the cancelled calls had claimed is there for others, at once and uncharged; the lease is longer than the test.
	rest := receive(t, subscribe(t, q), messages-len(taken))
	for _, d := range append(taken, rest...) {
		require.Equal(t, 1, d.Attempt)
		require.Equal(t, 0, d.Lapses)
	}
	require.Equal(t, 0, scalar[int](t, p, "SELECT count(*) FROM pgmq.q_"+q.Name()+" WHERE vt <= now()"))
}

func TestReceiveReturnsAtOnceThoughItsClaimHangs(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE pgmq.q_"+q.Name())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan error)
	go func() {
		_, err := sub.Receive(ctx, 1)
		returned <- err
	}()
	await(t, "the claim waits for the lock", func() bool {
		return scalar[int](t, p, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass($1)", "pgmq.q_"+q.Name()) == 1
	})
	cancel()
	require.ErrorIs(t, <-returned, context.Canceled)

	// Close waits for the claim and for its release.
	closed := make(chan error)
	go func() { closed <- sub.Close(context.Background()) }()
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-closed)
	require.True(t, scalar[bool](t, p, "SELECT vt <= now() FROM pgmq.q_"+q.Name()))
	d := receiveOne(t, subscribe(t, q))
	require.Equal(t, 0, d.Lapses)
}

func TestCloseGivesBackWhatIsUnsettled(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	fill(t, p, q.Name(), 300)
	ds := receive(t, sub, 300)
	require.NoError(t, settle(sub, ds[0], ack))
	require.NoError(t, settle(sub, ds[1], retry(time.Hour)))
	ds[2].MarkSettled()
	lost := make(chan struct{})
	ds[3].OnLost(func() { close(lost) })

	waiting := make(chan error)
	go func() {
		for {
			if _, err := sub.Receive(context.Background(), 1); err != nil {
				waiting <- err
				return
			}
		}
	}()
	require.NoError(t, sub.Close(t.Context()))
	require.NoError(t, sub.Close(t.Context()))
	require.ErrorIs(t, <-waiting, backend.ErrClosed)
	<-lost
	require.ErrorIs(t, settle(sub, ds[4], ack), backend.ErrClosed)
	require.ErrorIs(t, sub.Extend(t.Context(), ds[4:5]), backend.ErrClosed)

	again := subscribe(t, q)
	for _, d := range receive(t, again, 297) {
		require.Equal(t, 1, d.Attempt)
		require.Equal(t, 0, d.Lapses)
	}
	require.NoError(t, q.Close(t.Context()))
	require.NoError(t, q.Close(t.Context()))
	_, err := q.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
	require.ErrorIs(t, err, backend.ErrClosed)
	require.ErrorIs(t, q.Publish(t.Context(), backend.Message{Body: []byte(`1`)}), backend.ErrClosed)
	require.Equal(t, 0, scalar[int](t, p, "SELECT count(*) FROM pgmq.q_"+q.Name()+" WHERE vt > now() + interval '2 h'"))
}

func TestAConsumerThatDiedLeavesALapse(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{PollInterval: slowPoll})
	publish(t, q, `1`)
	receiveOne(t, subscribeFor(t, q, 300*time.Millisecond)) // and is never heard of again
	d := receiveOne(t, subscribe(t, q))
	require.Equal(t, 1, d.Attempt)
	require.Equal(t, 1, d.Lapses)
}

func TestOtherClientsBesideUs(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`, `2`)
	read := func() (id int64) {
		require.NoError(t, p.QueryRow(t.Context(), "SELECT msg_id FROM pgmq.read($1::text, 30, 1)", q.Name()).Scan(&id))
		return id
	}
	theirs := read()
	d := receiveOne(t, sub)
	require.NotEqual(t, theirs, d.Raw.(*pgmq.Message).MsgID)
	require.NoError(t, settle(sub, d, retry(0)))
	require.NotEqual(t, theirs, read(), "pgmq.read takes a retried message")
	execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp() WHERE msg_id <> $1", theirs)
	d = receiveOne(t, sub)
	require.Equal(t, 2, d.Attempt)
	require.Equal(t, 1, d.Lapses, "their read ended without an outcome")
	for range 2 {
		execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp() WHERE msg_id <> $1", theirs)
		require.Equal(t, d.Raw.(*pgmq.Message).MsgID, read())
	}
	execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp() WHERE msg_id <> $1", theirs)
	d = receiveOne(t, sub)
	require.Equal(t, 2, d.Attempt)
	require.Equal(t, 1+1+2, d.Lapses, "each read of theirs, and our delivery that they took over")
	execute(t, p, "SELECT pgmq.archive($1::text, $2::bigint)", q.Name(), d.Raw.(*pgmq.Message).MsgID)
	require.ErrorIs(t, settle(sub, d, ack), backend.ErrLeaseLost)
	execute(t, p, "SELECT pgmq.archive($1::text, $2::bigint)", q.Name(), theirs)
	require.Equal(t, 2, count(t, p, "a_"+q.Name()))
}

// The session's time zone, and a client whose clock is wrong, change no delay.
func TestTimeZonesDoNotMatter(t *testing.T) {
	for _, zone := range []string{"America/New_York", "Asia/Kathmandu", "UTC"} {
		p := pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["timezone"] = zone })
		q := queue(t, p, pgmq.Options{})
		sub := subscribe(t, q)
		publish(t, q, `1`)
		d := receiveOne(t, sub)
		require.Less(t, d.Age, patience)
		require.NoError(t, settle(sub, d, retry(time.Hour)))
		left := scalar[float64](t, p, "SELECT extract(epoch FROM vt - clock_timestamp())::float8 FROM pgmq.q_"+q.Name())
		require.InDelta(t, 3600, left, patience.Seconds(), zone)
		require.Less(t, left, 3600.0)
	}
}

func TestStricterIsolationIsTriedAgain(t *testing.T) {
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			p := pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level })
			q := queue(t, p, pgmq.Options{})
			const messages = 400
			fill(t, p, q.Name(), messages)
			sub := subscribe(t, q)
			workQueue(t, sub, messages, ack)
			require.Equal(t, messages, count(t, p, "a_"+q.Name()))
		})
	}
}

// Pools may run without prepared statements, for poolers in transaction mode.
func TestEveryQueryMode(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			p := pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			q := queue(t, p, pgmq.Options{})
			sub := subscribe(t, q)
			require.NoError(t, q.Publish(t.Context(), backend.Message{ID: `i"'\d`, Body: []byte(`{"a": "'\\"}`), Headers: map[string]string{"h": `'"\{}`}}))
			d := receiveOne(t, sub)
			require.NoError(t, sub.Extend(t.Context(), []*backend.Delivery{d}))
			s := retry(time.Millisecond)
			s.Failure.Error = `it's "bad" \ {}`
			require.NoError(t, settle(sub, d, s))
			d = receiveOne(t, sub)
			require.Equal(t, `i"'\d`, d.ID)
			require.Equal(t, `{"a": "'\\"}`, string(d.Body))
			require.Equal(t, map[string]string{"h": `'"\{}`}, d.Headers)
			require.Equal(t, `it's "bad" \ {}`, d.Failure.Error)
			require.NoError(t, settle(sub, d, deadLetter("x")))
			stats, err := q.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, backend.Stats{Dead: 1}, stats)
			publish(t, q, `2`)
			require.NoError(t, settle(sub, receiveOne(t, sub), ack))
		})
	}
}

func TestAQueueThatIsDroppedEndsReceive(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{PollInterval: 10 * time.Millisecond})
	sub := subscribe(t, q)
	ended := make(chan error)
	go func() {
		_, err := sub.Receive(context.Background(), 1)
		ended <- err
	}()
	await(t, "the subscription is idle", func() bool { return p.Stat().AcquiredConns() == 0 })
	drop(t, p, q.Name())
	err := <-ended
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	require.ErrorContains(t, err, q.Name())
	require.ErrorContains(t, err, "Queue.Create")
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
}
