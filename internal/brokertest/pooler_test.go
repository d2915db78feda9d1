package brokertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a client prepares by name in one of the server's sessions it does not find in another.
func TestPoolerHandsOutSessionsByTransaction(t *testing.T) {
	address := Pooler(t, Postgres(t))
	one, two := connect(t, address), connect(t, address)
	defer one.Close(t.Context())
	defer two.Close(t.Context())
	ask := func() error {
		var pid int
		return one.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid)
	}
	require.NoError(t, ask())
	tx, err := two.Begin(t.Context()) // takes the session that is free
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)
	_, err = one.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)
	require.ErrorContains(t, ask(), "prepared statement")
}
