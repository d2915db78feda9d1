package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

func grouped(group, id string) backend.Message {
	return backend.Message{ID: id, Body: []byte("x"), Group: group}
}

func TestAGroupIsHandledInOrderAndOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newScripted(backend.Limits{Ordered: true})
		var log list[string]
		c := consume(q, three, &recorder{}, func(_ context.Context, d *backend.Delivery) error {
			log.add(d.ID + " starts")
			time.Sleep(time.Second)
			log.add(d.ID + " ends")
			return nil
		})
		c.Concurrency = 10
		for _, id := range []string{"a1", "b1", "a2", "a3", "b2"} {
			q.deliver(&backend.Delivery{Message: grouped(id[:1], id)})
		}
		q.deliver(&backend.Delivery{Message: message("c")})
		q.deliver(&backend.Delivery{Message: message("d")})
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())

		lines := log.all()
		require.ElementsMatch(t, []string{"a1 starts", "b1 starts", "c starts", "d starts"}, lines[:4], "groups and messages without one do not wait for each other")
		position := map[string]int{}
		for i, line := range lines {
			position[line] = i
		}
		for _, pair := range [][2]string{{"a1", "a2"}, {"a2", "a3"}, {"b1", "b2"}} {
			require.Less(t, position[pair[0]+" ends"], position[pair[1]+" starts"])
		}
		require.Len(t, lines, 14)
	})
}

func TestTheNextOfAGroupWaitsForTheSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		fails := 3
		q.onSettle = func(ctx context.Context, batch []backend.Settlement, next settleFunc) error {
			if fails--; fails >= 0 {
				return errNetwork
			}
			return next(ctx, batch)
		}
		seen := &journal{}
		stop := start(t, consume(q, three, &recorder{}, seen.wrap(succeed)))
		publish(t, q.Queue, grouped("g", "1"), grouped("g", "2"))
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, []string{"1", "2"}, seen.ids())
		require.Equal(t, q.settled("1")[3].at, seen.of("2")[0].at)
	})
}

func TestAHeadThatWaitsForItsRetryHoldsItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		seen, events := &journal{}, &recorder{}
		stop := start(t, consume(q, three, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
			if d.ID == "g1" {
				return errDeclined
			}
			return nil
		})))
		publish(t, q, grouped("g", "g1"), grouped("g", "g2"), grouped("h", "h1"), grouped("h", "h2"), message("free"))
		synctest.Wait()
		require.ElementsMatch(t, []string{"g1", "h1", "h2", "free"}, seen.ids(), "other groups flow")
		began := time.Now()
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Equal(t, []string{"g1", "g1", "g2"}, seen.ids()[4:])
		require.Equal(t, call{"g2", 1, 0, began.Add(2 * time.Minute)}, seen.of("g2")[0], "after the head's dead letter, uncharged")
		require.Equal(t, "exhausted", deadLetter(t, q).Reason)
	})
}

func TestAfterAFailureTheRestOfTheGroupInHandIsReleasedUnrun(t *testing.T) {
	for name, c := range map[string]struct {
		head    func(*backend.Delivery) error
		release bool
		first   string
	}{
		"a retry":       {func(*backend.Delivery) error { return errDeclined }, true, "g1 retry"},
		"a snooze":      {func(*backend.Delivery) error { return policy.Snooze(time.Minute) }, true, "g1 retry"},
		"a dead letter": {func(*backend.Delivery) error { return policy.Permanent(errDeclined) }, true, "g1 dead-letter"},
		"a success":     {func(*backend.Delivery) error { return nil }, false, "g1 ack"},
		"a discard":     {func(*backend.Delivery) error { return policy.Discard(errDeclined) }, false, "g1 discard"},
		"a lost lease": {func(d *backend.Delivery) error {
			d.MarkLost()
			time.Sleep(time.Second)
			return errDeclined
		}, true, "g2 release"},
		"what the handler settled": {func(d *backend.Delivery) error { d.MarkSettled(); return nil }, false, "g2 ack"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newScripted(backend.Limits{Ordered: true})
				seen, events := &journal{}, &recorder{}
				con := consume(q, three, events, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
					if d.ID == "g1" {
						return c.head(d)
					}
					return nil
				}))
				for _, id := range []string{"g1", "g2", "g3"} {
					q.deliver(&backend.Delivery{Message: grouped("g", id)})
				}
				q.deliver(&backend.Delivery{Message: grouped("h", "h1")})
				stop := start(t, con)
				time.Sleep(10 * time.Second)
				require.NoError(t, stop())

				require.Equal(t, backend.Ack, q.outcome(t, "h1").Outcome)
				var group []string
				for _, line := range q.order() {
					if line[0] == 'g' {
						group = append(group, line)
					}
				}
				require.Equal(t, c.first, group[0])
				for _, id := range []string{"g2", "g3"} {
					if c.release {
						require.Empty(t, seen.of(id))
						require.Equal(t, backend.Release, q.outcome(t, id).Outcome)
						require.Equal(t, []consumer.Kind{consumer.Received, consumer.Released}, events.kinds(id))
					} else {
						require.Len(t, seen.of(id), 1)
						require.Equal(t, backend.Ack, q.outcome(t, id).Outcome)
					}
				}
			})
		})
	}
}

// The release of a group waits for a heartbeat that is under way; the settlements of others must not.
func TestTheReleaseOfAGroupDelaysNoAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFaulty("orders")
		q.onReceive = func(ctx context.Context, max int, next receiveFunc) ([]*backend.Delivery, error) {
			batch, err := next(ctx, max)
			for _, d := range batch {
				d.Group = d.Headers["group"] // memory hands out one of a group, other brokers hand out several
			}
			return batch, err
		}
		q.onExtend = func(ctx context.Context, _ []*backend.Delivery, _ extendFunc) error { return hangs(ctx) }
		c := consume(q, three, &recorder{}, func(_ context.Context, d *backend.Delivery) error {
			switch d.ID {
			case "g1":
				d.StopExtending()
				time.Sleep(11 * time.Second)
				return errDeclined
			case "other":
				d.StopExtending()
				time.Sleep(12 * time.Second)
			}
			return nil
		})
		c.Lease = 30 * time.Second
		group := map[string]string{"group": "g"}
		publish(t, q.Queue, backend.Message{ID: "g1", Headers: group}, backend.Message{ID: "g2", Headers: group}, message("other"))
		began := time.Now()
		stop := start(t, c)
		time.Sleep(13 * time.Second)
		require.Equal(t, began.Add(12*time.Second), q.settled("other")[0].at)
		time.Sleep(10 * time.Second)
		require.Equal(t, backend.Release, q.settled("g2")[0].outcome)
		require.NoError(t, stop())
	})
}

func TestTheDrainReleasesWhatStandsBehindARunningHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newScripted(backend.Limits{Ordered: true})
		seen := &journal{}
		c := consume(q, three, &recorder{}, seen.wrap(func(context.Context, *backend.Delivery) error {
			time.Sleep(5 * time.Second)
			return nil
		}))
		c.Concurrency = 1
		c.Prefetch = 5
		for _, id := range []string{"g1", "g2", "g3"} {
			q.deliver(&backend.Delivery{Message: grouped("g", id)})
		}
		q.deliver(&backend.Delivery{Message: grouped("h", "h1")})
		q.deliver(&backend.Delivery{Message: grouped("h", "h2")})
		stop := start(t, c)
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.Equal(t, []string{"g1"}, seen.ids())
		require.Equal(t, backend.Ack, q.outcome(t, "g1").Outcome)
		for _, id := range []string{"g2", "g3", "h1", "h2"} {
			require.Equal(t, backend.Release, q.outcome(t, id).Outcome)
		}
	})
}

func TestAGroupStaysInOrderUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		for i := range 300 {
			publish(t, q, grouped(fmt.Sprint("g", i%7), fmt.Sprintf("%03d", i)))
		}
		seen := &journal{}
		var stops []func() error
		for range 3 {
			c := consume(q.Open(), three, &recorder{}, seen.wrap(func(_ context.Context, d *backend.Delivery) error {
				time.Sleep(time.Duration(len(seen.all())%5) * time.Millisecond)
				if d.ID[2] == '3' && d.Attempt == 1 {
					return policy.RetryAfter(time.Second, errDeclined)
				}
				return nil
			}))
			c.Concurrency = 4
			stops = append(stops, start(t, c))
		}
		time.Sleep(time.Hour)
		for _, stop := range stops {
			require.NoError(t, stop())
		}
		last := map[string]string{}
		done := 0
		for _, c := range seen.all() {
			var n int
			_, err := fmt.Sscanf(c.id, "%d", &n)
			require.NoError(t, err)
			group := fmt.Sprint("g", n%7)
			require.LessOrEqual(t, last[group], c.id)
			last[group] = c.id
			if c.id[2] != '3' || c.attempt == 2 {
				done++
			}
		}
		require.Equal(t, 300, done)
		require.Zero(t, stats(t, q))
	})
}
