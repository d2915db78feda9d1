package pgmq_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
)

func TestAMessageGoesTheWholeWay(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	require.NoError(t, q.Publish(t.Context(), backend.Message{ID: "m1", Body: []byte(`{"a": 1}`), Headers: map[string]string{"k": "v"}}))

	first := receiveOne(t, sub)
	require.Equal(t, "m1", first.ID)
	require.Equal(t, q.Name(), first.Queue)
	require.JSONEq(t, `{"a": 1}`, string(first.Body))
	require.Equal(t, map[string]string{"k": "v"}, first.Headers)
	require.Equal(t, 1, first.Attempt)
	require.Nil(t, first.Failure)
	raw := first.Raw.(*pgmq.Message)
	require.Equal(t, 1, raw.ReadCount)
	require.JSONEq(t, `{"k": "v", "redeliver-id": "m1"}`, string(raw.Headers))
	require.Equal(t, raw.EnqueuedAt, first.FirstEnqueuedAt)
	require.Less(t, first.Age, patience)
	require.NoError(t, sub.Extend(t.Context(), []*backend.Delivery{first}))
	called := time.Now()
	require.NoError(t, settle(sub, first, retry(50*time.Millisecond)))

	second := receiveOne(t, sub)
	require.GreaterOrEqual(t, time.Since(called), 50*time.Millisecond)
	require.Equal(t, "m1", second.ID)
	require.Equal(t, 2, second.Attempt)
	require.Equal(t, 0, second.Lapses)
	require.Equal(t, "boom", second.Failure.Error)
	require.Equal(t, map[string]string{"k": "v"}, second.Headers)
	require.GreaterOrEqual(t, second.Age, 50*time.Millisecond)
	require.NoError(t, settle(sub, second, deadLetter("the end")))

	require.Equal(t, 0, count(t, p, "q_"+q.Name()))
	require.Equal(t, 0, count(t, p, "a_"+q.Name()))
	require.Equal(t, 1, count(t, p, "q_"+q.Name()+"_dlq"))
	require.Equal(t, 0, scalar[int](t, p, "SELECT read_ct FROM pgmq.q_"+q.Name()+"_dlq"))
	dead := scalar[string](t, p, "SELECT headers::text FROM pgmq.q_"+q.Name()+"_dlq")
	var headers map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(dead), &headers))
	require.Len(t, headers, 3, "k, ID and envelope: %s", dead)
	envelope, err := backend.ParseFailure(headers[backend.HeaderFailure])
	require.NoError(t, err)
	require.Equal(t, "the end", envelope.Error)
	require.Equal(t, q.Name(), envelope.Origin)
	require.Equal(t, "m1", envelope.MessageID)
	require.WithinDuration(t, first.FirstEnqueuedAt, envelope.FirstEnqueuedAt, time.Millisecond)
	require.Equal(t, second.Failure.FirstFailedAt, envelope.FirstFailedAt)
	require.False(t, envelope.DeadLetteredAt.Before(envelope.FirstFailedAt))
}

func TestSuccessIsArchivedOrDeleted(t *testing.T) {
	for _, tc := range []struct {
		opts     pgmq.Options
		archived int
	}{{pgmq.Options{}, 2}, {pgmq.Options{DeleteOnSuccess: true}, 0}} {
		t.Run(fmt.Sprintf("DeleteOnSuccess %v", tc.opts.DeleteOnSuccess), func(t *testing.T) {
			p := pool(t)
			q := queue(t, p, tc.opts)
			sub := subscribe(t, q)
			publish(t, q, `1`, `2`)
			ds := receive(t, sub, 2)
			require.NoError(t, settle(sub, ds[0], ack))
			require.NoError(t, settle(sub, ds[1], discard))
			require.Equal(t, 0, count(t, p, "q_"+q.Name()))
			require.Equal(t, tc.archived, count(t, p, "a_"+q.Name()))
			require.Equal(t, 0, count(t, p, "q_"+q.Name()+"_dlq"))
		})
	}
}

func TestNumbersAndTypesSurviveExactly(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	const body = `{"n": 1234567890123456789, "m": 1.10, "big": 1e400, "s": "é\u2028\ud83d\ude00"}`
	const headers = `{"count": 1234567890123456789, "price": 1.10, "on": true, "none": null, "list": [1, "2"], "x-pgmq-group": "g1", "text": "a\"b"}`
	var sentBody, sentHeaders string
	require.NoError(t, p.QueryRow(t.Context(), "INSERT INTO pgmq.q_"+q.Name()+" (vt, message, headers) VALUES (now(), $1::text::jsonb, $2::text::jsonb) RETURNING message::text, headers::text",
		body, headers).Scan(&sentBody, &sentHeaders))
	require.Contains(t, sentBody, `1234567890123456789`)
	require.Contains(t, sentBody, `"m": 1.10`)
	wantHeaders := map[string]string{
		"count": "1234567890123456789", "price": "1.10", "on": "true", "none": "null", "list": `[1, "2"]`, "x-pgmq-group": "g1", "text": `a"b`,
	}
	check := func(d *backend.Delivery) {
		t.Helper()
		require.Equal(t, sentBody, string(d.Body))
		require.Equal(t, wantHeaders, d.Headers)
	}

	d := receiveOne(t, sub)
	check(d)
	require.NoError(t, settle(sub, d, retry(0)))
	d = receiveOne(t, sub)
	check(d)
	require.NoError(t, settle(sub, d, deadLetter("x")))
	require.Equal(t, sentBody, scalar[string](t, p, "SELECT message::text FROM pgmq.q_"+q.Name()+"_dlq"))
	require.Equal(t, sentHeaders, scalar[string](t, p, "SELECT (headers - '{redeliver-id,redeliver-failure}'::text[])::text FROM pgmq.q_"+q.Name()+"_dlq"))
}

func TestAnUntouchedMessageKeepsItsNulls(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message, headers) VALUES (now(), NULL, NULL)")
	d := receiveOne(t, sub)
	require.Nil(t, d.Body)
	require.Empty(t, d.Headers)
	require.Nil(t, d.Raw.(*pgmq.Message).Headers)
	require.True(t, scalar[bool](t, p, "SELECT message IS NULL AND headers IS NULL FROM pgmq.q_"+q.Name()))
	require.NoError(t, settle(sub, d, ack))
	require.True(t, scalar[bool](t, p, "SELECT message IS NULL AND headers IS NULL FROM pgmq.a_"+q.Name()))
}

func TestAForeignMessageHasAnIDThatLasts(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	execute(t, p, "SELECT pgmq.send_batch($1::text, ARRAY['1', '2']::jsonb[])", q.Name())
	ds := receive(t, sub, 2)
	id, other := ds[0].ID, ds[1].ID
	require.NotEmpty(t, id)
	require.NotEqual(t, id, other)
	require.NoError(t, settle(sub, ds[0], retry(0)))
	again := receiveOne(t, sub)
	require.Equal(t, id, again.ID)
	require.NoError(t, settle(sub, again, deadLetter("x")))

	graves, err := pgmq.Open(p, q.Name()+"_dlq", pgmq.Options{DeadLetterQueue: q.Name()})
	require.NoError(t, err)
	dead := receiveOne(t, subscribe(t, graves))
	require.Equal(t, id, dead.ID)
	require.Equal(t, id, dead.Failure.MessageID)
	require.Equal(t, 1, dead.Attempt)
	require.Equal(t, 0, dead.Lapses)
	require.NoError(t, graves.Close(t.Context()))
}

func TestCountsAreKeptApart(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	state := func(d *backend.Delivery) [4]int { return [4]int{d.Attempt, d.Lapses, d.Snoozes, d.DeadLetterWaits} }
	counted := func() string {
		return scalar[string](t, p, "SELECT (headers->'redeliver-counts')::text FROM pgmq.q_"+q.Name())
	}
	lapse := func() { execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp()") }

	d := receiveOne(t, sub)
	require.Equal(t, [4]int{1, 0, 0, 0}, state(d))
	require.NoError(t, settle(sub, d, backend.Settlement{Outcome: backend.Retry, Uncharged: true}))
	require.JSONEq(t, `{"snoozes": 1}`, counted())
	d = receiveOne(t, sub)
	require.Equal(t, [4]int{1, 0, 1, 0}, state(d))
	require.NoError(t, settle(sub, d, release))
	require.JSONEq(t, `{"snoozes": 1, "releases": 1}`, counted())
	d = receiveOne(t, sub)
	require.Equal(t, [4]int{1, 0, 1, 0}, state(d))
	lapse()
	d = receiveOne(t, sub)
	require.Equal(t, [4]int{1, 1, 1, 0}, state(d))
	require.NoError(t, settle(sub, d, retry(0)))
	d = receiveOne(t, sub)
	require.Equal(t, [4]int{2, 1, 1, 0}, state(d))
	lapse()
	d = receiveOne(t, sub)
	require.Equal(t, [4]int{2, 2, 1, 0}, state(d))
	await := backend.Settlement{Outcome: backend.Retry, AwaitDeadLetter: true, Failure: &backend.Failure{Reason: "exhausted", Error: "for good", Stack: "goroutine 1", Attempts: 2}}
	require.NoError(t, settle(sub, d, await))
	d = receiveOne(t, sub)
	require.Equal(t, [4]int{2, 2, 1, 1}, state(d))
	require.Equal(t, "for good", d.Failure.Error)
	require.Equal(t, "goroutine 1", d.Failure.Stack)
	require.NoError(t, settle(sub, d, await))
	require.JSONEq(t, `{"failures": 1, "snoozes": 1, "releases": 1, "waits": 2}`, counted())
	d = receiveOne(t, sub)
	require.Equal(t, [4]int{2, 2, 1, 2}, state(d))
	require.Equal(t, 8, d.Raw.(*pgmq.Message).ReadCount)
}

func TestARetryLeavesItsRecordAsAnObject(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	s := retry(0)
	s.Failure = &backend.Failure{Reason: "error", Error: "host is down", Stack: strings.Repeat("goroutine 7", 1000), Attempts: 1, Policy: "payments"}
	require.NoError(t, settle(sub, d, s))
	var reason, text, since string
	var attempts, size int
	require.NoError(t, p.QueryRow(t.Context(), `SELECT f->>'reason', f->>'error', (f->>'attempts')::int, f->>'first_failed_at', pg_column_size(f)
		FROM (SELECT headers->'redeliver-failure' f FROM pgmq.q_`+q.Name()+`) _`).Scan(&reason, &text, &attempts, &since, &size))
	require.Equal(t, []string{"error", "host is down"}, []string{reason, text})
	require.Equal(t, 1, attempts)
	require.NotEmpty(t, since)
	require.Less(t, size, 256)

	// What the record leaves out, the row makes up for.
	again := receiveOne(t, sub)
	require.Equal(t, q.Name(), again.Failure.Origin)
	require.Equal(t, d.ID, again.Failure.MessageID)
	require.Equal(t, d.FirstEnqueuedAt, again.Failure.FirstEnqueuedAt)
	require.Equal(t, d.FirstEnqueuedAt, again.FirstEnqueuedAt)
}

func TestErrorTextsOfAnyKindAreStored(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	texts := []string{"nul \x00 inside", "\xff\xfe not UTF-8", strings.Repeat("huge é", 1<<20), "\ud7ff \ufffe \x1b[31m", `"quoted\` + "\n"}
	for _, text := range texts {
		publish(t, q, `1`)
		s := retry(0)
		s.Failure = &backend.Failure{Reason: "error", Error: text, ErrorType: text, Consumer: text}
		require.NoError(t, settle(sub, receiveOne(t, sub), s))
		require.LessOrEqual(t, scalar[int](t, p, "SELECT pg_column_size(headers->'redeliver-failure') FROM pgmq.q_"+q.Name()), 1200)
		require.NoError(t, settle(sub, receiveOne(t, sub), deadLetter(text)))
	}
	require.Equal(t, len(texts), count(t, p, "q_"+q.Name()+"_dlq"))
	require.Contains(t, scalar[string](t, p, "SELECT headers->'redeliver-failure'->>'error' FROM pgmq.q_"+q.Name()+"_dlq ORDER BY msg_id LIMIT 1"), "nul")
}

func TestALostLeaseChangesNothing(t *testing.T) {
	for name, outcome := range map[string]backend.Settlement{
		"ack": ack, "discard": discard, "release": release, "retry": retry(time.Hour),
		"snooze":     {Outcome: backend.Retry, Uncharged: true, Delay: time.Hour},
		"deadLetter": deadLetter("stale"),
	} {
		t.Run(name, func(t *testing.T) {
			p := pool(t)
			q := queue(t, p, pgmq.Options{})
			a, b := subscribe(t, q), subscribe(t, q)
			publish(t, q, `1`)
			stale := receiveOne(t, a)
			lost := make(chan struct{})
			stale.OnLost(func() { close(lost) })
			execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp()")
			held := receiveOne(t, b)
			require.Equal(t, 1, held.Lapses)
			row := "SELECT row(m.*)::text FROM pgmq.q_" + q.Name() + " m"
			before := scalar[string](t, p, row)

			require.ErrorIs(t, backend.ErrorAt(a.Extend(t.Context(), []*backend.Delivery{stale}), 0), backend.ErrLeaseLost)
			err := settle(a, stale, outcome)
			require.ErrorIs(t, err, backend.ErrLeaseLost)
			require.ErrorContains(t, err, q.Name())
			require.ErrorContains(t, err, stale.ID)
			require.NotErrorIs(t, err, backend.ErrUnknown)
			require.Equal(t, before, scalar[string](t, p, row))
			require.Equal(t, 0, count(t, p, "q_"+q.Name()+"_dlq"))
			<-lost
			require.NoError(t, settle(b, held, ack))
		})
	}
}

// The fence is the read count, so both deliveries of a message may stand in one batch.
func TestAStaleDeliveryBesideTheFreshOne(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	stale := receiveOne(t, sub)
	execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp()")
	fresh := receiveOne(t, sub)
	err := sub.Settle(t.Context(), []backend.Settlement{{Delivery: stale, Outcome: backend.Ack}, {Delivery: fresh, Outcome: backend.Ack}})
	require.ErrorIs(t, backend.ErrorAt(err, 0), backend.ErrLeaseLost)
	require.NoError(t, backend.ErrorAt(err, 1))
	require.Equal(t, 1, count(t, p, "a_"+q.Name()))
}

func TestASecondSettlementIsRefused(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	d := receiveOne(t, sub)
	require.NoError(t, settle(sub, d, retry(time.Hour)))
	vt := scalar[time.Time](t, p, "SELECT vt FROM pgmq.q_"+q.Name())
	require.ErrorIs(t, settle(sub, d, ack), backend.ErrSettled)
	require.ErrorIs(t, settle(sub, d, retry(0)), backend.ErrSettled)
	require.ErrorIs(t, backend.ErrorAt(sub.Extend(t.Context(), []*backend.Delivery{d}), 0), backend.ErrSettled)
	require.Equal(t, vt, scalar[time.Time](t, p, "SELECT vt FROM pgmq.q_"+q.Name()))

	publish(t, q, `2`)
	d = receiveOne(t, sub)
	err := sub.Settle(t.Context(), []backend.Settlement{{Delivery: d, Outcome: backend.Ack}, {Delivery: d, Outcome: backend.Ack}})
	require.NoError(t, backend.ErrorAt(err, 0))
	require.ErrorIs(t, backend.ErrorAt(err, 1), backend.ErrSettled)
}

func TestABatchMixesOutcomes(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`, `2`, `3`, `4`, `5`, `6`, `7`, `8`)
	ds := receive(t, sub, 8)
	execute(t, p, "DELETE FROM pgmq.q_"+q.Name()+" WHERE message IN ('2', '6')")
	elsewhere := &backend.Delivery{Message: backend.Message{ID: "elsewhere"}, Raw: "foreign"}
	with := func(d *backend.Delivery, s backend.Settlement) backend.Settlement {
		s.Delivery = d
		return s
	}
	err := sub.Settle(t.Context(), []backend.Settlement{
		with(ds[7], release), with(ds[5], deadLetter("gone")), with(ds[1], ack), with(ds[0], ack), {}, with(elsewhere, ack),
		with(ds[2], retry(time.Hour)), with(ds[3], discard), with(ds[4], deadLetter("x")), {Delivery: ds[6], Outcome: backend.DeadLetter},
	})
	for i, want := range []string{"", "lease lost", "lease lost", "", "without a delivery", "did not deliver it", "", "", "", "needs a Failure"} {
		got := backend.ErrorAt(err, i)
		if want == "" {
			require.NoError(t, got, i)
		} else {
			require.ErrorContains(t, got, want, i)
			require.ErrorContains(t, got, "pgmq: ", i)
		}
	}
	require.Equal(t, 3, count(t, p, "q_"+q.Name()), "the released, the retried and the one that was refused")
	require.Equal(t, 2, count(t, p, "a_"+q.Name()))
	require.Equal(t, 1, count(t, p, "q_"+q.Name()+"_dlq"))
	require.NoError(t, settle(sub, ds[6], ack), "a refused item leaves its delivery open")
}

func TestOneRefusedDeadLetterDoesNotHoldTheOthers(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	execute(t, p, "ALTER TABLE pgmq.q_"+q.Name()+"_dlq ADD CHECK (message <> '2')")
	publish(t, q, `1`, `2`, `3`)
	var batch []backend.Settlement
	for _, d := range receive(t, sub, 3) {
		batch = append(batch, backend.Settlement{Delivery: d, Outcome: backend.DeadLetter, Failure: &backend.Failure{Reason: "exhausted"}})
	}
	err := sub.Settle(t.Context(), batch)
	require.NoError(t, backend.ErrorAt(err, 0))
	require.NoError(t, backend.ErrorAt(err, 2))
	var pg *pgconn.PgError
	require.ErrorAs(t, backend.ErrorAt(err, 1), &pg)
	require.Equal(t, "23514", pg.Code)
	require.Equal(t, 2, count(t, p, "q_"+q.Name()+"_dlq"))
	require.Equal(t, "2", scalar[string](t, p, "SELECT message::text FROM pgmq.q_"+q.Name()))
}

func TestADeadLetterQueueThatIsGone(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`, `2`, `3`)
	ds := receive(t, sub, 3)
	drop(t, p, q.Name()+"_dlq")
	batch := []backend.Settlement{deadLetter("x"), ack, retry(time.Hour)}
	for i := range batch {
		batch[i].Delivery = ds[i]
	}
	err := sub.Settle(t.Context(), batch)
	require.ErrorIs(t, backend.ErrorAt(err, 0), backend.ErrQueueNotFound)
	require.ErrorContains(t, backend.ErrorAt(err, 0), q.Name()+"_dlq")
	require.NotErrorIs(t, err, backend.ErrUnknown)
	require.NoError(t, backend.ErrorAt(err, 1))
	require.NoError(t, backend.ErrorAt(err, 2))
	require.Equal(t, 2, count(t, p, "q_"+q.Name()))

	require.NoError(t, q.Create(t.Context()))
	require.NoError(t, settle(sub, ds[0], deadLetter("x")))
	require.Equal(t, 1, count(t, p, "q_"+q.Name()+"_dlq"))
}

// After a crash an unlogged queue numbers its messages anew, and the archive has those numbers already.
func TestAnArchiveThatHasTheNumberAlready(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	execute(t, p, "INSERT INTO pgmq.a_"+q.Name()+" (msg_id, vt, message) SELECT msg_id, vt, '0' FROM pgmq.q_"+q.Name())
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))
	require.Equal(t, 0, count(t, p, "q_"+q.Name()))
}

func TestLargeBatchesAreSplit(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	fill(t, p, q.Name(), 350)
	ds := receive(t, sub, 350)
	require.NoError(t, sub.Extend(t.Context(), ds))
	var batch []backend.Settlement
	for i, d := range ds {
		s := []backend.Settlement{ack, retry(time.Hour), deadLetter("x")}[i%3]
		s.Delivery = d
		batch = append(batch, s)
	}
	require.NoError(t, sub.Settle(t.Context(), batch))
	require.Equal(t, 117, count(t, p, "a_"+q.Name()))
	require.Equal(t, 117, count(t, p, "q_"+q.Name()))
	require.Equal(t, 116, count(t, p, "q_"+q.Name()+"_dlq"))
}

// Two consumers of one queue hold the same rows when leases lapse; batches in opposite orders must not deadlock.
func TestOverlappingBatchesDoNotDeadlock(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	fill(t, p, q.Name(), 100)
	ds := receive(t, sub, 100)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				mixed := make([]*backend.Delivery, 0, len(ds))
				for i := range ds {
					mixed = append(mixed, ds[(i*37)%len(ds)])
				}
				if err := sub.Extend(context.Background(), mixed); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestExtendNeverUndoesARetry(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	const n = 50
	fill(t, p, q.Name(), n)
	ds := receive(t, sub, n)
	stop := make(chan struct{})
	var beats sync.WaitGroup
	for range 2 {
		beats.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					err := sub.Extend(context.Background(), ds)
					for i := range ds {
						if err := backend.ErrorAt(err, i); err != nil && !errors.Is(err, backend.ErrSettled) {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	for _, d := range ds {
		require.NoError(t, settle(sub, d, retry(24*time.Hour)))
	}
	close(stop)
	beats.Wait()
	require.Equal(t, n, scalar[int](t, p, "SELECT count(*) FROM pgmq.q_"+q.Name()+" WHERE vt > now() + interval '23 h'"))
}

func TestExtendKeepsAMessageFromOthers(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	const lease = 2 * time.Second
	a, b := subscribeFor(t, q, lease), subscribeFor(t, q, lease)
	publish(t, q, `1`)
	d := receiveOne(t, a)
	held := time.Now()
	for time.Since(held) < lease+lease/2 {
		require.NoError(t, a.Extend(t.Context(), []*backend.Delivery{d}))
		ctx, cancel := context.WithTimeout(t.Context(), lease/8)
		_, err := b.Receive(ctx, 1)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NoError(t, settle(a, d, ack))

	d.MarkSettled()
	require.ErrorIs(t, backend.ErrorAt(a.Extend(t.Context(), []*backend.Delivery{d, nil}), 0), backend.ErrSettled)
	require.ErrorContains(t, backend.ErrorAt(a.Extend(t.Context(), []*backend.Delivery{nil}), 0), "nil")
}

func TestDelaysAreTheServersAndRoundedUp(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	for _, delay := range []time.Duration{-time.Hour, 0, 1, 1001, time.Second, 1500 * time.Millisecond, 30 * 24 * time.Hour, 1<<63 - 1} {
		publish(t, q, `1`)
		d := receiveOne(t, sub)
		before := scalar[time.Time](t, p, "SELECT clock_timestamp()")
		require.NoError(t, settle(sub, d, retry(delay)))
		after := scalar[time.Time](t, p, "SELECT clock_timestamp()")
		vt := scalar[time.Time](t, p, "SELECT vt FROM pgmq.q_"+q.Name())
		applied := q.Limits().Applied(delay)
		require.False(t, vt.Before(before.Add(applied)), delay)
		// Twice this delay, since a Duration holds no more, is still within what a double tells exactly to 2 µs.
		require.False(t, vt.After(after.Add(applied).Add(2*time.Microsecond)), delay)
		execute(t, p, "DELETE FROM pgmq.q_"+q.Name())
	}
}
