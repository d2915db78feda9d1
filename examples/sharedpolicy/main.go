// Sharedpolicy gives one policy and the same six orders to several brokers at once, and shows side by side what was decided
// on each: the same, to the nanosecond. It ends with an error where that is not so.
//
//	go run ./examples/sharedpolicy
//
// Without a broker it has the queue in memory alone. REDELIVER_POSTGRES_URL adds a database with PGMQ and
// REDELIVER_RABBIT_URL a RabbitMQ; "make brokers" brings both up and prints these lines.
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/backend/rabbit"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/examples/internal/kitchen"
)

// patience is when all must have ended on every broker.
const patience = 20 * time.Second

// broker is one that takes part if the environment names it.
type broker struct {
	name     string
	variable string // holds its URL; empty for a broker that is always there
	open     func(ctx context.Context, url, queue string) (orders kitchen.Queue, closeAll func(), err error)
}

var brokers = []broker{
	{"memory", "", openMemory},
	{"pgmq", "REDELIVER_POSTGRES_URL", openPGMQ},
	{"rabbit", "REDELIVER_RABBIT_URL", openRabbit},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Getenv, "redeliver_shared"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, getenv func(string) string, queue string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	orders := kitchen.Orders() // with the same IDs on each broker, since jitter is drawn from those
	var ledgers []*ledger
	var wg sync.WaitGroup
	for _, b := range brokers {
		url := getenv(b.variable)
		if b.variable != "" && url == "" {
			fmt.Fprintf(w, "without %s: set %s to have it join\n", b.name, b.variable)
			continue
		}
		q, closeAll, err := b.open(ctx, url, queue)
		if err != nil {
			cancel()
			wg.Wait()
			return fmt.Errorf("%s: %w", b.name, err)
		}
		defer closeAll()
		l := newLedger(b.name, orders)
		ledgers = append(ledgers, l)
		wg.Go(func() { l.err = l.serve(ctx, q, orders) })
	}
	wg.Wait()
	for _, l := range ledgers {
		if l.err != nil {
			return fmt.Errorf("%s: %w", l.broker, l.err)
		}
	}
	return compare(w, orders, ledgers)
}

func openMemory(_ context.Context, _, queue string) (kitchen.Queue, func(), error) {
	return memory.New(queue, memory.Options{}), func() {}, nil
}

func openPGMQ(ctx context.Context, url, queue string) (kitchen.Queue, func(), error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	q, err := pgmq.Open(pool, queue, pgmq.Options{})
	if err == nil {
		err = q.Create(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return q, pool.Close, nil
}

func openRabbit(ctx context.Context, url, queue string) (kitchen.Queue, func(), error) {
	q, err := rabbit.Open(url, queue, rabbit.Options{})
	if err != nil {
		return nil, nil, err
	}
	closeAll := func() { _ = q.Close(ctx) }
	if err := q.Create(ctx); err != nil {
		closeAll()
		return nil, nil, err
	}
	return q, closeAll, nil
}

// ledger is what was decided on one broker. It is a consumer.Observer.
type ledger struct {
	broker string
	err    error // of its consumer
	done   func()

	mu      sync.Mutex
	open    map[string]bool     // IDs of the orders that have not ended
	entries map[string][]string // by ID: what was decided after each delivery
}

func newLedger(broker string, orders []backend.Message) *ledger {
	l := &ledger{broker: broker, open: make(map[string]bool), entries: make(map[string][]string)}
	for _, o := range orders {
		l.open[o.ID] = true
	}
	return l
}

// serve sends the orders and handles them until each has ended.
func (l *ledger) serve(ctx context.Context, queue kitchen.Queue, orders []backend.Message) error {
	served, cancel := context.WithCancel(ctx)
	defer cancel()
	l.done = cancel
	if err := queue.Publish(ctx, orders...); err != nil {
		return err
	}
	c := &consumer.Consumer{
		Queue:    queue,
		Policy:   kitchen.Patience,
		Handler:  consumer.JSON(kitchen.Bake),
		Observer: l,
		Logger:   slog.New(slog.DiscardHandler), // by default each dead letter is an error in slog.Default
	}
	if err := c.Run(served); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stopped before all orders were served: %w", err)
	}
	return nil
}

// Observe notes what was decided. Orders that an earlier run has left are handled, and not noted.
func (l *ledger) Observe(_ context.Context, e consumer.Event) {
	var entry string
	ended := false
	switch e.Kind {
	case consumer.Succeeded:
		entry, ended = "ack", true
	case consumer.Retried, consumer.Snoozed:
		entry = fmt.Sprintf("%v, %v", e.Decision.Delay, e.Decision.Reason)
	case consumer.DeadLettered:
		entry, ended = fmt.Sprintf("dead, %v", e.Decision.Reason), true
	default:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := e.Delivery.ID
	if !l.open[id] {
		return
	}
	l.entries[id] = append(l.entries[id], entry)
	if ended {
		delete(l.open, id)
		if len(l.open) == 0 {
			l.done()
		}
	}
}

// compare prints what the ledgers hold, side by side, and returns an error if they differ.
func compare(w io.Writer, orders []backend.Message, ledgers []*ledger) error {
	row := func(pizza, delivery string, cells []string, mark string) {
		line := fmt.Sprintf("%-10s  %8s", pizza, delivery)
		for _, cell := range cells {
			line += fmt.Sprintf("  %-25s", cell)
		}
		fmt.Fprintln(w, strings.TrimRight(line+mark, " "))
	}
	var cells []string
	for _, l := range ledgers {
		cells = append(cells, l.broker)
	}
	row("pizza", "delivery", cells, "")
	differ := 0
	for i, o := range orders {
		for n := 0; ; n++ {
			some, mark := false, ""
			for k, l := range ledgers {
				cells[k] = "-"
				if n < len(l.entries[o.ID]) {
					cells[k], some = l.entries[o.ID][n], true
				}
				if cells[k] != cells[0] {
					mark = "  DIFFERENT"
				}
			}
			if !some {
				break
			}
			if mark != "" {
				differ++
			}
			row(kitchen.Menu[i], fmt.Sprint(n+1), cells, mark)
		}
	}
	if differ > 0 {
		return errors.New("the brokers differ in what was decided: see the lines that are marked")
	}
	return nil
}
