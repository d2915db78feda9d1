// Command skips reads what go test -json prints, and prints what go test prints
// without -json and -v; and also, above each package's line, which tests were
// skipped and why, of which go test says nothing.
//
//	go test -json ./... | go run ./internal/skips
//
// With -forbid it exits with status 1 if a test was skipped.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	forbid := flag.Bool("forbid", false, "exit with status 1 if a test was skipped")
	flag.Parse()
	skipped, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "skips: reading the output of go test -json:", err)
		os.Exit(1)
	}
	if skipped > 0 {
		fmt.Printf("skipped, as named above: %d\n", skipped)
		if *forbid {
			os.Exit(1)
		}
	}
}

// report copies go test's news from in to out, and returns how many tests were
// skipped.
func report(in io.Reader, out io.Writer) (int, error) {
	r := reporter{out: out, packages: map[string]*tests{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return r.skipped, err
		}
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			r.take(e)
		} else {
			fmt.Fprint(out, line)
		}
		if err != nil {
			return r.skipped, nil
		}
	}
}

// An event is one line of go test -json, as go doc test2json describes it.
type event struct {
	Action  string
	Package string
	Test    string // empty: the event is the package's
	Output  string
}

// tests are those of one package.
type tests struct {
	said map[string][]string // by those that have not ended, and "" for the package
	ran  bool
}

type reporter struct {
	out      io.Writer
	packages map[string]*tests // that have not ended
	skipped  int
}

func (r *reporter) take(e event) {
	p := r.packages[e.Package]
	if p == nil {
		p = &tests{said: map[string][]string{}}
		r.packages[e.Package] = p
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		p.said[e.Test] = append(p.said[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e, p)
			delete(r.packages, e.Package)
		} else {
			r.endTest(e, strings.Join(p.said[e.Test], ""))
			delete(p.said, e.Test)
			p.ran = true
		}
	}
}

func (r *reporter) endTest(e event, said string) {
	switch e.Action {
	case "fail":
		fmt.Fprint(r.out, said)
	case "skip":
		r.skip(e.Test, reason(said))
	}
}

func (r *reporter) endPackage(e event, p *tests) {
	if e.Action == "fail" {
		// What is left was said by tests that the process did not outlive; the
		// package's own words go last.
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(p.said))) {
			fmt.Fprint(r.out, strings.Join(p.said[name], ""))
		}
		return
	}
	said := strings.TrimSuffix(strings.Join(p.said[""], ""), "\n")
	verdict := said[strings.LastIndex(said, "\n")+1:]
	// A TestMain can leave without running a test, and then says nothing; the
	// testing package, where it finds none to run, says so in brackets.
	if !p.ran && !strings.Contains(verdict, "[no test") {
		r.skip("all of "+e.Package, "its TestMain ran no test")
	}
	fmt.Fprintln(r.out, verdict)
}

func (r *reporter) skip(name, why string) {
	fmt.Fprintf(r.out, "skipped %s: %s\n", name, why)
	r.skipped++
}

// reason returns what a skipped test said, on one line.
func reason(said string) string {
	var words []string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			words = append(words, line)
		}
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}
