package pgmq

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
	"github.com/redeliver/redeliver/backend"
)

// unsentError is the error of a statement for which there was no connection.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return "no connection: " + e.err.Error() }
func (e *unsentError) Unwrap() error { return e.err }

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// unknown reports whether the statement that failed with err may have taken effect all the same: it was sent, and the
// connection ended before the server said what became of it.
func unknown(err error) bool {
	if _, ok := errors.AsType[*unsentError](err); ok || err == nil {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC"
	}
	return !pgconn.SafeToRetry(err)
}

// refusesData reports whether the server did not take the data of a statement, so that waiting does not help, and the
// other items of the same batch may succeed.
func refusesData(err error) bool {
	code := sqlState(err)
	return len(code) == 5 && (code[:2] == "22" || code[:2] == "23" || code[:2] == "54")
}

// lasting reports whether an error will still be there when Receive tries again, so that it has to end.
func lasting(err error) bool {
	switch sqlState(err) {
	case "42P01", "3F000", "42501", "42703":
		return true
	}
	return errors.Is(err, puddle.ErrClosedPool)
}

// explain adds to the server's error what it means for a queue and what to do.
func (q *Queue) explain(err error) error {
	if errors.Is(err, puddle.ErrClosedPool) {
		return fmt.Errorf("%w: the connection pool was closed: close it after the queue: %w", backend.ErrClosed, err)
	}
	switch sqlState(err) {
	case "3F000":
		return fmt.Errorf("%w: the database has no schema pgmq: install PGMQ 1.5 or later there (CREATE EXTENSION pgmq): %w", backend.ErrQueueNotFound, err)
	case "42P01":
		return fmt.Errorf("%w: a table of queue %q or of its dead-letter queue %q is missing: install PGMQ if the database lacks it, then call Queue.Create: %w", backend.ErrQueueNotFound, q.name, q.dead, err)
	case "42883":
		return fmt.Errorf("a function is missing, so that PGMQ is not installed as it should: install PGMQ 1.5 or later: %w", err)
	case "42703":
		return fmt.Errorf("the queue's tables are from a PGMQ before 1.5: upgrade with ALTER EXTENSION pgmq UPDATE: %w", err)
	case "42501":
		return fmt.Errorf("grant the database user USAGE on schema pgmq and SELECT, INSERT, UPDATE and DELETE on the tables of queues %q and %q: %w", q.name, q.dead, err)
	case "25006":
		return fmt.Errorf("the server takes no writes: connect to the primary (target_session_attrs=read-write in the connection string): %w", err)
	case "26000", "42P05":
		return fmt.Errorf("a pooler hands one session to several clients: set ConnConfig.DefaultQueryExecMode to pgx.QueryExecModeCacheDescribe: %w", err)
	}
	return err
}

// errorf says in which operation on which queue err happened.
func (q *Queue) errorf(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pgmq: queue %q: %s: %w", q.name, op, err)
}
