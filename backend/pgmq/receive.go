package pgmq

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redeliver/redeliver/backend"
)

const (
	// maxClaim is how many messages one claim takes at most, whatever is asked for.
	maxClaim = 1000

	// A claim whose answer is not there after the lease is worthless. These bound what is waited for it.
	minClaimTime = time.Second
	maxClaimTime = 30 * time.Second

	// releaseTime bounds the release of what was claimed for a Receive that is gone.
	releaseTime = 5 * time.Second

	// The pauses between tries while the database cannot be reached.
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// Receive implements backend.Subscription. It takes the messages that have been due for longest and returns them in the
// order of their msg_id. Errors that end it match backend.ErrClosed or backend.ErrQueueNotFound, or tell of a right that the
// database user lacks; what may pass, such as a server that is down, it logs and waits for.
func (s *subscription) Receive(caller context.Context, limit int) ([]*backend.Delivery, error) {
	ctx, cancel := context.WithCancel(caller)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()

	leading := false
	defer func() {
		if leading {
			<-s.lead
		}
	}()
	var wait idleness
	for {
		ds, err := s.claim(ctx, min(max(limit, 1), maxClaim))
		switch {
		case len(ds) > 0:
			return ds, nil
		case caller.Err() != nil:
			return nil, caller.Err()
		case ctx.Err() != nil:
			return nil, s.errClosed("receive")
		case errors.Is(err, backend.ErrClosed):
			return nil, err
		case err != nil && lasting(err):
			return nil, s.queue.errorf("receive", s.queue.explain(err))
		}
		switch {
		case !leading:
			select {
			case s.lead <- struct{}{}:
				leading = true // and look again at once, since the one who led may have left something
			case <-ctx.Done():
			}
		case err != nil:
			s.backOff(ctx, &wait, err)
		default:
			s.idle(ctx, &wait)
		}
	}
}

// idleness is how a call of Receive has been waiting.
type idleness struct {
	pause time.Duration // after the last error
	stall time.Duration // although a message is due, since somebody else has its row locked
}

// backOff waits after an error that may pass.
func (s *subscription) backOff(ctx context.Context, w *idleness, err error) {
	w.pause = min(max(2*w.pause, minPause), maxPause)
	s.queue.log.Warn("pgmq: cannot receive, will try again", "error", s.queue.explain(err), "pause", w.pause)
	timer := time.NewTimer(jittered(w.pause, 0.5))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// idle returns when a claim is worth while, or ctx ended.
func (s *subscription) idle(ctx context.Context, w *idleness) {
	for ctx.Err() == nil {
		poll := jittered(s.queue.pollInterval(), 0.1)
		found, err := s.look(ctx, poll)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && lasting(err):
			return // the claim, which asks for more, meets the same
		case err != nil:
			s.backOff(ctx, w, err)
			return
		}
		w.pause = 0
		wait := poll
		if found.next > 0 {
			wait = min(wait, found.next)
		}
		if !found.due {
			w.stall = 0
		} else if w.stall == 0 {
			w.stall = time.Millisecond
			return
		} else {
			wait = min(wait, w.stall)
			w.stall = min(2*w.stall, s.queue.opts.PollInterval)
		}
		if s.alarm.wait(ctx, wait) || found.due || found.next > 0 {
			return
		}
	}
}

// jittered spreads d by up to the fraction f in both directions, so that many consumers do not ask all at once.
func jittered(d time.Duration, f float64) time.Duration {
	return d + time.Duration((2*rand.Float64()-1)*f*float64(d))
}

// outlook is what look found.
type outlook struct {
	due  bool          // a message is
	next time.Duration // until the next one that is not due yet; 0 if it is farther off than was asked for
}

// look only reads: an idle queue costs one such query each PollInterval.
func (s *subscription) look(ctx context.Context, within time.Duration) (outlook, error) {
	return detach(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) (outlook, error) {
		return queryOn(ctx, s.queue, conn, func(rows pgx.Rows) (outlook, error) {
			return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (found outlook, err error) {
				var micros *int64
				err = row.Scan(&found.due, &micros)
				if micros != nil {
					found.next = max(time.Duration(*micros)*time.Microsecond, 1)
				}
				return found, err
			})
		}, s.sql.look, s.queue.planned(within.Microseconds())...)
	}, func(outlook) {})
}

// claim takes up to limit messages that are due. When ctx ends first, it returns at once, and what the statement claims is
// released.
func (s *subscription) claim(ctx context.Context, limit int) ([]*backend.Delivery, error) {
	ds, err := detach(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) ([]*delivery, error) {
		asked := time.Now()
		ds, err := queryOn(ctx, s.queue, conn, func(rows pgx.Rows) ([]*delivery, error) { return s.readAll(rows, asked) }, s.sql.claim, s.queue.planned(limit, micros(s.lease))...)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(ds, func(a, b *delivery) int { return int(a.message.MsgID - b.message.MsgID) })
		if !s.hold(ds) {
			s.drop(ds)
			return nil, nil
		}
		return ds, nil
	}, s.drop)
	if err != nil || len(ds) == 0 {
		return nil, err
	}
	out := make([]*backend.Delivery, len(ds))
	for i, d := range ds {
		out[i] = &d.Delivery
	}
	return out, nil
}

// drop releases what nobody waits for any more.
func (s *subscription) drop(ds []*delivery) {
	if len(ds) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	if err := s.giveBack(ctx, ds); err != nil {
		s.queue.log.Warn("pgmq: messages that were claimed for a cancelled receive return when their lease ends", "error", err)
	}
}

// detach runs f on a connection, and waits for it or for the end of ctx. f's own context does not end with ctx, since the
// server would not tell then what a statement did: it is bounded by the lease. What f returns when nobody waits any more goes
// to drop. Close waits for both.
func detach[T any](ctx context.Context, s *subscription, f func(context.Context, *pgxpool.Conn) (T, error), drop func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	conn, err := s.queue.pool.Acquire(ctx)
	if err != nil {
		return none, &unsentError{err}
	}
	if err := s.enter("receive"); err != nil {
		conn.Release()
		return none, err
	}
	results := make(chan result, 1)
	go func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(max(s.lease, minClaimTime), maxClaimTime))
		defer cancel()
		value, err := f(bounded, conn)
		conn.Release()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		s.work.Done()
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			defer s.work.Done()
			r := <-results
			drop(r.value)
		}()
		return none, ctx.Err()
	}
}

// micros is d in microseconds, rounded up.
func micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}
