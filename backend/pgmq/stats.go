package pgmq

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redeliver/redeliver/backend"
)

// Stats implements backend.Statser. The counts are exact, so that counting takes time in proportion to the queue: some 150 ms
// for a million messages, more where vacuum has long not been. Waiting holds the leased messages too, since a row does not
// tell the two apart.
func (q *Queue) Stats(ctx context.Context) (backend.Stats, error) {
	st, err := query(ctx, q, func(rows pgx.Rows) (backend.Stats, error) {
		return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (st backend.Stats, err error) {
			var micros int64
			err = row.Scan(&st.Ready, &st.Waiting, &st.Dead, &micros)
			st.OldestDue = time.Duration(micros) * time.Microsecond
			return st, err
		})
	}, fmt.Sprintf(`SELECT count(*) FILTER (WHERE vt <= statement_timestamp()), count(*) FILTER (WHERE vt > statement_timestamp()),
	(SELECT count(*) FROM pgmq."q_%s"), %s
FROM pgmq."q_%s"`, q.dead, q.lag(), q.name))
	if err != nil {
		return backend.Stats{}, q.errorf("stats", q.explain(err))
	}
	return st, nil
}

// Depth is how full a queue is, as far as that can be told at once.
type Depth struct {
	Queued   int64 // in the queue: ready, waiting and leased
	Dead     int64 // in the dead-letter queue
	Archived int64 // in the archive
	// Lag is for how long the longest-due message has been waiting for a consumer; 0 if none is due. It is exact.
	Lag time.Duration
}

// Depth tells how full the queue is in about a millisecond, however full that is; it is for gauges that are read every few
// seconds. The numbers of messages are those of the server's running statistics, which follow its tables by some seconds, are
// a little off after a vacuum or analyze of a large table, and start from nothing after a crash of the server. Stats counts.
//
// Alarms belong on Lag: messages that wait for their retry are no backlog, and neither are those in hand.
func (q *Queue) Depth(ctx context.Context) (Depth, error) {
	depth, err := query(ctx, q, func(rows pgx.Rows) (Depth, error) {
		return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (d Depth, err error) {
			var micros int64
			err = row.Scan(&d.Queued, &d.Dead, &d.Archived, &micros)
			d.Lag = time.Duration(micros) * time.Microsecond
			return d, err
		})
	}, leaves+fmt.Sprintf(` SELECT coalesce(sum(pg_stat_get_live_tuples(oid)) FILTER (WHERE root = 'q_%[1]s'), 0)::bigint,
	coalesce(sum(pg_stat_get_live_tuples(oid)) FILTER (WHERE root = 'q_%[2]s'), 0)::bigint,
	coalesce(sum(pg_stat_get_live_tuples(oid)) FILTER (WHERE root = 'a_%[1]s'), 0)::bigint,
	%[3]s
FROM leaves`, q.name, q.dead, q.lag()), []string{"q_" + q.name, "q_" + q.dead, "a_" + q.name})
	if err != nil {
		return Depth{}, q.errorf("depth", q.explain(err))
	}
	return depth, nil
}

// lag is the SQL of for how many microseconds the longest-due message has been waiting.
func (q *Queue) lag() string {
	return fmt.Sprintf(`coalesce((SELECT extract(epoch FROM statement_timestamp() - min(vt)) * 1000000 FROM pgmq."q_%s"
		WHERE vt <= statement_timestamp() AND vt > '-infinity'), 0)::bigint`, q.name)
}
