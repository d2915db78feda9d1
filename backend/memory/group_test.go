package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

func publishGroup(t *testing.T, q *memory.Queue, group string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, q.Publish(t.Context(), backend.Message{ID: id, Group: group}))
	}
}

func TestGroupIsHandedOutOneAtATimeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publishGroup(t, q, "a", "a1", "a2")
		publishGroup(t, q, "b", "b1", "b2")
		publish(t, q, "loose")
		sub, other := subscribe(t, q), subscribe(t, q)
		batch, err := sub.Receive(t.Context(), 10)
		require.NoError(t, err)
		held := make(map[string]*backend.Delivery)
		for _, d := range batch {
			held[d.ID] = d
		}
		require.Len(t, held, 3)
		require.Contains(t, held, "a1")
		require.Contains(t, held, "b1")
		require.Contains(t, held, "loose")
		receiveNothing(t, other)

		settle(t, sub, backend.Settlement{Delivery: held["b1"], Outcome: backend.Ack})
		require.Equal(t, "b2", receive(t, other).ID)
		settle(t, sub, backend.Settlement{Delivery: held["a1"], Outcome: backend.Discard})
		require.Equal(t, "a2", receive(t, other).ID)
		receiveNothing(t, other)
	})
}

func TestHeadOfAGroupHoldsTheGroup(t *testing.T) {
	for name, step := range map[string]struct {
		settlement backend.Settlement
		crash      bool
		after      time.Duration
	}{
		"retry":   {settlement: backend.Settlement{Outcome: backend.Retry, Delay: time.Hour}, after: time.Hour},
		"snooze":  {settlement: backend.Settlement{Outcome: backend.Retry, Uncharged: true, Delay: time.Hour}, after: time.Hour},
		"release": {settlement: backend.Settlement{Outcome: backend.Release}},
		"lapse":   {crash: true, after: lease},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				publishGroup(t, q, "a", "a1", "a2")
				sub := subscribe(t, q)
				start := time.Now()
				d := receive(t, sub)
				if step.crash {
					sub.Crash()
					sub = subscribe(t, q)
				} else {
					step.settlement.Delivery = d
					settle(t, sub, step.settlement)
				}
				if step.after > 0 {
					publishGroup(t, q, "b", "b1")
					other := receive(t, sub)
					require.Equal(t, "b1", other.ID)
					require.Equal(t, start, time.Now(), "other groups go on")
					settle(t, sub, backend.Settlement{Delivery: other, Outcome: backend.Ack})
				}
				d = receive(t, sub)
				require.Equal(t, "a1", d.ID)
				require.Equal(t, step.after, time.Since(start))

				settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.DeadLetter, Failure: &backend.Failure{}})
				next := receive(t, sub)
				require.Equal(t, "a2", next.ID)
				require.Equal(t, 1, next.Attempt)
				require.Equal(t, "a", receive(t, subscribe(t, q.DeadLetters())).Group)
			})
		})
	}
}

func TestGroupComesBackAfterItWasEmpty(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	sub := subscribe(t, q)
	for range 3 {
		publishGroup(t, q, "a", "a1", "a2")
		for _, id := range []string{"a1", "a2"} {
			d := receive(t, sub)
			require.Equal(t, id, d.ID)
			settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Ack})
		}
	}
}
