package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redeliver/redeliver/backend"
)

// run is one call of Consumer.Run. The life of a delivery: intake receives it when there is room for it, the keeper
// renews its lease from then on, dispatch starts its handler in its turn, and a lane settles it.
type run struct {
	c *Consumer
	settings
	policies
	name string
	sub  backend.Subscription

	// base carries the values of Run's context and never ends: settlements and heartbeats outlive a cancelled context.
	base context.Context
	// handlers is the parent of the handlers' contexts. It ends when the grace is over.
	handlers       context.Context
	cancelHandlers context.CancelCauseFunc
	timedOut       error // the cause of a handler's context whose time is up

	receiving  context.Context // ends when the consumer shuts down
	quarantine *quarantine

	room     *room
	keeper   *keeper
	dispatch *dispatch
	acks     *lane // everything but dead letters, so that a dead-letter queue that hangs never delays an ack
	deaths   *lane
	probe    chan struct{} // held by the one delivery that tests a breaker that is not closed
	pause    atomic.Int64  // after a probe without a permit, as a time.Duration; 0 while there are permits

	// service are the goroutines of the keeper and the lanes. They outlive the handlers, and end before Run returns.
	service sync.WaitGroup
	// serving ends when Run has no more patience with what is held: then nothing is extended or tried again.
	serving     context.Context
	stopServing context.CancelFunc

	unknownPolicy, firstIgnoredWish sync.Once
}

func newRun(ctx context.Context, c *Consumer) (*run, error) {
	s, err := c.settings()
	if err != nil {
		return nil, err
	}
	if err := c.preflight(ctx, s); err != nil {
		return nil, err
	}
	r := &run{c: c, settings: s, policies: c.policies(), name: c.Queue.Name(), base: context.WithoutCancel(ctx), probe: make(chan struct{}, 1)}
	r.sub, err = c.Queue.Subscribe(ctx, backend.SubscribeOptions{MaxInFlight: s.concurrency + s.prefetch, Lease: s.lease})
	if err != nil {
		return nil, fmt.Errorf("consumer: subscribe to queue %q: %w", r.name, err)
	}
	r.handlers, r.cancelHandlers = context.WithCancelCause(r.base)
	r.serving, r.stopServing = context.WithCancel(r.base)
	r.timedOut = &TimeoutError{Timeout: s.timeout}
	r.room = newRoom(s.concurrency+s.prefetch, s.limits.SettleBatch)
	r.keeper = newKeeper(r)
	r.dispatch = newDispatch(r)
	r.acks = newLane(r, s.settle)
	// A dead letter that does not get through has to be parked while the lease lasts.
	r.deaths = newLane(r, min(s.settle, s.lease/6))
	return r, nil
}

func (r *run) run(ctx context.Context) error {
	receiving, stopReceiving := context.WithCancel(ctx)
	defer stopReceiving()
	r.receiving = receiving
	r.quarantine = newQuarantine(r)

	r.service.Go(r.keeper.run)

	var intakes sync.WaitGroup
	broken := make(chan error, r.limits.Parallel)
	for range r.limits.Parallel {
		intakes.Go(func() {
			err := errIntakeEnded
			defer func() {
				if err != nil {
					broken <- err
				}
			}()
			err = r.intake()
		})
	}

	var err error
	select {
	case <-ctx.Done():
	case <-r.c.stop:
	case err = <-broken:
		err = fmt.Errorf("consumer: queue %q: receive: %w", r.name, err)
	}

	stopReceiving()
	grace := time.NewTimer(r.grace)
	defer grace.Stop()
	r.dispatch.drain()
	intakes.Wait()
	left := r.await(grace)

	closing, cancel := context.WithTimeout(r.base, r.settle)
	defer cancel()
	// Before the subscription is closed, since that waits for the calls that are under way.
	r.stopServing()
	r.acks.close()
	r.deaths.close()
	if closeErr := r.sub.Close(closing); closeErr != nil && !errors.Is(closeErr, backend.ErrClosed) {
		err = errors.Join(err, fmt.Errorf("consumer: queue %q: close: %w", r.name, closeErr))
	}
	r.abandon()
	r.service.Wait()
	return errors.Join(err, left)
}

var errIntakeEnded = errors.New("something that it called ended the goroutine by runtime.Goexit: an Observer or Choose must return")

// await waits until nothing is held, giving handlers their grace and cancelling them after it. It returns an error that
// tells what is still held when it has no more patience.
func (r *run) await(grace *time.Timer) error {
	select {
	case <-r.room.atMost(0):
		return nil
	case <-grace.C:
	case <-r.c.kill:
	}
	r.cancelHandlers(ErrShutdown)
	patience := time.NewTimer(r.settle)
	defer patience.Stop()
	select {
	case <-r.room.atMost(0):
		return nil
	case <-patience.C:
	}
	handlers := r.dispatch.handlers()
	var left []error
	if handlers > 0 {
		left = append(left, fmt.Errorf("consumer: queue %q: %s did not return after being cancelled; let handlers heed their context", r.name, count(handlers, "handler")))
	}
	if n := r.room.taken() - handlers; n > 0 {
		left = append(left, fmt.Errorf("consumer: queue %q: %s could not be settled; expect further deliveries", r.name, count(n, "message")))
	}
	return errors.Join(left...)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// abandon tells the end of what is still held after the subscription was closed, which has given it back.
func (r *run) abandon() {
	for _, j := range r.keeper.unfinished() {
		if !j.finished.Swap(true) {
			r.observe(&Event{Kind: Released, Delivery: j.d})
		}
	}
}

// intake receives while there is room. It returns the error that ended the subscription, or nil when the consumer shuts
// down.
func (r *run) intake() error {
	for {
		ctx := r.quarantine.pass()
		if ctx == nil {
			return nil
		}
		n := r.room.take(ctx)
		if n == 0 {
			continue
		}
		probing := false
		if b := r.c.Breaker; b != nil {
			var ok bool
			if ok, probing = r.awaitBreaker(ctx, b); !ok {
				r.room.called(n)
				continue
			}
		}
		most := n
		if probing {
			most = 1
		}
		batch, err := r.sub.Receive(ctx, most)
		r.room.called(n - len(batch))
		if probing && len(batch) == 0 {
			<-r.probe
		}
		r.accept(batch, probing)
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// Waits where a breaker names none, as failsafe-go's does while it is half-open.
const (
	breakerPause    = 100 * time.Millisecond
	maxBreakerPause = 30 * time.Second
)

// awaitBreaker waits until messages may be received. When the breaker is not closed, only the holder of the probe token
// may go on, with one message; probing tells that it holds the token.
func (r *run) awaitBreaker(ctx context.Context, b Breaker) (ok, probing bool) {
	for !b.IsClosed() {
		if wait := b.RemainingDelay(); wait > 0 {
			if !sleep(ctx, max(wait, breakerPause)) {
				return false, false
			}
			continue
		}
		select {
		case r.probe <- struct{}{}:
			return true, true
		case <-ctx.Done():
			return false, false
		case <-time.After(breakerPause):
		}
	}
	r.pause.Store(0)
	return ctx.Err() == nil, false
}

// endProbe gives the probe token back: at once in general, and after a growing pause where the breaker denied a permit, since
// others hold the permits then, and each further message would be received only to be released.
func (r *run) endProbe(denied bool) {
	if !denied {
		<-r.probe
		return
	}
	pause := min(max(2*time.Duration(r.pause.Load()), breakerPause), maxBreakerPause)
	r.pause.Store(int64(pause))
	r.service.Go(func() {
		sleep(r.serving, pause)
		<-r.probe
	})
}

func (r *run) accept(batch []*backend.Delivery, probing bool) {
	now := time.Now()
	jobs := make([]*job, len(batch))
	for i, d := range batch {
		leased := now
		if at := d.LeasedAt; !at.IsZero() && at.Before(now) {
			leased = at
		}
		jobs[i] = &job{r: r, d: d, probing: probing, leaseUntil: leased.Add(r.lease)}
		r.keeper.add(jobs[i])
	}
	// Also when an observer ends the goroutine.
	defer func() {
		if jobs = r.quarantine.sift(jobs); len(jobs) > 0 {
			r.dispatch.add(jobs)
		}
	}()
	var received Event // one for all, since each would be an allocation
	for _, d := range batch {
		received = Event{Kind: Received, Delivery: d}
		r.observe(&received)
	}
}

// sleep waits for d and reports whether it did; it returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
