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
	(SELECT count(*) FROM pgmq."q_%s"),
	coalesce((SELECT extract(epoch FROM statement_timestamp() - min(vt)) * 1000000 FROM pgmq."q_%[2]s"
		WHERE vt <= statement_timestamp() AND vt > '-infinity'), 0)::bigint
FROM pgmq."q_%[2]s"`, q.dead, q.name))
	if err != nil {
		return backend.Stats{}, q.errorf("stats", q.explain(err))
	}
	return st, nil
}
