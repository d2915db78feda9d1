package endurance

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/internal/brokertest"
)

// Eight processes work on one queue, and three attempts in ten fail. Each message ends once; it is run as often as its
// outcomes account for, so that there was no delivery that nobody knows of; and no two of its runs overlap.
//
// With ENDURANCE_FULL=1 in the environment it is 100,000 messages, else a tenth of that.
func TestEightProcessesShareAQueue(t *testing.T) {
	const processes, perMilleFailed = 8, 300
	messages := 10_000
	if os.Getenv("ENDURANCE_FULL") != "" {
		messages = 100_000
	}
	url := brokertest.Postgres(t)
	pool := connect(t, url)
	name := names(t, "shared")
	queue := fill(t, pool, name, 0)
	drop(t, pool, name)
	dir := t.TempDir()
	var logs []string
	var running []*exec.Cmd
	for i := range processes {
		logs = append(logs, filepath.Join(dir, fmt.Sprint(i)))
		running = append(running, process(t, url, name, perMilleFailed, envLog+"="+logs[i]))
	}
	for chunk := range slices.Chunk(numbered(messages), 1000) {
		require.NoError(t, queue.Publish(t.Context(), chunk...))
	}
	work, archive, dead := table("q_", name), table("a_", name), table("q_", name+"_dlq")
	start := time.Now()
	require.Eventually(t, func() bool { return count(t, pool, "SELECT count(*) FROM "+work) == 0 }, 5*time.Minute, 50*time.Millisecond)
	t.Logf("%d messages by %d processes: %.0f a second", messages, processes, float64(messages)/time.Since(start).Seconds())
	for _, p := range running {
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		require.NoError(t, p.Wait())
	}

	require.Equal(t, messages, count(t, pool, fmt.Sprintf(
		`SELECT count(DISTINCT id) FROM (SELECT headers->>'redeliver-id' id FROM %s UNION SELECT headers->>'redeliver-id' FROM %s) ids`, archive, dead)))
	require.Equal(t, messages, count(t, pool, fmt.Sprintf(`SELECT (SELECT count(*) FROM %s) + (SELECT count(*) FROM %s)`, archive, dead)))
	require.Zero(t, count(t, pool, fmt.Sprintf(
		`SELECT count(*) FROM %s WHERE read_ct <> 1 + coalesce((headers->'redeliver-counts'->>'failures')::int, 0)`, archive)))
	require.Zero(t, count(t, pool, fmt.Sprintf(
		`SELECT count(*) FROM %s WHERE coalesce((headers->'redeliver-failure'->>'lapses')::int, 0) <> 0`, dead)))

	runs := readRuns(t, logs)
	require.Len(t, runs, messages)
	handled := 0
	for id, of := range runs {
		slices.SortFunc(of, func(a, b run) int { return cmp.Compare(a.begin, b.begin) })
		for i := 1; i < len(of); i++ {
			require.LessOrEqual(t, of[i-1].end, of[i].begin, "message %s was held by two at once", id)
		}
		handled += len(of)
	}
	require.Equal(t, handled, count(t, pool, fmt.Sprintf(
		`SELECT (SELECT sum(read_ct) FROM %s) + (SELECT coalesce(sum((headers->'redeliver-failure'->>'attempts')::int), 0) FROM %s)`, archive, dead)))
}

// run is one run of the handler, by the machine's clock.
type run struct{ begin, end int64 }

func readRuns(t *testing.T, names []string) map[string][]run {
	t.Helper()
	runs := make(map[string][]run)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			var id string
			var r run
			_, err := fmt.Sscan(line, &id, &r.begin, &r.end)
			require.NoError(t, err, line)
			runs[id] = append(runs[id], r)
		}
	}
	return runs
}
