package pgmq_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/conformance"
	"github.com/redeliver/redeliver/internal/brokertest"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, newSite(pool(t, forSuite)).harness("pgmq"))
}

// The suite passes on the versions that are in use, whether their functions made a queue or their upgrade scripts changed one
// that was there; on an install by SQL alone; and through a pooler that nobody told us of.
func TestConformanceInTheWild(t *testing.T) {
	server := brokertest.Private(t)
	at := func(address string) site { return newSite(poolAt(t, address, forSuite)) }
	upgraded := func(from, to string) site {
		s := at(server.Database(from))
		s.upgrade(t, to)
		return s
	}
	pooled := func(address string) site {
		s := at(address)
		s.pool = poolAt(t, brokertest.Pooler(t, address), forSuite)
		return s
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for name, s := range map[string]site{
		"1.5.1":                    at(server.Database("1.5.1")),
		"1.10.1":                   at(server.Database("1.10.1")),
		"1.5.1 upgraded to 1.10.1": upgraded("1.5.1", "1.10.1"),
		"1.5.1 upgraded to 1.11.1": upgraded("1.5.1", "1.11.1"),
		"SQL alone":                at(server.SQLDatabase()),
		"PgBouncer":                pooled(server.Database("1.11.1")),
	} {
		// All at once, since cases wait more than they work; parallel subtests would share the package's few places.
		wg.Go(func() {
			t.Run(name, func(t *testing.T) {
				for _, v := range conformance.Check(t.Context(), s.harness("pgmq, "+name)) {
					t.Error(v)
				}
			})
		})
	}
}

func forSuite(c *pgxpool.Config) { c.MaxConns = 12 }

// site is a database to run the suite in.
type site struct {
	pool  *pgxpool.Pool // of the queues
	admin *pgxpool.Pool // to make and drop them
	stock chan string   // queues to hand out instead of new ones, if not nil
}

func newSite(p *pgxpool.Pool) site { return site{pool: p, admin: p} }

// upgrade makes queues, upgrades the extension, and has these queues handed out from now on.
func (s *site) upgrade(t *testing.T, version string) {
	t.Helper()
	const queues = 250 // the suite takes two a case, and two more where it begins a case anew
	s.stock = make(chan string, queues)
	for i := range queues {
		name := fmt.Sprintf("stock%d", i)
		execute(t, s.admin, "SELECT pgmq.create($1::text)", name)
		s.stock <- name
	}
	execute(t, s.admin, "ALTER EXTENSION pgmq UPDATE TO '"+version+"'")
	require.True(t, scalar[bool](t, s.admin, `SELECT bool_and(attnum = 7) FROM pg_attribute
		WHERE attrelid::regclass::text LIKE 'pgmq.q_stock%' AND attname = 'last_read_at'`), "the column came last, with the upgrade")
}

func (s site) create(ctx context.Context, name string) error {
	if s.stock == nil {
		_, err := s.admin.Exec(ctx, "SELECT pgmq.create($1::text)", name)
		return err
	}
	select {
	case old := <-s.stock:
		for _, table := range []string{"q_", "a_"} {
			if err := s.rename(ctx, table+old, table+name); err != nil {
				return err
			}
		}
		_, err := s.admin.Exec(ctx, "UPDATE pgmq.meta SET queue_name = $2 WHERE queue_name = $1", old, name)
		return err
	default:
		return errors.New("no queue is left of those made before the upgrade")
	}
}

func (s site) rename(ctx context.Context, from, to string) error {
	_, err := s.admin.Exec(ctx, fmt.Sprintf("ALTER TABLE pgmq.%s RENAME TO %s", from, to))
	return err
}

func (s site) harness(name string) conformance.Harness {
	return conformance.Harness{
		Name:  name,
		Lease: 2 * time.Second,
		Slack: 5 * time.Second, // the machine may be busy; how soon a message is there is measured elsewhere
		Open: func(ctx context.Context, name string) (*conformance.Fixture, error) {
			return s.fixture(ctx, name, name, name+"_dlq")
		},
		OpenWithoutQueue: func(ctx context.Context, name string) (*conformance.Fixture, error) {
			return s.fixture(ctx, name)
		},
		OpenWithoutDeadLetters: func(ctx context.Context, name string) (*conformance.Fixture, error) {
			return s.fixture(ctx, name, name)
		},
	}
}

// fixture opens a queue, having created the tables that it is told to.
func (s site) fixture(ctx context.Context, name string, tables ...string) (*conformance.Fixture, error) {
	dead := name + "_dlq"
	q, err := pgmq.Open(s.pool, name, pgmq.Options{})
	if err != nil {
		return nil, err
	}
	// A dead-letter queue that is read as a queue needs one for its own failures.
	graves, err := pgmq.Open(s.pool, dead, pgmq.Options{DeadLetterQueue: name})
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		if err := s.create(ctx, table); err != nil {
			return nil, err
		}
	}
	return &conformance.Fixture{
		Queue:       q,
		DeadLetters: graves,
		Reopen: func(context.Context) (backend.Queue, error) {
			return pgmq.Open(s.pool, name, pgmq.Options{})
		},
		BreakDeadLetters: func(ctx context.Context) (func(context.Context) error, error) {
			table, hidden := "q_"+dead, "hidden_"+dead
			restore := func(ctx context.Context) error { return s.rename(ctx, hidden, table) }
			return restore, s.rename(ctx, table, hidden)
		},
		Close: func(ctx context.Context) error {
			for _, q := range []*pgmq.Queue{q, graves} {
				if err := q.Close(ctx); err != nil {
					return err
				}
			}
			for _, table := range tables {
				if _, err := s.admin.Exec(ctx, "SELECT pgmq.drop_queue($1::text)", table); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}
