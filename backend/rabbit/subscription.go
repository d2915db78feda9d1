package rabbit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

const (
	// defaultPrefetch is how many deliveries a subscription holds where SubscribeOptions.MaxInFlight is not set.
	defaultPrefetch = 100
	maxPrefetch     = 65535

	// linger is for how long the broker goes on sending after the last call of Receive has returned, since another is likely to
	// follow.
	linger = 100 * time.Millisecond
)

// subscription is a backend.Subscription.
//
// The broker sends messages without being asked. So that none is kept from other consumers, it is let to do so only while
// somebody receives; what it has sent beyond that is given back.
//
// One goroutine, in run, owns the connection and decides when to consume. It and the calls of Receive meet at the buffer.
type subscription struct {
	queue    *Queue
	kind     Type // of the queue; empty if it is not known
	prefetch int

	life    context.Context // ends when Close begins
	end     context.CancelFunc
	stopped chan struct{} // closed when run has ended
	done    chan struct{} // closed when Close is through
	poke    chan struct{} // holds a token while run has reason to look
	arrived chan struct{} // holds a token while the buffer is not empty
	failed  chan struct{} // closed when fatal is set

	mu        sync.Mutex
	closed    bool
	work      sync.WaitGroup // what Close waits for; added to under mu, while not closed
	fatal     error          // why no more will be received
	session   *session       // nil while there is no connection
	buffer    []*delivery    // received, and not handed out
	receivers int            // calls of Receive that wait
	asked     int            // how many messages they would take
	consuming bool
	watched   bool      // run will look by itself for whether anybody receives
	single    time.Time // until then the broker sends one message at a time
	rest      time.Time // if nobody does by then, what is in the buffer goes back
	lapsed    []*delivery
	counting  bool // a goroutine counts the lapses of those
	over      bool // Close has done what it could
}

// session is a channel of a connection, and the deliveries that came by it. They can be settled through nothing else: a
// delivery's tag would mean another one to another channel.
type session struct {
	link   *link
	ch     *amqp.Channel
	opened time.Time
	closed chan *amqp.Error
	nack   bool // a nack returns a message uncounted

	mu      sync.Mutex
	held    map[uint64]*delivery // unsettled, by tag
	order   []uint64             // their tags in ascending order, from first on, and some of those that were settled
	first   int
	latest  uint64        // the tag of the last delivery
	lost    error         // why the channel is gone; nil while it is there
	tag     string        // of the consumer, the last one
	granted int           // how many messages it may be sent at once
	current int           // how many of those that it was sent are unacked
	starved bool          // run waits for room
	single  time.Time     // until then the consumer is sent one message at a time
	gate    chan struct{} // what acks wait for, while it is not closed; nil is open
}

// Subscribe begins to receive. It fails if the queue is not fit for use, see Check, and matches backend.ErrQueueNotFound if
// the queue or its dead-letter queue does not exist. SubscribeOptions.Lease has no meaning here: a lease lasts as long as the
// connection.
//
// The broker holds at most SubscribeOptions.MaxInFlight messages for the subscription, 100 if that is 0: all of them
// lapse when the connection is cut.
func (q *Queue) Subscribe(ctx context.Context, opts backend.SubscribeOptions) (backend.Subscription, error) {
	if opts.MaxInFlight < 0 {
		return nil, q.errorf("subscribe", fmt.Errorf("SubscribeOptions.MaxInFlight is %d: set a positive number, or 0 for %d", opts.MaxInFlight, defaultPrefetch))
	}
	if q.isClosed() {
		return nil, q.errorf("subscribe", backend.ErrClosed)
	}
	seen, err := q.look(ctx)
	if err != nil {
		return nil, q.errorf("subscribe", err)
	}
	if err := q.refuse("subscribe", q.findings(seen, backend.Needs{})); err != nil {
		return nil, err
	}
	s := &subscription{
		queue:    q,
		kind:     seen.work.kind,
		prefetch: min(opts.MaxInFlight, maxPrefetch),
		stopped:  make(chan struct{}),
		done:     make(chan struct{}),
		poke:     make(chan struct{}, 1),
		arrived:  make(chan struct{}, 1),
		failed:   make(chan struct{}),
	}
	if s.prefetch == 0 {
		s.prefetch = defaultPrefetch
	}
	s.life, s.end = context.WithCancel(context.Background())
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, q.errorf("subscribe", backend.ErrClosed)
	}
	q.subs = append(q.subs, s)
	go s.run()
	return s, nil
}

// enter begins a piece of work that Close waits for; work.Done ends it.
func (s *subscription) enter(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.errClosed(op)
	}
	s.work.Add(1)
	return nil
}

func (s *subscription) errClosed(op string) error {
	return s.queue.errorf(op, fmt.Errorf("the subscription is %w", backend.ErrClosed))
}

// Extend implements backend.Subscription. A lease lasts as long as the connection, so that there is nothing to extend; it
// tells of those that are lost.
func (s *subscription) Extend(_ context.Context, batch []*backend.Delivery) error {
	if err := s.enter("extend"); err != nil {
		return err
	}
	defer s.work.Done()
	errs := make([]error, len(batch))
	for i, d := range batch {
		m, err := s.own(d)
		switch {
		case err != nil:
		case d.Settled():
			err = fmt.Errorf("message %q: %w", d.ID, backend.ErrSettled)
		case m.session.gone() != nil:
			err = fmt.Errorf("message %q: %w", d.ID, m.session.gone())
		}
		errs[i] = s.queue.errorf("extend", err)
	}
	return backend.NewBatchError(errs)
}

// own returns the message of a delivery, if it came from here.
func (s *subscription) own(d *backend.Delivery) (*Message, error) {
	if d == nil {
		return nil, fmt.Errorf("the delivery is nil")
	}
	m, ok := d.Raw.(*Message)
	if !ok || m.sub != s {
		return nil, fmt.Errorf("message %q: this subscription did not deliver it: settle it where it was received", d.ID)
	}
	return m, nil
}

// Close implements backend.Subscription. It stops the broker from sending, waits for the calls of Settle that are under way, and
// gives back what is left. What it could not give back, because ctx ended or the broker takes no copies, comes back
// when the connection closes, as a lapse.
func (s *subscription) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		select {
		case <-s.done:
		case <-ctx.Done():
		}
		return nil
	}
	defer close(s.done)
	s.end()
	s.queue.forget(s)

	idle := make(chan struct{})
	go func() {
		<-s.stopped
		s.work.Wait()
		close(idle)
	}()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = fmt.Errorf("settlements still run: %w", ctx.Err())
	}
	s.mu.Lock()
	ss := s.session
	s.session, s.over = nil, true
	s.mu.Unlock()
	if ss != nil {
		if err == nil {
			err = s.giveBack(ctx, ss.unsettled())
		}
		ss.leave(ctx)
	}
	return s.queue.errorf("close", err)
}

// gone returns an error that tells that the session's deliveries are another consumer's, if so.
func (ss *session) gone() error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.goneLocked()
}

func (ss *session) goneLocked() error {
	if ss.lost == nil {
		return nil
	}
	return fmt.Errorf("%w: the channel that it came by is gone: %w", backend.ErrLeaseLost, ss.lost)
}

// end settles a delivery on the channel that it came by, and forgets it.
func (ss *session) end(ctx context.Context, m *Message, f func(*amqp.Channel, uint64) error) error {
	if err := ss.enter(ctx); err != nil {
		return err
	}
	defer ss.exit()
	return ss.endLocked(m, f)
}

// acknowledge acks deliveries of the session, and returns an error for each, in their order. RabbitMQ takes one ack for all
// that it sent up to some delivery, if none of those is left unsettled.
func (ss *session) acknowledge(ctx context.Context, ms []*Message) []error {
	errs := make([]error, len(ms))
	if err := ss.enter(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer ss.exit()
	for _, m := range ms {
		m.acked = true
	}
	last, n := ss.front()
	for i, m := range ms {
		if n > 1 && m.tag <= last {
			continue
		}
		errs[i] = ss.endLocked(m, ack)
		m.acked = false
	}
	if n < 2 {
		return errs
	}
	err := ss.ch.Ack(last, true)
	for i, m := range ms {
		if m.tag > last {
			continue
		}
		errs[i] = ss.endLocked(m, func(*amqp.Channel, uint64) error { return err })
		m.acked = false
	}
	return errs
}

func ack(ch *amqp.Channel, tag uint64) error  { return ch.Ack(tag, false) }
func nack(ch *amqp.Channel, tag uint64) error { return ch.Nack(tag, false, true) }

// front returns the last of the oldest deliveries that are all to be acked now, and their number.
func (ss *session) front() (last uint64, n int) {
	for i := ss.first; i < len(ss.order); i++ {
		d := ss.held[ss.order[i]]
		switch {
		case d == nil: // settled
			if i == ss.first {
				ss.first++
			}
		case !d.message.acked:
			return last, n
		default:
			last = ss.order[i]
			n++
		}
	}
	return last, n
}

// enter locks the session once it may settle deliveries; exit unlocks it. It fails if its channel is gone, or if ctx ends while
// acks are kept back.
func (ss *session) enter(ctx context.Context) error {
	ss.mu.Lock()
	for ss.gate != nil {
		gate := ss.gate
		ss.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			return fmt.Errorf("not settled: the broker is slow to end a consumer: %w", ctx.Err())
		}
		ss.mu.Lock()
	}
	if err := ss.goneLocked(); err != nil {
		ss.mu.Unlock()
		return err
	}
	ss.link.sock.gather()
	return nil
}

// exit has what was written since enter sent by somebody else: a broker that does not read must not hold up whoever settles.
func (ss *session) exit() {
	ss.mu.Unlock()
	go ss.link.sock.flush()
}

func (ss *session) endLocked(m *Message, f func(*amqp.Channel, uint64) error) error {
	if err := f(ss.ch, m.tag); err != nil {
		// The library sends nothing through a channel that it knows to be closed.
		return fmt.Errorf("%w: the channel that it came by is gone: %w", backend.ErrLeaseLost, err)
	}
	delete(ss.held, m.tag)
	if m.ConsumerTag == ss.tag {
		ss.current--
	}
	if ss.starved {
		signal(m.sub.poke)
	}
	return nil
}

// hold takes in a delivery. It returns the tags of those before it that the library has dropped, if it has, since they came
// for a consumer that had ended.
func (ss *session) hold(d *delivery) (dropped []uint64) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.held == nil {
		return nil
	}
	tag := d.message.tag
	for t := ss.latest + 1; t < tag; t++ {
		dropped = append(dropped, t)
	}
	ss.latest = tag
	ss.held[tag] = d
	ss.current++
	if len(ss.order) > 2*len(ss.held)+64 {
		ss.order = slices.DeleteFunc(ss.order, func(tag uint64) bool { return ss.held[tag] == nil })
		ss.first = 0
	}
	ss.order = append(ss.order, tag)
	return dropped
}

// shut keeps acks back until open.
func (ss *session) shut() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.gate = make(chan struct{})
}

func (ss *session) open() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	close(ss.gate)
	ss.gate = nil
}

func (ss *session) unsettled() []*delivery {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := make([]*delivery, 0, len(ss.held))
	for _, d := range ss.held {
		all = append(all, d)
	}
	return all
}

// lose ends a session whose channel is gone.
func (ss *session) lose(why error) {
	ss.mu.Lock()
	ss.lost = why
	held := ss.held
	ss.held = nil
	ss.mu.Unlock()
	for _, d := range held {
		d.MarkLost()
	}
}

// leave closes the connection: what was not settled goes back to the queue.
func (ss *session) leave(ctx context.Context) {
	ss.lose(errLeft)
	defer context.AfterFunc(ctx, ss.link.cut)()
	ss.link.close()
}
