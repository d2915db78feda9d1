package rabbit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	defaultHeartbeat = 10 * time.Second

	// handshakeTime bounds what comes between the dial and an open connection.
	handshakeTime = 15 * time.Second

	// farewellTime bounds the goodbye of a connection that is closed.
	farewellTime = 2 * time.Second

	// The pauses between tries to connect.
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// link is one connection. It is used until it is gone, and then another takes its place: nothing of a link is ever revived,
// so that what belongs to a lost one, such as a delivery tag, cannot reach its successor.
type link struct {
	conn *amqp.Connection
	sock *cork // beneath it

	gone chan struct{} // closed when the connection has ended
	why  error         // set before that

	mu      sync.Mutex
	blocked string        // why the broker takes no publishings; empty while it does
	clear   chan struct{} // closed while it does
}

// dial opens a connection. When ctx ends during that, so does it; afterwards ctx has no meaning for the link.
func (q *Queue) dial(ctx context.Context, purpose string) (*link, error) {
	var errs []error
	for _, address := range q.addresses {
		l, err := q.dialOne(ctx, address, purpose)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect: %w", context.Cause(ctx))
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("connect: %w", errors.Join(errs...))
}

func (q *Queue) dialOne(ctx context.Context, address, purpose string) (*link, error) {
	l := &link{gone: make(chan struct{}), clear: make(chan struct{})}
	close(l.clear)
	// The library writes into the table and the TLS configuration that it is given: each connection has its own.
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("redeliver " + purpose + " " + q.name)
	detach := func() bool { return true }
	config := amqp.Config{
		Properties: properties,
		Heartbeat:  q.opts.Heartbeat,
		FrameSize:  amqp.FrameSizeUnlimited, // but for the broker's limit
		Dial: func(network, addr string) (net.Conn, error) {
			dialing, cancel := context.WithTimeout(ctx, handshakeTime)
			defer cancel()
			sock, err := q.opts.Dial(dialing, network, addr)
			if err != nil {
				return nil, err
			}
			l.sock = newCork(sock)
			detach = context.AfterFunc(ctx, l.cut)
			return l.sock, sock.SetDeadline(time.Now().Add(handshakeTime)) // which the library lifts
		},
	}
	if q.opts.TLS != nil {
		config.TLSClientConfig = q.opts.TLS.Clone()
	}
	if q.opts.SASL != nil {
		config.SASL = q.opts.SASL()
	}
	conn, err := amqp.DialConfig(address, config)
	if !detach() && err == nil {
		err = ctx.Err()
	}
	if err == amqp.ErrCredentials || err == amqp.ErrVhost {
		// The library's guess. RabbitMQ says nothing when it does not let somebody in.
		err = errors.New("the connection ended during the login: the user, the password or the virtual host is wrong, or the link was cut")
	}
	if err != nil {
		if l.sock != nil {
			l.cut()
		}
		return nil, err
	}
	l.conn = conn
	q.frameMax.Store(min(q.frameMax.Load(), l.frameMax()))
	go l.watch(q, conn.NotifyClose(make(chan *amqp.Error, 1)), conn.NotifyBlocked(make(chan amqp.Blocking, 8)))
	return l, nil
}

// watch keeps the link's state until it is gone.
func (l *link) watch(q *Queue, closed <-chan *amqp.Error, blocked <-chan amqp.Blocking) {
	for {
		select {
		case b, open := <-blocked:
			if !open {
				blocked = nil
				continue
			}
			l.block(b)
			if b.Active {
				q.log.Warn("rabbit: the broker takes no publishings: retries and dead letters wait until it does", "reason", b.Reason)
			} else {
				q.log.Info("rabbit: the broker takes publishings again")
			}
		case err := <-closed:
			l.why = errLeft
			if err != nil {
				l.why = err
			}
			// The library closes the socket last, after it has waited for a write that may hang in it.
			l.cut()
			close(l.gone)
			return
		}
	}
}

var errLeft = errors.New("the connection was closed here")

func (l *link) block(b amqp.Blocking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.blocked != ""
	switch {
	case b.Active && !was:
		l.clear = make(chan struct{})
	case !b.Active && was:
		close(l.clear)
	}
	l.blocked = ""
	if b.Active {
		l.blocked = "the broker is blocked: " + b.Reason
	}
}

// flow returns why the broker takes no publishings, if so, and a channel that is closed once it does.
func (l *link) flow() (blocked string, clear <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocked, l.clear
}

// cut ends the link at once, whatever hangs in it.
func (l *link) cut() { l.sock.Close() }

// close says goodbye and ends the link.
func (l *link) close() {
	// Its error says no more than that the connection was gone already.
	_ = l.conn.CloseDeadline(time.Now().Add(farewellTime))
	l.cut()
	<-l.gone
}

// frameMax returns how large a frame may be.
func (l *link) frameMax() int64 {
	if size := l.conn.Config.FrameSize; size > 0 {
		return int64(size)
	}
	return math.MaxInt32 // the broker sets no limit
}

// version returns that of the broker.
func (l *link) version() version { return versionOf(l.conn.Properties) }

// visit is a short connection for what is rarely done: declaring, looking.
type visit struct {
	link *link
	ch   *amqp.Channel
}

// visit connects for as long as f runs. When ctx ends, so does everything that f waits for.
func (q *Queue) visit(ctx context.Context, f func(*visit) error) error {
	l, err := q.dial(ctx, "for")
	if err != nil {
		return err
	}
	defer l.close()
	defer context.AfterFunc(ctx, l.cut)()
	err = f(&visit{link: l})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// do calls f with a channel. RabbitMQ closes a channel that caused an error, so that the next call may need another.
func (v *visit) do(f func(*amqp.Channel) error) error {
	if v.ch == nil || v.ch.IsClosed() {
		ch, err := v.link.conn.Channel()
		if err != nil {
			return err
		}
		v.ch = ch
	}
	return f(v.ch)
}

// pause is the wait before the next try to connect, after a number of failed ones: it doubles, and is spread, so that
// many clients do not come back at once.
func pause(failed int) time.Duration {
	d := min(minPause<<min(failed, 10), maxPause)
	return d/2 + rand.N(d/2+1)
}

// sleep waits for d, or until one of the channels is closed.
func sleep(d time.Duration, stop ...<-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var first, second <-chan struct{}
	if len(stop) > 0 {
		first = stop[0]
	}
	if len(stop) > 1 {
		second = stop[1]
	}
	select {
	case <-timer.C:
	case <-first:
	case <-second:
	}
}
