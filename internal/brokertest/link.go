package brokertest

import (
	"cmp"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// A Link is a TCP link to a broker that a test can slow, hold and cut. Its methods
// may be called by several goroutines at once.
type Link struct {
	url      string
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when held or delay changes
	held    [2]bool
	delay   time.Duration
	planned [2]*cut // nil: none
	refused bool
	wires   map[*wire]bool
}

// A Direction is one of the two in which bytes go.
type Direction int

const (
	ToBroker Direction = iota
	FromBroker
)

// A cut is planned for when some more bytes have passed.
type cut struct {
	rest int64
	done chan struct{}
}

// Proxy makes a link to the broker that the URL names, which lasts as long as the
// test. What connects to the link's own URL reaches the broker through it.
func Proxy(tb testing.TB, broker string) *Link {
	tb.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		tb.Fatal(err)
	}
	port := cmp.Or(u.Port(), map[string]string{"amqp": "5672", "amqps": "5671"}[u.Scheme])
	if port == "" {
		tb.Fatalf("Proxy: %s names no port", u.Redacted())
	}
	l := &Link{
		target:   net.JoinHostPort(cmp.Or(u.Hostname(), "localhost"), port),
		listener: listen(tb),
		changed:  make(chan struct{}),
		wires:    map[*wire]bool{},
	}
	u.Host = l.listener.Addr().String()
	l.url = u.String()
	l.running.Go(l.accept)
	tb.Cleanup(func() {
		l.listener.Close()
		l.Refuse()
		l.Cut()
		l.running.Wait()
	})
	return l
}

// URL returns the broker's URL with the address of the link in it.
func (l *Link) URL() string { return l.url }

// Connections returns how many connections go through the link.
func (l *Link) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.wires)
}

// Cut resets all connections, and returns when they are gone. What was held or
// delayed is lost. New connections are possible at once.
func (l *Link) Cut() {
	l.mu.Lock()
	var wires []*wire
	for w := range l.wires {
		wires = append(wires, w)
		delete(l.wires, w)
	}
	l.mu.Unlock()
	for _, w := range wires {
		w.reset()
	}
}

// CutAfter lets n more bytes pass in one direction, over all connections together,
// and then does what Cut does. The channel that it returns is closed when it has.
// With n = 0 it is the next byte that does not pass. Of many bytes the last may be
// lost in the cut: those for which the receiver's buffer had no room.
func (l *Link) CutAfter(d Direction, n int64) <-chan struct{} {
	c := &cut{rest: n, done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.planned[d] = c
	return c.done
}

// Refuse resets new connections as soon as they are made. It leaves those that
// there are.
func (l *Link) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = true
}

// Hold keeps back all bytes that go in one direction, as a link does that lost its
// other end: neither side is told.
func (l *Link) Hold(d Direction) {
	l.change(func() { l.held[d] = true })
}

// Delay lets each byte arrive by that much later, in both directions.
func (l *Link) Delay(delay time.Duration) {
	l.change(func() { l.delay = delay })
}

// Restore ends what Refuse, Hold, Delay and CutAfter began. What was held arrives.
func (l *Link) Restore() {
	l.change(func() {
		l.refused, l.held, l.delay, l.planned = false, [2]bool{}, 0, [2]*cut{}
	})
}

func (l *Link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.running.Go(func() { l.serve(client.(*net.TCPConn)) })
	}
}

// serve connects a client with the broker until one of the two leaves.
func (l *Link) serve(client *net.TCPConn) {
	w := &wire{gone: make(chan struct{}), ends: [2]*net.TCPConn{client}}
	l.mu.Lock()
	refused := l.refused
	l.mu.Unlock()
	if refused {
		w.reset()
		return
	}
	broker, err := net.DialTimeout("tcp", l.target, 10*time.Second)
	if err != nil {
		w.reset() // the client learns the broker's absence from that
		return
	}
	w.ends[1] = broker.(*net.TCPConn)
	if !l.add(w) {
		w.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.carry(w, ToBroker, client, w.ends[1]) })
	both.Go(func() { l.carry(w, FromBroker, w.ends[1], client) })
	both.Wait()
	client.Close()
	broker.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.wires, w)
}

// add counts the connection in, unless the link began to refuse meanwhile.
func (l *Link) add(w *wire) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.refused {
		l.wires[w] = true
	}
	return !l.refused
}

// A portion is what one read brought.
type portion struct {
	bytes []byte
	at    time.Time
	err   error // why there will be no more
}

// carry carries bytes in one direction, and then the news that there are no more.
func (l *Link) carry(w *wire, d Direction, from, to *net.TCPConn) {
	portions := make(chan portion, 64)
	l.running.Go(func() {
		defer close(portions)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			select {
			case portions <- portion{buf[:n], time.Now(), err}:
			case <-w.gone:
				return
			}
			if err != nil {
				return
			}
		}
	})
	for p := range portions {
		if !l.wait(w, d, p.at) {
			return
		}
		n, done := l.allow(d, len(p.bytes))
		_, err := to.Write(p.bytes[:n])
		if done != nil {
			l.Cut()
			close(done)
			return
		}
		switch {
		case err == nil && p.err == nil:
		case err == nil && p.err == io.EOF:
			to.CloseWrite()
			return
		default:
			w.reset()
			return
		}
	}
}

// wait waits until bytes that were read at that time may pass; false if the
// connection is cut first.
func (l *Link) wait(w *wire, d Direction, at time.Time) bool {
	for {
		l.mu.Lock()
		held, due, changed := l.held[d], at.Add(l.delay), l.changed
		l.mu.Unlock()
		var ripe <-chan time.Time
		if rest := time.Until(due); !held {
			if rest <= 0 {
				return true
			}
			ripe = time.After(rest)
		}
		select {
		case <-w.gone:
			return false
		case <-changed:
		case <-ripe:
			return true
		}
	}
}

// allow returns how many of n bytes may pass, and what to close once the link is
// cut behind them, if it is to be cut.
func (l *Link) allow(d Direction, n int) (int, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.planned[d]
	if c == nil || n == 0 {
		return n, nil
	}
	if int64(n) < c.rest {
		c.rest -= int64(n)
		return n, nil
	}
	l.planned[d] = nil
	return int(c.rest), c.done
}

// A wire is one connection through a link.
type wire struct {
	ends [2]*net.TCPConn
	once sync.Once
	gone chan struct{} // closed by reset
}

// reset ends the connection without a farewell.
func (w *wire) reset() {
	w.once.Do(func() {
		close(w.gone)
		for _, end := range w.ends {
			if end != nil {
				end.SetLinger(0)
				end.Close()
			}
		}
	})
}
