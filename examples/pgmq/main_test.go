package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/internal/brokertest"
)

func TestOrdersGoThroughPGMQ(t *testing.T) {
	url := brokertest.Postgres(t)
	name := "example_" + strings.ToLower(backend.NewID()[:10])
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
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, url, name))
	text := out.String()
	require.Equal(t, 4, strings.Count(text, "baked"), text)
	require.Contains(t, text, `"error": "the pineapple is missing"`)
	require.Contains(t, text, `"attempts": 4`)
	require.Contains(t, text, `"reason": "permanent"`)
}

func TestDatabaseIsRequired(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), new(bytes.Buffer), "", "orders"), "REDELIVER_POSTGRES_URL")
}
