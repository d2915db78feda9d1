package memory_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/memory"
)

func TestAckAndDiscardAreFinal(t *testing.T) {
	for _, outcome := range []backend.Outcome{backend.Ack, backend.Discard} {
		synctest.Test(t, func(t *testing.T) {
			q := memory.New("orders", memory.Options{})
			publish(t, q, "1")
			sub := subscribe(t, q)
			settle(t, sub, backend.Settlement{Delivery: receive(t, sub), Outcome: outcome})
			time.Sleep(2 * lease)
			receiveNothing(t, sub)
			stats, err := q.Stats(t.Context())
			require.NoError(t, err)
			require.Zero(t, stats)
		})
	}
}

func TestRetryChargesOneAttempt(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	publish(t, q, "1")
	for attempt := 1; attempt <= 4; attempt++ {
		// A new handle each time: the counts are the queue's, not the consumer's.
		sub := subscribe(t, q.Open())
		d := receive(t, sub)
		require.Equal(t, attempt, d.Attempt)
		settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Retry})
	}
}

func TestRetryKeepsItsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "1")
		sub := subscribe(t, q)
		sent := time.Now().UTC()
		time.Sleep(time.Second)
		failed := time.Now().UTC()
		settle(t, sub, backend.Settlement{
			Delivery: receive(t, sub), Outcome: backend.Retry, Delay: time.Second,
			Failure: &backend.Failure{Reason: "error", Error: "first", Attempts: 1},
		})
		want := &backend.Failure{
			Reason: "error", Error: "first", Attempts: 1,
			Origin: "orders", MessageID: "1", FirstEnqueuedAt: sent, FirstFailedAt: failed,
		}
		d := receive(t, sub)
		require.Equal(t, want, d.Failure)

		// A snooze is no failure, and a retry without a record leaves the last one.
		settle(t, sub, backend.Settlement{
			Delivery: d, Outcome: backend.Retry, Uncharged: true,
			Failure: &backend.Failure{Reason: "snooze"},
		})
		d = receive(t, sub)
		require.Equal(t, want, d.Failure)
		settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Retry})
		require.Equal(t, want, receive(t, sub).Failure)
	})
}

func TestSnoozeAndReleaseChargeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "1")
		sub := subscribe(t, q)
		for i := range 1200 {
			d := receive(t, sub)
			settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Release})
			d = receive(t, sub)
			require.Equal(t, 1, d.Attempt)
			require.Zero(t, d.Lapses)
			require.Equal(t, i, d.Snoozes)
			settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Retry, Uncharged: true, Delay: time.Second})
		}
		require.Equal(t, 20*time.Minute, receive(t, sub).Age)
	})
}

func TestReleasedMessageKeepsItsPlace(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	publish(t, q, "1", "2")
	sub := subscribe(t, q)
	settle(t, sub, backend.Settlement{Delivery: receive(t, sub), Outcome: backend.Release})
	require.Equal(t, "1", receive(t, sub).ID)
	require.Equal(t, "2", receive(t, sub).ID)
}

func TestNegativeAndEndlessDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "1")
		sub := subscribe(t, q)
		settle(t, sub, backend.Settlement{Delivery: receive(t, sub), Outcome: backend.Retry, Delay: math.MinInt64})
		d := receive(t, sub)
		require.Equal(t, 2, d.Attempt)
		settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Retry, Delay: math.MaxInt64})
		time.Sleep(100 * 365 * 24 * time.Hour)
		receiveNothing(t, sub)
	})
}

func TestSecondSettlementFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		publish(t, q, "1")
		sub := subscribe(t, q)
		d := receive(t, sub)
		err := sub.Settle(t.Context(), []backend.Settlement{
			{Delivery: d, Outcome: backend.Retry, Delay: time.Second},
			{Delivery: d, Outcome: backend.Ack},
		})
		require.NoError(t, backend.ErrorAt(err, 0))
		require.ErrorIs(t, backend.ErrorAt(err, 1), backend.ErrSettled)
		require.ErrorIs(t, sub.Settle(t.Context(), []backend.Settlement{{Delivery: d, Outcome: backend.Discard}}), backend.ErrSettled)
		require.ErrorIs(t, sub.Extend(t.Context(), []*backend.Delivery{d}), backend.ErrSettled)
		time.Sleep(time.Second)
		require.Equal(t, 2, receive(t, sub).Attempt)
	})
}

func TestBadItemsFailAlone(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	other := memory.New("other", memory.Options{})
	publish(t, q, "1", "2")
	publish(t, other, "x")
	sub := subscribe(t, q)
	one, two, foreign := receive(t, sub), receive(t, sub), receive(t, subscribe(t, other))
	err := sub.Settle(t.Context(), []backend.Settlement{
		{Outcome: backend.Ack},
		{Delivery: one},
		{Delivery: foreign, Outcome: backend.Ack},
		{Delivery: new(backend.Delivery), Outcome: backend.Ack},
		{Delivery: one, Outcome: backend.Ack},
		{Delivery: two, Outcome: backend.DeadLetter},
	})
	require.Error(t, backend.ErrorAt(err, 0))
	require.ErrorContains(t, backend.ErrorAt(err, 1), "not an outcome")
	require.ErrorContains(t, backend.ErrorAt(err, 2), `message "x" was not received from this queue`)
	require.Error(t, backend.ErrorAt(err, 3))
	require.NoError(t, backend.ErrorAt(err, 4))
	require.ErrorContains(t, backend.ErrorAt(err, 5), "needs a Failure")
	require.True(t, one.Settled())

	// What failed is still held, and may be settled otherwise.
	settle(t, sub, backend.Settlement{Delivery: two, Outcome: backend.Ack})

	err = sub.Extend(t.Context(), []*backend.Delivery{nil, foreign})
	require.Error(t, backend.ErrorAt(err, 0))
	require.Error(t, backend.ErrorAt(err, 1))
}

func TestCallsFailWholeWithAnEndedContext(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	publish(t, q, "1")
	sub := subscribe(t, q)
	d := receive(t, sub)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, sub.Settle(ctx, []backend.Settlement{{Delivery: d, Outcome: backend.Ack}}), context.Canceled)
	require.ErrorIs(t, sub.Extend(ctx, []*backend.Delivery{d}), context.Canceled)
	require.ErrorIs(t, q.Publish(ctx, backend.Message{}), context.Canceled)
	_, err := q.Subscribe(ctx, backend.SubscribeOptions{Lease: lease})
	require.ErrorIs(t, err, context.Canceled)
	_, err = q.Stats(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = q.Check(ctx, backend.Needs{})
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, d.Settled())
	settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Ack})
}

func TestDeadLetterCarriesItsEnvelope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.New("orders", memory.Options{})
		require.Equal(t, "orders_dlq", q.DeadLetters().Name())
		headers := map[string]string{"k": "v"}
		require.NoError(t, q.Publish(t.Context(), backend.Message{ID: "1", Body: []byte("b"), Headers: headers}))
		sent := time.Now().UTC()
		sub := subscribe(t, q)
		time.Sleep(time.Second)
		firstFailed := time.Now().UTC()
		settle(t, sub, backend.Settlement{
			Delivery: receive(t, sub), Outcome: backend.Retry, Delay: time.Minute,
			Failure: &backend.Failure{Reason: "error", Error: "first", Attempts: 1},
		})
		d := receive(t, sub)
		settle(t, sub, backend.Settlement{
			Delivery: d, Outcome: backend.DeadLetter,
			Failure: &backend.Failure{Reason: "exhausted", Error: "second", ErrorType: "*errors.errorString", Attempts: 2},
		})
		deadAt := time.Now().UTC()

		dlq := q.DeadLetters()
		time.Sleep(time.Second)
		dead := receive(t, subscribe(t, dlq))
		want := &backend.Failure{
			Reason: "exhausted", Error: "second", ErrorType: "*errors.errorString", Attempts: 2,
			Origin: "orders", MessageID: "1", FirstEnqueuedAt: sent, FirstFailedAt: firstFailed, DeadLetteredAt: deadAt,
		}
		require.Equal(t, want, dead.Failure)
		require.Equal(t, "1", dead.ID)
		require.Equal(t, "b", string(dead.Body))
		require.Equal(t, headers, dead.Headers)
		require.Equal(t, "orders_dlq", dead.Queue)
		require.Equal(t, 1, dead.Attempt)
		require.Equal(t, time.Second, dead.Age)
		require.Equal(t, sent, dead.FirstEnqueuedAt.UTC())

		raw := dead.Raw.(*memory.Raw)
		require.Equal(t, "v", raw.Headers["k"])
		stored, err := backend.ParseFailure([]byte(raw.Headers[backend.HeaderFailure]))
		require.NoError(t, err)
		require.Equal(t, want, stored)

		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, backend.Stats{Dead: 1}, stats)
		receiveNothing(t, sub)
		receiveNothing(t, subscribe(t, dlq))
	})
}

func TestDeadLetterQueueOfAnotherName(t *testing.T) {
	q := memory.New("orders", memory.Options{DeadLetter: "graveyard"})
	require.Equal(t, "graveyard", q.DeadLetters().Name())
}

func TestDeadLetteringWaitsForItsQueue(t *testing.T) {
	errFull := errors.New("queue is full")
	for name, cause := range map[string]error{"full": errFull, "missing": backend.ErrQueueNotFound} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := memory.New("orders", memory.Options{})
				publish(t, q, "1", "2")
				sub := subscribe(t, q)
				d := receive(t, sub)
				q.DeadLetters().Refuse(cause)
				dead := backend.Settlement{Delivery: d, Outcome: backend.DeadLetter, Failure: &backend.Failure{Reason: "permanent", Error: "no", Attempts: 1}}
				err := sub.Settle(t.Context(), []backend.Settlement{dead})
				require.ErrorIs(t, err, cause)
				require.ErrorContains(t, err, `"1"`)
				require.ErrorContains(t, err, `"orders_dlq"`)
				require.False(t, d.Settled())

				// It waits in the queue with its record, charged for nothing, and blocks no other.
				wait := dead
				wait.Outcome, wait.AwaitDeadLetter, wait.Delay = backend.Retry, true, time.Minute
				for i := 1; i <= 3; i++ {
					settle(t, sub, wait)
					if i == 1 {
						two := receive(t, sub)
						require.Equal(t, "2", two.ID)
						settle(t, sub, backend.Settlement{Delivery: two, Outcome: backend.Ack})
					}
					d = receive(t, sub)
					require.Equal(t, i, d.DeadLetterWaits)
					require.Equal(t, 1, d.Attempt)
					require.Zero(t, d.Snoozes)
					require.Equal(t, "permanent", d.Failure.Reason)
					require.True(t, d.Failure.DeadLetteredAt.IsZero())
					wait.Delivery, wait.Failure = d, d.Failure
				}

				q.DeadLetters().Refuse(nil)
				settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.DeadLetter, Failure: d.Failure})
				got := receive(t, subscribe(t, q.DeadLetters()))
				require.Equal(t, "permanent", got.Failure.Reason)
				require.Equal(t, 1, got.Failure.Attempts)
				require.Zero(t, got.DeadLetterWaits)
			})
		})
	}
}

func TestQueueWithoutDeadLetters(t *testing.T) {
	q := memory.New("orders", memory.Options{NoDeadLetter: true})
	require.Nil(t, q.DeadLetters())
	publish(t, q, "1")
	sub := subscribe(t, q)
	d := receive(t, sub)
	err := sub.Settle(t.Context(), []backend.Settlement{{Delivery: d, Outcome: backend.DeadLetter, Failure: &backend.Failure{}}})
	require.ErrorIs(t, err, backend.ErrQueueNotFound)
	settle(t, sub, backend.Settlement{Delivery: d, Outcome: backend.Retry})
	require.Equal(t, 2, receive(t, sub).Attempt)
}

func TestDeadLetterQueueIsAQueueLikeAnyOther(t *testing.T) {
	q := memory.New("orders", memory.Options{})
	publish(t, q, "1")
	sub := subscribe(t, q)
	settle(t, sub, backend.Settlement{Delivery: receive(t, sub), Outcome: backend.DeadLetter, Failure: &backend.Failure{Reason: "permanent"}})

	dlq := q.DeadLetters()
	require.Nil(t, dlq.DeadLetters())
	dead := subscribe(t, dlq)
	settle(t, dead, backend.Settlement{Delivery: receive(t, dead), Outcome: backend.Retry})
	d := receive(t, dead)
	require.Equal(t, 2, d.Attempt)
	require.Equal(t, "orders", d.Failure.Origin)
	settle(t, dead, backend.Settlement{Delivery: d, Outcome: backend.Ack})
	publish(t, dlq, "2")
	require.Equal(t, "2", receive(t, dead).ID)
}
