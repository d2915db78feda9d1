package rabbit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// Type is a type of queue.
type Type string

// The types of queue that Create makes and a consumer can work on.
const (
	Quorum  Type = "quorum"
	Classic Type = "classic"
)

// Options adjusts a Queue. The zero value is right for most.
type Options struct {
	// DeadLetterQueue is the name of the queue that takes the dead letters. Empty means the queue's name with "_dlq".
	DeadLetterQueue string

	// DeadLetterExchange is an exchange of yours that dead letters are published to, with the routing key that the message
	// had; what it leads to should be DeadLetterQueue. Empty means an exchange of this package's, bound to DeadLetterQueue
	// alone.
	DeadLetterExchange string

	// Type is the type of the queues that Create makes. Empty means Quorum. It says nothing of queues that exist.
	Type Type

	// Arguments are further ones for Create to declare the queue with, such as x-max-length or x-delivery-limit.
	Arguments map[string]any

	// MaxDelay is the longest delay that a retry can have; longer ones are cut to it. 0 means the constant MaxDelay.
	MaxDelay time.Duration

	// BandsPerDecade is how many parking queues share the delays between one and ten seconds, and so on. With fewer of them a
	// retry may come later, see Queue.Limits. 0 means 24; else 1, 2, 3, 4, 6, 8, 12 or 24. It can be changed at any time.
	BandsPerDecade int

	// NoDeclare forbids this package to declare anything, except in Create. Then what Queue.Definitions returns has to be there, and
	// Subscribe and Check look that it is.
	NoDeclare bool

	// ConsumerTimeout is the broker's consumer_timeout: how long a message may be held before the broker takes it back. 0
	// means RabbitMQ's default, 30 minutes; a negative one, that the broker has none.
	ConsumerTimeout time.Duration

	// TLS is the configuration for amqps URLs. Nil means what the URL says, and the system's certificates.
	TLS *tls.Config

	// SASL returns how to log in, and is asked for each connection, so that credentials may change. Nil means the user and
	// password in the URL.
	SASL func() []amqp.Authentication

	// Heartbeat is how often both sides of a connection show that they live. A peer that is silent for up to three times that is taken for dead.
	// 0 means 10 s.
	Heartbeat time.Duration

	// Dial opens the network connections. Nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger takes what happens to connections: lost, blocked by an alarm, back. Nil means slog.Default().
	Logger *slog.Logger
}

const (
	defaultConsumerTimeout = 30 * time.Minute

	// settleBatch is how many messages a consumer settles together. While the copies of one batch wait for their
	// confirmation those of the next are on their way.
	settleBatch = 100
	parallel    = 4
)

// Queue is one queue of RabbitMQ with its dead-letter queue and its parking queues. It is safe for concurrent use. It
// implements backend.Queue, backend.Publisher, backend.Statser and backend.Checker.
type Queue struct {
	name      string
	dead      string
	addresses []string
	vhost     string
	user      string // who publishes; empty if that is not known
	opts      Options
	log       *slog.Logger
	top       *topology
	ladder    ladder
	frameMax  atomic.Int64  // of the connection that publishes, or the least that was seen before there is one
	sequence  atomic.Int64  // of publishings and consumers
	calming   chan struct{} // held by the subscription that ends a consumer or gives messages back

	life   context.Context // ends when Close has closed the subscriptions
	end    context.CancelFunc
	copies *lane // work copies and messages
	graves *lane // dead letters, which must not hold up the others

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

// Open returns the queue of that name. It checks its arguments and does no I/O: see Create for making the queue, and Check
// for whether it is fit for use.
//
// The URL is amqp://user:password@host:5672/vhost, or amqps:// for TLS, with reserved characters percent-encoded. For a
// cluster it may be several, separated by commas, that are tried in turn.
func Open(url, name string, opts Options) (*Queue, error) {
	if err := checkName("queue name", name, longestSuffix); err != nil {
		return nil, err
	}
	if opts.DeadLetterQueue == "" {
		opts.DeadLetterQueue = name + deadLetterSuffix
	}
	if err := checkName("Options.DeadLetterQueue", opts.DeadLetterQueue, 0); err != nil {
		return nil, err
	}
	if opts.BandsPerDecade == 0 {
		opts.BandsPerDecade = len(mantissas)
	}
	switch {
	case opts.DeadLetterQueue == name:
		return nil, fmt.Errorf("rabbit: queue %q is its own dead-letter queue: name another in Options.DeadLetterQueue", name)
	case opts.Type != "" && opts.Type != Quorum && opts.Type != Classic:
		return nil, fmt.Errorf("rabbit: Options.Type is %q: set Quorum or Classic", opts.Type)
	case opts.MaxDelay < 0 || opts.MaxDelay > MaxDelay:
		return nil, fmt.Errorf("rabbit: Options.MaxDelay is %v: set a positive duration of at most %v, or 0 for that", opts.MaxDelay, MaxDelay)
	case opts.BandsPerDecade < 1 || len(mantissas)%opts.BandsPerDecade != 0:
		return nil, fmt.Errorf("rabbit: Options.BandsPerDecade is %d: set 1, 2, 3, 4, 6, 8, 12 or 24", opts.BandsPerDecade)
	case opts.Heartbeat < 0 || opts.Heartbeat > 0 && opts.Heartbeat < time.Second:
		return nil, fmt.Errorf("rabbit: Options.Heartbeat is %v: set 1 s or more, or 0 for %v", opts.Heartbeat, defaultHeartbeat)
	}
	q := &Queue{name: name, dead: opts.DeadLetterQueue, calming: make(chan struct{}, 1)}
	for i, address := range strings.Split(url, ",") {
		uri, err := amqp.ParseURI(strings.TrimSpace(address))
		if err != nil {
			// What the error says may hold the password.
			return nil, fmt.Errorf("rabbit: queue %q: the URL is not understood: write amqp://user:password@host:5672/vhost, "+
				"with amqps for TLS, and percent-encode reserved characters of user, password and vhost", name)
		}
		q.addresses = append(q.addresses, strings.TrimSpace(address))
		switch {
		case i == 0:
			q.vhost, q.user = uri.Vhost, uri.Username
		case uri.Vhost != q.vhost:
			return nil, fmt.Errorf("rabbit: queue %q: the URLs name different virtual hosts: %q and %q", name, q.vhost, uri.Vhost)
		case uri.Username != q.user:
			q.user = ""
		}
	}
	if opts.SASL != nil {
		q.user = ""
	}
	if opts.Type == "" {
		opts.Type = Quorum
	}
	if opts.MaxDelay == 0 {
		opts.MaxDelay = MaxDelay
	}
	if opts.ConsumerTimeout == 0 {
		opts.ConsumerTimeout = defaultConsumerTimeout
	}
	if opts.Heartbeat == 0 {
		opts.Heartbeat = defaultHeartbeat
	}
	if opts.Dial == nil {
		opts.Dial = new(net.Dialer).DialContext
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	opts.Arguments = maps.Clone(opts.Arguments)
	q.opts = opts
	q.log = opts.Logger.With("queue", name)
	bound := q.dead
	if opts.DeadLetterExchange != "" {
		bound = ""
	}
	q.top = newTopology(name, bound)
	q.ladder = newLadder(opts.BandsPerDecade, opts.MaxDelay)
	q.frameMax.Store(defaultFrameMax)
	q.life, q.end = context.WithCancel(context.Background())
	out := &outlet{queue: q}
	q.copies, q.graves = newLane(out), newLane(out)
	return q, nil
}

// Create declares the queue and its dead-letter queue, of the type that Options.Type says, and the exchanges beside them. Nothing
// else in this package makes the two. It fails if one of them exists with other arguments.
func (q *Queue) Create(ctx context.Context) error {
	err := q.visit(ctx, func(v *visit) error {
		args := amqp.Table{argType: string(q.opts.Type)}
		for _, name := range []string{q.dead, q.name} {
			if name == q.name {
				maps.Copy(args, q.opts.Arguments)
			}
			err := v.do(func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(name, true, false, false, false, args)
				return err
			})
			if err != nil {
				return fmt.Errorf("declare queue %q: %w", name, q.explain(err))
			}
		}
		if q.opts.NoDeclare {
			return nil
		}
		for _, p := range []part{backPart, gravesPart} {
			if err := q.declare(v, p); err != nil {
				return err
			}
			q.top.note(p)
		}
		return nil
	})
	return q.errorf("create", err)
}

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// Limits tells that delays are rounded up to milliseconds, that one may be late by about a tenth where others of about its length
// wait too (Limits.Stretch, which follows Options.BandsPerDecade), that a body is any bytes, that a lease lasts as long as
// the connection that it came by, or Options.ConsumerTimeout, and that the record of a retry is short.
func (q *Queue) Limits() backend.Limits {
	return backend.Limits{
		MaxDelay:         q.opts.MaxDelay,
		Granularity:      time.Millisecond,
		Stretch:          q.ladder.stretch(),
		MaxHold:          max(q.opts.ConsumerTimeout, 0),
		ShortRetryRecord: true,
		SettleBatch:      settleBatch,
		Parallel:         parallel,
	}
}

// Close closes the queue's subscriptions and connections. Closing again does nothing.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	subs := slices.Clone(q.subs)
	q.mu.Unlock()
	var errs []error
	for _, s := range subs {
		errs = append(errs, s.Close(ctx))
	}
	q.end()
	q.copies.out.close(ctx)
	return errors.Join(errs...)
}

func (q *Queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

func (q *Queue) forget(s *subscription) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.subs = slices.DeleteFunc(q.subs, func(other *subscription) bool { return other == s })
}
