package consumer

import (
	"context"
	"sync"
	"time"
)

// handlerContext is the context of one call of a handler. It makes a context of the standard library, with its timer, when
// it is first looked at for more than its deadline: many handlers are through before.
type handlerContext struct {
	r     *run
	began time.Time

	mu    sync.Mutex
	made  *madeContext // nil until it is needed
	ended bool
}

type madeContext struct {
	context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
}

func (c *handlerContext) deadline() time.Time { return c.began.Add(c.r.timeout) }

func (c *handlerContext) Deadline() (time.Time, bool) { return c.deadline(), true }
func (c *handlerContext) Done() <-chan struct{}       { return c.context().Done() }
func (c *handlerContext) Err() error                  { return c.context().Err() }
func (c *handlerContext) Value(key any) any           { return c.context().Value(key) }

func (c *handlerContext) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.contextLocked()
}

// contextLocked is called with c.mu held.
func (c *handlerContext) contextLocked() *madeContext {
	if c.made == nil {
		held, cancel := context.WithCancelCause(c.r.handlers)
		ctx, stop := context.WithDeadlineCause(held, c.deadline(), c.r.timedOut)
		c.made = &madeContext{ctx, cancel, stop}
		if c.ended {
			c.made.release()
		}
	}
	return c.made
}

// lose cancels the context because the lease is gone.
func (c *handlerContext) lose(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contextLocked().cancel(why)
}

// end cancels the context after the handler has returned, for what the handler may have left running.
func (c *handlerContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.made != nil {
		c.made.release()
	}
}

// release cancels the context and gives up its timer and its place in the parent.
func (c *madeContext) release() {
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
	case c.r.handlers.Err() != nil:
		return context.Cause(c.r.handlers)
	case !time.Now().Before(c.deadline()):
		return c.r.timedOut
	default:
		return nil
	}
}
