package pgmq_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

// ledger is what becomes of numbered messages, whoever has them.
type ledger struct {
	mu     sync.Mutex
	holder map[string]string // by the message
	ended  map[string][]string
	twice  []string // messages that were held by two at once
	ends   int
}

func (l *ledger) take(who, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder[message] != "" {
		l.twice = append(l.twice, fmt.Sprintf("%s: %s, and %s", message, l.holder[message], who))
	}
	l.holder[message] = who
}

// let is for what is held no more, and before anybody else can have it.
func (l *ledger) let(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holder, message)
}

func (l *ledger) end(message, how string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holder, message)
	l.ended[message] = append(l.ended[message], how)
	l.ends++
}

func (l *ledger) all() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends
}

// Other clients read, archive, delete and pop beside our consumers, and set vt by hand. No message is lost, and none ends
// twice. Where nobody makes a message visible that somebody holds, none is held by two at once.
func TestOtherClientsAtWork(t *testing.T) {
	for name, meddling := range map[string]bool{"each keeps to its own": false, "vt is set by hand": true} {
		t.Run(name, func(t *testing.T) {
			const messages = 2000
			p := pool(t, func(c *pgxpool.Config) { c.MaxConns = 16 })
			q := queue(t, p, pgmq.Options{})
			execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message) SELECT clock_timestamp(), to_jsonb(i) FROM generate_series(1, $1::int) i", messages)
			l := &ledger{holder: make(map[string]string), ended: make(map[string][]string)}
			ctx, stop := context.WithTimeout(t.Context(), 2*patience)
			defer stop()
			var work sync.WaitGroup

			for i := range 3 {
				sub := subscribe(t, q)
				work.Go(func() { consumeForLedger(ctx, t, sub, fmt.Sprintf("consumer %d", i), l) })
			}
			ask := func(sql string, args ...any) []string {
				rows, _ := p.Query(ctx, sql, append([]any{q.Name()}, args...)...)
				found, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if ctx.Err() == nil && err != nil {
					t.Error(err)
					stop()
				}
				return found
			}
			for i, remove := range []string{"archive", "delete"} {
				who := fmt.Sprintf("reader %d", i)
				work.Go(func() {
					for ctx.Err() == nil {
						read := ask("SELECT message::text FROM pgmq.read($1::text, 60, 5)")
						for _, m := range read {
							l.take(who, m)
						}
						for _, m := range read {
							// The message's number is its msg_id too.
							for range ask("SELECT 'x' WHERE pgmq."+remove+"($1::text, $2::bigint)", number(m)) {
								l.end(m, remove)
							}
						}
					}
				})
			}
			work.Go(func() {
				for ctx.Err() == nil {
					for _, m := range ask("SELECT message::text FROM pgmq.pop($1::text)") {
						l.take("popper", m)
						l.end(m, "pop")
					}
				}
			})
			if meddling {
				work.Go(func() {
					for ctx.Err() == nil {
						ask("SELECT msg_id::text FROM pgmq.set_vt($1::text, $2::bigint, $3::int)", 1+rand.IntN(messages), rand.IntN(2))
					}
				})
			}
			require.Eventually(t, func() bool { return l.all() >= messages || ctx.Err() != nil }, 2*patience, 5*time.Millisecond)
			await(t, "the queue is empty", func() bool { return count(t, p, "q_"+q.Name()) == 0 })
			stop()
			work.Wait()

			require.Len(t, l.ended, messages)
			ours := make(map[string]int)
			for m, ends := range l.ended {
				require.Len(t, ends, 1, "message %s ended as %v", m, ends)
				ours[ends[0]]++
			}
			for _, how := range []string{"ack", "dead-letter", "archive", "delete", "pop"} {
				require.Positive(t, ours[how], "%v", ours)
			}
			require.Equal(t, ours["ack"]+ours["archive"], count(t, p, "a_"+q.Name()))
			require.Equal(t, ours["dead-letter"], count(t, p, "q_"+q.Name()+"_dlq"))
			if !meddling {
				require.Empty(t, l.twice)
			}
		})
	}
}

func number(message string) int64 {
	n, _ := strconv.ParseInt(message, 10, 64)
	return n
}

// consumeForLedger acks, retries and dead-letters what it gets until ctx ends. A lost lease is no failure.
func consumeForLedger(ctx context.Context, t *testing.T, sub backend.Subscription, who string, l *ledger) {
	for {
		ds, err := sub.Receive(ctx, 5)
		if err != nil {
			return
		}
		for _, d := range ds {
			l.take(who, string(d.Body))
		}
		for _, d := range ds {
			message := string(d.Body)
			s := ack
			switch rand.IntN(4) {
			case 0:
				s = retry(time.Duration(rand.IntN(20)) * time.Millisecond)
				l.let(message)
			case 1:
				s = deadLetter("x")
			}
			err := settle(sub, d, s)
			switch {
			case err == nil && s.Outcome != backend.Retry:
				l.end(message, s.Outcome.String())
			case err != nil && !errors.Is(err, backend.ErrLeaseLost):
				t.Errorf("%s: %v", s.Outcome, err)
			}
		}
	}
}
