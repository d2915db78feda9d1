package pgmq

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// conflictTries is how often a statement is tried that the server broke off in favour of another.
const conflictTries = 20

// query runs one statement, which is a transaction of its own, and returns what collect makes of its rows. ctx bounds it:
// where it ends while the statement runs, the connection is closed.
func query[T any](ctx context.Context, q *Queue, collect func(pgx.Rows) (T, error), sql string, args ...any) (T, error) {
	conn, err := q.acquire(ctx)
	if err != nil {
		var none T
		return none, &unsentError{err}
	}
	defer conn.Release()
	return queryOn(ctx, q, conn, collect, sql, args...)
}

// queryOn is query on a given connection. A statement that lost a conflict is tried again at once, and then collect starts
// anew: the server may notice the conflict only after it has sent the rows.
func queryOn[T any](ctx context.Context, q *Queue, conn *pgxpool.Conn, collect func(pgx.Rows) (T, error), sql string, args ...any) (T, error) {
	for try := 1; ; try++ {
		unprepared := q.pooled.Load()
		if unprepared {
			args = q.planned(args...)
		}
		value, err := queryOnce(ctx, conn.Conn(), collect, sql, args...)
		switch sqlState(err) {
		case "26000", "42P05":
			// Nothing ran: the server looked for the prepared statement first.
			if q.plansKept && !unprepared {
				q.meetPooler(err)
				continue
			}
		case "40001", "40P01":
			if try < conflictTries && ctx.Err() == nil {
				continue
			}
		case "25006":
			// A connection to a standby stays one; the next may find the primary.
			hangUp(ctx, conn.Conn())
		}
		return value, err
	}
}

// hangUp closes a connection, though ctx may have ended.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	conn.Close(ctx)
}

func queryOnce[T any](ctx context.Context, conn *pgx.Conn, collect func(pgx.Rows) (T, error), sql string, args ...any) (T, error) {
	var none T
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return none, err
	}
	value, err := collect(rows)
	rows.Close()
	if rows.Err() != nil {
		err = rows.Err()
	}
	if err != nil {
		return none, err
	}
	return value, nil
}

// planned makes a statement be planned anew each time that it runs, for what looks through the queue: a plan that was made
// while the queue was empty reads all of it when it is full, until the server analyzes the table. It does so by the mode in
// which pgx sends the statement, unless the pool has been given another mode than pgx's own.
func (q *Queue) planned(args ...any) []any {
	if !q.plansKept || len(args) > 0 && args[0] == pgx.QueryExecModeCacheDescribe {
		return args
	}
	return append([]any{pgx.QueryExecModeCacheDescribe}, args...)
}

// meetPooler has all further statements sent without preparing them by name: a pooler in transaction mode, which does not
// follow the names, runs each transaction in whichever of the server's sessions is free. Handlers that use the same pool
// meet the same errors, hence the warning.
func (q *Queue) meetPooler(err error) {
	if q.pooled.CompareAndSwap(false, true) {
		q.log.Warn("pgmq: a pooler hands one session to several clients, so prepares no statements from now on; "+
			"set ConnConfig.DefaultQueryExecMode to pgx.QueryExecModeCacheDescribe for what else uses the pool", "error", err)
	}
}

// exec runs a statement whose rows do not matter.
func (q *Queue) exec(ctx context.Context, sql string, args ...any) error {
	_, err := query(ctx, q, func(pgx.Rows) (struct{}, error) { return struct{}{}, nil }, sql, args...)
	return err
}

// marks returns a function that collects ordinal numbers, from 1 to n: which of n items a statement found. They come as one
// array, or NULL for none: a row for each would cost both sides more.
func marks(n int) func(pgx.Rows) ([]bool, error) {
	return func(rows pgx.Rows) ([]bool, error) {
		numbers, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[[]int64])
		if err != nil {
			return nil, err
		}
		found := make([]bool, n)
		for _, i := range numbers {
			found[i-1] = true
		}
		return found, nil
	}
}
