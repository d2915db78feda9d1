package pgmq

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A retry writes its row anew and leaves a dead one behind, so a queue that is small at any time turns over many rows.
// PostgreSQL's defaults vacuum a table when a fifth of it is dead, which is late for a queue whose waiting messages make it
// large; and new rows find no room on the page of the old.
const (
	tunedQueue   = "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05"
	tunedArchive = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05"
)

// Tune sets storage parameters for a long life, which PGMQ leaves at PostgreSQL's defaults. Nothing else in this package
// does, since the tables are their owner's: call it once, by whoever sets the database up, as that user.
//
// The tables of the queue and of its dead-letter queue get fillfactor 70, autovacuum_vacuum_scale_factor 0.01 and
// autovacuum_analyze_scale_factor 0.05, their archives a scale factor of 0.05 for vacuum, for vacuum after inserts and for
// analyze. Other parameters stay as they are. Of a partitioned table the partitions that there are get them; later ones need
// another call.
//
// It works beside consumers: no statement of theirs waits. A table that the server vacuums at the time lets Tune wait. The
// room on the pages is there for rows that are written from then on. ALTER TABLE ... RESET undoes it.
func (q *Queue) Tune(ctx context.Context) error {
	queues, err := q.leaves(ctx, "q_"+q.name, "q_"+q.dead)
	if err != nil {
		return q.errorf("tune", err)
	}
	archives, err := q.leaves(ctx, "a_"+q.name, "a_"+q.dead)
	if err != nil {
		return q.errorf("tune", err)
	}
	for _, change := range []struct {
		tables     []string
		parameters string
	}{{queues, tunedQueue}, {archives, tunedArchive}} {
		for _, table := range change.tables {
			if err := q.exec(ctx, fmt.Sprintf("ALTER TABLE %s SET (%s)", table, change.parameters)); err != nil {
				return q.errorf("tune", fmt.Errorf("table %s: %w", strings.ReplaceAll(table, `"`, ""), q.explain(err)))
			}
		}
	}
	return nil
}

// leaves returns the tables that hold the rows: for a partitioned table those of its partitions. What does not exist is left
// out.
func (q *Queue) leaves(ctx context.Context, names ...string) ([]string, error) {
	tables, err := query(ctx, q, func(rows pgx.Rows) ([]string, error) {
		return pgx.CollectRows(rows, pgx.RowTo[string])
	}, leaves+" SELECT format('%I.%I', n.nspname, l.relname) FROM leaves l JOIN pg_namespace n ON n.oid = l.relnamespace", names)
	return tables, q.explain(err)
}

// leaves is a part of statements whose first argument are tables of PGMQ.
const leaves = `WITH leaves AS (
	SELECT parent.relname AS root, c.* FROM pg_class parent JOIN pg_namespace n ON n.oid = parent.relnamespace
	LEFT JOIN LATERAL pg_partition_tree(parent.oid) p ON parent.relkind = 'p' AND p.isleaf
	JOIN pg_class c ON c.oid = CASE parent.relkind WHEN 'p' THEN p.relid ELSE parent.oid END
	WHERE n.nspname = 'pgmq' AND parent.relname = ANY($1::text[]) AND parent.relkind IN ('r', 'p'))`
