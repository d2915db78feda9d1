package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/analysis"
)

// A lint is what the command lint is asked for.
type lint struct {
	source source
	broker brokerFlag
	outage outageFlag
	ignore []string
	json   bool
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
	l.broker.addRetention(cmd)
	l.outage.add(cmd)
	cmd.Flags().StringSliceVar(&l.ignore, "ignore", nil, "codes to leave out")
	_ = cmd.RegisterFlagCompletionFunc("ignore", cobra.FixedCompletions(codes(), cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&l.json, "json", false, "write JSON, for programs")
	return cmd
}

func codes() (names []string) {
	for _, code := range analysis.Codes() {
		names = append(names, string(code))
	}
	return names
}

type lintJSON struct {
	Policy string `json:"policy"`
	warningJSON
}

func (l *lint) do(w io.Writer, path string) error {
	if err := l.outage.check(); err != nil {
		return err
	}
	for _, code := range l.ignore {
		if !slices.Contains(codes(), code) {
			return fmt.Errorf("--ignore %s: there is no such code: it may be %s", code, strings.Join(codes(), ", "))
		}
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
		ws, err := analysis.Lint(file.Policies[name], analysis.Conditions{Broker: broker}, l.outage.length, l.outage.survive)
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
