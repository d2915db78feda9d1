package pgmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redeliver/redeliver/backend"
)

// Options adjusts a Queue. The zero value is right for most.
type Options struct {
	// DeadLetterQueue is the name of the queue that takes the dead letters. Empty means the queue's name with "_dlq".
	DeadLetterQueue string

	// DeleteOnSuccess deletes a message that was acked or discarded. By default it moves to the queue's archive, the table
	// pgmq.a_<name>, which grows until PurgeArchive is called.
	DeleteOnSuccess bool

	// PollInterval is how often an idle subscription looks for messages that other processes have sent; each look is one
	// read of an index. Messages that come due after a delay, and those sent through this Queue, are not found by polling
	// and do not wait for it. 1 ms at least; 0 means 200 ms.
	PollInterval time.Duration

	// Listen, where it is set, has other processes' messages found at once, by LISTEN on a connection of its own that these
	// settings lead to: pool.Config().ConnConfig, or what pgx.ParseConfig makes of an address that leads past a pooler. The
	// queue has to send notifications: see the package comment. PollInterval may then be as long as 5 s, say; while no
	// notifications arrive, 200 ms takes its place. Nil: no LISTEN.
	Listen *pgx.ConnConfig

	// Parallel is how many calls to Receive, and to Settle, a consumer makes at the same time; each takes a connection of
	// the pool while its statement runs. 0 means a quarter of the pool, at least 1 and at most 4.
	Parallel int

	// Logger takes the warnings of a database that cannot be reached. Nil means slog.Default().
	Logger *slog.Logger
}

const (
	defaultPollInterval = 200 * time.Millisecond
	minPollInterval     = time.Millisecond
)

// settleBatch is how many messages one statement settles. Larger batches gain little, and lock their rows for longer.
const settleBatch = 200

// Queue is one PGMQ queue and its dead-letter queue. It is safe for concurrent use. It implements backend.Queue,
// backend.Publisher, backend.Statser and backend.Checker.
type Queue struct {
	pool     *pgxpool.Pool
	name     string
	dead     string
	opts     Options
	log      *slog.Logger
	parallel int

	spare spare

	plansKept bool        // the pool prepares statements by name, and the server may keep their plans
	pooled    atomic.Bool // a pooler was met that does not follow those names

	ear atomic.Pointer[listener] // nil without Options.Listen, and before the first subscription

	mu     sync.Mutex
	closed bool
	subs   []*subscription
}

var (
	_ backend.Queue     = (*Queue)(nil)
	_ backend.Publisher = (*Queue)(nil)
	_ backend.Statser   = (*Queue)(nil)
	_ backend.Checker   = (*Queue)(nil)
)

// Open returns the queue of that name. It checks names and options and does no I/O: see Create for making the queue, and
// Check for whether it is fit for use. The pool stays the caller's, who closes it after the queue.
//
// Names consist of a-z, 0-9 and _. A queue's has 43 bytes at most, so that its dead-letter queue stays within PGMQ's 47;
// with a DeadLetterQueue of its own it may have 47 too.
func Open(pool *pgxpool.Pool, name string, opts Options) (*Queue, error) {
	limit := maxNameBytes - len(deadLetterSuffix)
	if opts.DeadLetterQueue != "" {
		limit = maxNameBytes
	}
	if err := checkName("queue name", name, limit); err != nil {
		return nil, err
	}
	if opts.DeadLetterQueue == "" {
		opts.DeadLetterQueue = name + deadLetterSuffix
	}
	if err := checkName("Options.DeadLetterQueue", opts.DeadLetterQueue, maxNameBytes); err != nil {
		return nil, err
	}
	switch {
	case opts.DeadLetterQueue == name:
		return nil, fmt.Errorf("pgmq: queue %q is its own dead-letter queue: name another in Options.DeadLetterQueue", name)
	case opts.PollInterval != 0 && opts.PollInterval < minPollInterval:
		return nil, fmt.Errorf("pgmq: Options.PollInterval is %v: set %v or more, or 0 for %v", opts.PollInterval, minPollInterval, defaultPollInterval)
	case opts.Parallel < 0:
		return nil, fmt.Errorf("pgmq: Options.Parallel is %d: set a positive number, or 0 for a quarter of the pool", opts.Parallel)
	case opts.Listen != nil && opts.Listen.Port == 0:
		return nil, errors.New("pgmq: Options.Listen names no server: take pool.Config().ConnConfig, or what pgx.ParseConfig returns")
	case pool == nil:
		return nil, errors.New("pgmq: the pool is nil: make one with pgxpool.New")
	}
	if opts.PollInterval == 0 {
		opts.PollInterval = defaultPollInterval
	}
	config := pool.Config()
	if opts.Parallel == 0 {
		opts.Parallel = min(max(int(config.MaxConns)/4, 1), 4)
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Queue{
		pool:      pool,
		name:      name,
		dead:      opts.DeadLetterQueue,
		opts:      opts,
		log:       opts.Logger.With("queue", name),
		parallel:  opts.Parallel,
		plansKept: config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement,
	}, nil
}

// Create creates the queue and its dead-letter queue where they do not exist. Nothing else in this package creates either.
func (q *Queue) Create(ctx context.Context) error {
	for _, name := range []string{q.name, q.dead} {
		if err := q.exec(ctx, "SELECT pgmq.create($1::text)", name); err != nil {
			return q.errorf("create", q.explain(err))
		}
	}
	l, err := q.probe(ctx)
	if err != nil {
		return q.errorf("create", err)
	}
	return q.refuse("create", q.findings(l))
}

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// Limits tells that delays have no maximum and are rounded up to microseconds, that bodies are JSON, that leases expire, and
// that the record of a retry is short: see the package comment.
func (q *Queue) Limits() backend.Limits {
	return backend.Limits{
		Granularity:      time.Microsecond,
		Body:             backend.JSONBody,
		LeaseExpires:     true,
		ShortRetryRecord: true,
		SettleBatch:      settleBatch,
		Parallel:         q.parallel,
	}
}

// Close closes the queue's subscriptions, and the connection beside the pool if there is one: see the package comment. The
// pool stays open. Closing again does nothing.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	subs := slices.Clone(q.subs)
	q.mu.Unlock()
	var errs []error
	for _, s := range subs {
		errs = append(errs, s.Close(ctx))
	}
	q.ear.Load().stop()
	q.spare.close()
	return errors.Join(errs...)
}

func (q *Queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// wake tells the subscriptions of this process that a message is due after d.
func (q *Queue) wake(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := time.Now().Add(d)
	for _, s := range q.subs {
		s.alarm.set(at)
	}
}
