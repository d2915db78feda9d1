package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/internal/brokertest"
)

func TestEveryBrokerIsToldTheSame(t *testing.T) {
	name := "shared_" + strings.ToLower(backend.NewID()[:10])
	removeFromPostgres(t, brokertest.Postgres(t), name)
	brokertest.RemoveRabbitQueue(t, brokertest.Rabbit(t), name)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, os.Getenv, name))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, []string{"pizza", "delivery", "memory", "pgmq", "rabbit"}, strings.Fields(lines[0]))
	require.Len(t, lines, 1+13, out.String())
	for _, line := range lines[1:] {
		row := strings.Fields(line)[2:]
		third := len(row) / 3
		require.Equal(t, row[:third], row[third:2*third], line)
		require.Equal(t, row[:third], row[2*third:], line)
	}
	require.Equal(t, 3*(2+3), strings.Count(out.String(), ", error"), "two failures of margherita and three of hawaii")
}

func TestTheBrokersThatAreNotThereAreLeftOut(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, func(string) string { return "" }, "orders"))
	require.Contains(t, out.String(), "set REDELIVER_POSTGRES_URL")
	require.Contains(t, out.String(), "set REDELIVER_RABBIT_URL")
	require.Contains(t, out.String(), "dead, exhausted")

	err := run(t.Context(), io.Discard, func(variable string) string {
		if variable == "REDELIVER_RABBIT_URL" {
			return "amqp://guest:guest@127.0.0.1:1/"
		}
		return ""
	}, "orders")
	require.ErrorContains(t, err, "rabbit: ")
	require.ErrorContains(t, err, "connection refused")
}

func TestADifferenceIsAnError(t *testing.T) {
	orders := []backend.Message{{ID: "1"}, {ID: "2"}}
	ledgers := func() []*ledger {
		var all []*ledger
		for _, name := range []string{"a", "b", "c"} {
			all = append(all, &ledger{broker: name, entries: map[string][]string{"1": {"1s, error", "ack"}, "2": {"ack"}}})
		}
		return all
	}
	require.NoError(t, compare(io.Discard, orders, ledgers()))
	for _, entries := range [][]string{{"1s, error"}, {"1s, error", "dead, exhausted"}, {"1.000000001s, error", "ack"}, {"1s, error", "ack", "ack"}} {
		for i := range 3 {
			all := ledgers()
			all[i].entries["1"] = entries
			var out bytes.Buffer
			require.ErrorContains(t, compare(&out, orders, all), "differ", entries)
			require.Equal(t, 1, strings.Count(out.String(), "DIFFERENT"), out.String())
		}
	}
}

func removeFromPostgres(t *testing.T, url, name string) {
	t.Cleanup(func() {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, url)
		require.NoError(t, err)
		defer conn.Close(ctx)
		for _, queue := range []string{name, name + "_dlq"} {
			_, err := conn.Exec(ctx, "SELECT pgmq.drop_queue($1::text)", queue)
			require.NoError(t, err)
		}
	})
}
