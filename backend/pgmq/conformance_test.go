package pgmq_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/conformance"
)

func TestConformance(t *testing.T) {
	h := conformance.Harness{
		Name:  "pgmq",
		Lease: 2 * time.Second,
		Slack: 5 * time.Second, // the machine may be busy; how soon a message is there is measured elsewhere
	}
	p := pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	h.Open = func(ctx context.Context, name string) (*conformance.Fixture, error) {
		return createFixture(ctx, p, name, name, name+"_dlq")
	}
	h.OpenWithoutQueue = func(ctx context.Context, name string) (*conformance.Fixture, error) {
		return createFixture(ctx, p, name)
	}
	h.OpenWithoutDeadLetters = func(ctx context.Context, name string) (*conformance.Fixture, error) {
		return createFixture(ctx, p, name, name)
	}
	conformance.Run(t, h)
}

// createFixture opens a queue, having created the tables that it is told to.
func createFixture(ctx context.Context, p *pgxpool.Pool, name string, tables ...string) (*conformance.Fixture, error) {
	dead := name + "_dlq"
	q, err := pgmq.Open(p, name, pgmq.Options{})
	if err != nil {
		return nil, err
	}
	// A dead-letter queue that is read as a queue needs one for its own failures.
	graves, err := pgmq.Open(p, dead, pgmq.Options{DeadLetterQueue: name})
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		if _, err := p.Exec(ctx, "SELECT pgmq.create($1::text)", table); err != nil {
			return nil, err
		}
	}
	rename := func(ctx context.Context, from, to string) error {
		_, err := p.Exec(ctx, fmt.Sprintf("ALTER TABLE pgmq.%s RENAME TO %s", from, to))
		return err
	}
	return &conformance.Fixture{
		Queue:       q,
		DeadLetters: graves,
		Reopen: func(context.Context) (backend.Queue, error) {
			return pgmq.Open(p, name, pgmq.Options{})
		},
		BreakDeadLetters: func(ctx context.Context) (func(context.Context) error, error) {
			table, hidden := "q_"+dead, "hidden_"+dead
			restore := func(ctx context.Context) error { return rename(ctx, hidden, table) }
			return restore, rename(ctx, table, hidden)
		},
		Close: func(ctx context.Context) error {
			for _, q := range []*pgmq.Queue{q, graves} {
				if err := q.Close(ctx); err != nil {
					return err
				}
			}
			for _, table := range tables {
				if _, err := p.Exec(ctx, "SELECT pgmq.drop_queue($1::text)", table); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}
