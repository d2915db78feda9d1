package consumer

import (
	"context"
	"sync"
	"time"
)

// handlerContext is the context of one call of a handler. It makes a context of the standard library, with its timer, when
// it is first looked at for more than its deadline: many handlers are through before.
type handlerContext struct {
	parent   context.Context
	deadline time.Time
	timedOut error // the cause once the deadline has passed

	mu     sync.Mutex
	made   context.Context // nil until it is needed
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
	ended  bool
}

// begin is called before the handler is.
func (c *handlerContext) begin(parent context.Context, deadline time.Time, timedOut error) {
	c.parent, c.deadline, c.timedOut = parent, deadline, timedOut
}

func (c *handlerContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *handlerContext) Done() <-chan struct{}       { return c.context().Done() }
func (c *handlerContext) Err() error                  { return c.context().Err() }
func (c *handlerContext) Value(key any) any           { return c.context().Value(key) }

func (c *handlerContext) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.make()
}

// make is called with c.mu held.
func (c *handlerContext) make() context.Context {
	if c.made == nil {
		held, cancel := context.WithCancelCause(c.parent)
		c.made, c.stop = context.WithDeadlineCause(held, c.deadline, c.timedOut)
		c.cancel = cancel
		if c.ended {
			c.release()
		}
	}
	return c.made
}

// lose cancels the context because the lease is gone.
func (c *handlerContext) lose(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.make()
	c.cancel(why)
}

// end cancels the context after the handler has returned, for what the handler may have left running.
func (c *handlerContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.made != nil {
		c.release()
	}
}

// release gives up the timer and the place in the parent.
func (c *handlerContext) release() {
	c.cancel(nil)
	c.stop()
}

// cause is why the context is over, or nil if it is not.
func (c *handlerContext) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.made != nil:
		return context.Cause(c.made)
	case c.parent.Err() != nil:
		return context.Cause(c.parent)
	case !time.Now().Before(c.deadline):
		return c.timedOut
	default:
		return nil
	}
}
