package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	cases := []struct {
		name    string
		in      string
		out     string
		skipped int
	}{
		{
			name: "a test that passed is not quoted",
			in: `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:4: quiet\n"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
`,
			out: "ok  \tm/a\t0.1s\n",
		},
		{
			name: "a test that failed is quoted, apart from others at the same time",
			in: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:4: bad\n"}
{"Action":"output","Package":"m/b","Test":"TestB","Output":"    b_test.go:4: quiet\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"pass","Package":"m/b","Test":"TestB"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"FAIL\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}
{"Action":"fail","Package":"m/a"}
`,
			out: "    a_test.go:4: bad\n--- FAIL: TestA (0.00s)\nFAIL\nFAIL\tm/a\t0.1s\n",
		},
		{
			name: "a test that the process did not outlive is quoted",
			in: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"panic: boom\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}
{"Action":"fail","Package":"m/a"}
`,
			out: "panic: boom\nFAIL\tm/a\t0.1s\n",
		},
		{
			name: "a skipped test is named with its reason",
			in: `{"Action":"output","Package":"m/a","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:4: no broker\n"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestA"}
{"Action":"skip","Package":"m/a","Test":"TestB"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
`,
			out:     "skipped TestA: a_test.go:4: no broker\nskipped TestB: no reason given\nok  \tm/a\t0.1s\n",
			skipped: 2,
		},
		{
			name: "a package without test files skips nothing",
			in: `{"Action":"output","Package":"m/d","Output":"?   \tm/d\t[no test files]\n"}
{"Action":"skip","Package":"m/d"}
{"Action":"output","Package":"m/e","Output":"testing: warning: no tests to run\n"}
{"Action":"output","Package":"m/e","Output":"PASS\n"}
{"Action":"output","Package":"m/e","Output":"ok  \tm/e\t0.1s [no tests to run]\n"}
{"Action":"pass","Package":"m/e"}
`,
			out: "?   \tm/d\t[no test files]\nok  \tm/e\t0.1s [no tests to run]\n",
		},
		{
			name: "a TestMain that runs nothing has skipped all",
			in: `{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
`,
			out:     "skipped all of m/a: its TestMain ran no test\nok  \tm/a\t0.1s\n",
			skipped: 1,
		},
		{
			name: "what does not compile is quoted, and what is no event copied",
			in: `{"ImportPath":"m/c [m/c.test]","Action":"build-output","Output":"# m/c [m/c.test]\n"}
{"ImportPath":"m/c [m/c.test]","Action":"build-output","Output":"c_test.go:2:1: no\n"}
{"ImportPath":"m/c [m/c.test]","Action":"build-fail"}
{"Action":"output","Package":"m/c","Output":"FAIL\tm/c [build failed]\n"}
{"Action":"fail","Package":"m/c","FailedBuild":"m/c [m/c.test]"}
not an event`,
			out: "# m/c [m/c.test]\nc_test.go:2:1: no\nFAIL\tm/c [build failed]\nnot an event",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			skipped, err := report(strings.NewReader(c.in), &out)
			require.NoError(t, err)
			require.Equal(t, c.out, out.String())
			require.Equal(t, c.skipped, skipped)
		})
	}
}
