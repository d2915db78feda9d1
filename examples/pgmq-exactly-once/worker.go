package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// Transfer is the body of a message.
type Transfer struct {
	From, To, Amount int
}

// work handles transfers until ctx ends.
func work(ctx context.Context, url, name string) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	const handlers = 4
	config.MaxConns = handlers + 4 // each running handler holds one
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	queue, err := pgmq.Open(pool, name, pgmq.Options{})
	if err != nil {
		return err
	}
	c := &consumer.Consumer{
		Queue: queue,
		Policy: policy.Policy{
			Name:        name,
			MaxAttempts: 50, // cut connections are failures
			Backoff:     policy.Exponential{Base: 20 * time.Millisecond, Max: time.Second},
			Jitter:      policy.FullJitter,
		},
		Handler:     consumer.HandlerFunc(pgmq.InTx(transfer(name))),
		Concurrency: handlers,
		Lease:       time.Second,     // until the messages of a worker that was killed come back
		Timeout:     5 * time.Second, // until the server ends the transaction of one that it cannot reach
		Logger:      slog.New(slog.DiscardHandler),
	}
	return c.Run(ctx)
}

// transfer is the handler: ordinary SQL, with nothing in it against duplicates.
func transfer(schema string) func(context.Context, pgx.Tx, *backend.Delivery) error {
	move := "UPDATE " + schema + ".accounts SET balance = balance + $2 WHERE id = $1"
	record := "INSERT INTO " + schema + ".ledger (transfer) VALUES ($1)"
	return func(ctx context.Context, tx pgx.Tx, d *backend.Delivery) error {
		var t Transfer
		if err := json.Unmarshal(d.Body, &t); err != nil {
			return policy.Permanent(err)
		}
		// Two transfers in opposite directions may deadlock. The server then fails one of them, which is retried.
		if _, err := tx.Exec(ctx, move, t.From, -t.Amount); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.01)"); err != nil { // it takes its time, for chaos to strike
			return err
		}
		if _, err := tx.Exec(ctx, move, t.To, t.Amount); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, record, d.ID)
		return err
	}
}
