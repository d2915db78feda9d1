package pgmq_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

// Rows are locked in the order of their msg_id, whatever the order of a batch: with another client that keeps to that order
// there is no deadlock.
func TestRowsAreLockedInOneOrder(t *testing.T) {
	for name, s := range map[string]backend.Settlement{"ack": ack, "retry": retry(0), "dead-letter": deadLetter("x"), "extend": {}} {
		t.Run(name, func(t *testing.T) {
			theirs := pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["deadlock_timeout"] = "50ms" })
			ours := pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["deadlock_timeout"] = "1h" // so that a deadlock shows over there
				// Plans that go through the batch and look each row up, as the planner chooses them by itself for a small batch.
				c.ConnConfig.RuntimeParams["enable_hashjoin"] = "off"
				c.ConnConfig.RuntimeParams["enable_mergejoin"] = "off"
				c.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
			})
			q := queue(t, ours, pgmq.Options{})
			sub := subscribe(t, q)
			const n = 150
			fill(t, ours, q.Name(), n)
			ds := receive(t, sub, n)
			first, last := ds[0].Raw.(*pgmq.Message).MsgID, ds[n-1].Raw.(*pgmq.Message).MsgID
			slices.Reverse(ds)

			tx, err := theirs.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(t.Context())
			lock := "SELECT FROM pgmq.q_" + q.Name() + " WHERE msg_id = $1 FOR UPDATE"
			_, err = tx.Exec(t.Context(), lock, first)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() {
				if s.Outcome == 0 {
					done <- sub.Extend(t.Context(), ds)
					return
				}
				var batch []backend.Settlement
				for _, d := range ds {
					s.Delivery = d
					batch = append(batch, s)
				}
				done <- sub.Settle(t.Context(), batch)
			}()
			await(t, "our statement waits for the first row", func() bool {
				return scalar[int](t, theirs, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'", q.Name()) == 1
			})
			_, err = tx.Exec(t.Context(), lock, last)
			require.NoError(t, err)
			require.NoError(t, tx.Commit(t.Context()))
			require.NoError(t, <-done)
		})
	}
}

// What the server breaks off in favour of another statement is tried again, at once and not for ever.
func TestALostConflictIsTriedAgain(t *testing.T) {
	for _, code := range []string{"40001", "40P01"} {
		t.Run(code, func(t *testing.T) {
			p := pool(t)
			q := queue(t, p, pgmq.Options{})
			sub := subscribe(t, q)
			publish(t, q, `1`, `2`)
			ds := receive(t, sub, 2)
			lose := func(conflicts int) {
				// A sequence counts on though the statement is undone.
				execute(t, p, fmt.Sprintf(`DROP SEQUENCE IF EXISTS pgmq.conflict_%[1]s CASCADE; CREATE SEQUENCE pgmq.conflict_%[1]s;
					CREATE OR REPLACE FUNCTION pgmq.conflict_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
						IF nextval('pgmq.conflict_%[1]s') <= %[2]d THEN RAISE EXCEPTION 'conflict' USING ERRCODE = '%[3]s'; END IF; RETURN NULL;
					END $$;
					CREATE OR REPLACE TRIGGER conflict AFTER UPDATE OR DELETE ON pgmq.q_%[1]s FOR EACH STATEMENT EXECUTE FUNCTION pgmq.conflict_%[1]s()`,
					q.Name(), conflicts, code))
			}
			t.Cleanup(func() {
				execute(t, p, fmt.Sprintf("DROP FUNCTION pgmq.conflict_%[1]s CASCADE; DROP SEQUENCE pgmq.conflict_%[1]s", q.Name()))
			})
			lose(5)
			require.NoError(t, settle(sub, ds[0], ack))
			lose(5)
			require.NoError(t, sub.Extend(t.Context(), ds[1:]))

			lose(1000)
			err := settle(sub, ds[1], deadLetter("x"))
			var pg *pgconn.PgError
			require.ErrorAs(t, err, &pg)
			require.Equal(t, code, pg.Code)
			require.NotErrorIs(t, err, backend.ErrUnknown, "the server said that nothing happened")
			require.Less(t, scalar[int](t, p, "SELECT last_value FROM pgmq.conflict_"+q.Name()), 100)
			lose(0)
			require.NoError(t, settle(sub, ds[1], ack), "it is still held")
			require.Equal(t, 2, count(t, p, "a_"+q.Name()))
		})
	}
}
