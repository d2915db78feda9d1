// Redeliver shows what the retry policies of a file lead to.
//
//	redeliver plan policies.yaml --outage 90s
//	redeliver lint policies.yaml
//	redeliver compare old.yaml new.yaml
//	redeliver simulate policies.yaml
//
// Each command explains itself with --help; docs/command.md has samples, the
// codes of warnings and the JSON.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/policyfile"
)

// The exit codes.
const (
	exitOK       = 0
	exitWarnings = 1 // lint found something
	exitFault    = 2 // the command line, a file or a policy is not valid
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// errWarnings makes lint end with exitWarnings. It has been said already what
// is wrong.
var errWarnings = errors.New("there are warnings")

// run is the program, apart from the process.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	switch err := root.Execute(); {
	case err == nil:
		return exitOK
	case errors.Is(err, errWarnings):
		return exitWarnings
	default:
		text := err.Error()
		if _, ok := errors.AsType[*policyfile.Error](err); !ok {
			text = "redeliver: " + text
		} // else each line begins with its place, which editors can find
		fmt.Fprintln(stderr, text)
		return exitFault
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "redeliver",
		Short: "Show what retry policies lead to",
		Long: `Redeliver reads retry policies from a file and shows what they lead to: when a
message is tried again, when it is given up, what share of the messages outlives
an outage, and what a recovering dependency has to bear.

A policy file looks like this:

  default: standard
  policies:
    standard:
      max_attempts: 8                 # the eighth failure is the last
      backoff: {curve: exponential, base: 500ms, max: 30s}
      jitter: full

Exit codes: 0 all is well; 1 lint found something; 2 the command line, a file or
a policy is not valid.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newPlan(), newLint(), newCompare(), newSimulate())
	return root
}
