package rabbit

import (
	"net"
	"sync"
)

// cork is a network connection that gathers what is written to it. The library writes each message and each ack by itself, and
// the system call for that costs more than all the rest of sending a small one, at the broker's end too.
//
// One writer at a time is in the socket, and takes along what others have written meanwhile. So a broker that does not read
// holds up that one alone, until too much has gathered. An error ends the connection, from which whoever waits learns of it.
type cork struct {
	net.Conn

	mu       sync.Mutex
	holds    int // calls of gather that no flush has followed yet
	gathered []byte
	spare    []byte // the memory of what was sent last
	sending  bool
	err      error      // why nothing can be sent any more
	drained  *sync.Cond // tells that something was sent, or cannot be
}

// What may be gathered: more than the acks of a few thousand messages, which are what must not be held up.
const (
	maxGathered = 64 << 10 // is sent even before flush
	maxBacklog  = 1 << 20  // has further writers wait
)

func newCork(conn net.Conn) *cork {
	c := &cork{Conn: conn}
	c.drained = sync.NewCond(&c.mu)
	return c
}

// Write implements net.Conn. It returns before all is sent if another is sending.
func (c *cork) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && len(c.gathered) >= maxBacklog {
		c.drained.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	c.gathered = append(c.gathered, p...)
	if c.holds == 0 || len(c.gathered) >= maxGathered {
		c.sendLocked()
	}
	return len(p), c.err
}

// gather keeps back what is written from now on, until flush. Whoever calls it must not wait for the broker in between.
func (c *cork) gather() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds++
}

// flush sends what was gathered, unless others are gathering or sending, who do it then.
func (c *cork) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds--; c.holds == 0 {
		c.sendLocked()
	}
}

// sendLocked unlocks c.mu while it is in the socket.
func (c *cork) sendLocked() {
	if c.sending {
		return
	}
	c.sending = true
	for len(c.gathered) > 0 && c.err == nil {
		p := c.gathered
		c.gathered = c.spare[:0]
		c.mu.Unlock()
		_, err := c.Conn.Write(p)
		c.mu.Lock()
		if c.spare = p; cap(p) > maxBacklog {
			c.spare = nil
		}
		if err != nil {
			c.err = err
			c.Close()
		}
		c.drained.Broadcast()
	}
	c.sending = false
}
