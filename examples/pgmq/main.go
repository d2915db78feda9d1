// Pgmq handles the orders of the quickstart out of a PostgreSQL database that has the PGMQ extension.
//
//	go run ./examples/pgmq -url postgres://postgres@localhost/postgres
//
// Without -url it takes REDELIVER_POSTGRES_URL. "make brokers" brings a database up and prints that line. The handler and
// its retry policy are in examples/internal/kitchen; stop the program half way and run it again, and the messages that
// waited for their retry are there still.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/examples/internal/kitchen"
)

func main() {
	url := flag.String("url", os.Getenv("REDELIVER_POSTGRES_URL"), "`URL` of a database with PGMQ")
	name := flag.String("queue", "redeliver_example", "`name` of the queue, which is created if need be")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *url, *name); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, url, name string) error {
	if url == "" {
		return errors.New("no database: give -url, or set REDELIVER_POSTGRES_URL")
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	orders, err := pgmq.Open(pool, name, pgmq.Options{})
	if err != nil {
		return err
	}
	if err := orders.Create(ctx); err != nil {
		return err
	}
	if err := kitchen.Serve(ctx, w, orders, kitchen.Patience); err != nil {
		return err
	}
	return printDeadLetters(ctx, w, pool, name+"_dlq")
}

// printDeadLetters shows that a dead letter needs no library to be read. The messages stay where they are.
func printDeadLetters(ctx context.Context, w io.Writer, pool *pgxpool.Pool, queue string) error {
	// PGMQ names the table of a queue q_<queue>; pgmq.Open has checked the name.
	table := "pgmq.q_" + queue
	rows, err := pool.Query(ctx, "SELECT msg_id, message::text, headers->'redeliver-failure' FROM "+table+" ORDER BY msg_id DESC LIMIT 2")
	if err != nil {
		return err
	}
	defer rows.Close()
	fmt.Fprintf(w, "\nThe newest of %s:\n", table)
	for rows.Next() {
		var id int64
		var body string
		var envelope []byte
		if err := rows.Scan(&id, &body, &envelope); err != nil {
			return err
		}
		fmt.Fprintf(w, "\nmsg_id %d, with the message %s and in its headers redeliver-failure:\n", id, body)
		if err := kitchen.PrintEnvelope(w, envelope); err != nil {
			return err
		}
	}
	return rows.Err()
}
