package consumer_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/policy"
)

// gauge counts what goes on at the same time.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
}

func (g *gauge) read() (now, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now, g.most
}

func TestConcurrencyIsUsedAndKept(t *testing.T) {
	for name, c := range map[string]struct{ concurrency, prefetch, parallel, batch int }{
		"one":                    {1, 0, 1, 0},
		"the default":            {0, 0, 1, 0},
		"with prefetch":          {4, 7, 1, 0},
		"in small batches":       {25, 3, 1, 10},
		"in small parallel ones": {25, 3, 4, 10},
		"in parallel ones":       {4, 0, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const messages = 200
				q := newFaulty("orders")
				q.limits = func(l *backend.Limits) { l.Parallel, l.SettleBatch = c.parallel, c.batch }
				var handlers, inHand gauge
				q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
					batch, err := next(ctx, max)
					inHand.add(len(batch))
					return batch, err
				}
				q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
					defer inHand.add(-len(batch))
					return next(ctx, batch)
				}
				con := consume(q, three, &recorder{}, func(_ context.Context, d *backend.Delivery) error {
					handlers.add(1)
					defer handlers.add(-1)
					time.Sleep(time.Second)
					return nil
				})
				con.Concurrency, con.Prefetch = c.concurrency, c.prefetch
				concurrency := c.concurrency
				if concurrency == 0 {
					concurrency = 10
				}
				for i := range messages {
					publish(t, q.Queue, message(fmt.Sprint(i)))
				}
				began := time.Now()
				stop := start(t, con)
				for {
					time.Sleep(time.Second / 2)
					now, _ := handlers.read()
					if time.Since(began) < time.Duration(messages/concurrency)*time.Second {
						require.Equal(t, concurrency, now, "no place is idle while messages wait")
					} else {
						break
					}
					time.Sleep(time.Second / 2)
				}
				time.Sleep(2 * time.Second)
				require.NoError(t, stop())
				require.Equal(t, concurrency+c.prefetch, q.options().MaxInFlight)
				_, most := handlers.read()
				require.Equal(t, concurrency, most)
				_, most = inHand.read()
				require.LessOrEqual(t, most, concurrency+c.prefetch)
				require.Zero(t, stats(t, q.Queue))
			})
		})
	}
}

func TestFullBatchesAreReceivedAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.limits = func(l *backend.Limits) { l.Parallel, l.SettleBatch = 4, 3 }
		var calls gauge
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			calls.add(1)
			defer calls.add(-1)
			time.Sleep(time.Second)
			return next(ctx, max)
		}
		c := consume(q, three, &recorder{}, func(context.Context, *backend.Delivery) error {
			time.Sleep(10 * time.Second)
			return nil
		})
		c.Concurrency = 11
		for i := range 40 {
			publish(t, q.Queue, message(fmt.Sprint(i)))
		}
		stop := start(t, c)
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, int64(9), stats(t, q.Queue).Leased)
		_, most := calls.read()
		require.Equal(t, 3, most)
		time.Sleep(time.Second)
		require.Equal(t, int64(11), stats(t, q.Queue).Leased, "and the rest when no other call is under way")
		require.NoError(t, stop())
	})
}

func TestPrefetchedMessagesWaitInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		for i := range 10 {
			publish(t, q, message(fmt.Sprint(i)))
		}
		seen := &journal{}
		c := consume(q, three, &recorder{}, seen.wrap(func(context.Context, *backend.Delivery) error {
			time.Sleep(time.Second)
			return nil
		}))
		c.Concurrency, c.Prefetch = 2, 3
		stop := start(t, c)
		synctest.Wait()
		require.Equal(t, int64(5), stats(t, q).Leased)
		require.Equal(t, int64(5), stats(t, q).Ready, "the others are anyone's")
		require.NoError(t, stop())
		require.ElementsMatch(t, []string{"0", "1"}, seen.ids(), "in the order of receipt")
	})
}

// All ways to end a delivery give its place back: none is lost over thousands of messages.
func TestNoPlaceIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		var settled, called atomic.Int32
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			errs := make([]error, len(batch))
			for i, s := range batch {
				switch n := settled.Add(1); {
				case n%11 == 0:
					errs[i] = errNetwork
				case n%17 == 0:
					errs[i] = backend.ErrLeaseLost
				case n%23 == 0:
					errs[i] = backend.ErrUnknown
				default:
					errs[i] = next(ctx, []backend.Settlement{s})
				}
			}
			return backend.NewBatchError(errs)
		}
		var breaker counting
		var last gauge
		proceed := make(chan struct{})
		p := policy.Policy{MaxAttempts: 3, MaxLapses: 100, Backoff: policy.Fixed(time.Second)}
		c := consume(q, p, &recorder{}, func(ctx context.Context, d *backend.Delivery) error {
			if d.Headers["last"] != "" {
				last.add(1)
				<-proceed
				return nil
			}
			switch called.Add(1) % 8 {
			case 0:
				panic("x")
			case 1:
				return errDeclined
			case 2:
				return policy.Permanent(errDeclined)
			case 3:
				d.MarkLost()
				<-ctx.Done()
				return ctx.Err()
			case 4:
				return policy.Snooze(time.Millisecond)
			case 5:
				time.Sleep(3 * time.Second) // deaf to its timeout
			case 6:
				runtime.Goexit()
			}
			return nil
		})
		c.Concurrency, c.Prefetch, c.Lease, c.Timeout, c.Breaker = 5, 5, 2*time.Second, 500*time.Millisecond, &breaker
		for i := range 2000 {
			m := message(fmt.Sprint(i))
			if i%3 == 0 {
				m.Group = fmt.Sprint("g", i%4)
			}
			publish(t, q.Queue, m)
		}
		stop := start(t, c)
		time.Sleep(2 * time.Hour)
		now := stats(t, q.Queue)
		require.Zero(t, now.Ready+now.Waiting+now.Leased, "all came to an end")
		granted, recorded := breaker.balance()
		require.Equal(t, granted, recorded)

		for range 11 {
			publish(t, q.Queue, backend.Message{Headers: map[string]string{"last": "yes"}})
		}
		synctest.Wait()
		running, _ := last.read()
		require.Equal(t, 5, running)
		require.Equal(t, int64(10), stats(t, q.Queue).Leased)
		require.Equal(t, int64(1), stats(t, q.Queue).Ready)
		close(proceed)
		require.NoError(t, stop())
	})
}
