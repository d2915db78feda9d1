package pgmq_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend/pgmq"
)

// What docs/pgmq.md tells operators to run, runs.
func TestTheOperatorsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/pgmq.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllSubmatch(page, -1)
	require.NotEmpty(t, blocks)
	p := poolAt(t, database(t, pool(t)))
	t.Cleanup(p.Close)
	execute(t, p, "CREATE EXTENSION pgmq")
	q, err := pgmq.Open(p, "orders", pgmq.Options{})
	require.NoError(t, err)
	require.NoError(t, q.Create(t.Context()))
	for _, block := range blocks {
		execute(t, p, string(block[1]))
	}
}
