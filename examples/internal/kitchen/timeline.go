package kitchen

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// timeline prints one line for each attempt: when it ended, how long the message was to wait before it, how long it did,
// and what came of it. It is a consumer.Observer, and a wrapper around the handler that takes the times.
type timeline struct {
	w     io.Writer
	start time.Time
	done  func() // called when all orders have ended

	mu     sync.Mutex
	open   map[string]bool // IDs of the orders that have not ended
	orders map[string]*course
}

// course is where one message stands.
type course struct {
	planned, waited time.Duration // before this attempt
	returned        time.Time     // when the handler returned last; zero before the first time
}

func newTimeline(w io.Writer, orders []backend.Message, done func()) *timeline {
	t := &timeline{
		w:      w,
		start:  time.Now(),
		done:   done,
		open:   make(map[string]bool),
		orders: make(map[string]*course),
	}
	for _, o := range orders {
		t.open[o.ID] = true
	}
	fmt.Fprintf(w, "%7s  %-10s  %7s  %8s  %8s  %s\n", "when", "pizza", "attempt", "planned", "waited", "what came of it")
	return t
}

func (t *timeline) course(id string) *course {
	c := t.orders[id]
	if c == nil {
		c = new(course)
		t.orders[id] = c
	}
	return c
}

// watch notes when the handler begins and ends.
func (t *timeline) watch(h consumer.Handler) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
		t.mu.Lock()
		if c := t.course(d.ID); !c.returned.IsZero() {
			c.waited = time.Since(c.returned)
		}
		t.mu.Unlock()

		err := h.Handle(ctx, d)

		t.mu.Lock()
		defer t.mu.Unlock()
		t.course(d.ID).returned = time.Now()
		return err
	})
}

// Observe prints what the consumer has done with a message, which the broker has confirmed by now.
func (t *timeline) Observe(_ context.Context, e consumer.Event) {
	var outcome string
	ended := false
	switch e.Kind {
	case consumer.Succeeded:
		outcome, ended = "baked", true
	case consumer.DeadLettered:
		outcome, ended = fmt.Sprintf("dead: %v (%s)", e.Err, e.Reason), true
	case consumer.Retried:
		outcome = fmt.Sprintf("retry in %v: %v", round(e.Delay), e.Err)
		if e.Reason == policy.ReasonRetryAfter {
			outcome += " (not sooner)"
		}
	case consumer.Snoozed:
		outcome = fmt.Sprintf("wait %v, uncharged: the dough has to rise", round(e.Delay))
	default:
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.course(e.Delivery.ID)
	planned, waited := "", ""
	if c.planned > 0 {
		planned, waited = round(c.planned).String(), round(c.waited).String()
	}
	fmt.Fprintf(t.w, "%6.2fs  %-10s  %7d  %8s  %8s  %s\n",
		time.Since(t.start).Seconds(), pizza(e.Delivery), e.Delivery.Attempt, planned, waited, outcome)
	c.planned = e.Delay
	if ended {
		delete(t.open, e.Delivery.ID)
		if len(t.open) == 0 {
			t.done()
		}
	}
}

func pizza(d *backend.Delivery) string {
	var o Order
	if err := json.Unmarshal(d.Body, &o); err != nil {
		return d.ID
	}
	return o.Pizza
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
