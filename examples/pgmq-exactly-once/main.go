// Pgmq-exactly-once moves money between accounts, each transfer exactly once, while its workers are killed and their
// connections cut. At the end it adds up.
//
//	go run ./examples/pgmq-exactly-once -url postgres://postgres@localhost/postgres
//
// Without -url it takes REDELIVER_POSTGRES_URL. "make brokers" brings a database up and prints that line. The workers are
// processes of their own, so that a kill is one; the handler and its retry policy are in worker.go. The program needs a role
// that may create a schema, and that may end sessions of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redeliver/redeliver/backend/pgmq"
)

func main() {
	url := flag.String("url", os.Getenv("REDELIVER_POSTGRES_URL"), "`URL` of a database with PGMQ")
	name := flag.String("name", "redeliver_bank", "`name` of the queue and of the schema of the accounts, which are made anew")
	worker := flag.Bool("worker", false, "be one of the workers; the program starts them by itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *worker {
		err = work(ctx, *url, *name)
	} else {
		err = run(ctx, os.Stdout, *url, *name, func() *exec.Cmd {
			return exec.Command(os.Args[0], "-worker", "-url", *url, "-name", *name)
		})
	}
	if err != nil {
		log.Fatal(err)
	}
}

// The chaos: at each tick a connection of some worker is cut, and at every third a worker is killed.
const (
	workers = 4
	tick    = 80 * time.Millisecond
)

// run makes the accounts, has workers move the money, and checks the books. The function returns a command that runs a worker.
func run(ctx context.Context, w io.Writer, url, name string, worker func() *exec.Cmd) (err error) {
	if url == "" {
		return errors.New("no database: give -url, or set REDELIVER_POSTGRES_URL")
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	queue, err := pgmq.Open(pool, name, pgmq.Options{})
	if err != nil {
		return err
	}
	b := bank{pool, queue}
	if err := b.open(ctx); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d transfers between %d accounts, by %d workers\n", transfers, accounts, workers)

	var staff staff
	defer func() { err = errors.Join(err, staff.dismiss()) }()
	for range workers {
		if err := staff.hire(worker()); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	began, cuts, kills := time.Now(), 0, 0
	for n := 1; ; n++ {
		open, err := b.unfinished(ctx)
		if err != nil {
			return err
		}
		if open == 0 {
			break
		}
		cut, err := b.cutConnection(ctx)
		if err != nil {
			return err
		}
		cuts += cut
		if n%3 == 0 {
			kills++
			if err := staff.replace(worker()); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	fmt.Fprintf(w, "done after %.1f s, in which %d workers were killed and %d connections cut\n", time.Since(began).Seconds(), kills, cuts)
	return b.audit(ctx, w)
}

// staff are the workers at work.
type staff struct{ at []*exec.Cmd }

func (s *staff) hire(worker *exec.Cmd) error {
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		return err
	}
	s.at = append(s.at, worker)
	return nil
}

// replace kills the worker who has been here for longest, whatever it is doing, and hires another.
func (s *staff) replace(worker *exec.Cmd) error {
	victim := s.at[0]
	s.at = s.at[1:]
	if err := victim.Process.Kill(); err != nil {
		return err
	}
	_ = victim.Wait() // that it was killed is no news
	return s.hire(worker)
}

// dismiss lets the workers go home.
func (s *staff) dismiss() error {
	var errs []error
	for _, worker := range s.at {
		errs = append(errs, worker.Process.Signal(syscall.SIGTERM), worker.Wait())
	}
	return errors.Join(errs...)
}
