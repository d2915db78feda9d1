package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// ledger notes what happened, as a consumer.Observer and as a wrapper around the handler that takes the times.
type ledger struct {
	speed time.Duration
	done  func() // called when all payments have ended

	mu        sync.Mutex
	open      int
	returned  map[string]time.Time    // by message ID: when the handler returned last
	waits     map[int][]time.Duration // by attempt: how long the ordinary payments waited before it
	asked     []time.Duration         // how long the throttled ones did before their second
	charged   int                     // of the ordinary ones
	exhausted int                     // of the ordinary ones
	refused   int                     // dead-lettered at their first attempt, as they can never succeed
}

func newLedger(payments int, speed time.Duration, done func()) *ledger {
	return &ledger{
		speed: speed, done: done, open: payments,
		returned: make(map[string]time.Time), waits: make(map[int][]time.Duration),
	}
}

func cardOf(d *backend.Delivery) string {
	var p Payment
	if json.Unmarshal(d.Body, &p) != nil {
		return ""
	}
	return p.Card
}

func (l *ledger) watch(h consumer.Handler) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, d *backend.Delivery) error {
		l.mu.Lock()
		if d.Attempt > 1 {
			waited := time.Since(l.returned[d.ID]) * l.speed
			if cardOf(d) == "throttled" {
				l.asked = append(l.asked, waited)
			} else {
				l.waits[d.Attempt] = append(l.waits[d.Attempt], waited)
			}
		}
		l.mu.Unlock()

		err := h.Handle(ctx, d)

		l.mu.Lock()
		defer l.mu.Unlock()
		l.returned[d.ID] = time.Now()
		return err
	})
}

func (l *ledger) Observe(_ context.Context, e consumer.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e.Kind == consumer.Succeeded && cardOf(e.Delivery) == "ordinary":
		l.charged++
	case e.Kind == consumer.Succeeded:
	case e.Kind == consumer.DeadLettered && e.Reason == policy.ReasonPermanent && e.Delivery.Attempt == 1:
		l.refused++
	case e.Kind == consumer.DeadLettered:
		l.exhausted++
	default:
		return
	}
	if l.open--; l.open == 0 {
		l.done()
	}
}

// print shows what the plan predicts next to what happened.
func (l *ledger) print(w io.Writer, plan *analysis.Schedule) {
	row := func(what, predicted, happened string) { fmt.Fprintf(w, "%-46s %16s %16s\n", what, predicted, happened) }
	share := func(n int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/ordinary) }

	alive := plan.Survival(outage).AtStart
	fmt.Fprintf(w, "%d payments; time runs at %d times its speed\n\n", ordinary+throttled+invalid, l.speed)
	row("", "predicted", "happened")
	row("charged, though the gateway was down for "+analysis.Text(outage), alive.Percent(), share(l.charged))
	row("dead-lettered after 8 attempts", analysis.Share{Value: 1 - alive.Value, Error: alive.Error}.Percent(), share(l.exhausted))
	row("with an amount of -5: dead at attempt 1", fmt.Sprint(invalid), fmt.Sprint(l.refused))
	// Jitter prolongs what the server asks for, by as much as it would have spread the first wait.
	spread := plan.Attempts[1].Wait.Latest
	row("429 with Retry-After 10s: shortest wait", "from "+analysis.Text(retryAfter), analysis.Text(slices.Min(l.asked)))
	row("429 with Retry-After 10s: longest wait", "to "+analysis.Text(retryAfter+spread), analysis.Text(slices.Max(l.asked)))
	for _, a := range plan.Attempts[1:] {
		if waits := l.waits[a.Number]; len(waits) > 0 {
			row(fmt.Sprintf("mean wait before attempt %d", a.Number), analysis.Text(a.Wait.Mean), analysis.Text(mean(waits)))
		}
	}
}

func mean(ds []time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, d := range ds {
		sum += d
	}
	return sum / time.Duration(len(ds))
}
