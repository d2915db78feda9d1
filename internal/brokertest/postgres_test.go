package brokertest

import (
	"context"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestPostgresHasPGMQ(t *testing.T) {
	conn := connect(t, Postgres(t))
	defer conn.Close(t.Context())
	queue := fmt.Sprintf("brokertest_%d", conn.PgConn().PID())
	_, err := conn.Exec(t.Context(), "SELECT pgmq.create($1)", queue)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pgmq.drop_queue($1)", queue)
	require.NoError(t, err)
}

func TestPostgresIsSkippedOrRequired(t *testing.T) {
	t.Setenv("REDELIVER_POSTGRES_URL", "")

	t.Setenv("REDELIVER_REQUIRE_BROKERS", "")
	outcome := observe(func(tb testing.TB) { Postgres(tb) })
	require.Contains(t, outcome.skipped, "REDELIVER_POSTGRES_URL is not set")
	require.Empty(t, outcome.failed)

	t.Setenv("REDELIVER_REQUIRE_BROKERS", "1")
	outcome = observe(func(tb testing.TB) { Postgres(tb) })
	require.Contains(t, outcome.failed, "REDELIVER_POSTGRES_URL is not set")
	require.Empty(t, outcome.skipped)
}

func TestPostgresThatIsNamedMustAnswer(t *testing.T) {
	t.Setenv("REDELIVER_REQUIRE_BROKERS", "")
	t.Setenv("REDELIVER_POSTGRES_URL", fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres", freePort(t)))
	outcome := observe(func(tb testing.TB) { Postgres(tb) })
	require.Contains(t, outcome.failed, "connection refused")
	require.Empty(t, outcome.skipped)
}

// Test packages run as processes at the same time, and the first thing that each
// does to a fresh database is to create the extension.
func TestExtensionIsCreatedOnceByMany(t *testing.T) {
	server := Postgres(t)
	admin := connect(t, server)
	defer admin.Close(t.Context())
	name := fmt.Sprintf("brokertest_%d", admin.PgConn().PID())
	_, err := admin.Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	defer func() {
		_, err := admin.Exec(t.Context(), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	}()

	fresh, err := url.Parse(server)
	require.NoError(t, err)
	fresh.Path = "/" + name
	errs := make(chan error)
	const many = 8
	for range many {
		go func() { errs <- createPGMQ(t.Context(), fresh.String()) }()
	}
	for range many {
		require.NoError(t, <-errs)
	}
	conn := connect(t, fresh.String())
	defer conn.Close(t.Context())
	var installed int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_extension WHERE extname = 'pgmq'").Scan(&installed))
	require.Equal(t, 1, installed)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	require.NoError(t, err)
	return conn
}

// observe runs f with a test of its own, cleanup included, and returns how that
// test ended.
func observe(f func(testing.TB)) *observed {
	outcome := new(observed)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, cleanup := range slices.Backward(outcome.cleanups) {
				cleanup()
			}
		}()
		f(outcome)
	}()
	<-done
	return outcome
}

type observed struct {
	testing.TB
	skipped, failed string
	cleanups        []func()
}

func (o *observed) Name() string { return "observed" }

func (o *observed) Helper() {}

func (o *observed) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }

func (o *observed) Skipf(format string, args ...any) {
	o.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (o *observed) Errorf(format string, args ...any) { o.failed += fmt.Sprintf(format, args...) }

func (o *observed) Fatalf(format string, args ...any) {
	o.Errorf(format, args...)
	runtime.Goexit()
}

func (o *observed) FailNow() { runtime.Goexit() }

func (o *observed) Fatal(args ...any) { o.Fatalf("%s", fmt.Sprint(args...)) }
