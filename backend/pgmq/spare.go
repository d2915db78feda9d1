package pgmq

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Handlers often use the pool that the queue has. When they hold all of its connections, heartbeats and settlements would
// wait for handlers to end, while the leases of these run out. So what waits for longer than spareAfter, or a third of the
// time that it has, takes a connection of its own, one for a queue, which is opened when it is first needed and closed
// after a minute without use.
const (
	spareAfter = 100 * time.Millisecond
	spareIdle  = time.Minute
)

type spare struct {
	mu   sync.Mutex
	pool *pgxpool.Pool // nil until needed
}

// acquire takes a connection for a short statement.
func (q *Queue) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	wait := spareAfter
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/3)
	}
	soon, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := q.pool.Acquire(soon)
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return conn, err
	}
	pool, err := q.spare.open(q.pool)
	if err != nil {
		return nil, err
	}
	return pool.Acquire(ctx)
}

func (s *spare) open(like *pgxpool.Pool) (*pgxpool.Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pool == nil {
		config := like.Config()
		config.MaxConns, config.MinConns, config.MinIdleConns = 1, 0, 0
		config.MaxConnIdleTime = spareIdle
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			return nil, err
		}
		s.pool = pool
	}
	return s.pool, nil
}

// close waits until the connection is not in use.
func (s *spare) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pool != nil {
		s.pool.Close()
		s.pool = nil
	}
}
