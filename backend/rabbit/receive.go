package rabbit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// Receive implements backend.Subscription. It returns messages in the order in which the broker sent them. Errors that end
// it match backend.ErrClosed or backend.ErrQueueNotFound, or tell of a permission that the user lacks; what may pass, such as
// a broker that is down, it logs and waits for.
func (s *subscription) Receive(ctx context.Context, limit int) ([]*backend.Delivery, error) {
	limit = max(limit, 1)
	for {
		if err := ctx.Err(); err != nil {
			s.mu.Lock()
			s.restLocked()
			s.mu.Unlock()
			return nil, err
		}
		ds, err := s.take(limit)
		if ds != nil || err != nil {
			return ds, err
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
		case <-s.failed:
		case <-s.life.Done():
		}
		s.mu.Lock()
		s.receivers--
		s.asked -= limit
		s.mu.Unlock()
	}
}

// take returns what is in the buffer. If it is empty the caller counts as one who waits.
func (s *subscription) take(limit int) ([]*backend.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, s.errClosed("receive")
	case len(s.buffer) > 0:
		n := min(limit, len(s.buffer))
		now := time.Now()
		ds := make([]*backend.Delivery, n)
		for i, d := range s.buffer[:n] {
			d.receive(now)
			ds[i] = &d.Delivery
			s.buffer[i] = nil
		}
		s.buffer = s.buffer[n:]
		if len(s.buffer) > 0 {
			signal(s.arrived)
		}
		s.restLocked()
		return ds, nil
	case s.fatal != nil:
		return nil, s.fatal
	}
	s.receivers++
	s.asked += limit
	if !s.consuming || s.session.cramped(s.asked, s.prefetch) {
		signal(s.poke)
	}
	return nil, nil
}

// restLocked notes that a call of Receive ends.
func (s *subscription) restLocked() {
	s.rest = time.Now().Add(linger)
	if s.receivers == 0 && !s.watched {
		signal(s.poke)
	}
}

// run keeps the connection and consumes while somebody receives.
func (s *subscription) run() {
	defer close(s.stopped)
	defer s.leaveLate()
	for failed := 0; s.wanted(); {
		ss, err := s.connect()
		switch {
		case s.life.Err() != nil:
			return
		case err != nil:
			// Whatever it is, it was possible to connect when the subscription began.
			if failed == 0 {
				s.queue.log.Warn("rabbit: cannot receive: trying again", "error", err)
			}
			sleep(pause(failed), s.life.Done())
			failed++
			continue
		}
		err = s.serve(ss)
		if s.life.Err() != nil && err == nil {
			return // Close settles what is held
		}
		s.drop(ss, err)
		if lasting(err) && code(err) != amqp.PreconditionFailed {
			s.fail(s.queue.errorf("receive", s.queue.explain(err)))
			return
		}
		switch {
		case s.life.Err() != nil:
		case tooLarge(err):
			s.queue.log.Error("rabbit: the headers of a message, with those that RabbitMQ has added to it, are larger than a frame, "+
				"which keeps all behind it from coming: raise the broker's frame_max, or take the message out", "error", err)
		default:
			s.queue.log.Warn("rabbit: lost the channel that deliveries come by; those in hand come back", "error", err)
		}
		if ss.latest > 0 || time.Since(ss.opened) > soundTime {
			failed = 0
		}
		sleep(pause(failed), s.life.Done())
		failed++
	}
}

// soundTime is how long a connection has to last, if nothing came by it, for its loss to count as the first failure.
const soundTime = 250 * time.Millisecond

// leaveLate closes a connection that Close has not waited for.
func (s *subscription) leaveLate() {
	s.mu.Lock()
	ss := s.session
	if !s.over || ss == nil {
		s.mu.Unlock()
		return
	}
	s.session = nil
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ss.leave(ctx)
}

// wanted waits until somebody receives. It returns false when the subscription is closed before that.
func (s *subscription) wanted() bool {
	for s.life.Err() == nil {
		s.mu.Lock()
		wanted := s.receivers > 0
		s.mu.Unlock()
		if wanted {
			return true
		}
		select {
		case <-s.poke:
		case <-s.life.Done():
		}
	}
	return false
}

// fail ends all calls of Receive.
func (s *subscription) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fatal = err
	close(s.failed)
}

func (s *subscription) connect() (*session, error) {
	l, err := s.queue.dial(s.life, "consumes")
	if err != nil {
		return nil, err
	}
	ch, err := l.conn.Channel()
	if err != nil {
		l.close()
		return nil, err
	}
	ss := &session{
		link: l, ch: ch, opened: time.Now(),
		closed: ch.NotifyClose(make(chan *amqp.Error, 1)),
		nack:   s.kind == Quorum && l.version().countsNoNack(),
		held:   make(map[uint64]*delivery),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.single = s.single
	s.session = ss
	return ss, nil
}

// singleTime is how long messages come one by one after a connection has ended over one that was too large.
const singleTime = time.Minute

// alone reports whether the consumer is to be sent one message at a time.
func (ss *session) alone() bool { return !ss.single.IsZero() && time.Now().Before(ss.single) }

// drop ends a session whose channel is gone. What it held is the broker's again.
func (s *subscription) drop(ss *session, why error) {
	s.mu.Lock()
	s.session, s.buffer, s.lapsed, s.consuming = nil, nil, nil, false
	// Whatever else it is sent together with such a message lapses each time.
	if tooLarge(why) {
		s.single = time.Now().Add(singleTime)
	}
	s.mu.Unlock()
	ss.lose(why)
	ss.link.close()
}

// serve consumes while somebody receives, until the session is gone, for a reason that it returns, or the subscription is
// closed. It leaves no consumer behind.
func (s *subscription) serve(ss *session) error {
	least := 0
	for {
		n, err := s.room(ss, least)
		if err != nil || n == 0 {
			return err
		}
		if err := ss.ch.Qos(n, 0, false); err != nil {
			return ss.cause(err)
		}
		tag := ss.begin(s.queue.sequence.Add(1), n)
		deliveries, err := ss.ch.Consume(s.queue.name, tag, false, false, false, false, nil)
		if err != nil {
			return ss.cause(err)
		}
		end, err := s.pump(ss, deliveries)
		if err != nil {
			return err
		}
		if end != cancelled {
			if err := s.cancel(ss, tag, deliveries); err != nil {
				return err
			}
		}
		least = 0
		if end == tooSmall {
			least = 2 * n
		}
		s.mu.Lock()
		s.consuming = false
		s.mu.Unlock()
	}
}

// reason is why a consumer ends.
type reason int

const (
	unwanted  reason = iota // nobody receives
	tooSmall                // it may be sent less than somebody would take
	cancelled               // the broker has ended it, as it does when the queue is deleted
)

// cancel ends a consumer, and takes in what it was sent until then.
//
// Before 4.3 a quorum queue counts a lapse for what it sends while it is told to end the consumer, which takes some milliseconds. So
// that comes when the consumer has all that it may be sent, with acks kept back so that it may not be sent more, or when
// nothing has come for a while; and other subscriptions of this Queue give nothing back meanwhile.
func (s *subscription) cancel(ss *session, tag string, deliveries <-chan amqp.Delivery) error {
	if s.kind != Classic && !ss.nack {
		select {
		case s.queue.calming <- struct{}{}:
			defer func() { <-s.queue.calming }()
		case <-ss.link.gone:
		}
		ss.shut()
		defer ss.open()
		s.calm(ss, deliveries)
	}
	if err := ss.ch.Cancel(tag, false); err != nil {
		return ss.cause(err)
	}
	for raw := range deliveries {
		s.arrive(ss, raw)
	}
	if ss.ch.IsClosed() {
		return ss.cause(nil)
	}
	return nil
}

const (
	// quiet is how long nothing may have come for a consumer to be ended, and unquiet how long to wait for that.
	quiet   = 100 * time.Millisecond
	unquiet = 2 * time.Second
)

// calm waits until nothing is on its way to the consumer.
func (s *subscription) calm(ss *session, deliveries <-chan amqp.Delivery) {
	latest := time.Now().Add(unquiet)
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for !ss.full() && time.Now().Before(latest) {
		select {
		case raw, open := <-deliveries:
			if !open {
				return
			}
			s.arrive(ss, raw)
			timer.Reset(quiet)
		case <-timer.C:
			return
		}
	}
}

// full reports whether the consumer has all that it may be sent.
func (ss *session) full() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.current >= ss.granted
}

// begin notes that a consumer is about to begin, which may be sent a number of messages, and returns its tag. To the broker
// what earlier consumers hold does not count.
func (ss *session) begin(number int64, granted int) (tag string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.tag, ss.granted, ss.current = fmt.Sprintf("redeliver-%d", number), granted, 0
	return ss.tag
}

// cramped reports whether the consumer is kept from being sent what is asked for, though there would be room for more than it has.
func (ss *session) cramped(asked, prefetch int) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.granted-ss.current < min(asked, prefetch-len(ss.held)) && !ss.alone()
}

// cause returns why the channel is gone, or the given error if it is still there.
func (ss *session) cause(err error) error {
	if !ss.ch.IsClosed() {
		return err
	}
	if why, ok := <-ss.closed; ok {
		return why
	}
	if err == nil {
		err = errLeft
	}
	return err
}

// room waits until somebody receives and there is room for more deliveries, and returns how many a consumer is to be sent: as
// many as are asked for, or least, if there is room. It returns 0 when the subscription is closed. Meanwhile it gives back
// what nobody receives.
func (s *subscription) room(ss *session, least int) (int, error) {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for s.life.Err() == nil {
		free := s.prefetch - ss.count()
		ss.setStarved(free <= 0)
		s.mu.Lock()
		if s.receivers > 0 && free > 0 {
			s.consuming, s.watched = true, false
			n := min(max(s.asked, least), free)
			if ss.alone() {
				n = 1
			}
			s.mu.Unlock()
			return n, nil
		}
		var alarm <-chan time.Time
		if s.receivers == 0 && len(s.buffer) > 0 {
			if wait := time.Until(s.rest); wait > 0 {
				timer.Reset(wait)
				alarm = timer.C
			} else {
				s.giveBackLocked()
			}
		}
		s.mu.Unlock()
		select {
		case <-alarm:
		case <-s.poke:
		case <-s.life.Done():
		case why, ok := <-ss.closed:
			if !ok {
				return 0, errLeft
			}
			return 0, why
		}
	}
	return 0, nil
}

func (ss *session) count() int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.held)
}

func (ss *session) setStarved(starved bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.starved = starved
}

// pump takes in what a consumer is sent, until it is to end, and returns why. It returns an error if the channel is gone.
func (s *subscription) pump(ss *session, deliveries <-chan amqp.Delivery) (reason, error) {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for {
		select {
		case raw, open := <-deliveries:
			if open {
				s.arrive(ss, raw)
				continue
			}
			if ss.ch.IsClosed() {
				return cancelled, ss.cause(nil)
			}
			return cancelled, nil
		case <-timer.C:
		case <-s.poke:
		case <-s.life.Done():
			return unwanted, nil
		}
		over, wait := s.unwanted(ss)
		if over {
			return unwanted, nil
		}
		s.mu.Lock()
		asked := s.asked
		s.mu.Unlock()
		if ss.cramped(asked, s.prefetch) {
			return tooSmall, nil
		}
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// unwanted reports whether nobody receives any more, or else when to look again.
func (s *subscription) unwanted(ss *session) (over bool, wait time.Duration) {
	full := ss.full()
	s.mu.Lock()
	defer s.mu.Unlock()
	// A consumer that is sent nothing does no harm.
	s.watched = s.receivers == 0 && !(full && len(s.buffer) == 0)
	if !s.watched {
		return false, 0
	}
	wait = time.Until(s.rest)
	return wait <= 0, wait
}

// giveBackLocked gives the buffer back to the queue.
func (s *subscription) giveBackLocked() {
	if s.closed {
		return // Close does it
	}
	left := s.buffer
	s.buffer = nil
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
		defer cancel()
		select {
		case s.queue.calming <- struct{}{}:
			defer func() { <-s.queue.calming }()
		case <-ctx.Done():
		}
		if err := s.giveBack(ctx, left); err != nil {
			s.queue.log.Warn("rabbit: could not give back messages that nobody received: trying again", "error", err)
			s.putBack(left, time.Second)
		}
	}()
}

// releaseTime bounds the release of what nobody has received.
const releaseTime = 5 * time.Second

// putBack returns deliveries to the buffer, to be given back after a while if nobody receives.
func (s *subscription) putBack(ds []*delivery, while time.Duration) {
	ds = slices.DeleteFunc(ds, func(d *delivery) bool { return d.Settled() || d.message.session.gone() != nil })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(ds) == 0 {
		return
	}
	s.buffer = append(ds, s.buffer...)
	s.rest = time.Now().Add(while)
	signal(s.arrived)
	signal(s.poke)
}

// arrive takes in a message.
func (s *subscription) arrive(ss *session, raw amqp.Delivery) {
	now := time.Now()
	d := s.read(ss, raw, now)
	for _, tag := range ss.hold(d) {
		// If that fails the channel is gone, and they with it.
		_ = ss.ch.Nack(tag, false, true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if raw.Redelivered {
		if s.kind != Quorum {
			// Nothing but a mark tells that it was delivered before. So it is counted in a copy before anybody handles it.
			d.Lapses++
			s.lapsed = append(s.lapsed, d)
			if !s.counting && !s.closed {
				s.counting = true
				s.work.Add(1)
				go s.countLapses()
			}
			return
		}
		d.Lapses += count(raw.Headers["x-delivery-count"])
	}
	s.buffer = append(s.buffer, d)
	signal(s.arrived)
	if s.receivers == 0 && !s.watched {
		// Somebody settled a delivery and is about to receive another.
		s.rest = now.Add(linger)
		s.watched = true
		signal(s.poke)
	}
}

// countLapses replaces each message that was delivered before by a copy with one lapse more.
func (s *subscription) countLapses() {
	defer s.work.Done()
	for failed := 0; ; {
		s.mu.Lock()
		ds := s.lapsed
		s.lapsed = nil
		if len(ds) == 0 || s.closed {
			s.counting = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		ds, err := s.countAll(ds)
		if err == nil {
			failed = 0
			continue
		}
		if failed == 0 {
			s.queue.log.Warn("rabbit: could not count the lapses of messages that were delivered before: trying again", "error", err)
		}
		sleep(pause(failed), s.life.Done())
		failed++
		s.mu.Lock()
		s.lapsed = append(ds, s.lapsed...)
		s.mu.Unlock()
	}
}

// countAll returns those that are still to be counted, and why.
func (s *subscription) countAll(ds []*delivery) ([]*delivery, error) {
	ctx, cancel := context.WithTimeout(s.life, releaseTime)
	defer cancel()
	q := s.queue
	var left, sent, uncountable []*delivery
	var errs []error
	var parcels, fresh []*parcel
	for _, d := range ds {
		m := &d.message
		if m.session.gone() != nil {
			continue
		}
		// A copy that may yet be confirmed is not followed by another: a slow broker would be sent more and more of them.
		p := m.unsure
		if p == nil {
			var err error
			if p, err = q.lapsed(d); err != nil {
				// Without an end to its count it would kill one consumer after the other, if it is what kills them.
				d.Lapses = mostCounted
				q.log.Warn("rabbit: the lapses of a message cannot be counted: it passes for one that lapsed too often", "message_id", d.ID, "error", err)
				uncountable = append(uncountable, d)
				continue
			}
			if err := p.lack(q.ensure(ctx, p.needs...)); err != nil {
				return ds, err
			}
			fresh = append(fresh, p)
		}
		parcels, sent = append(parcels, p), append(sent, d)
	}
	s.putBack(uncountable, linger)
	q.copies.post(fresh)
	for i, p := range parcels {
		d := sent[i]
		m := &d.message
		err := m.confirmed(ctx, q.copies, p)
		if err == nil {
			// If the channel is gone the message comes back, and is counted once more.
			_ = m.session.end(context.Background(), m, ack)
			continue
		}
		if errors.Is(err, backend.ErrUnknown) {
			q.log.Debug("rabbit: the copy of a message may be there twice", "message_id", d.ID, "error", err)
		}
		left, errs = append(left, d), append(errs, err)
	}
	if errs == nil {
		return nil, nil
	}
	return left, errors.Join(errs[0])
}
