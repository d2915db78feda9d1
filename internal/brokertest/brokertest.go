// Package brokertest hands real brokers to tests.
//
// A test asks for the broker that it needs:
//
//	url := brokertest.Postgres(t)
//
// and is skipped where that broker is not there, so that the tests of a machine
// without brokers still pass. With REDELIVER_REQUIRE_BROKERS=1 it fails instead:
// make test sets that, because a skipped broker test has proved nothing.
//
// Brokers are shared by all tests, and by test packages that run at the same
// time: a test names its queues so that nobody else has them, and removes them.
// A test that has to stop or kill a broker starts one of its own with [Private] or
// [PrivateRabbit]; one that needs a bad link to a broker gets it from [Proxy], and one
// that needs a pooler before PostgreSQL from [Pooler].
package brokertest

import (
	"os"
	"testing"
)

// missing ends the test because something that it needs is not on this machine.
func missing(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("REDELIVER_REQUIRE_BROKERS") == "1" {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}
