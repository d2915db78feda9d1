package brokertest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestPrivateKeepsWhatWasCommitted(t *testing.T) {
	s := Private(t)
	address := s.URL()
	run(t, address, "SELECT pgmq.create('q')")
	ends := []struct {
		name string
		end  func()
	}{
		{"Stop(Smart)", func() { s.Stop(Smart) }},
		{"Stop(Fast)", func() { s.Stop(Fast) }},
		{"Stop(Immediate)", func() { s.Stop(Immediate) }},
		{"Kill", s.Kill},
	}
	for i, e := range ends {
		run(t, address, "SELECT pgmq.send('q', '{}')")
		e.end()
		_, err := pgx.Connect(t.Context(), address)
		require.ErrorContains(t, err, "connection refused", e.name)
		s.Start()
		require.Equal(t, address, s.URL(), e.name)
		require.Equal(t, int64(i+1), run(t, address, "SELECT * FROM pgmq.q_q"), e.name)
	}
}

func TestPrivateCutsItsClientsOff(t *testing.T) {
	s := Private(t)
	ends := map[string]func(){
		"Restart": s.Restart,
		"Kill":    func() { s.Kill(); s.Start() },
	}
	for name, end := range ends {
		conn := connect(t, s.URL())
		end()
		_, err := conn.Exec(t.Context(), "SELECT 1")
		require.Error(t, err, name)
		run(t, s.URL(), "SELECT 1")
	}
}

func TestPrivateSaysWhatIsOutOfOrder(t *testing.T) {
	installed(t)
	outcome := observe(func(tb testing.TB) { Private(tb).Start() })
	require.Contains(t, outcome.failed, "runs already")
	outcome = observe(func(tb testing.TB) {
		s := Private(tb)
		s.Kill()
		s.Stop(Fast)
	})
	require.Contains(t, outcome.failed, "does not run")
}

func TestPrivateLeavesNothing(t *testing.T) {
	installed(t)
	ends := map[string]func(tb testing.TB, s *Server){
		"a test that passed":    func(testing.TB, *Server) {},
		"a test that failed":    func(tb testing.TB, _ *Server) { tb.Fatal("as it should") },
		"a test that killed it": func(_ testing.TB, s *Server) { s.Kill() },
	}
	for name, end := range ends {
		var s *Server
		observe(func(tb testing.TB) {
			s = Private(tb)
			require.DirExists(t, s.data)
			end(tb, s)
		})
		require.NoDirExists(t, s.data, name)
		require.False(t, listens(s.port), name)
	}
}

// A test that times out or is killed never comes to its cleanup.
func TestPrivateEndsWithItsProcess(t *testing.T) {
	installed(t)
	requireEndsWithItsProcess(t, "postgres")
}

// requireEndsWithItsProcess has another process start a server, kills that process,
// and requires that nothing stays.
func requireEndsWithItsProcess(t *testing.T, broker string) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), holdServer+"="+broker)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.NoError(t, err)

	var port int
	var data string
	_, err = fmt.Sscan(line, &port, &data)
	require.NoError(t, err, line)
	require.Eventually(t, func() bool {
		_, err := os.Stat(data)
		return os.IsNotExist(err) && !listens(port)
	}, patience, 20*time.Millisecond)
}

const holdServer = "BROKERTEST_HOLD_SERVER"

// TestMain makes the test binary, when it is asked to, a program that holds a
// server until it is killed.
func TestMain(m *testing.M) {
	broker := os.Getenv(holdServer)
	if broker == "" {
		os.Exit(m.Run())
	}
	outcome := observe(func(tb testing.TB) {
		if broker == "rabbit" {
			s := PrivateRabbit(tb)
			fmt.Println(s.ports[0], s.data)
			<-s.gone
		} else {
			s := Private(tb)
			fmt.Println(s.port, s.data)
			<-s.gone
		}
	})
	fmt.Println(outcome.failed)
	os.Exit(1)
}

// run executes one statement and returns the number of its rows.
func run(t *testing.T, address, statement string) int64 {
	t.Helper()
	conn := connect(t, address)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	tag, err := conn.Exec(t.Context(), statement)
	require.NoError(t, err)
	return tag.RowsAffected()
}

func listens(port int) bool {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// What the upgrade scripts lead to is the version as it is made at once, but for what the base that they start from holds
// itself, and for what differs in PGMQ's own scripts.
func TestOlderVersionsAreTheRealOnes(t *testing.T) {
	s := Private(t)
	upgraded := s.Database("1.5.1")
	functions := `SELECT coalesce(string_agg(p.oid::regprocedure || md5(regexp_replace(p.prosrc, '--[^\n]*|\s', '', 'g')), E'\n' ORDER BY 1), '')
		FROM pg_proc p WHERE p.pronamespace = 'pgmq'::regnamespace AND p.oid::regprocedure::text NOT IN ('pgmq.metrics_all()', 'pgmq.drop_queue(text,boolean)')`
	newest, err := askPostgres[string](s.SQLDatabase(), functions)
	require.NoError(t, err)
	require.Contains(t, newest, "read_grouped_head")
	before, err := askPostgres[string](upgraded, functions)
	require.NoError(t, err)
	require.NotContains(t, before, "read_grouped_head")
	conn := connect(t, upgraded)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "ALTER EXTENSION pgmq UPDATE")
	require.NoError(t, err)
	after, err := askPostgres[string](upgraded, functions)
	require.NoError(t, err)
	require.Equal(t, newest, after)
}
