package pgmq

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// purgeBatch is how many archived messages one statement deletes: few enough for a short transaction.
const purgeBatch = 1000

// PurgeArchive deletes the messages that were archived longer ago than age, by the server's clock, and returns how many. Unless
// Options.DeleteOnSuccess is set the archive keeps each message that was handled, so call it now and then, by a timer or a
// job; calls at the same time share the work. Dead letters are no part of it: they are in a queue of their own.
//
// It deletes 1000 messages at a time, the oldest first, each time in a transaction of its own. When it fails, or ctx ends, the
// number tells what was deleted so far. It reads by the index that PGMQ makes on archived_at, so that what stays costs nothing.
// A negative age is an error. The user needs the rights to select and delete on the archive, beside those of a consumer.
func (q *Queue) PurgeArchive(ctx context.Context, age time.Duration) (int64, error) {
	if age < 0 {
		return 0, q.errorf("purge", fmt.Errorf("the age is %v: set it to how long archived messages are kept, or to 0 to delete all", age))
	}
	// Each batch begins where the last one ended: the index still holds what was deleted before that.
	var deleted int64
	from := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	for {
		n, last, err := q.purge(ctx, from, age)
		if err != nil {
			return deleted, q.errorf("purge", q.explain(err))
		}
		deleted += n
		if n < purgeBatch {
			return deleted, nil
		}
		from = last
	}
}

// purge deletes one batch of what was archived at from or later, and returns when the newest of it was archived.
func (q *Queue) purge(ctx context.Context, from pgtype.Timestamptz, age time.Duration) (n int64, last pgtype.Timestamptz, err error) {
	type batch struct {
		n    int64
		last pgtype.Timestamptz
	}
	b, err := query(ctx, q, func(rows pgx.Rows) (batch, error) {
		return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (b batch, err error) {
			return b, row.Scan(&b.n, &b.last)
		})
	}, fmt.Sprintf(`WITH d AS (DELETE FROM pgmq."a_%[1]s" m
	WHERE m.msg_id = ANY(ARRAY(SELECT c.msg_id FROM pgmq."a_%[1]s" c
		WHERE c.archived_at >= $1::timestamptz AND c.archived_at < statement_timestamp() - $2::bigint * interval '1 microsecond'
		ORDER BY c.archived_at LIMIT %[2]d FOR UPDATE SKIP LOCKED))
	AND m.archived_at < statement_timestamp() - $2::bigint * interval '1 microsecond'
	RETURNING m.archived_at)
SELECT count(*), max(archived_at) FROM d`, q.name, purgeBatch), q.planned(from, micros(age))...)
	return b.n, b.last, err
}
