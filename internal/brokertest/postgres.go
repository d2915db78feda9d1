package brokertest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Postgres returns the URL of a PostgreSQL database that has the PGMQ extension.
// The server is the one that REDELIVER_POSTGRES_URL names; the extension is
// created where the server offers it and the database lacks it. Without the
// variable the test is skipped, or fails where brokers are required; a server
// that is named and cannot be used always fails it.
func Postgres(tb testing.TB) string {
	tb.Helper()
	url := os.Getenv("REDELIVER_POSTGRES_URL")
	if url == "" {
		missing(tb, "no PostgreSQL with PGMQ: REDELIVER_POSTGRES_URL is not set; run make test, or export what make brokers prints")
	}
	if err := prepare(url); err != nil {
		tb.Fatalf("REDELIVER_POSTGRES_URL: %v", err)
	}
	return url
}

var prepared sync.Map // of URL to the func() error that prepares it once

// prepare creates the extension once in a process.
func prepare(url string) error {
	once, _ := prepared.LoadOrStore(url, sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return createPGMQ(ctx, url)
	}))
	return once.(func() error)()
}

// createPGMQ creates the extension in the database, unless its objects are there:
// a server may have them from plain SQL, without an extension of that name.
func createPGMQ(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// CREATE EXTENSION IF NOT EXISTS fails when two sessions run it at once.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('redeliver create pgmq'))"); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, "SELECT to_regclass('pgmq.meta') IS NOT NULL").Scan(&there); err != nil || there {
			return err
		}
		if _, err := tx.Exec(ctx, "CREATE EXTENSION pgmq"); err != nil {
			return fmt.Errorf("the server lacks PGMQ, which make brokers installs on this machine: %w", err)
		}
		return nil
	})
}
