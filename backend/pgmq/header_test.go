package pgmq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/policy"
)

// jsonValues are values of every type, each in a place where this library expects something else.
var jsonValues = []string{
	`null`, `true`, `0`, `-1`, `1.5`, `1e400`, `99999999999999999999`, `""`, `"7"`, `"\"{"`, `[]`, `[1, {"failures": 2}]`, `{}`,
	`{"failures": -5, "snoozes": 1.5, "releases": "3", "waits": null}`,
	`{"failures": 2147483647, "snoozes": 2147483647, "releases": 2147483647, "waits": 2147483647}`,
	`{"failures": 9223372036854775808, "snoozes": [], "releases": {}, "waits": true}`,
	`{"v": 1}`, `{"v": 1, "attempts": "x"}`, `{"v": 99, "reason": "r", "origin": "elsewhere", "message_id": "m", "attempts": 1e400}`, `"{\"v\": 1, \"reason\": \"r\"}"`,
	// As text they get past PostgreSQL, which cannot hold them as numbers.
	`"{\"v\": 2, \"reason\": \"r\", \"x\": 1e200000}"`, `"{\"v\": 2, \"reason\": \"r\", \"x\": [1e-20000]}"`,
	`"{\"v\": 2, \"reason\": \"r\", \"x\": ` + strings.Repeat("9", 200_000) + `}"`, `"{\"v\": 2, \"reason\": \"r\", \"x\": ` + strings.Repeat("[", 4000) + strings.Repeat("]", 4000) + `}"`,
}

func TestForgedHeadersAreHarmless(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	var sent int
	for _, name := range []string{"redeliver-id", "redeliver-counts", "redeliver-failure", "redeliver-headers", "redeliver-attempt"} {
		for _, value := range jsonValues {
			execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message, headers) VALUES (now(), '1', jsonb_build_object($1::text, $2::text::jsonb, 'mine', 'kept'))", name, value)
			sent++
		}
	}
	for _, headers := range jsonValues { // in place of the whole object
		execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+" (vt, message, headers) VALUES (now(), '1', $1::text::jsonb)", headers)
		sent++
	}
	ids := make(map[string]bool)
	for _, d := range receive(t, sub, sent) {
		require.Equal(t, 1, d.Attempt)
		require.Equal(t, 0, d.Lapses+d.Snoozes+d.DeadLetterWaits)
		require.NotEmpty(t, d.ID)
		ids[d.ID] = true
		for name := range d.Headers {
			require.False(t, strings.HasPrefix(name, backend.HeaderPrefix), name)
		}
		require.NoError(t, settle(sub, d, retry(0)))
	}
	for _, d := range receive(t, sub, sent) {
		require.Equal(t, 2, d.Attempt, "%s", d.Raw.(*pgmq.Message).Headers)
		require.Equal(t, 0, d.Lapses+d.Snoozes+d.DeadLetterWaits)
		require.True(t, ids[d.ID], "the ID stays as it was")
		require.Equal(t, "boom", d.Failure.Error)
		require.NoError(t, settle(sub, d, deadLetter("x")))
	}
	dead := "pgmq.q_" + q.Name() + "_dlq"
	require.Equal(t, sent, scalar[int](t, p, "SELECT count(*) FROM "+dead+" WHERE headers->'redeliver-failure'->>'error' = 'x' AND NOT headers ? 'redeliver-counts'"))
	require.Equal(t, 5*len(jsonValues), scalar[int](t, p, "SELECT count(*) FROM "+dead+" WHERE headers->>'mine' = 'kept'"))
	// Headers that were no object, null apart, are kept under a name of their own.
	require.Equal(t, 16, scalar[int](t, p, "SELECT count(*) FROM "+dead+" WHERE NOT headers ? 'mine' AND headers ? 'redeliver-headers'"))
}

// What a producer claims counts for no more than the deliveries that there were.
func TestForgedCountsStayWithinTheReads(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+` (vt, read_ct, message, headers) VALUES (now(), 4, '1',
		'{"redeliver-counts": {"failures": 3, "snoozes": 9, "releases": 9, "waits": 9}, "redeliver-failure": {"v": 1}}')`)
	d := receiveOne(t, sub)
	require.Equal(t, 4, d.Attempt)
	require.Equal(t, 1, d.Snoozes)
	require.Equal(t, 0, d.DeadLetterWaits)
	require.Equal(t, 0, d.Lapses)
	require.NoError(t, settle(sub, d, retry(0)))
	require.JSONEq(t, `{"failures": 4, "snoozes": 1}`, scalar[string](t, p, "SELECT (headers->'redeliver-counts')::text FROM pgmq.q_"+q.Name()))
}

// A message that nobody has read yet cannot have failed, nor wait for its dead-letter queue. If its first consumer dies, it
// has one lapse, and runs.
func TestCountsThatAProducerSendsEndWithTheFirstDelivery(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+` (vt, message, headers) VALUES (now(), '1', '{"mine": "kept", "redeliver-id": "m1",
		"redeliver-counts": {"waits": 1}, "redeliver-failure": {"v": 1, "reason": "exhausted"}}')`)
	d := receiveOne(t, sub)
	require.Equal(t, []int{1, 0, 0}, []int{d.Attempt, d.Lapses, d.DeadLetterWaits})
	execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp()")
	d = receiveOne(t, sub)
	require.Equal(t, []int{1, 1, 0}, []int{d.Attempt, d.Lapses, d.DeadLetterWaits})
	require.Equal(t, "m1", d.ID)
	require.Equal(t, map[string]string{"mine": "kept"}, d.Headers)
}

// Whoever may write to the table can write a read count that cannot be counted on from.
func TestAReadCountOutOfRangeStopsNobodyElse(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	for _, reads := range []int{1<<31 - 1, -1, -1 << 31} {
		execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+` (vt, read_ct, message, headers) VALUES (now(), $1, '1', '{"redeliver-counts": {"failures": 7}}'), (now(), 0, '2', NULL)`, reads)
		ds := receive(t, sub, 2)
		require.Equal(t, "2", string(ds[1].Body))
		require.NoError(t, settle(sub, ds[1], ack))

		require.GreaterOrEqual(t, ds[0].Attempt, 1)
		require.Greater(t, ds[0].Lapses, policy.DefaultMaxLapses, "it will not run")
		execute(t, p, "UPDATE pgmq.q_"+q.Name()+" SET vt = clock_timestamp()")
		again := receiveOne(t, sub)
		require.ErrorIs(t, settle(sub, ds[0], ack), backend.ErrLeaseLost, "its deliveries are still told apart")
		require.NoError(t, settle(sub, again, deadLetter("x")))
	}
}

func TestAnUnreadableRecordIsNoWaitForTheDeadLetterQueue(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+` (vt, read_ct, message, headers) VALUES
		(now(), 3, '1', '{"redeliver-counts": {"waits": 2}}'),
		(now(), 3, '2', '{"redeliver-counts": {"waits": 2}, "redeliver-failure": {"v": 1, "reason": "exhausted"}}'),
		(now(), 3, '3', '{"redeliver-counts": {"waits": 2}, "redeliver-failure": "{\"v\": 1, \"reason\": \"exhausted\"}"}')`)
	var waits []int
	for _, d := range receive(t, sub, 3) {
		waits = append(waits, d.DeadLetterWaits)
	}
	require.Equal(t, []int{0, 2, 2}, waits)
}

// Times and origin of the first failure stay through a redrive and a second dead letter.
func TestWhatIsWrittenOnceStays(t *testing.T) {
	p := pool(t)
	q := queue(t, p, pgmq.Options{})
	sub := subscribe(t, q)
	execute(t, p, "INSERT INTO pgmq.q_"+q.Name()+` (vt, message, headers) VALUES (now(), '1', '{"redeliver-id": "m1", "redeliver-failure": {"v": 2, "reason": "old",
		"attempts": 8, "redrives": 3, "origin": "first_queue", "message_id": "m0", "first_enqueued_at": "2024-01-02T03:04:05.678Z",
		"first_failed_at": "2024-01-02T03:04:06Z", "dead_lettered_at": "2024-01-02T03:04:07Z", "of_a_newer_version": [1]}}')`)
	d := receiveOne(t, sub)
	require.Equal(t, 1, d.Attempt)
	require.Equal(t, "old", d.Failure.Reason)
	require.True(t, d.FirstEnqueuedAt.Equal(time.Date(2024, 1, 2, 3, 4, 5, 678e6, time.UTC)))
	require.Less(t, d.Age, patience, "from the redrive on")
	require.NoError(t, settle(sub, d, retry(0)))
	require.NoError(t, settle(sub, receiveOne(t, sub), deadLetter("new")))
	doc := scalar[string](t, p, "SELECT ((headers->'redeliver-failure') - 'dead_lettered_at'::text)::text FROM pgmq.q_"+q.Name()+"_dlq")
	require.JSONEq(t, `{"v": 1, "reason": "exhausted", "error": "new", "attempts": 1, "redrives": 3, "origin": "first_queue", "message_id": "m0",
		"first_enqueued_at": "2024-01-02T03:04:05.678Z", "first_failed_at": "2024-01-02T03:04:06.000Z", "of_a_newer_version": [1]}`, doc)
}
