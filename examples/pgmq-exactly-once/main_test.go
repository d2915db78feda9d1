package main

import (
	"bytes"
	"context"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/internal/brokertest"
)

// The test's own program is the worker too, where these are set.
const workerURL, workerName = "EXACTLY_ONCE_WORKER_URL", "EXACTLY_ONCE_WORKER_NAME"

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := work(ctx, url, os.Getenv(workerName)); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

func TestEachTransferHappensOnce(t *testing.T) {
	url := brokertest.Postgres(t)
	name := "example_" + strings.ToLower(backend.NewID()[:10])
	t.Cleanup(func() {
		pool, err := pgxpool.New(context.Background(), url)
		require.NoError(t, err)
		defer pool.Close()
		queue, err := pgmq.Open(pool, name, pgmq.Options{})
		require.NoError(t, err)
		require.NoError(t, bank{pool, queue}.close(context.Background()))
	})
	var out bytes.Buffer
	err := run(t.Context(), &out, url, name, func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerURL+"="+url, workerName+"="+name)
		return cmd
	})
	require.NoError(t, err, out.String())
	require.Regexp(t, regexp.MustCompile(`in which [1-9]\d* workers were killed and [1-9]\d* connections cut\n[1-9]\d* failures`), out.String())
	require.Contains(t, out.String(), "500 transfers were made, 500 of them different ones; the accounts hold 200000, and held 200000")
}

func TestDatabaseIsRequired(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), new(bytes.Buffer), "", "bank", nil), "REDELIVER_POSTGRES_URL")
}
