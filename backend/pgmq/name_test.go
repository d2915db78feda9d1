package pgmq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend/pgmq"
)

// unconnected is a pool that has never connected: whoever asks it for a connection fails.
func unconnected(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	return poolAt(tb, "postgres://nobody@127.0.0.1:1/nothing")
}

func TestNamesAreCheckedBeforeAnySQL(t *testing.T) {
	p := unconnected(t)
	for _, tc := range []struct {
		name, queue string
		opts        pgmq.Options
		says        string // empty: accepted
	}{
		{"plain", "orders_2", pgmq.Options{}, ""},
		{"43 bytes", strings.Repeat("a", 43), pgmq.Options{}, ""},
		{"44 bytes", strings.Repeat("a", 44), pgmq.Options{}, "has 44 bytes: at most 43 are possible, since its dead-letter queue"},
		{"47 bytes beside a dead-letter queue of another name", strings.Repeat("a", 47), pgmq.Options{DeadLetterQueue: "graves"}, ""},
		{"48 bytes", strings.Repeat("a", 48), pgmq.Options{DeadLetterQueue: "graves"}, "has 48 bytes: at most 47"},
		{"upper case", "Orders", pgmq.Options{}, `holds "O"`},
		{"hyphen", "my-orders", pgmq.Options{}, `holds "-"`},
		{"space", "my orders", pgmq.Options{}, `holds " "`},
		{"quote", `my"orders`, pgmq.Options{}, `holds "\""`},
		{"multibyte", "bestellungen_für_alle", pgmq.Options{}, `holds "ü"`},
		{"not UTF-8", "a\xff", pgmq.Options{}, "use a-z, 0-9 and _ only"},
		{"NUL", "a\x00", pgmq.Options{}, `holds "\x00"`},
		{"empty", "", pgmq.Options{}, "queue name is empty"},
		{"dead-letter queue in upper case", "orders", pgmq.Options{DeadLetterQueue: "Graves"}, `Options.DeadLetterQueue "Graves" holds "G"`},
		{"dead-letter queue too long", "orders", pgmq.Options{DeadLetterQueue: strings.Repeat("a", 48)}, "at most 47"},
		{"its own dead-letter queue", "orders", pgmq.Options{DeadLetterQueue: "orders"}, "is its own dead-letter queue"},
		{"negative poll interval", "orders", pgmq.Options{PollInterval: -time.Second}, "Options.PollInterval is -1s"},
		{"listening to no server", "orders", pgmq.Options{Listen: new(pgx.ConnConfig)}, "pgx.ParseConfig"},
		{"negative parallel", "orders", pgmq.Options{Parallel: -1}, "Options.Parallel is -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q, err := pgmq.Open(p, tc.queue, tc.opts)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.queue, q.Name())
		})
	}
	require.Zero(t, p.Stat().AcquireCount()+p.Stat().EmptyAcquireCount())

	_, err := pgmq.Open(nil, "orders", pgmq.Options{})
	require.ErrorContains(t, err, "pgxpool.New")
}

func TestTheLongestNamesWork(t *testing.T) {
	p := pool(t)
	name := strings.Repeat("z", 43)
	q, err := pgmq.Open(p, name, pgmq.Options{})
	require.NoError(t, err)
	require.NoError(t, q.Create(t.Context()))
	t.Cleanup(func() {
		drop(t, p, name)
		drop(t, p, name+"_dlq")
	})
	sub := subscribe(t, q)
	publish(t, q, `1`)
	require.NoError(t, settle(sub, receiveOne(t, sub), deadLetter("long")))
	require.Equal(t, 1, count(t, p, "q_"+name+"_dlq"))
	require.NoError(t, q.Close(t.Context()))
}
