package pgmq_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// A database goes through every version from 1.4.5 on. What is older than 1.5 is refused. From there on the queues that
// earlier versions made work as the newest does, and so do the subscriptions from before an upgrade.
func TestEveryVersion(t *testing.T) {
	t.Parallel()
	p := poolAt(t, brokertest.Private(t).Database("1.4.5"))
	made := make(map[string]backend.Subscription) // by the version that made the queue
	queues := make(map[string]*pgmq.Queue)
	open := func(version string) *pgmq.Queue {
		q, err := pgmq.Open(p, "made_by_"+strings.ReplaceAll(version, ".", "_"), pgmq.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, q.Close(context.Background())) })
		queues[version] = q
		return q
	}

	old := open("1.4.5")
	err := old.Create(t.Context())
	require.ErrorContains(t, err, "before 1.5")
	require.ErrorContains(t, err, "ALTER EXTENSION pgmq UPDATE")
	require.Equal(t, []string{"column_missing!", "column_missing!"}, codes(t, old))
	_, err = old.Subscribe(t.Context(), backend.SubscribeOptions{Lease: lease})
	require.ErrorContains(t, err, "ALTER EXTENSION pgmq UPDATE")

	rows, err := p.Query(t.Context(), `SELECT unnest(string_to_array(path, '--')) FROM pg_extension_update_paths('pgmq')
		WHERE source = '1.4.5' AND target = (SELECT default_version FROM pg_available_extensions WHERE name = 'pgmq')`)
	require.NoError(t, err)
	versions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, versions, "1.5.0")
	for _, version := range versions[1:] {
		execute(t, p, "ALTER EXTENSION pgmq UPDATE TO '"+version+"'")
		fresh := open(version)
		require.NoError(t, fresh.Create(t.Context()), version)
		for maker, q := range queues {
			require.Empty(t, codes(t, q), "%s, made by %s", version, maker)
			before, ok := made[maker]
			if !ok {
				before = subscribe(t, q)
				made[maker] = before
			}
			for _, sub := range []backend.Subscription{before, subscribe(t, q)} {
				wholeWay(t, q, sub)
			}
		}
	}
}

// wholeWay sends messages of which one ends in each way.
func wholeWay(t *testing.T, q *pgmq.Queue, sub backend.Subscription) {
	t.Helper()
	require.NoError(t, q.Publish(t.Context(), backend.Message{ID: "m", Body: []byte(`1`), Headers: map[string]string{"a": "b"}}))
	d := receiveOne(t, sub)
	require.NoError(t, sub.Extend(t.Context(), []*backend.Delivery{d}))
	require.NoError(t, settle(sub, d, retry(time.Millisecond)))
	d = receiveOne(t, sub)
	require.Equal(t, 2, d.Attempt)
	require.Equal(t, "m", d.ID)
	require.Equal(t, map[string]string{"a": "b"}, d.Headers)
	require.NoError(t, settle(sub, d, deadLetter("x")))
	publish(t, q, `2`)
	require.NoError(t, settle(sub, receiveOne(t, sub), release))
	require.NoError(t, settle(sub, receiveOne(t, sub), ack))
}
