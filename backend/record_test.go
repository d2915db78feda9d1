package backend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
)

// A message that fails, waits, dies, is moved back, and dies again in another queue: its origin and its first times are
// those of the beginning, and nothing piles up.
func TestFirstThingsAreWrittenOnce(t *testing.T) {
	sent := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return sent.Add(d) }
	d := &backend.Delivery{Message: backend.Message{ID: "m"}, Queue: "orders", FirstEnqueuedAt: sent}

	retry := d.Record(backend.Failure{Reason: "error", Error: "one", Attempts: 1, Policy: "a", Consumer: "h1"}, after(time.Second), false)
	require.Equal(t, backend.Failure{
		Reason: "error", Error: "one", Attempts: 1, Policy: "a", Consumer: "h1",
		FirstEnqueuedAt: sent, FirstFailedAt: after(time.Second), Origin: "orders", MessageID: "m",
	}, retry)

	d.Failure = parse(t, retry.Encode(0))
	dead := d.Record(backend.Failure{Reason: "exhausted", Error: "two", Attempts: 2, Policy: "b", Consumer: "h2"}, after(time.Minute), true)
	require.Equal(t, backend.Failure{
		Reason: "exhausted", Error: "two", Attempts: 2, Policy: "b", Consumer: "h2",
		FirstEnqueuedAt: sent, FirstFailedAt: after(time.Second), DeadLetteredAt: after(time.Minute), Origin: "orders", MessageID: "m",
	}, dead)

	// Moved back: the redrive counts itself, and the message may have another ID and another queue now.
	back := parse(t, dead.Encode(0))
	back.Redrives++
	again := &backend.Delivery{Message: backend.Message{ID: "other"}, Queue: "orders2", FirstEnqueuedAt: after(time.Hour), Failure: back}
	last := again.Record(backend.Failure{Reason: "permanent", Error: "three", Attempts: 1}, after(2*time.Hour), true)
	require.Equal(t, backend.Failure{
		Reason: "permanent", Error: "three", Attempts: 1, Redrives: 1,
		FirstEnqueuedAt: sent, FirstFailedAt: after(time.Second), DeadLetteredAt: after(2 * time.Hour), Origin: "orders", MessageID: "m",
	}, last)
	require.Less(t, len(last.Encode(0)), len(dead.Encode(0))+len(`"redrives":1`))
}

func TestRecordOfALapseHasNoFirstFailure(t *testing.T) {
	d := &backend.Delivery{Message: backend.Message{ID: "m"}, Queue: "orders", Lapses: 11}
	f := d.Record(backend.Failure{Reason: "abandoned", Lapses: 11}, at, true)
	require.True(t, f.FirstFailedAt.IsZero())
	require.Equal(t, at, f.DeadLetteredAt)
}

func TestRecordTrustsOnlyWhatTheMessageCarries(t *testing.T) {
	d := &backend.Delivery{Message: backend.Message{ID: "m"}, Queue: "orders"}
	f := d.Record(backend.Failure{Origin: "elsewhere", MessageID: "x", Redrives: 7, FirstEnqueuedAt: at, FirstFailedAt: at, DeadLetteredAt: at}, at, false)
	require.Equal(t, backend.Failure{Origin: "orders", MessageID: "m"}, f)
}

// A record that was forged or cut may lack what it should have: then the delivery's own is better than nothing.
func TestRecordFillsTheGapsOfAnEarlierRecord(t *testing.T) {
	d := &backend.Delivery{Message: backend.Message{ID: "m"}, Queue: "orders", FirstEnqueuedAt: at, Failure: parse(t, []byte(`{"v":1}`))}
	f := d.Record(backend.Failure{Reason: "error", Attempts: 1}, at.Add(time.Second), false)
	require.Equal(t, "orders", f.Origin)
	require.Equal(t, "m", f.MessageID)
	require.Equal(t, at, f.FirstEnqueuedAt)
	require.Equal(t, at.Add(time.Second), f.FirstFailedAt)
}
