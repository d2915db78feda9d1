// Breaker handles orders whose dependency goes down for three seconds, with a circuit breaker of failsafe-go, and prints a time line
// of it. No broker is needed: the queue lives in memory. It takes six seconds.
//
//	go run ./examples/breaker
//
// While the breaker is open the consumer does not receive: orders wait in the queue, where nothing is charged to them, rather than
// use up their attempts. Once a second one of them tries whether the dependency is back.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// Orders arrive for six seconds, and meet an outage in the middle of them.
const (
	orders   = 120
	interval = 50 * time.Millisecond

	outageAfter = 1500 * time.Millisecond
	outage      = 3 * time.Second
)

// patience would be used up within the outage without the breaker: three attempts, within a second.
var patience = policy.Policy{
	Name:        "orders",
	MaxAttempts: 3,
	Backoff:     policy.Fixed(400 * time.Millisecond),
	Jitter:      policy.Proportional(0.2),
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer) error {
	_, err := serve(ctx, w, newBreaker())
	return err
}

func newBreaker() circuitbreaker.CircuitBreaker[any] {
	return circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(5). // failures in a row, then it opens
		WithDelay(time.Second).  // after which one order is tried
		WithSuccessThreshold(2). // successes in a row, then it closes
		Build()
}

// serve handles all orders and returns what became of them. A nil breaker is none.
func serve(ctx context.Context, w io.Writer, breaker circuitbreaker.CircuitBreaker[any]) (*tally, error) {
	began := time.Now()
	warehouse := func(context.Context, *backend.Delivery) error {
		if now := time.Since(began); now >= outageAfter && now < outageAfter+outage {
			return errors.New("the warehouse is down")
		}
		return nil
	}

	queue := memory.New("orders", memory.Options{})
	served, cancel := context.WithCancel(ctx)
	defer cancel()
	count := &tally{open: orders, done: cancel}
	c := &consumer.Consumer{
		Queue:    queue,
		Policy:   patience,
		Handler:  consumer.HandlerFunc(warehouse),
		Observer: count,
		Logger:   slog.New(slog.DiscardHandler), // by default each dead letter is an error in slog.Default
	}
	if breaker != nil {
		c.Breaker = breaker
	}

	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	others.Go(func() { produce(served, queue) })
	others.Go(func() { count.print(served, w, began, queue, breaker) })
	if err := c.Run(served); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("stopped before all orders had ended: %w", context.Cause(ctx))
	}
	cancel()
	others.Wait()
	fmt.Fprintf(w, "\n%d orders: %d handled in %d calls, %d dead-lettered\n", orders, count.succeeded, count.succeeded+count.failed, count.dead)
	return count, nil
}

func produce(ctx context.Context, queue *memory.Queue) {
	for i := range orders {
		// A memory queue without a limit refuses nothing that is valid.
		_ = queue.Publish(ctx, backend.Message{ID: fmt.Sprintf("order-%d", i+1), Body: []byte("{}")})
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
	}
}

// tally counts what happens, as a consumer.Observer.
type tally struct {
	done func() // called when all orders have ended

	mu                      sync.Mutex
	open                    int // orders that have not ended
	succeeded, failed, dead int
}

func (t *tally) Observe(_ context.Context, e consumer.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case consumer.Succeeded:
		t.succeeded++
	case consumer.Retried:
		t.failed++
		return
	case consumer.DeadLettered:
		t.failed++
		t.dead++
	default:
		return
	}
	if t.open--; t.open == 0 {
		t.done()
	}
}

// print writes a line each half second.
func (t *tally) print(ctx context.Context, w io.Writer, began time.Time, queue *memory.Queue, breaker circuitbreaker.CircuitBreaker[any]) {
	fmt.Fprintln(w, "  when  warehouse  breaker    in the queue  handled  failed calls  dead")
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		stats, err := queue.Stats(ctx)
		if err != nil {
			return
		}
		now, dependency, state := time.Since(began), "up", "none"
		if now >= outageAfter && now < outageAfter+outage {
			dependency = "down"
		}
		if breaker != nil {
			state = breaker.State().String()
		}
		t.mu.Lock()
		fmt.Fprintf(w, "%5.1fs  %-9s  %-9s  %12d  %7d  %12d  %4d\n", now.Seconds(), dependency, state, stats.Ready+stats.Waiting, t.succeeded, t.failed, t.dead)
		t.mu.Unlock()
	}
}
