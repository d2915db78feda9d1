package rabbit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redeliver/redeliver/backend"
)

// window is how many publishings of a lane may be unconfirmed. The library drops returned ones that nobody takes from it in
// time, so that this is also how many it must be able to keep.
const window = 2048

// outlet is where a queue publishes: over a connection of its own, since a broker that runs out of memory or disk stops
// reading from the connections that publish, and acks would wait with the rest.
type outlet struct {
	queue *Queue
	work  sync.WaitGroup // the goroutines of the lanes

	mu     sync.Mutex
	link   *link
	links  int // so far
	closed bool
}

// connect returns the link, and opens one if there is none.
func (o *outlet) connect() (*link, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link != nil {
		select {
		case <-o.link.gone:
			o.link = nil
		default:
			return o.link, nil
		}
	}
	if o.closed {
		return nil, backend.ErrClosed
	}
	l, err := o.queue.dial(o.queue.life, "publishes to")
	if err != nil {
		return nil, err
	}
	if o.links > 0 {
		// It may be another broker, or one that has forgotten.
		o.queue.top.forget()
	}
	o.queue.frameMax.Store(l.frameMax())
	o.link = l
	o.links++
	return l, nil
}

// close ends the lanes, after the queue's life has ended.
func (o *outlet) close(ctx context.Context) {
	o.mu.Lock()
	o.closed = true
	l := o.link
	o.link = nil
	o.mu.Unlock()
	if l != nil {
		defer context.AfterFunc(ctx, l.cut)()
		l.close()
	}
	o.work.Wait()
}

// parcel is a message on its way to the broker.
type parcel struct {
	exchange, key string
	msg           amqp.Publishing
	id            int64  // in the header by which it is known again if the broker returns it; 0 if there is none, and it is sent alone
	needs         []part // what has to be declared

	sent    chan struct{} // closed when the parcels that it was posted with are not waiting any more
	state   atomic.Uint32
	pipe    *pipe // what it went through; set, as confirm is, before the state is written
	confirm *amqp.DeferredConfirmation

	done chan struct{} // closed when it is known what became of it
	err  error         // set before that
}

// The states of a parcel. The sender and the one who waits for it may both end its wait, and only one of them does.
const (
	waiting   uint32 = iota // not sent yet
	writing                 // being sent
	written                 // sent; whoever waits for it claims the confirmation
	withdrawn               // never sent
	abandoned               // nobody waits any more, so that its confirmation is claimed by a goroutine of the lane
	refused                 // not sent, or broken off
	departed                // sent alone: a goroutine of its own ends it
)

// pipe is a channel in confirm mode.
type pipe struct {
	link    *link
	ch      *amqp.Channel
	returns chan amqp.Return
	closed  chan *amqp.Error

	mu       sync.Mutex
	returned map[int64]amqp.Return
	why      error
}

// lane sends parcels in their order, without waiting for the confirmation of one before it sends the next. A goroutine of
// its own writes them, since a write can hang for as long as the broker does not read.
type lane struct {
	out    *outlet
	window chan struct{} // holds a token for each unconfirmed publishing
	pipe   *pipe         // used by run alone, as is
	corked *cork         // what it gathers in; nil if it has written all

	mu      sync.Mutex
	queue   []*consignment
	wake    chan struct{} // holds a token while run has reason to look
	running bool
	closed  bool
	trouble error // why nothing can be sent now
}

// consignment is parcels that are sent together.
type consignment struct {
	parcels []*parcel
	sent    chan struct{} // closed when none of them is to be sent any more
}

// maxConsignment is small beside the window: the confirmations of one are claimed once all of it is sent.
const maxConsignment = 64

// largeBody is from what size on a message is sent while no other is unconfirmed. One that is larger than the broker allows
// ends the channel, and leaves the fate of what is under way unknown.
const largeBody = 1 << 20

func (p *parcel) large() bool { return len(p.msg.Body) >= largeBody }

func newLane(o *outlet) *lane {
	return &lane{out: o, window: make(chan struct{}, window), wake: make(chan struct{}, 1)}
}

// post begins to send parcels, in their order. Each must be awaited.
func (l *lane) post(parcels []*parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(parcels) > 0 {
		if parcels[0].id == 0 {
			l.postAlone(parcels[0])
			parcels = parcels[1:]
			continue
		}
		n := 1
		for n < min(len(parcels), maxConsignment) && parcels[n].id != 0 && !parcels[0].large() && !parcels[n].large() {
			n++
		}
		c := &consignment{parcels: parcels[:n], sent: make(chan struct{})}
		parcels = parcels[n:]
		for _, p := range c.parcels {
			p.sent = c.sent
		}
		if l.closed {
			l.refuse(c)
			continue
		}
		l.queue = append(l.queue, c)
		if !l.running {
			l.running = true
			l.out.work.Go(l.run)
		}
		signal(l.wake)
	}
}

// postAlone begins to send a parcel over a connection of its own, by which no other could be returned.
func (l *lane) postAlone(p *parcel) {
	p.sent = make(chan struct{})
	close(p.sent)
	p.state.Store(departed)
	l.out.work.Go(func() { p.end(l.sendAlone(p)) })
}

func (l *lane) sendAlone(p *parcel) error {
	q := l.out.queue
	return q.visit(q.life, func(v *visit) error {
		pipe, err := newPipe(v.link)
		if err != nil {
			return err
		}
		p.pipe = pipe
		if p.confirm, err = pipe.ch.PublishWithDeferredConfirm(p.exchange, p.key, true, false, p.msg); err != nil {
			return errBroken(err)
		}
		<-p.confirm.Done()
		return l.verdict(p)
	})
}

// refuse ends a consignment that will not be sent, because the queue was closed.
func (l *lane) refuse(c *consignment) {
	for _, p := range c.parcels {
		if p.state.CompareAndSwap(waiting, refused) {
			p.end(backend.ErrClosed)
		}
	}
	close(c.sent)
}

// publish posts parcels and awaits each.
func (l *lane) publish(ctx context.Context, parcels []*parcel) []error {
	l.post(parcels)
	errs := make([]error, len(parcels))
	for i, p := range parcels {
		errs[i] = l.await(ctx, p)
	}
	return errs
}

// sweep takes out what is not to be sent any more.
func (l *lane) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = slices.DeleteFunc(l.queue, func(c *consignment) bool {
		idle := !slices.ContainsFunc(c.parcels, func(p *parcel) bool { return p.state.Load() == waiting })
		if idle {
			close(c.sent)
		}
		return idle
	})
}

// await returns what became of a parcel. When ctx ends before that is known, it is not sent if it was not yet, or else the
// outcome is unknown.
func (l *lane) await(ctx context.Context, p *parcel) error {
	select {
	case <-p.sent:
	case <-ctx.Done():
	}
	if p.state.CompareAndSwap(waiting, withdrawn) {
		l.sweep()
		return l.unsent(ctx)
	}
	if p.state.CompareAndSwap(writing, abandoned) {
		return errUnconfirmed(ctx.Err())
	}
	if p.state.Load() != written {
		return p.later(ctx)
	}
	select {
	case <-p.confirm.Done():
		l.claim(p)
		return p.err
	default:
	}
	select {
	case <-p.confirm.Done():
		l.claim(p)
		return p.err
	case <-ctx.Done():
		p.state.Store(abandoned)
		l.out.work.Go(func() { l.claim(p) })
		return errUnconfirmed(ctx.Err())
	}
}

// later returns what became of a parcel that its sender has given up waiting for, or nobody waits for.
func (p *parcel) later(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return errUnconfirmed(ctx.Err())
	}
}

func errUnconfirmed(why error) error {
	return fmt.Errorf("%w: the broker has not confirmed the copy: %w", backend.ErrUnknown, why)
}

func errBroken(why error) error {
	return fmt.Errorf("%w: the connection ended while the copy was sent: %w", backend.ErrUnknown, why)
}

// unsent is the error of a parcel that was not sent before ctx ended.
func (l *lane) unsent(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble != nil {
		return fmt.Errorf("not sent: %w: %w", l.trouble, ctx.Err())
	}
	return fmt.Errorf("not sent: %w", ctx.Err())
}

// claim waits for the confirmation of a parcel that was sent, and ends it.
func (l *lane) claim(p *parcel) {
	<-p.confirm.Done()
	p.err = l.verdict(p)
	<-l.window
	close(p.done)
}

// verdict tells what a confirmation means.
func (l *lane) verdict(p *parcel) error {
	if p.confirm.Acked() {
		// The broker returns a message before it confirms it.
		if r, ok := p.pipe.takeReturn(p.id); ok {
			return &unroutableError{exchange: p.exchange, key: p.key, reason: r.ReplyText}
		}
		return nil
	}
	// The library also denies what was still unconfirmed when the channel was closed.
	if p.pipe.ch.IsClosed() {
		why := p.pipe.cause()
		switch {
		case code(why) == amqp.NotFound:
			l.out.queue.top.forget()
		case code(why) == amqp.PreconditionFailed && p.large() && strings.Contains(why.Error(), "message size"):
			return fmt.Errorf("%w: the body of %d bytes is larger than the broker allows: send less, or raise its max_message_size: %w",
				backend.ErrInvalidMessage, len(p.msg.Body), why)
		}
		return fmt.Errorf("%w: the connection or channel ended before the broker confirmed the copy: %w", backend.ErrUnknown, why)
	}
	return errRefused
}

var errRefused = errors.New("the broker refused the message: a queue that it would go to is full, or has no leader; make room, or repair it")

// unroutableError is the error of a message that came back because no queue is bound to where it was published.
type unroutableError struct{ exchange, key, reason string }

func (e *unroutableError) Error() string {
	return fmt.Sprintf("unroutable: no queue takes a message from exchange %q with routing key %q (%s)", e.exchange, e.key, e.reason)
}

func (p *pipe) takeReturn(id int64) (amqp.Return, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		select {
		case r, open := <-p.returns:
			if !open {
				p.returns = nil
				continue
			}
			id, _ := r.Headers[headerPublish].(int64) // 0 if there is none
			p.returned[id] = r
		default:
			r, ok := p.returned[id]
			delete(p.returned, id)
			return r, ok
		}
	}
}

// cause returns why the channel was closed.
func (p *pipe) cause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == nil {
		p.why = errLeft
		if err, ok := <-p.closed; ok {
			p.why = err
		}
	}
	return p.why
}

// run sends what is added, until the queue's life ends.
func (l *lane) run() {
	life := l.out.queue.life
	for {
		c := l.next(life)
		if c == nil {
			break
		}
		l.sendAll(life, c)
	}
	l.mu.Lock()
	left := l.queue
	l.queue, l.closed = nil, true
	l.mu.Unlock()
	for _, c := range left {
		l.refuse(c)
	}
}

// next returns the next consignment, or nil when life ends.
func (l *lane) next(life context.Context) *consignment {
	for {
		l.mu.Lock()
		if len(l.queue) > 0 && life.Err() == nil {
			c := l.queue[0]
			l.queue[0] = nil
			l.queue = l.queue[1:]
			l.mu.Unlock()
			return c
		}
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-life.Done():
			return nil
		}
	}
}

func (l *lane) sendAll(life context.Context, c *consignment) {
	for _, p := range c.parcels {
		for !l.send(life, p) {
		}
	}
	l.flush()
	close(c.sent)
}

// send sends a parcel, once it is possible, unless it is withdrawn. It returns false if that has to be tried again.
func (l *lane) send(life context.Context, p *parcel) (ended bool) {
	pipe := l.ready(life, p)
	if pipe == nil {
		if p.state.CompareAndSwap(waiting, refused) {
			p.end(backend.ErrClosed)
		}
		return true
	}
	if p.large() {
		defer l.release(l.reserve(life, pipe))
	}
	if !l.acquire(life, pipe, nil) {
		return false
	}
	if !p.state.CompareAndSwap(waiting, writing) {
		<-l.window
		return true
	}
	p.pipe = pipe
	l.gather(pipe.link.sock)
	var err error
	p.confirm, err = pipe.ch.PublishWithDeferredConfirm(p.exchange, p.key, true, false, p.msg)
	switch {
	case err == nil:
		if !p.state.CompareAndSwap(writing, written) {
			l.out.work.Go(func() { l.claim(p) })
		}
		if p.large() {
			l.flush()
			sleep(solitude, p.confirm.Done(), life.Done())
		}
		return true
	case errors.Is(err, amqp.ErrClosed) && p.state.CompareAndSwap(writing, waiting):
		// No whole message was sent.
		<-l.window
		return false
	default:
		<-l.window
		p.state.Store(refused)
		p.end(errBroken(err))
		return true
	}
}

// gather keeps back what the lane writes, until flush.
func (l *lane) gather(c *cork) {
	if l.corked != c {
		l.flush()
		c.gather()
		l.corked = c
	}
}

// flush comes before each wait.
func (l *lane) flush() {
	if l.corked != nil {
		l.corked.flush()
		l.corked = nil
	}
}

// acquire takes a token of the window. It returns false if something else happens before that.
func (l *lane) acquire(life context.Context, pipe *pipe, alarm <-chan time.Time) bool {
	select {
	case l.window <- struct{}{}:
		return true
	default:
	}
	l.flush()
	select {
	case l.window <- struct{}{}:
		return true
	case <-pipe.link.gone:
	case <-life.Done():
	case <-alarm:
	}
	return false
}

// solitude is how long a large message waits to be the only one under way, and keeps others from following.
const solitude = 5 * time.Second

// reserve takes all tokens of the window but one, and so waits for what is unconfirmed. It returns how many it took.
func (l *lane) reserve(life context.Context, pipe *pipe) int {
	timer := time.NewTimer(solitude)
	defer timer.Stop()
	for n := range window - 1 {
		if !l.acquire(life, pipe, timer.C) {
			return n
		}
	}
	return window - 1
}

func (l *lane) release(tokens int) {
	for range tokens {
		<-l.window
	}
}

func (p *parcel) end(err error) {
	p.err = err
	close(p.done)
}

// ready waits until a parcel can be sent, and returns what to send it through: nil if it is not to be sent any more.
func (l *lane) ready(life context.Context, p *parcel) *pipe {
	for failed := 0; life.Err() == nil && p.state.Load() == waiting; {
		if l.pipe == nil || l.pipe.ch.IsClosed() {
			l.flush()
			var err error
			if l.pipe, err = l.open(); err != nil {
				l.pipe = nil
				l.note(err)
				if failed == 0 {
					l.out.queue.log.Warn("rabbit: nothing can be published: trying again", "error", err)
				}
				sleep(pause(failed), life.Done())
				failed++
				continue
			}
		}
		blocked, clear := l.pipe.link.flow()
		if blocked == "" {
			l.note(nil)
			return l.pipe
		}
		l.note(errors.New(blocked))
		l.flush()
		select {
		case <-clear:
		case <-l.pipe.link.gone:
		case <-life.Done():
		}
	}
	return nil
}

func (l *lane) note(trouble error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = trouble
}

func (l *lane) open() (*pipe, error) {
	link, err := l.out.connect()
	if err != nil {
		return nil, err
	}
	return newPipe(link)
}

func newPipe(link *link) (*pipe, error) {
	ch, err := link.conn.Channel()
	if err != nil {
		return nil, err
	}
	p := &pipe{
		link: link, ch: ch,
		returns:  ch.NotifyReturn(make(chan amqp.Return, window)),
		closed:   ch.NotifyClose(make(chan *amqp.Error, 1)),
		returned: make(map[int64]amqp.Return),
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	return p, nil
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// ended reports whether it is known what became of a parcel.
func (p *parcel) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// lack returns why something is missing that a parcel needs.
func (p *parcel) lack(missing map[part]error) error {
	for _, need := range p.needs {
		if err := missing[need]; err != nil {
			return err
		}
	}
	return nil
}

// settled reports whether awaiting a parcel takes no time.
func (p *parcel) settled() bool {
	switch p.state.Load() {
	case written:
		select {
		case <-p.confirm.Done():
			return true
		default:
			return false
		}
	case waiting, writing:
		return false
	}
	return p.ended()
}
