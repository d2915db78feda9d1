package brokertest

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// poolerSessions is how many of the server's sessions a pooler shares among its
// clients: few, so that a client rarely gets the same one twice in a row.
const poolerSessions = 5

// Pooler starts a PgBouncer in transaction mode before the PostgreSQL server of an
// address, and returns the address that leads through it: a client gets one of the
// server's sessions for each transaction, as a rule another each time. The pooler is
// gone when the test has ended, however it ended. Where PgBouncer is not installed
// the test is skipped, or fails where brokers are required.
func Pooler(tb testing.TB, address string) string {
	tb.Helper()
	program := poolerProgram()
	if program == "" {
		missing(tb, "no PgBouncer is installed: run make test as root on Debian, or install one")
	}
	server, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	p := &private{tb: tb, owner: ownerNamed(tb, "postgres")}
	p.makeData("pgbouncer")
	port := freePort(tb)
	login := "user=" + server.User.Username()
	if password, ok := server.User.Password(); ok {
		login += " password='" + strings.ReplaceAll(password, "'", "''") + "'"
	}
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s %s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
max_client_conn = 200
`, server.Hostname(), cmp.Or(server.Port(), "5432"), login, port, poolerSessions)
	file := filepath.Join(p.data, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	if p.owner != nil {
		if err := os.Chown(file, int(p.owner.Uid), int(p.owner.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	pooled := *server
	pooled.Host = fmt.Sprintf("127.0.0.1:%d", port)
	pooled.User = url.User(server.User.Username())
	p.launch(p.command(program, file), func() error { return dialPostgres(pooled.String()) })
	return pooled.String()
}

// poolerProgram returns the path of PgBouncer, which a user's PATH may lack where
// Debian keeps it.
func poolerProgram() string {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path
	}
	path, _ := exec.LookPath("/usr/sbin/pgbouncer")
	return path
}
