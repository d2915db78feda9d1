package brokertest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A RabbitServer is a RabbitMQ node of one test's own, which the test may stop,
// kill and start again. A start takes some seconds of a whole processor: tests
// share one where they can. Where a method cannot do what it says within two
// minutes it ends the test with the node's log. The methods are for the goroutine
// that runs the test.
type RabbitServer struct {
	private
	programs string // the directory of RabbitMQ's programs
	ports    [3]int // for clients, for the node's own tools, and for its epmd
	env      []string
}

// PrivateRabbit starts a RabbitMQ node for this test alone, on free ports of
// loopback, with RabbitMQ's own settings and the user guest. The node and its data
// are gone when the test has ended, however it ended. Where RabbitMQ is not
// installed the test is skipped, or fails where brokers are required.
func PrivateRabbit(tb testing.TB) *RabbitServer {
	tb.Helper()
	programs, owner := rabbitInstalled(tb)
	s := &RabbitServer{private: private{tb: tb, owner: owner}, programs: programs}
	var listeners [3]net.Listener
	for i := range listeners { // all are taken before one is freed, so that they differ
		listeners[i] = listen(tb)
		s.ports[i] = listeners[i].Addr().(*net.TCPAddr).Port
	}
	for _, l := range listeners {
		l.Close()
	}
	port := func(i int) string { return strconv.Itoa(s.ports[i]) }
	s.makeData("rabbitmq", "env", "ERL_EPMD_PORT="+port(2), "epmd", "-kill")
	s.env = rabbitEnv("@dir@", s.data, "@port@", port(0), "@dist@", port(1), "@epmd@", port(2))
	// Else what a node tells of its quorum queues is up to five seconds old.
	s.env = append(s.env, "RABBITMQ_SERVER_START_ARGS=-noinput -rabbit quorum_tick_interval 500")
	s.Start()
	return s
}

// rabbitVariables is the environment of a node; scripts/rabbit.bash reads it too.
//
//go:embed rabbit.env
var rabbitVariables string

func rabbitEnv(oldnew ...string) []string {
	var env []string
	for line := range strings.Lines(strings.NewReplacer(oldnew...).Replace(rabbitVariables)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, line)
		}
	}
	return env
}

// URL returns the address of the node's first virtual host. It stays the same
// through every stop and start.
func (s *RabbitServer) URL() string {
	return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", s.ports[0])
}

// Start starts a node that was stopped or killed, and returns when it answers.
func (s *RabbitServer) Start() {
	s.tb.Helper()
	s.launch(s.program("rabbitmq-server"), func() error { return dialRabbit(s.URL()) })
}

// Stop shuts the node down, which writes all to the disk, and returns when all of
// its processes have ended.
func (s *RabbitServer) Stop() {
	s.tb.Helper()
	s.end(syscall.SIGTERM)
}

// Kill ends the node with SIGKILL, and returns when all of its processes have
// ended. What was published to a quorum queue within the first seconds after its
// declaration may be lost, confirmed as it was.
func (s *RabbitServer) Kill() {
	s.tb.Helper()
	s.end(syscall.SIGKILL)
}

// Restart is Stop and Start.
func (s *RabbitServer) Restart() {
	s.tb.Helper()
	s.Stop()
	s.Start()
}

// A RabbitQueue is what a node tells of a queue.
type RabbitQueue struct {
	Name      string `json:"name"`
	Messages  int    `json:"messages"` // all that it holds, also those that no one can consume yet
	Ready     int    `json:"messages_ready"`
	Unacked   int    `json:"messages_unacknowledged"`
	Consumers int    `json:"consumers"`
}

// Queues returns the queues of the node's first virtual host, by name. It takes
// about a second; what it tells of a quorum queue may be half a second old.
func (s *RabbitServer) Queues() map[string]RabbitQueue {
	s.tb.Helper()
	out := s.Ctl("list_queues", "--formatter=json", "name", "messages", "messages_ready", "messages_unacknowledged", "consumers")
	var list []RabbitQueue
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		s.tb.Fatalf("rabbitmqctl list_queues: %v\n%s", err, out)
	}
	queues := make(map[string]RabbitQueue, len(list))
	for _, q := range list {
		queues[q.Name] = q
	}
	return queues
}

// BlockPublishers raises the node's memory alarm: from then on it reads nothing
// more from a connection that publishes.
func (s *RabbitServer) BlockPublishers() {
	s.tb.Helper()
	s.Ctl("set_vm_memory_high_watermark", "0")
}

// UnblockPublishers ends what BlockPublishers began.
func (s *RabbitServer) UnblockPublishers() {
	s.tb.Helper()
	s.Ctl("set_vm_memory_high_watermark", "0.6")
}

// CloseConnections has the node close the connections of all its clients, with
// code 320.
func (s *RabbitServer) CloseConnections() {
	s.tb.Helper()
	s.Ctl("close_all_connections", "closed by a test")
}

// Ctl runs rabbitmqctl with the node, and returns what it prints. It takes about a
// second.
func (s *RabbitServer) Ctl(args ...string) string {
	s.tb.Helper()
	var errors strings.Builder
	cmd := s.program("rabbitmqctl", append([]string{"-q"}, args...)...)
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		s.fatalf("rabbitmqctl %s: %v\n%s%s", strings.Join(args, " "), err, out, &errors)
	}
	return string(out)
}

// Shell runs a script of bash, in which RabbitMQ's tools talk to the node, and
// returns what it prints. The script ends at the first command that fails.
func (s *RabbitServer) Shell(script string) string {
	s.tb.Helper()
	cmd := s.command("bash", "-euo", "pipefail", "-c", script)
	cmd.Env = append(cmd.Env, s.env...)
	cmd.Env = append(cmd.Env, "PATH="+s.programs+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// program makes a command of one of RabbitMQ's programs.
func (s *RabbitServer) program(name string, args ...string) *exec.Cmd {
	cmd := s.command(filepath.Join(s.programs, name), args...)
	cmd.Env = append(cmd.Env, s.env...)
	return cmd
}

// rabbitInstalled returns the directory of RabbitMQ's programs and the user to run
// them as.
func rabbitInstalled(tb testing.TB) (string, *syscall.Credential) {
	tb.Helper()
	programs := rabbitPrograms()
	if programs == "" {
		missing(tb, "no RabbitMQ server is installed to start a node of the test's own: run make test as root on Debian, or install one")
	}
	return programs, ownerNamed(tb, "rabbitmq")
}

// rabbitPrograms returns the directory of the server's programs. Those that Debian
// has in PATH know only of the system's own node.
func rabbitPrograms() string {
	program := "/usr/lib/rabbitmq/bin/rabbitmq-server"
	if _, err := exec.LookPath(program); err != nil {
		if program, err = exec.LookPath("rabbitmq-server"); err != nil {
			return ""
		}
	}
	program, err := filepath.EvalSymlinks(program)
	if err != nil {
		return ""
	}
	return filepath.Dir(program)
}
