package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Server is a PostgreSQL server of one test's own, which the test may stop,
// kill and start again. Where a method cannot do what it says within a minute it
// ends the test with the server's log. The methods are for the goroutine that
// runs the test.
type Server struct {
	tb       testing.TB
	programs string // the directory of PostgreSQL's programs
	data     string
	port     int
	owner    *syscall.Credential // nil: whoever runs the test
	janitor  io.Writer
	log      serverLog

	postmaster *os.Process   // nil: not running
	gone       chan struct{} // closed when the postmaster and its children have ended
}

// A StopMode is a way for PostgreSQL to shut down.
type StopMode syscall.Signal

const (
	Smart     = StopMode(syscall.SIGTERM) // waits until the last client has left
	Fast      = StopMode(syscall.SIGINT)  // rolls back what is open and cuts the clients off
	Immediate = StopMode(syscall.SIGQUIT) // drops all, and recovers at the next start
)

const patience = time.Minute

// Private starts a PostgreSQL server for this test alone, with the PGMQ extension
// in its database, on a free port of loopback, and with PostgreSQL's own
// durability settings. The server and its data are gone when the test has ended,
// however it ended. Where PostgreSQL is not installed the test is skipped, or
// fails where brokers are required.
func Private(tb testing.TB) *Server {
	tb.Helper()
	programs, owner := installed(tb)
	s := &Server{tb: tb, programs: programs, owner: owner, port: freePort(tb)}
	s.makeData()
	s.initialize()
	s.Start()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := createPGMQ(ctx, s.URL()); err != nil {
		tb.Fatal(err)
	}
	return s
}

// URL returns the address of the server's database. It stays the same through
// every stop and start.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// Start starts a server that was stopped or killed, and returns when it answers.
func (s *Server) Start() {
	s.tb.Helper()
	if s.postmaster != nil {
		s.tb.Fatal("Start: the server runs already")
	}
	cmd := s.command("postgres", "-D", s.data, "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	// Every process of the server holds this pipe, so that Wait returns when
	// the last of them has gone.
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	s.postmaster, s.gone = cmd.Process, make(chan struct{})
	fmt.Fprintln(s.janitor, cmd.Process.Pid)
	go func() {
		defer close(s.gone)
		_ = cmd.Wait() // a server that was killed has failed, as it should
	}()
	if err := s.answers(); err != nil {
		s.fatalf("the server did not start: %v", err)
	}
}

// answers waits until the server takes a connection.
func (s *Server) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.gone:
			return errors.New("it ended")
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// Stop shuts the server down in the given mode, and returns when all of its
// processes have ended.
func (s *Server) Stop(mode StopMode) {
	s.tb.Helper()
	s.end(syscall.Signal(mode))
}

// Kill ends the server with SIGKILL, and returns when its children, who notice by
// themselves that it died, have ended too.
func (s *Server) Kill() {
	s.tb.Helper()
	s.end(syscall.SIGKILL)
}

// Restart is Stop(Fast) and Start.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop(Fast)
	s.Start()
}

func (s *Server) end(signal syscall.Signal) {
	s.tb.Helper()
	if s.postmaster == nil {
		s.tb.Fatalf("%v: the server does not run", signal)
	}
	if err := s.postmaster.Signal(signal); err != nil {
		s.fatalf("%v: the server had ended by itself: %v", signal, err)
	}
	select {
	case <-s.gone:
	case <-time.After(2 * patience):
		s.fatalf("%v: the server still runs after %v", signal, 2*patience)
	}
	s.postmaster = nil
	fmt.Fprintln(s.janitor, 0)
}

// janitor waits until the test closes its end of the pipe or dies, with its
// cleanup undone: a timeout, a kill. Then it ends the server whose pid it read
// last, and removes the data.
const janitor = `
while read -r line; do pid=$line; done
if [ "${pid:-0}" != 0 ]; then
	kill -QUIT "$pid"
	tries=100
	while kill -0 "$pid" && [ $tries -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done
	kill -KILL "$pid"
fi
rm -rf "$1"
`

// makeData makes the data directory, and sees to it that it goes.
func (s *Server) makeData() {
	s.tb.Helper()
	parent := ""
	if s.owner != nil {
		parent = "/tmp" // root's TMPDIR may be closed to the owner
	}
	dir, err := os.MkdirTemp(parent, "redeliver-postgres-")
	if err != nil {
		s.tb.Fatal(err)
	}
	s.data = dir
	cmd := exec.Command("sh", "-c", janitor, "sh", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // spared by an interrupt at the terminal
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		s.tb.Fatal(err)
	}
	s.janitor = pipe
	s.tb.Cleanup(func() {
		pipe.Close()
		if err := cmd.Wait(); err != nil {
			s.tb.Errorf("removing the server in %s: %v", dir, err)
		}
	})
	if s.owner != nil {
		if err := os.Chown(dir, int(s.owner.Uid), int(s.owner.Gid)); err != nil {
			s.tb.Fatal(err)
		}
	}
}

func (s *Server) initialize() {
	s.tb.Helper()
	cmd := s.command("initdb", "-D", s.data, "-U", "postgres", "-E", "UTF8", "--no-locale", "-A", "trust", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("initdb: %v\n%s", err, out)
	}
}

// command makes a command that runs as the owner of the data.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.programs, program), args...)
	cmd.Dir = s.data // one that its user may enter
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.owner}
	return cmd
}

func (s *Server) fatalf(format string, args ...any) {
	s.tb.Helper()
	s.tb.Fatalf(format+"\nThe server's log:\n%s", append(args, s.log.String())...)
}

// installed returns the directory of PostgreSQL's programs and the user to run
// them as, since PostgreSQL refuses to run as root.
func installed(tb testing.TB) (string, *syscall.Credential) {
	tb.Helper()
	programs := newest()
	if programs == "" {
		missing(tb, "no PostgreSQL server is installed to start one of the test's own: run make test as root on Debian, or install one")
	}
	if os.Geteuid() != 0 {
		return programs, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		missing(tb, "PostgreSQL refuses to run as root, and the user that it should run as is not here: %v", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		tb.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		tb.Fatal(err)
	}
	return programs, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// newest returns the directory of the newest server's programs: where Debian
// keeps them, one directory a version, else where PATH has them.
func newest() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	version, programs := 0, ""
	for _, initdb := range found {
		dir := filepath.Dir(initdb)
		if v, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && v > version {
			version, programs = v, dir
		}
	}
	if programs != "" {
		return programs
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(initdb)
	}
	return ""
}

// freePort returns a port on which nobody listens, from below the range that
// outgoing connections take theirs from: a client that keeps dialing a stopped
// server must not end up connected to itself, holding the server's port.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := 21000 + rand.IntN(4000)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			listener.Close()
			return port
		}
	}
	tb.Fatal("no free port found from 21000 to 24999")
	return 0
}

// serverLog keeps what a server says. The zero value is ready to use, by several
// goroutines at once.
type serverLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *serverLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
