package memory_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

func TestReceivesWhatWasSent(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	sent := backend.Message{
		ID:      "a",
		Body:    []byte{0, 0xff, '\n'},
		Headers: map[string]string{"traceparent": "00-1-2-01", "empty": ""},
		Group:   "g",
	}
	require.NoError(t, q.Publish(t.Context(), sent))
	d := receive(t, subscribe(t, q))
	require.Equal(t, sent, d.Message)
	require.Equal(t, "orders", d.Queue)
	require.Equal(t, 1, d.Attempt)
	require.Zero(t, d.Lapses)
	require.Zero(t, d.Snoozes)
	require.Nil(t, d.Failure)
	require.Equal(t, sent.Headers, d.Raw.(*memory.Raw).Headers)
}

func TestStoredMessageIsOutOfReach(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	body, headers := []byte("body"), map[string]string{"k": "v"}
	require.NoError(t, q.Publish(t.Context(), backend.Message{ID: "a", Body: body, Headers: headers}))
	body[0], headers["k"] = 'X', "producer"

	sub := subscribe(t, q)
	for range 2 {
		d := receive(t, sub)
		require.Equal(t, "body", string(d.Body))
		require.Equal(t, map[string]string{"k": "v"}, d.Headers)
		d.Body[0], d.Headers["k"] = 'Y', "handler"
		d.Raw.(*memory.Raw).Headers["k"] = "handler"
		settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Retry})
	}
	settle(t, sub, backend.Settlement{Delivery: receive(t, sub), Outcome: backend.DeadLetter, Failure: &backend.Failure{}})
	dead := receive(t, subscribe(t, q.DeadLetters()))
	require.Equal(t, "body", string(dead.Body))
	require.Equal(t, map[string]string{"k": "v"}, dead.Headers)
}

func TestPublishRefusesTheWholeBatch(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	err := q.Publish(t.Context(),
		backend.Message{ID: "good"},
		backend.Message{ID: "bad", Headers: map[string]string{"Redeliver-Failure": "{}"}})
	require.ErrorIs(t, err, backend.ErrInvalidMessage)
	require.ErrorContains(t, err, `"orders"`)
	require.ErrorContains(t, err, `"bad"`)
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats)
}

func TestPublishDrawsMissingIDs(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	require.NoError(t, q.Publish(t.Context(), backend.Message{}, backend.Message{}))
	batch, err := subscribe(t, q).Receive(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, batch, 2)
	require.Len(t, batch[0].ID, len(backend.NewID()))
	require.NotEqual(t, batch[0].ID, batch[1].ID)
}

func TestReceiveTakesNoMoreThanAskedFor(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	publish(t, q, "1", "2", "3")
	sub := subscribe(t, q)
	for _, c := range []struct {
		max  int
		want []string
	}{{2, []string{"1", "2"}}, {0, []string{"3"}}} {
		batch, err := sub.Receive(t.Context(), c.max)
		require.NoError(t, err)
		var got []string
		for _, d := range batch {
			got = append(got, d.ID)
		}
		require.Equal(t, c.want, got)
	}
}

func TestPublishWakesReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		got := make(chan string)
		for range 2 {
			sub := subscribe(t, q)
			go func() { got <- receive(t, sub).ID }()
		}
		synctest.Wait()
		start := time.Now()
		publish(t, q, "1")
		require.Equal(t, "1", <-got)
		publish(t, q, "2")
		require.Equal(t, "2", <-got)
		require.Equal(t, start, time.Now())
	})
}

func TestDueMessageWakesReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "long", "short")
		holder := subscribe(t, q)
		long, short := receive(t, holder), receive(t, holder)
		settle(t, holder, backend.Settlement{Delivery: long, Outcome: backend.Retry, Delay: time.Hour})

		// A receiver that already waits for the long delay has to learn of the shorter one.
		start := time.Now()
		type arrival struct {
			id    string
			after time.Duration
		}
		arrivals := make(chan arrival)
		sub := subscribe(t, q)
		go func() {
			for range 2 {
				d := receive(t, sub)
				arrivals <- arrival{d.ID, time.Since(start)}
				settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Ack})
			}
		}()
		synctest.Wait()
		settle(t, holder, backend.Settlement{Delivery: short, Outcome: backend.Retry, Delay: 3 * time.Second})
		require.Equal(t, arrival{"short", 3 * time.Second}, <-arrivals)
		require.Equal(t, arrival{"long", time.Hour}, <-arrivals)
	})
}

func TestShortWaitsAreNotHeldUpByThousandsOfLongOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		const n = 5000
		for i := range n {
			publish(t, q, strconv.Itoa(i))
		}
		sub := subscribe(t, q)
		start := time.Now()
		due := make(map[string]time.Duration)
		batch, err := sub.Receive(t.Context(), n)
		require.NoError(t, err)
		require.Len(t, batch, n)
		var items []backend.Settlement
		for i, d := range batch {
			// 7919 is prime to n, so the delays come in no order.
			due[d.ID] = time.Duration(1+i*7919%n) * time.Second
			items = append(items, backend.Settlement{Delivery: d, Outcome: backend.Retry, Delay: due[d.ID]})
		}
		require.NoError(t, sub.Settle(t.Context(), items))
		for range n {
			d := receive(t, sub)
			require.Equal(t, due[d.ID], time.Since(start))
			settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Ack})
		}
	})
}

func TestCancelledReceiveTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		sub := subscribe(t, q)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := sub.Receive(ctx, 10)
			ended <- err
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)

		publish(t, q, "1")
		_, err := sub.Receive(ctx, 10)
		require.ErrorIs(t, err, context.Canceled)
		d := receive(t, sub)
		require.Equal(t, "1", d.ID)
		require.Equal(t, 1, d.Attempt)
		require.Zero(t, d.Lapses)
	})
}

func TestCompetingReceiversShareTheMessages(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	const n, receivers = 2000, 8
	got := make(chan string, n)
	done := make(chan error, receivers)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range receivers {
		sub := subscribe(t, q.Open())
		go func() {
			for {
				batch, err := sub.Receive(ctx, 7)
				if err != nil {
					done <- err
					return
				}
				for _, d := range batch {
					got <- d.ID
					if err := sub.Settle(ctx, []backend.Settlement{{Delivery: d, Outcome: backend.Ack}}); err != nil {
						done <- err
						return
					}
				}
			}
		}()
	}
	for i := range n {
		publish(t, q, strconv.Itoa(i))
	}
	seen := make(map[string]bool)
	for range n {
		select {
		case id := <-got:
			require.False(t, seen[id], "message %s was received twice", id)
			seen[id] = true
		case <-ctx.Done():
			require.FailNow(t, "messages did not arrive", "%d of %d did", len(seen), n)
		}
	}
	cancel()
	for range receivers {
		require.ErrorIs(t, <-done, context.Canceled)
	}
	require.Empty(t, got)
}

func TestStatsCountsEveryState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "leased", "waiting", "dead")
		sub := subscribe(t, q)
		receive(t, sub)
		settle(t, sub, backend.Settlement{Delivery: receive(t, sub), Outcome: backend.Retry, Delay: time.Hour})
		settle(t, sub, backend.Settlement{Delivery: receive(t, sub), Outcome: backend.DeadLetter, Failure: &backend.Failure{}})
		require.NoError(t, q.Publish(t.Context(), backend.Message{ID: "head", Group: "g"}, backend.Message{ID: "behind", Group: "g"}))
		time.Sleep(5 * time.Second)
		publish(t, q, "ready")

		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, backend.Stats{Ready: 2, Waiting: 2, Leased: 1, Dead: 1, OldestDue: 5 * time.Second}, stats)

		time.Sleep(time.Hour)
		stats, err = q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, backend.Stats{Ready: 4, Waiting: 1, Dead: 1, OldestDue: time.Hour + 5*time.Second}, stats)
	})
}
