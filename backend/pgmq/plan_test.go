package pgmq_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

// spy keeps the statements that a pool sends.
type spy struct {
	mu   sync.Mutex
	sent []pgx.TraceQueryStartData
}

func (s *spy) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, data)
	return ctx
}

func (s *spy) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *spy) trace(config *pgxpool.Config) { config.ConnConfig.Tracer = s }

// find returns a statement that was sent and holds that text.
func (s *spy) find(t *testing.T, text string) pgx.TraceQueryStartData {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.sent, func(data pgx.TraceQueryStartData) bool { return strings.Contains(data.SQL, text) })
	require.GreaterOrEqual(t, i, 0, "no statement was sent that holds %q", text)
	return s.sent[i]
}

// count returns how many of the statements that were sent hold that text.
func (s *spy) count(text string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, data := range s.sent {
		if strings.Contains(data.SQL, text) {
			n++
		}
	}
	return n
}

// explain returns the plan of a statement.
func explain(t *testing.T, p *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	rows, err := p.Query(t.Context(), "EXPLAIN (COSTS off) "+sql, args...)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}

// What waits must not be read by a claim or a look, and what is due not be sorted: both grow without bound.
func TestAClaimReadsWhatItTakesAndNoMore(t *testing.T) {
	var sent spy
	p := pool(t, sent.trace)
	q := queue(t, p, pgmq.Options{PollInterval: 10 * time.Millisecond})
	sub := subscribe(t, q)
	execute(t, p, "SELECT pgmq.send($1::text, '1'::jsonb, 1)", q.Name())
	require.NoError(t, settle(sub, receiveOne(t, sub), ack)) // waited for, by looking
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message) SELECT now() + i * interval '1 s', '1' FROM generate_series(-5000, 20000) i")
	execute(t, p, "ANALYZE pgmq.q_"+q.Name())
	for _, text := range []string{"SKIP LOCKED", "SELECT (SELECT min(vt)"} {
		statement := sent.find(t, text)
		plan := explain(t, p, statement.SQL, statement.Args...)
		require.NotContains(t, plan, "Seq Scan on q_", "%s\n%s", statement.SQL, plan)
		require.NotContains(t, plan, "Sort", "%s\n%s", statement.SQL, plan)
		require.NotContains(t, plan, "Filter", "%s\n%s", statement.SQL, plan)
		require.Contains(t, plan, q.Name()+"_vt_idx", "%s\n%s", statement.SQL, plan)
		require.Regexp(t, `Index Cond: .*\(vt <= statement_timestamp\(\)\)`, plan, "%s\n%s", statement.SQL, plan)
	}
}

// A consumer prepares its statements while its queue is empty, and must not read the whole table when it is full: what it
// settles with keeps plans that use the indexes, and what it looks for messages with is planned each time.
func TestPlansMadeForAnEmptyQueueUseTheIndexes(t *testing.T) {
	p := pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	})
	q := queue(t, p, pgmq.Options{PollInterval: 10 * time.Millisecond})
	sub := subscribe(t, q)
	for _, s := range []backend.Settlement{ack, retry(0), deadLetter("x")} {
		publish(t, q, `1`)
		d := receiveOne(t, sub)
		require.NoError(t, sub.Extend(t.Context(), []*backend.Delivery{d}))
		require.NoError(t, settle(sub, d, s))
	}
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))
	execute(t, p, "SELECT pgmq.send($1::text, '1'::jsonb, 1)", q.Name())
	require.NoError(t, settle(sub, receiveOne(t, sub), ack)) // waited for, by looking

	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message) SELECT now() + interval '1 h' + i * interval '1 ms', '1' FROM generate_series(1, 20000) i")
	type prepared struct {
		Name, Statement string
		Types           []string
	}
	rows, err := p.Query(t.Context(), "SELECT name, statement, parameter_types::text[] FROM pg_prepared_statements WHERE statement ~ ('q_' || $1) AND statement ~ 'vt|read_ct' AND statement !~ '^INSERT'", q.Name())
	require.NoError(t, err)
	statements, err := pgx.CollectRows(rows, pgx.RowToStructByPos[prepared])
	require.NoError(t, err)
	require.Len(t, statements, 4, "remove, back, bury and extend: %v", statements)
	sample := map[string]string{"bigint[]": "'{3}'", "integer[]": "'{1}'", "text": `'[{}]'`, "bigint": "1000000"}
	for _, s := range statements {
		var args []string
		for _, typ := range s.Types {
			require.Contains(t, sample, typ)
			args = append(args, sample[typ])
		}
		rows, err := p.Query(t.Context(), `EXPLAIN EXECUTE "`+s.Name+`" (`+strings.Join(args, ", ")+")")
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		plan := strings.Join(lines, "\n")
		require.NotContains(t, plan, "Seq Scan on q_", "%s\n%s", s.Statement, plan)
		require.Contains(t, plan, "q_"+q.Name()+"_pkey", "%s\n%s", s.Statement, plan)
	}
}
