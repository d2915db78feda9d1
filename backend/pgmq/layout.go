package pgmq

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// table is what the catalog says of a table. The extension's version would not tell: an install by SQL alone has none, and
// tables keep the columns of the version that made them.
type table struct {
	exists      bool
	unlogged    bool
	partitioned bool
	vtIndex     bool
	columns     []string
	lacks       []string // rights that the user does not have
}

func (t table) has(column string) bool { return slices.Contains(t.columns, column) }

// layout is what a queue consists of in the database.
type layout struct {
	schema, usage        bool
	recovering           bool
	queue, archive, dead table
}

const probeSchema = `SELECT pg_is_in_recovery(), n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false)
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = 'pgmq'`

// The rights are asked for column by column where PostgreSQL grants them so.
const probeTables = `SELECT c.relname::text, c.relpersistence = 'u', c.relkind = 'p',
	EXISTS (SELECT FROM pg_index i
		JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am am ON am.oid = x.relam
		JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
		WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND am.amname = 'btree' AND a.attname = 'vt'),
	ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
	array_remove(ARRAY[
		CASE WHEN NOT has_any_column_privilege(c.oid, 'SELECT') THEN 'SELECT' END,
		CASE WHEN NOT has_any_column_privilege(c.oid, 'INSERT') THEN 'INSERT' END,
		CASE WHEN NOT has_any_column_privilege(c.oid, 'UPDATE') THEN 'UPDATE' END,
		CASE WHEN NOT has_table_privilege(c.oid, 'DELETE') THEN 'DELETE' END], NULL)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'pgmq' AND c.relkind IN ('r', 'p') AND c.relname = ANY($1::text[])`

// probe reads the layout from the catalog.
func (q *Queue) probe(ctx context.Context) (layout, error) {
	l, err := query(ctx, q, func(rows pgx.Rows) (layout, error) {
		return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (l layout, err error) {
			return l, row.Scan(&l.recovering, &l.schema, &l.usage)
		})
	}, probeSchema)
	if err != nil {
		return l, q.explain(err)
	}
	names := []string{"q_" + q.name, "a_" + q.name, "q_" + q.dead}
	tables, err := query(ctx, q, func(rows pgx.Rows) (map[string]table, error) {
		tables := make(map[string]table)
		for rows.Next() {
			var name string
			t := table{exists: true}
			if err := rows.Scan(&name, &t.unlogged, &t.partitioned, &t.vtIndex, &t.columns, &t.lacks); err != nil {
				return nil, err
			}
			tables[name] = t
		}
		return tables, nil
	}, probeTables, names)
	if err != nil {
		return l, q.explain(err)
	}
	l.queue, l.archive, l.dead = tables[names[0]], tables[names[1]], tables[names[2]]
	return l, nil
}

// statements are the SQL of one queue, made once for its layout. Their shape is deliberate in three ways.
//
// The delivery's fence, msg_id and read_ct, is in each. The arrays come sorted by msg_id, so that two batches lock the rows
// that they share in one order. "msg_id = ANY" is there for the planner: a statement that was prepared while the
// queue was empty else keeps a sequential scan when it is full.
type statements struct {
	claim, look, remove, back, bury, extend, present string
	lock, hold                                       string // of messages that handlers settle in their transactions
}

// merged is m.headers with t.doc on top, whatever the headers are.
const merged = `CASE WHEN jsonb_typeof(m.headers) = 'object' THEN m.headers WHEN m.headers IS NULL OR m.headers = 'null' THEN '{}'
		ELSE jsonb_build_object('` + headerForeign + `', m.headers) END`

// claimedReads is the read count before a claim. One that no client can have counted up to, and that could not be counted on
// from, becomes one of a billion: the claims of other messages do not fail with it, its own stay apart from all that there
// were, and its lapses have it dead-lettered before it runs.
const claimedReads = `CASE WHEN m.read_ct BETWEEN 0 AND 2147483646 THEN m.read_ct ELSE 1000000000 END`

// claimedHeaders is m.headers, without the counts that a message that nobody has read cannot have: its producer made them
// up, or copied them with another message's headers.
const claimedHeaders = `CASE WHEN m.read_ct = 0 AND jsonb_typeof(m.headers) = 'object' THEN m.headers - '` + headerCounts + `' ELSE m.headers END`

const fence = `m.msg_id = t.id AND m.read_ct = t.rc AND m.msg_id = ANY($1::bigint[])`

func (q *Queue) statements(l layout) statements {
	var (
		queue   = `pgmq."q_` + q.name + `"`
		archive = `pgmq."a_` + q.name + `"`
		dead    = `pgmq."q_` + q.dead + `"`
		read    = ""
		order   = "vt"
		kept    = []string{"msg_id", "vt", "read_ct", "enqueued_at", "message"}
	)
	if l.queue.has("last_read_at") {
		read = ", last_read_at = clock_timestamp()"
	}
	if !l.queue.vtIndex {
		order = "msg_id"
	}
	for _, c := range []string{"headers", "last_read_at"} {
		if l.queue.has(c) && l.archive.has(c) {
			kept = append(kept, c)
		}
	}
	columns := strings.Join(kept, ", ")

	// statement_timestamp() is stable where clock_timestamp() is volatile: only a stable bound can use the index. Ties
	// in vt are left to the index, since sorting them would read all that one bulk insert sent.
	s := statements{
		claim: fmt.Sprintf(`UPDATE %[1]s m
SET vt = clock_timestamp() + $2::bigint * interval '1 microsecond', read_ct = %[4]s + 1, headers = %[5]s%[2]s
WHERE m.msg_id = ANY(ARRAY(SELECT c.msg_id FROM %[1]s c
	WHERE c.vt <= statement_timestamp() ORDER BY c.%[3]s LIMIT $1::int FOR UPDATE SKIP LOCKED))
RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message, m.headers`, queue, read, order, claimedReads, claimedHeaders),

		// For EXISTS the planner would read the table itself where statistics from a busier time say that much is due.
		look: fmt.Sprintf(`SELECT (SELECT min(vt) FROM %[1]s WHERE vt <= statement_timestamp()) IS NOT NULL,
	(SELECT ceil(extract(epoch FROM min(vt) - clock_timestamp()) * 1000000)::bigint FROM %[1]s
	WHERE vt > statement_timestamp() AND vt <= statement_timestamp() + $1::bigint * interval '1 microsecond')`, queue),

		back: fmt.Sprintf(`WITH d AS (UPDATE %s m
	SET vt = clock_timestamp() + t.delay * interval '1 microsecond', headers = %s || t.doc
	FROM ROWS FROM (unnest($1::bigint[]), unnest($2::int[]), unnest($3::bigint[]), jsonb_array_elements($4::text::jsonb)) WITH ORDINALITY t(id, rc, delay, doc, n)
	WHERE %s
	RETURNING t.n)
SELECT array_agg(n) FROM d`, queue, merged, fence),

		bury: fmt.Sprintf(`WITH d AS (DELETE FROM %[1]s m
	USING ROWS FROM (unnest($1::bigint[]), unnest($2::int[]), jsonb_array_elements($3::text::jsonb)) WITH ORDINALITY t(id, rc, doc, n)
	WHERE %[4]s
	RETURNING t.n, m.message, (%[3]s - '`+headerCounts+`') || t.doc AS headers),
i AS (INSERT INTO %[2]s (vt, enqueued_at, message, headers)
	SELECT clock_timestamp(), clock_timestamp(), d.message, d.headers FROM d ORDER BY d.n)
SELECT array_agg(n) FROM d`, queue, dead, merged, fence),

		extend: fmt.Sprintf(`WITH d AS (UPDATE %s m SET vt = clock_timestamp() + $3::bigint * interval '1 microsecond'
	FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY t(id, rc, n)
	WHERE %s
	RETURNING t.n)
SELECT array_agg(n) FROM d`, queue, fence),

		present: fmt.Sprintf(`SELECT array_agg(t.n) FROM unnest($1::bigint[]) WITH ORDINALITY t(id, n)
WHERE EXISTS (SELECT FROM %s m WHERE m.msg_id = t.id)`, queue),

		lock: fmt.Sprintf(`SELECT FROM %s m WHERE m.msg_id = $1::bigint AND m.read_ct = $2::int FOR UPDATE`, queue),

		// A row whose lock is not to be had is left alone, so that this waits for no transaction.
		hold: fmt.Sprintf(`WITH d AS (UPDATE %[1]s m SET vt = clock_timestamp() + $3::bigint * interval '1 microsecond'
	FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY t(id, rc, n)
	WHERE m.msg_id = t.id AND m.read_ct = t.rc
		AND m.msg_id = ANY(ARRAY(SELECT c.msg_id FROM %[1]s c WHERE c.msg_id = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED))
	RETURNING t.n)
SELECT t.n, d.n IS NOT NULL, m.msg_id IS NOT NULL, coalesce(m.read_ct = t.rc, false)
FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY t(id, rc, n)
LEFT JOIN d ON d.n = t.n LEFT JOIN %[1]s m ON m.msg_id = t.id AND m.msg_id = ANY($1::bigint[])`, queue),
	}
	gone := fmt.Sprintf(`DELETE FROM %s m USING unnest($1::bigint[], $2::int[]) WITH ORDINALITY t(id, rc, n)
	WHERE %s
	RETURNING t.n`, queue, fence)
	if q.opts.DeleteOnSuccess {
		s.remove = fmt.Sprintf("WITH d AS (%s)\nSELECT array_agg(n) FROM d", gone)
		return s
	}
	// What was removed is told from the deletion: an archive of an unlogged queue may hold the same msg_id from before
	// a crash, and the row that DO NOTHING skips is not returned.
	s.remove = fmt.Sprintf(`WITH d AS (%s, m.%s),
i AS (INSERT INTO %s (%s) SELECT d.%s FROM d ON CONFLICT DO NOTHING)
SELECT array_agg(n) FROM d`, gone, strings.Join(kept, ", m."), archive, columns, strings.Join(kept, ", d."))
	return s
}
