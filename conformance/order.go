package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redeliver/redeliver/backend"
)

var orderCases = []testCase{
	{name: "a head that waits holds its group and no other", sentence: 23, check: headHoldsGroup},
	{name: "a group goes on behind a head that is gone", sentence: 23, check: groupGoesOn},
	{name: "a lapsed head keeps its place", sentence: 23, check: lapsedHead},
	{name: "groups keep their order among many consumers", sentence: 23, check: orderUnderLoad},
}

func (c *trial) needsOrder() {
	c.applies(c.limits.Ordered, "Limits.Ordered is false: groups are not kept in order, and refused at publish")
}

// grouped makes the messages of a group: "a-0", "a-1" and so on.
func grouped(group string, n int) []backend.Message {
	list := make([]backend.Message, n)
	for i := range list {
		list[i] = backend.Message{ID: fmt.Sprintf("%s-%d", group, i), Body: []byte(`{}`), Group: group}
	}
	return list
}

// hand is what a client holds. A backend may hand out several messages of a group to one client, in order: the client
// then handles them in order, and gives back those behind one that failed.
type hand struct {
	*client
	held []*backend.Delivery
}

// next returns the next message to handle, or nil if none comes in time.
func (h *hand) next(within time.Duration) *backend.Delivery {
	if len(h.held) == 0 {
		h.held = h.receive(10, within)
	}
	if len(h.held) == 0 {
		return nil
	}
	d := h.held[0]
	h.held = h.held[1:]
	return d
}

// back settles a message that does not end, and gives back those of its group behind it.
func (h *hand) back(end backend.Settlement) {
	batch := []backend.Settlement{end}
	h.held = slices.DeleteFunc(h.held, func(d *backend.Delivery) bool {
		if d.Group == end.Delivery.Group {
			batch = append(batch, release(d))
			return true
		}
		return false
	})
	h.settle(23, batch...)
}

func headHoldsGroup(c *trial) {
	c.needsOrder()
	delay := c.limits.Applied(time.Second)
	c.send(grouped("a", 3)...)
	c.send(grouped("b", 3)...)
	c.send(c.messages(3)...)
	h := &hand{client: c.subscribe(c.Queue, longLease)}
	var order []string
	var returned time.Time
	for len(order) < 9 {
		d := h.next(delay + patience)
		if d == nil {
			c.fatal(23, "nothing came after %q were handled, of 9 messages", order)
		}
		if d.Group != "" && d.ID != fmt.Sprintf("%s-%d", d.Group, countGroup(order, d.Group)) {
			c.fatal(23, "message %q came after %q were handled", d.ID, order)
		}
		if d.ID == "a-0" && d.Attempt == 1 {
			returned = time.Now().Add(delay)
			h.back(retry(d, delay))
			continue
		}
		if d.ID == "a-0" && time.Now().Before(returned) {
			c.fail(7, "the head of a group came %v before its delay of %v had passed", time.Until(returned), delay)
		}
		h.settle(6, ack(d))
		order = append(order, d.ID)
	}
	if n := slices.Index(order, "a-0"); n != 6 {
		c.fail(23, "the head of a group that waited %v was handled as number %d of 9: others did not go on meanwhile: %q", delay, n+1, order)
	}
}

func countGroup(ids []string, group string) int {
	n := 0
	for _, id := range ids {
		if len(id) > 2 && id[:len(id)-2] == group {
			n++
		}
	}
	return n
}

func groupGoesOn(c *trial) {
	c.needsOrder()
	n := len(everyOutcome)
	c.send(grouped("a", n)...)
	h := &hand{client: c.subscribe(c.Queue, longLease)}
	// Each message is settled in another way. Those that stay come again before the next one does.
	for i, outcome := range everyOutcome {
		want := fmt.Sprintf("a-%d", i)
		d := h.next(patience)
		if d == nil || d.ID != want {
			c.fatal(23, "after %d messages of a group %s came instead of %q", i, idOf(d), want)
		}
		end := outcome(d)
		if f := fateOf(end); f.gone || f.dead {
			h.settle(23, end)
			continue
		}
		h.back(end)
		if d = h.next(patience); d == nil || d.ID != want {
			c.fatal(23, "%s came instead of %q, which goes before after %s", idOf(d), want, end.Outcome)
		}
		h.settle(23, ack(d))
	}
	h.nothing(6, glance, "the whole group was handled")
}

func idOf(d *backend.Delivery) string {
	if d == nil {
		return "nothing"
	}
	return fmt.Sprintf("%q", d.ID)
}

func lapsedHead(c *trial) {
	c.needsOrder()
	c.needsLapse()
	c.send(grouped("a", 2)...)
	dying := c.subscribe(c.Queue, c.harness.Lease)
	held := dying.receive(1, patience)
	if len(held) != 1 || held[0].ID != "a-0" {
		c.fatal(23, "the first of a group did not come first: %q", ids(held))
	}
	dying.crash()
	h := &hand{client: c.subscribe(c.reopen(), longLease)}
	for i := range 2 {
		want := fmt.Sprintf("a-%d", i)
		d := h.next(c.harness.Lease + patience)
		if d == nil || d.ID != want {
			c.fatal(23, "after the head of its group lapsed, %s came instead of %q", idOf(d), want)
		}
		h.settle(23, ack(d))
	}
}

func orderUnderLoad(c *trial) {
	c.needsOrder()
	const groups, each, consumers = 12, 10, 4
	for i := range each {
		for g := range groups {
			c.send(grouped(fmt.Sprintf("g%02d", g), each)[i])
		}
	}
	var (
		mu      sync.Mutex
		working sync.WaitGroup
		done    = make(map[string]int) // messages acked, by group
		holder  = make(map[string]int) // who holds a group's messages
		holds   = make(map[string]int) // and how many of them
		total   int
	)
	ctx, cancel := context.WithTimeout(c.ctx, c.harness.Timeout/2)
	defer cancel()
	for n := range consumers {
		h := &hand{client: c.subscribe(c.reopen(), longLease)}
		working.Add(1)
		c.spawn(func() {
			defer working.Done()
			for ctx.Err() == nil {
				got := h.receiveUntil(ctx, 1+n)
				mu.Lock()
				for _, d := range got {
					if holds[d.Group] > 0 && holder[d.Group] != n {
						c.fail(23, "message %q came to consumer %d while consumer %d holds its group", d.ID, n, holder[d.Group])
					}
					holder[d.Group] = n
					holds[d.Group]++
				}
				mu.Unlock()
				h.held = got
				for len(h.held) > 0 {
					d := h.next(0)
					mu.Lock()
					if want := fmt.Sprintf("%s-%d", d.Group, done[d.Group]); d.ID != want {
						c.fail(23, "message %q came before %q was handled", d.ID, want)
					}
					// Every third message fails once.
					fails := d.Attempt == 1 && (done[d.Group]+len(d.Group))%3 == 0
					if fails {
						holds[d.Group] = 0
					} else {
						done[d.Group]++
						holds[d.Group]--
						if total++; total == groups*each {
							cancel()
						}
					}
					mu.Unlock()
					if fails {
						h.back(retry(d, 3*time.Millisecond))
					} else {
						h.settle(6, ack(d))
					}
				}
			}
		})
	}
	working.Wait()
	if total < groups*each {
		c.fail(23, "%d consumers handled only %d of %d messages of %d groups", consumers, total, groups*each, groups)
	}
}
