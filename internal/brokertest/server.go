package brokertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A Server is a PostgreSQL server of one test's own, which the test may stop,
// kill and start again. Where a method cannot do what it says within two minutes it
// ends the test with the server's log. The methods are for the goroutine that
// runs the test.
type Server struct {
	private
	programs string // the directory of PostgreSQL's programs
	port     int
}

// A StopMode is a way for PostgreSQL to shut down.
type StopMode syscall.Signal

const (
	Smart     = StopMode(syscall.SIGTERM) // waits until the last client has left
	Fast      = StopMode(syscall.SIGINT)  // rolls back what is open and cuts the clients off
	Immediate = StopMode(syscall.SIGQUIT) // drops all, and recovers at the next start
)

// Private starts a PostgreSQL server for this test alone, with the PGMQ extension
// in its database, on a free port of loopback, and with PostgreSQL's own
// durability settings. The server and its data are gone when the test has ended,
// however it ended. Where PostgreSQL is not installed the test is skipped, or
// fails where brokers are required.
func Private(tb testing.TB) *Server {
	tb.Helper()
	programs, owner := installed(tb)
	s := &Server{private: private{tb: tb, owner: owner}, programs: programs, port: freePort(tb)}
	s.makeData("postgres")
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

// Database makes a database with the PGMQ extension at a version, one from which
// upgrade scripts lead on, and returns its address. Where the server does not offer
// the version the test is skipped, or fails where brokers are required.
func (s *Server) Database(version string) string {
	s.tb.Helper()
	offered := "SELECT EXISTS (SELECT FROM pg_available_extension_versions WHERE name = 'pgmq' AND version = '" + version + "')"
	if there, err := askPostgres[bool](s.URL(), offered); err != nil {
		s.tb.Fatal(err)
	} else if !there {
		missing(s.tb, "the server does not offer PGMQ %s: make brokers installs what it takes", version)
	}
	return s.makeDatabase("CREATE EXTENSION pgmq VERSION '" + version + "'")
}

// SQLDatabase makes a database that has PGMQ from its SQL file, as those have it
// whose server offers no such extension, and returns its address.
func (s *Server) SQLDatabase() string {
	s.tb.Helper()
	share, err := s.program("pg_config", "--sharedir").Output()
	if err != nil {
		s.tb.Fatal(err)
	}
	version, err := askPostgres[string](s.URL(), "SELECT default_version FROM pg_available_extensions WHERE name = 'pgmq'")
	if err != nil {
		s.tb.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(share)), "extension", "pgmq--"+version+".sql"))
	if err != nil {
		s.tb.Fatal(err)
	}
	return s.makeDatabase(string(script))
}

// makeDatabase makes a database, runs a script in it, and returns its address.
func (s *Server) makeDatabase(script string) string {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	name := strings.ToLower(rand.Text())
	address := strings.Replace(s.URL(), "/postgres?", "/"+name+"?", 1)
	for _, step := range []struct{ address, sql string }{{s.URL(), `CREATE DATABASE "` + name + `"`}, {address, script}} {
		conn, err := pgx.Connect(ctx, step.address)
		if err != nil {
			s.tb.Fatal(err)
		}
		_, err = conn.Exec(ctx, step.sql)
		conn.Close(ctx)
		if err != nil {
			s.tb.Fatal(err)
		}
	}
	return address
}

// askPostgres returns the one value that a query is for.
func askPostgres[T any](address, sql string) (value T, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return value, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql).Scan(&value)
	return value, err
}

// Start starts a server that was stopped or killed, and returns when it answers.
func (s *Server) Start() {
	s.tb.Helper()
	s.launch(s.program("postgres", "-D", s.data, "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="), s.answers)
}

// answers tells whether the server takes a connection.
func (s *Server) answers() error { return dialPostgres(s.URL()) }

// dialPostgres tells whether PostgreSQL, or what stands before it, takes a
// connection.
func dialPostgres(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Standby starts a second server, which follows this one and takes no writes until
// it is promoted. Both belong to the test.
func (s *Server) Standby() *Server {
	s.tb.Helper()
	b := &Server{private: private{tb: s.tb, owner: s.owner}, programs: s.programs, port: freePort(s.tb)}
	b.makeData("postgres")
	cmd := b.program("pg_basebackup", "-D", b.data, "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", "postgres",
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	b.Start()
	return b
}

// Promote makes a standby take writes, as when the server that it followed is gone.
func (s *Server) Promote() {
	s.tb.Helper()
	if done, err := askPostgres[bool](s.URL(), "SELECT pg_promote()"); err != nil || !done {
		s.fatalf("the standby was not promoted: %v", err)
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

func (s *Server) initialize() {
	s.tb.Helper()
	cmd := s.program("initdb", "-D", s.data, "-U", "postgres", "-E", "UTF8", "--no-locale", "-A", "trust", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("initdb: %v\n%s", err, out)
	}
}

// program makes a command of one of PostgreSQL's programs.
func (s *Server) program(name string, args ...string) *exec.Cmd {
	return s.command(filepath.Join(s.programs, name), args...)
}

// installed returns the directory of PostgreSQL's programs and the user to run
// them as, since PostgreSQL refuses to run as root.
func installed(tb testing.TB) (string, *syscall.Credential) {
	tb.Helper()
	programs := newest()
	if programs == "" {
		missing(tb, "no PostgreSQL server is installed to start one of the test's own: run make test as root on Debian, or install one")
	}
	return programs, ownerNamed(tb, "postgres")
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
