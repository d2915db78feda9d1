package pgmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// A notification of our own that was not heard within probeTime will not be. One is sent each probeEvery.
	probeTime  = 2 * time.Second
	probeEvery = 30 * time.Second

	connectTime = 10 * time.Second

	// The pauses between tries to listen.
	minListenPause = time.Second
	maxListenPause = time.Minute

	// commitTime is for what was sent in the throttle's interval, and is committed by a little later.
	commitTime = 50 * time.Millisecond
)

// A listener wakes the subscriptions of a queue when another client has sent to it, by LISTEN. It needs a trigger that
// PGMQ's enable_notify_insert makes, and a connection that nobody else uses.
//
// That nothing is heard may have reasons that no error tells of: a pooler in transaction mode, a trigger that was dropped, a
// crash that emptied the unlogged table without which the trigger stays silent. So the listener looks for the trigger and
// its row, and sends notifications to itself, by way of the pool: through a pooler, one that is sent on the connection that
// listens may arrive where all others are lost.
type listener struct {
	queue    *Queue
	cancel   context.CancelFunc
	done     chan struct{}
	probe    string // the channel of our own notifications; one for all connections, since a pooler keeps what was listened to
	delivers atomic.Bool
}

// listen starts the queue's listener, if it is to have one that is not there yet. The queue's mu is held.
func (q *Queue) listen() {
	if q.opts.Listen == nil || q.ear.Load() != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := newListener(q)
	l.cancel = cancel
	q.ear.Store(l)
	go l.run(ctx)
}

func newListener(q *Queue) *listener {
	return &listener{queue: q, done: make(chan struct{}), probe: "redeliver_" + rand.Text()}
}

// stop ends the listener and waits for its end. It may be nil.
func (l *listener) stop() {
	if l != nil {
		l.cancel()
		<-l.done
	}
}

// pollInterval is how often to look for what others have sent: as often as by default where they are to be heard and are not.
func (q *Queue) pollInterval() time.Duration {
	if l := q.ear.Load(); l != nil && !l.delivers.Load() {
		return min(q.opts.PollInterval, defaultPollInterval)
	}
	return q.opts.PollInterval
}

func (l *listener) run(ctx context.Context) {
	defer close(l.done)
	pause := minListenPause
	last := "" // what was said, so that it is not said again each minute
	for {
		err := l.session(ctx, func() { last, pause = "", minListenPause })
		if ctx.Err() != nil {
			return
		}
		l.delivers.Store(false)
		if text := err.Error(); text != last {
			l.queue.log.Warn("pgmq: cannot listen, so polls more often, and will try again", "poll", l.queue.pollInterval(), "error", err)
			last = text
		}
		l.queue.wake(0) // the next pause is shorter
		timer := time.NewTimer(jittered(pause, 0.5))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, maxListenPause)
	}
}

// session listens on one connection until something is amiss. It calls delivering each time that all was seen to be well.
func (l *listener) session(ctx context.Context, delivering func()) error {
	conn, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer hangUp(ctx, conn)
	var trailing time.Time // when to look for what the throttle has kept silent; zero: not at all
	for {
		throttle, err := l.verify(ctx, conn)
		if err != nil {
			return err
		}
		delivering()
		if !l.delivers.Swap(true) {
			l.queue.log.Info("pgmq: listens for messages")
			l.queue.wake(0) // for what was sent before
		}
		for next := time.Now().Add(jittered(probeEvery, 0.1)); time.Now().Before(next); {
			until := next
			if !trailing.IsZero() && trailing.Before(next) {
				until = trailing
			}
			switch heard, err := l.wait(ctx, conn, until); {
			case err != nil:
				return err
			case heard != nil:
				l.queue.wake(0)
				if throttle > 0 {
					trailing = time.Now().Add(throttle + commitTime)
				}
			case until.Equal(trailing):
				l.queue.wake(0)
				trailing = time.Time{}
			}
		}
	}
}

// open makes a connection that listens.
func (l *listener) open(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	config := l.queue.opts.Listen.Copy()
	config.OnNotification = nil // else Conn.WaitForNotification tells of none
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connecting by Options.Listen: %w", err)
	}
	for _, channel := range []string{l.probe, "pgmq.q_" + l.queue.name + ".INSERT"} {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			hangUp(ctx, conn)
			return nil, l.queue.explain(err)
		}
	}
	return conn, nil
}

// verify tells for how long after a notification the queue sends no other, or why none would arrive.
func (l *listener) verify(ctx context.Context, conn *pgx.Conn) (throttle time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if throttle, err = l.queue.notifies(ctx); err != nil {
		return 0, err
	}
	if err := l.queue.exec(ctx, "SELECT pg_notify($1::text, '')", l.probe); err != nil {
		return 0, l.queue.explain(err)
	}
	for deadline := time.Now().Add(probeTime); ; {
		switch heard, err := l.wait(ctx, conn, deadline); {
		case err != nil:
			return 0, err
		case heard == nil:
			return 0, fmt.Errorf("a notification that was sent did not arrive within %v: Options.Listen leads through a pooler in transaction mode, or to another database than the pool: have it lead to the server itself", probeTime)
		case *heard == l.probe:
			return throttle, nil
		default:
			l.queue.wake(0)
		}
	}
}

// wait returns the channel of the next notification, or nil if none came in time.
func (l *listener) wait(ctx context.Context, conn *pgx.Conn, until time.Time) (channel *string, err error) {
	bounded, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	n, err := conn.WaitForNotification(bounded)
	switch {
	case err == nil:
		return &n.Channel, nil
	case ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && !conn.IsClosed():
		return nil, nil
	}
	return nil, err
}

// notifies tells for how long after a notification the queue's trigger sends no other. It fails if the trigger sends none.
func (q *Queue) notifies(ctx context.Context) (throttle time.Duration, err error) {
	one := func(rows pgx.Rows) (flags [2]bool, err error) {
		return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) ([2]bool, error) {
			err := row.Scan(&flags[0], &flags[1])
			return flags, err
		})
	}
	has, err := query(ctx, q, one, `SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgrelid = to_regclass('pgmq.q_' || $1::text) AND p.proname = 'notify_queue_listeners' AND t.tgenabled IN ('O', 'A')),
	to_regclass('pgmq.notify_insert_throttle') IS NOT NULL`, q.name)
	trigger, throttled := has[0], has[1]
	switch {
	case err != nil:
		return 0, q.explain(err)
	case !trigger:
		return 0, fmt.Errorf("queue %q has no trigger that notifies: SELECT pgmq.enable_notify_insert('%[1]s', 250), which PGMQ has from 1.7 on", q.name)
	case !throttled: // before 1.8
		return 0, nil
	}
	millis, err := query(ctx, q, func(rows pgx.Rows) ([]int, error) { return pgx.CollectRows(rows, pgx.RowTo[int]) },
		"SELECT throttle_interval_ms FROM pgmq.notify_insert_throttle WHERE queue_name = $1::text", q.name)
	switch {
	case sqlState(err) == "42501":
		return 0, fmt.Errorf("whether queue %q notifies cannot be seen: GRANT SELECT ON pgmq.notify_insert_throttle: %w", q.name, err)
	case err != nil:
		return 0, q.explain(err)
	case len(millis) == 0:
		return 0, fmt.Errorf("queue %q has a trigger that notifies, and lost the row that it needs, as a crash of the server does: SELECT pgmq.enable_notify_insert('%[1]s', 250)", q.name)
	}
	return time.Duration(millis[0]) * time.Millisecond, nil
}

// listenFault tells why nothing would be heard, or nil.
func (q *Queue) listenFault(ctx context.Context) error {
	l := newListener(q)
	conn, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer hangUp(ctx, conn)
	_, err = l.verify(ctx, conn)
	return err
}
