package main

import (
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/analysis"
)

// A lint is what the command lint is asked for.
type lint struct {
	source  source
	broker  brokerFlag
	outage  time.Duration
	survive float64
	ignore  []string
	json    bool
}

func newLint() *cobra.Command {
	var l lint
	cmd := &cobra.Command{
		Use:   "lint FILE",
		Short: "Check every policy of a file",
		Long: `Lint reads a file and says what is wrong with it and what is suspicious about
each of its policies. Every warning has a code, which docs/command.md explains and
--ignore silences. Notes are facts to know, and no fault.

Exit codes, for CI: 0 nothing found, or notes alone; 1 there are warnings; 2 the
file is not valid: each fault is printed with file, line and column.`,
		Example: `  redeliver lint policies.yaml
  redeliver lint policies.yaml --broker sqs --outage 90s
  redeliver lint policies.yaml --ignore no-cap,descending`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return l.do(cmd.OutOrStdout(), args[0]) },
	}
	l.source.read(cmd)
	l.broker.add(cmd)
	cmd.Flags().DurationVarP(&l.outage, "outage", "o", 0, "length of an outage that messages should outlive, such as 90s")
	cmd.Flags().Float64Var(&l.survive, "survive", 0.99, "share of the messages that should, from 0 to 1")
	cmd.Flags().StringSliceVar(&l.ignore, "ignore", nil, "codes to leave out")
	cmd.Flags().BoolVar(&l.json, "json", false, "write JSON, for programs")
	return cmd
}

type lintJSON struct {
	Policy string `json:"policy"`
	warningJSON
}

func (l *lint) do(w io.Writer, path string) error {
	if err := checkOutage(l.outage, l.survive); err != nil {
		return err
	}
	file, err := l.source.load(path)
	if err != nil {
		return err
	}
	broker, err := l.broker.broker()
	if err != nil {
		return err
	}
	found := []lintJSON{}
	warnings := false
	for _, name := range names(file) {
		ws, err := analysis.Lint(file.Policies[name], analysis.Conditions{Broker: broker}, l.outage, l.survive)
		if err != nil {
			return err
		}
		for _, w := range ws {
			if !slices.Contains(l.ignore, string(w.Code)) {
				found = append(found, lintJSON{name, warningJSON(w)})
				warnings = warnings || !w.Note
			}
		}
	}
	if l.json {
		if err := writeJSON(w, found); err != nil {
			return err
		}
	} else {
		p := newPrinter(w)
		for _, f := range found {
			p.line("%s: %s: %s %s: %s", path, f.Policy, severity(p, analysis.Warning(f.warningJSON)), f.Code, f.Text)
		}
	}
	if warnings {
		return errWarnings
	}
	return nil
}
