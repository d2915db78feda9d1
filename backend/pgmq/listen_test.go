package pgmq_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// ears is a queue that listens, and beside it one of the same name that sends as another process does. Polling alone would
// find nothing before the test has lost its patience.
type ears struct {
	*pgmq.Queue
	other *pgmq.Queue
	pool  *pgxpool.Pool // beside both
	sent  spy           // what the queue that listens asks
	out   logs
}

// listening opens a queue in the database of p, with a pool of connections to address, and LISTEN on one to direct.
func listening(t *testing.T, p *pgxpool.Pool, address, direct string) *ears {
	t.Helper()
	config, err := pgx.ParseConfig(direct)
	require.NoError(t, err)
	e := &ears{other: queue(t, p, pgmq.Options{}), pool: p}
	e.Queue, err = pgmq.Open(poolAt(t, address, e.sent.trace), e.other.Name(), pgmq.Options{Listen: config, PollInterval: time.Hour, Logger: e.out.logger()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close(context.Background())) })
	return e
}

func (e *ears) notify(t *testing.T, throttle time.Duration) {
	t.Helper()
	execute(t, e.pool, fmt.Sprintf("SELECT pgmq.enable_notify_insert('%s', %d)", e.Name(), throttle.Milliseconds()))
}

// awaitLog waits until the log has a line that holds text, n times.
func (e *ears) awaitLog(t *testing.T, text string, n int) {
	t.Helper()
	await(t, fmt.Sprintf("the log says %q %d times", text, n), func() bool { return strings.Count(e.out.String(), text) >= n })
}

// hear sends a message while the subscription waits for one, and has it handled.
func (e *ears) hear(t *testing.T, sub backend.Subscription) {
	t.Helper()
	looks := func() int { return e.sent.count("SELECT (SELECT min(vt)") }
	before := looks()
	got := make(chan *backend.Delivery)
	go func() {
		defer close(got)
		got <- receiveOne(t, sub)
	}()
	await(t, "the subscription waits", func() bool { return looks() > before })
	publish(t, e.other, `1`)
	d, ok := <-got
	require.True(t, ok, "nothing was heard")
	require.NoError(t, settle(sub, d, ack))
}

func TestListeningFindsWhatOthersSend(t *testing.T) {
	p := pool(t)
	e := listening(t, p, brokertest.Postgres(t), brokertest.Postgres(t))
	e.notify(t, 0)
	require.Empty(t, codes(t, e.Queue))
	sub := subscribe(t, e.Queue)
	e.awaitLog(t, "listens for messages", 1)
	for range 3 {
		e.hear(t, sub)
	}
	require.NotContains(t, e.out.String(), "WARN")
}

// PGMQ sends no second notification in the interval of its throttle.
func TestListeningFindsTheLastOfABurst(t *testing.T) {
	p := pool(t)
	e := listening(t, p, brokertest.Postgres(t), brokertest.Postgres(t))
	e.notify(t, time.Second)
	sub := subscribe(t, e.Queue)
	e.awaitLog(t, "listens for messages", 1)
	for range 3 {
		e.hear(t, sub)
	}
}

// LISTEN through a pooler in transaction mode fails with no error, and hears nothing.
func TestListeningThroughAPoolerIsNoticed(t *testing.T) {
	p := pool(t)
	pooled := brokertest.Pooler(t, brokertest.Postgres(t))
	e := listening(t, p, pooled, pooled)
	e.notify(t, 0)
	require.Equal(t, []string{"listen_silent"}, codes(t, e.Queue))
	sub := subscribe(t, e.Queue)
	e.awaitLog(t, "pooler in transaction mode", 1)
	e.hear(t, sub) // by polling

	// The pool may go through the pooler where LISTEN does not.
	direct := listening(t, p, pooled, brokertest.Postgres(t))
	direct.notify(t, 0)
	require.Empty(t, codes(t, direct.Queue))
}

// A crash of the server empties the table of the throttles, and leaves the triggers, which are silent from then on.
func TestListeningOutlivesTheServer(t *testing.T) {
	t.Parallel()
	server := brokertest.Private(t)
	p := poolAt(t, server.URL())
	e := listening(t, p, server.URL(), server.URL())
	require.Equal(t, []string{"listen_silent"}, codes(t, e.Queue))
	sub := subscribe(t, e.Queue)
	e.awaitLog(t, "has no trigger", 1)
	e.hear(t, sub) // by polling
	e.notify(t, 0)
	e.awaitLog(t, "listens for messages", 1)

	server.Kill()
	server.Start()
	e.awaitLog(t, "lost the row", 1)
	e.hear(t, sub) // by polling
	e.notify(t, 0)
	e.awaitLog(t, "listens for messages", 2)
	e.hear(t, sub)
}

// Who may not see the row of the throttle is told what to grant.
func TestListeningWithoutTheRight(t *testing.T) {
	p := pool(t)
	e := listening(t, p, brokertest.Postgres(t), brokertest.Postgres(t))
	e.notify(t, 0)
	role := fmt.Sprintf("redeliver_%d", rand.Uint64())
	execute(t, p, "CREATE ROLE "+role)
	t.Cleanup(func() { execute(t, p, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	for _, what := range []string{"USAGE ON SCHEMA pgmq", "ALL ON pgmq.q_" + e.Name(), "ALL ON pgmq.a_" + e.Name(), "ALL ON pgmq.q_" + e.Name() + "_dlq"} {
		execute(t, p, "GRANT "+what+" TO "+role)
	}
	limited := pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	q, err := pgmq.Open(limited, e.Name(), pgmq.Options{Listen: limited.Config().ConnConfig})
	require.NoError(t, err)
	findings, err := q.Check(t.Context(), backend.Needs{})
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.Contains(t, findings[0].Text, "GRANT SELECT ON pgmq.notify_insert_throttle")
	execute(t, p, "GRANT SELECT ON pgmq.notify_insert_throttle TO "+role)
	require.Empty(t, codes(t, q))
	limited.Close()
}

// PGMQ 1.7 has no throttle.
func TestListeningToAnOldVersion(t *testing.T) {
	t.Parallel()
	address := brokertest.Private(t).Database("1.7.1")
	p := poolAt(t, address)
	e := listening(t, p, address, address)
	execute(t, p, "SELECT pgmq.enable_notify_insert($1::text)", e.Name())
	require.Empty(t, codes(t, e.Queue))
	sub := subscribe(t, e.Queue)
	e.awaitLog(t, "listens for messages", 1)
	e.hear(t, sub)
}
