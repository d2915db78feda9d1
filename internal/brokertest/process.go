package brokertest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A private is what a server of one test's own is beside its broker: a process
// that a test may end and start again, and a directory, both of which are gone
// when the test has ended, however it ended.
type private struct {
	tb      testing.TB
	data    string              // its directory
	owner   *syscall.Credential // nil: whoever runs the test
	janitor io.Writer
	log     serverLog

	leader *os.Process   // nil: not running
	gone   chan struct{} // closed when the leader and its children have ended
}

const patience = 2 * time.Minute

// janitor waits until the test closes its end of the pipe or dies, with its
// cleanup undone: a timeout, a kill. Then it ends the server whose pid it read
// last, runs the command that follows the directory, and removes that.
const janitor = `
while read -r line; do pid=$line; done
if [ "${pid:-0}" != 0 ]; then
	kill -QUIT "$pid"
	tries=100
	while kill -0 "$pid" && [ $tries -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done
	kill -KILL "$pid"
fi
data=$1
shift
"$@"
rm -rf "$data"
`

// makeData makes the directory, and sees to it that it goes, after the command has
// been run that ends what the server leaves running.
func (p *private) makeData(broker string, last ...string) {
	p.tb.Helper()
	parent := ""
	if p.owner != nil {
		parent = "/tmp" // root's TMPDIR may be closed to the owner
	}
	dir, err := os.MkdirTemp(parent, "redeliver-"+broker+"-")
	if err != nil {
		p.tb.Fatal(err)
	}
	p.data = dir
	cmd := exec.Command("sh", append([]string{"-c", janitor, "sh", dir}, last...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // spared by an interrupt at the terminal
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		p.tb.Fatal(err)
	}
	p.janitor = pipe
	p.tb.Cleanup(func() {
		pipe.Close()
		if err := cmd.Wait(); err != nil {
			p.tb.Errorf("removing the server in %s: %v", dir, err)
		}
	})
	if p.owner != nil {
		if err := os.Chown(dir, int(p.owner.Uid), int(p.owner.Gid)); err != nil {
			p.tb.Fatal(err)
		}
	}
}

// command makes a command that runs as the owner of the data, in a process group
// of its own.
func (p *private) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = p.data // one that its user may enter
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.owner}
	return cmd
}

// launch starts the server, and returns when answers, asked again and again, has
// no error to tell.
func (p *private) launch(cmd *exec.Cmd, answers func() error) {
	p.tb.Helper()
	if p.leader != nil {
		p.tb.Fatal("Start: the server runs already")
	}
	// Every process of the server holds this pipe, so that Wait returns when
	// the last of them has gone.
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		p.tb.Fatal(err)
	}
	p.leader, p.gone = cmd.Process, make(chan struct{})
	fmt.Fprintln(p.janitor, cmd.Process.Pid)
	go func() {
		defer close(p.gone)
		_ = cmd.Wait() // a server that was killed has failed, as it should
	}()
	if err := p.await(answers); err != nil {
		p.fatalf("the server did not start: %v", err)
	}
}

// await waits until the server answers.
func (p *private) await(answers func() error) error {
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := answers()
		if err == nil {
			return nil
		}
		select {
		case <-p.gone:
			return fmt.Errorf("it ended: %w", err)
		case <-deadline:
			return err
		case <-tick.C:
		}
	}
}

// end sends a signal to the server, and returns when all of its processes have
// ended.
func (p *private) end(signal syscall.Signal) {
	p.tb.Helper()
	if p.leader == nil {
		p.tb.Fatalf("%v: the server does not run", signal)
	}
	if err := p.leader.Signal(signal); err != nil {
		p.fatalf("%v: the server had ended by itself: %v", signal, err)
	}
	select {
	case <-p.gone:
	case <-time.After(patience):
		p.fatalf("%v: the server still runs after %v", signal, patience)
	}
	p.leader = nil
	fmt.Fprintln(p.janitor, 0)
}

func (p *private) fatalf(format string, args ...any) {
	p.tb.Helper()
	p.tb.Fatalf(format+"\nThe server's log:\n%s", append(args, p.log.String())...)
}

// ownerNamed returns the user that a server runs as where the test runs as root.
func ownerNamed(tb testing.TB, name string) *syscall.Credential {
	tb.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		missing(tb, "the server does not run as root, and the user that it should run as is not here: %v", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		tb.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		tb.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// freePort returns a port on which nobody listens, and which is this test's until
// it ends.
func freePort(tb testing.TB) int {
	tb.Helper()
	listener := listen(tb)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// listen listens on a port of loopback from below the range that outgoing
// connections take theirs from: a client that keeps dialing a stopped server must
// not end up connected to itself, holding the server's port.
//
// The UDP port of the same number stands for it while its server starts or is
// down. Another test, in this process or another, would else take it, and both
// would talk to one server.
func listen(tb testing.TB) net.Listener {
	tb.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 21000+rand.IntN(4000))
		claim, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			claim.Close()
			continue
		}
		tb.Cleanup(func() { claim.Close() })
		return listener
	}
	tb.Fatal("no free port found from 21000 to 24999")
	return nil
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
