package rabbit

import (
	"net"
	"sync"
)

// cork is a network connection that can gather what is written to it. The library writes each message and each ack by itself,
// and the system call for that costs more than all the rest of sending a small one, at the broker's end too.
type cork struct {
	net.Conn

	mu       sync.Mutex
	in       bool
	gathered []byte
}

// maxGathered is how much is gathered before it is written after all.
const maxGathered = 64 << 10

func (c *cork) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.in {
		return c.Conn.Write(p)
	}
	c.gathered = append(c.gathered, p...)
	if len(c.gathered) >= maxGathered {
		return len(p), c.writeLocked()
	}
	return len(p), nil
}

// gather keeps back what is written from now on, until flush. Nobody may wait for the broker in between.
func (c *cork) gather() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = true
}

// flush writes what was gathered. If that fails the connection ends, and whoever waits for something from it learns that.
func (c *cork) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = false
	if c.writeLocked() != nil {
		c.Close()
	}
}

func (c *cork) writeLocked() error {
	if len(c.gathered) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.gathered)
	c.gathered = c.gathered[:0]
	return err
}
