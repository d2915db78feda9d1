// Package endurance tests consumers against what production does to them: killed processes, a broker that goes away, a link
// that is cut every second, a backlog of a million messages.
package endurance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
	"github.com/redeliver/redeliver/backend/pgmq"
	"github.com/redeliver/redeliver/consumer"
	"github.com/redeliver/redeliver/policy"
)

// Environment of the test binary when it runs as a consumer process that a test may kill.
const (
	envURL      = "ENDURANCE_URL"
	envQueue    = "ENDURANCE_QUEUE"
	envFailures = "ENDURANCE_FAILURES" // per mille of the attempts
	envLog      = "ENDURANCE_LOG"      // the file that takes a line for each run of the handler: ID, begin, end; empty for none
)

func TestMain(m *testing.M) {
	if os.Getenv(envQueue) != "" {
		if err := consumeUntilTerminated(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

var patient = policy.Policy{
	Name:        "patient",
	MaxAttempts: 4,
	Backoff:     policy.Exponential{Base: 20 * time.Millisecond, Max: 200 * time.Millisecond},
	Jitter:      policy.FullJitter,
}

const lease = 2 * time.Second

func consumeUntilTerminated() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Getenv(envURL))
	if err != nil {
		return err
	}
	defer pool.Close()
	queue, err := pgmq.Open(pool, os.Getenv(envQueue), pgmq.Options{})
	if err != nil {
		return err
	}
	var failures uint32
	if _, err := fmt.Sscan(os.Getenv(envFailures), &failures); err != nil {
		return err
	}
	runs := make(chan string, 1000)
	logged := make(chan error, 1)
	go func() { logged <- logLines(os.Getenv(envLog), runs) }()
	c := &consumer.Consumer{
		Queue: queue, Policy: patient, Concurrency: 50, Lease: lease,
		Handler: consumer.HandlerFunc(func(_ context.Context, d *backend.Delivery) error {
			begin := time.Now()
			defer func() { runs <- fmt.Sprintln(d.ID, begin.UnixNano(), time.Now().UnixNano()) }()
			if perMille(d) < failures {
				return errors.New("by chance")
			}
			return nil
		}),
	}
	err = c.Run(ctx)
	close(runs)
	return errors.Join(err, <-logged)
}

// logLines writes lines to a file, if one is named.
func logLines(name string, lines <-chan string) error {
	out := io.Discard
	if name != "" {
		file, err := os.Create(name)
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	buffered := bufio.NewWriter(out)
	for line := range lines {
		if _, err := buffered.WriteString(line); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// perMille draws a number below 1000 for an attempt, the same in every process.
func perMille(d *backend.Delivery) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", d.ID, d.Attempt)
	return h.Sum32() % 1000
}

// process starts a consumer process of its own. Further variables may be set in its environment.
func process(t *testing.T, url, queue string, failures int, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envURL+"="+url, envQueue+"="+queue, fmt.Sprintf("%s=%d", envFailures, failures))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

func connect(tb testing.TB, url string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), url)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// fill makes a queue and sends messages to it.
func fill(tb testing.TB, pool *pgxpool.Pool, name string, messages int) *pgmq.Queue {
	tb.Helper()
	queue, err := pgmq.Open(pool, name, pgmq.Options{})
	require.NoError(tb, err)
	require.NoError(tb, queue.Create(tb.Context()))
	if messages > 0 {
		require.NoError(tb, queue.Publish(tb.Context(), numbered(messages)...))
	}
	return queue
}

// numbered returns n messages with IDs of their own.
func numbered(n int) []backend.Message {
	batch := make([]backend.Message, n)
	for i := range batch {
		batch[i] = backend.Message{ID: fmt.Sprintf("m%d", i), Body: []byte(`{"n": 1}`)}
	}
	return batch
}

// drop removes a queue of the shared server when the test has ended.
func drop(tb testing.TB, pool *pgxpool.Pool, name string) {
	tb.Helper()
	tb.Cleanup(func() {
		for _, q := range []string{name, name + "_dlq"} {
			_, err := pool.Exec(context.Background(), `SELECT pgmq.drop_queue($1::text)`, q)
			require.NoError(tb, err)
		}
	})
}

// names returns a queue name that no other test and no other run has.
func names(tb testing.TB, base string) string {
	tb.Helper()
	return fmt.Sprintf("%s_%d_%d", base, os.Getpid(), time.Now().UnixNano()%1e9)
}

func count(t *testing.T, pool *pgxpool.Pool, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), query, args...).Scan(&n))
	return n
}

func table(prefix, queue string) string { return pgx.Identifier{"pgmq", prefix + queue}.Sanitize() }
