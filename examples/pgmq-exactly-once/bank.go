package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

const (
	transfers = 500
	accounts  = 200
	deposit   = 1000 // on each account at the start
)

// bank keeps accounts, and a ledger with a line for each transfer. Nothing in its tables refuses a transfer that happens twice.
type bank struct {
	pool  *pgxpool.Pool
	queue *pgmq.Queue
}

// schema is where the accounts are: a name that pgmq.Open has checked.
func (b bank) schema() string { return b.queue.Name() }

// open makes the accounts and sends the transfers, in one transaction. What an earlier run has left is removed.
func (b bank) open(ctx context.Context) error {
	if err := b.close(ctx); err != nil {
		return err
	}
	if err := b.queue.Create(ctx); err != nil {
		return err
	}
	if err := b.queue.Tune(ctx); err != nil {
		return err
	}
	var msgs []backend.Message
	for i := range transfers {
		from := rand.IntN(accounts)
		to := (from + 1 + rand.IntN(accounts-1)) % accounts
		body, err := json.Marshal(Transfer{From: from, To: to, Amount: 1 + rand.IntN(100)})
		if err != nil {
			return err
		}
		msgs = append(msgs, backend.Message{ID: fmt.Sprintf("transfer-%d", i+1), Body: body})
	}
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf(`CREATE SCHEMA %[1]s;
			CREATE TABLE %[1]s.accounts (id int PRIMARY KEY, balance bigint NOT NULL);
			CREATE TABLE %[1]s.ledger (transfer text NOT NULL);
			INSERT INTO %[1]s.accounts SELECT i, %d FROM generate_series(0, %d) i`, b.schema(), deposit, accounts-1))
		if err != nil {
			return err
		}
		return b.queue.PublishTx(ctx, tx, msgs...)
	})
}

// close removes all that there is.
func (b bank) close(ctx context.Context) error {
	if _, err := b.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+b.schema()+" CASCADE"); err != nil {
		return err
	}
	for _, name := range []string{b.queue.Name(), b.queue.Name() + "_dlq"} {
		if _, err := b.pool.Exec(ctx, "SELECT pgmq.drop_queue($1::text) WHERE to_regclass('pgmq.q_' || $1) IS NOT NULL", name); err != nil {
			return err
		}
	}
	return nil
}

// unfinished is how many transfers are still to be made.
func (b bank) unfinished(ctx context.Context) (int64, error) {
	stats, err := b.queue.Stats(ctx)
	return stats.Ready + stats.Waiting, err
}

// cutConnection has the server end the session of some worker in the middle of a transaction that has written, and returns how
// many it was: none if there is none.
func (b bank) cutConnection(ctx context.Context) (n int, err error) {
	err = b.pool.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) FROM (
		SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND backend_xid IS NOT NULL ORDER BY random() LIMIT 1) victim`, b.schema()).Scan(&n)
	return n, err
}

// audit checks the books and prints them.
func (b bank) audit(ctx context.Context, w io.Writer) error {
	var made, distinct, sum, wrong, failures, lapses, dead int64
	err := b.pool.QueryRow(ctx, strings.ReplaceAll(`SELECT
		(SELECT count(*) FROM BANK.ledger), (SELECT count(DISTINCT transfer) FROM BANK.ledger),
		(SELECT sum(balance) FROM BANK.accounts),
		(SELECT count(*) FROM BANK.accounts a WHERE balance <> $1
			+ (SELECT coalesce(sum((message->>'Amount')::int), 0) FROM pgmq.a_BANK WHERE (message->>'To')::int = a.id)
			- (SELECT coalesce(sum((message->>'Amount')::int), 0) FROM pgmq.a_BANK WHERE (message->>'From')::int = a.id)),
		(SELECT coalesce(sum((headers->'redeliver-counts'->>'failures')::int), 0) FROM pgmq.a_BANK),
		(SELECT sum(read_ct - 1 - coalesce((headers->'redeliver-counts'->>'failures')::int, 0) - coalesce((headers->'redeliver-counts'->>'releases')::int, 0)) FROM pgmq.a_BANK),
		(SELECT count(*) FROM pgmq.q_BANK_dlq)`, "BANK", b.schema()), deposit).Scan(&made, &distinct, &sum, &wrong, &failures, &lapses, &dead)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d failures were retried, and %d deliveries died with their worker\n", failures, lapses)
	fmt.Fprintf(w, "%d transfers were made, %d of them different ones; the accounts hold %d, and held %d\n", made, distinct, sum, accounts*deposit)
	if made != transfers || distinct != transfers || sum != accounts*deposit || wrong != 0 || dead != 0 {
		return fmt.Errorf("the books are wrong: %d of %d accounts, %d dead letters", wrong, accounts, dead)
	}
	return nil
}
