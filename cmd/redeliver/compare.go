package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/policyfile"
)

// A compare is what the command compare is asked for.
type compare struct {
	source  source
	broker  brokerFlag
	outages []time.Duration
	run     time.Duration
	json    bool
}

func newCompare() *cobra.Command {
	var c compare
	cmd := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Say what a change of policies means",
		Long: `Compare says, for every policy that two files have under the same name, what
differs and what that leads to: how long a poison message is tried, and which
outages messages outlive that they did not before, or no longer do. It also says
which queues and types of message another policy governs now.`,
		Example: `  redeliver compare policies.yaml new.yaml
  git show main:policies.yaml > old.yaml && redeliver compare old.yaml policies.yaml
  redeliver compare old.yaml new.yaml --outage 90s,10m --json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return c.do(cmd.OutOrStdout(), args[0], args[1]) },
	}
	c.source.read(cmd)
	c.broker.add(cmd)
	cmd.Flags().DurationSliceVarP(&c.outages, "outage", "o", nil, "lengths of outages to compare, such as 90s,10m")
	cmd.Flags().DurationVar(&c.run, "run", 0, "how long an attempt takes until it has failed")
	cmd.Flags().BoolVar(&c.json, "json", false, "write JSON, for programs")
	return cmd
}

type compareJSON struct {
	Policy    string               `json:"policy"`
	Status    string               `json:"status"` // same, changed, added, removed
	Changes   []string             `json:"changes,omitempty"`
	Survivals []survivalChangeJSON `json:"survivals,omitempty"`
	Old       *horizonJSON         `json:"old_horizon,omitempty"`
	New       *horizonJSON         `json:"new_horizon,omitempty"`
}

type survivalChangeJSON struct {
	Old survivalJSON `json:"old"`
	New survivalJSON `json:"new"`
}

func (c *compare) do(w io.Writer, oldPath, newPath string) error {
	bad := notNegative("run", c.run)
	for _, outage := range c.outages {
		bad = errors.Join(bad, notNegative("outage", outage))
	}
	if bad != nil {
		return bad
	}
	older, err := c.source.load(oldPath)
	if err != nil {
		return err
	}
	newer, err := c.source.load(newPath)
	if err != nil {
		return err
	}
	broker, err := c.broker.broker()
	if err != nil {
		return err
	}
	governed := governance(older, newer)
	p := newPrinter(w)
	list := []compareJSON{}
	for _, name := range keys(older.Policies, newer.Policies) {
		entry, diff, err := c.policy(name, older, newer, analysis.Conditions{Run: c.run, Broker: broker})
		if err != nil {
			return fmt.Errorf("policy %q: %w", name, err)
		}
		if entry.Changes = append(entry.Changes, governed[name]...); len(governed[name]) > 0 && entry.Status == "same" {
			entry.Status = "changed"
		}
		if !c.json {
			c.print(p, entry, diff)
		}
		list = append(list, entry)
	}
	if c.json {
		return writeJSON(w, list)
	}
	return nil
}

// policy compares what the files have under one name. The comparison is nil where only one of them has it.
func (c *compare) policy(name string, older, newer *policyfile.File, conditions analysis.Conditions) (compareJSON, *analysis.Comparison, error) {
	a, before := older.Policies[name]
	b, after := newer.Policies[name]
	entry := compareJSON{Policy: name, Status: "same"}
	switch {
	case !before:
		entry.Status, entry.Changes = "added", []string{analysis.Describe(b)}
		return entry, nil, nil
	case !after:
		entry.Status, entry.Changes = "removed", []string{analysis.Describe(a)}
		return entry, nil, nil
	}
	diff, err := analysis.Compare(a, b, conditions, c.outages...)
	if err != nil {
		return entry, nil, err
	}
	if len(diff.Changes)+len(diff.Survivals) > 0 {
		entry.Status, entry.Changes = "changed", diff.Changes
		x, y := newHorizon(diff.Old.Horizon()), newHorizon(diff.New.Horizon())
		entry.Old, entry.New = &x, &y
	}
	for _, s := range diff.Survivals {
		entry.Survivals = append(entry.Survivals, survivalChangeJSON{newSurvival(s.Old), newSurvival(s.New)})
	}
	return entry, diff, nil
}

// governance tells, by the name of a policy, what it governs that another one governed before.
func governance(older, newer *policyfile.File) map[string][]string {
	changes := map[string][]string{}
	note := func(queue, kind, what string) {
		if before, now := older.NameFor(queue, kind), newer.NameFor(queue, kind); before != now {
			changes[now] = append(changes[now], fmt.Sprintf("governs %s, before: %s", what, before))
		}
	}
	note("", "", "what nothing else names")
	for _, kind := range keys(older.Types, newer.Types) {
		note("", kind, fmt.Sprintf("the type %q", kind))
	}
	for _, queue := range keys(older.Queues, newer.Queues) {
		note(queue, "", fmt.Sprintf("the queue %q", queue))
		for _, kind := range keys(older.Queues[queue].Types, newer.Queues[queue].Types) {
			note(queue, kind, fmt.Sprintf("the type %q in the queue %q", kind, queue))
		}
	}
	return changes
}

// keys returns those of two maps, in order.
func keys[V any](a, b map[string]V) []string {
	all := map[string]V{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func (c *compare) print(p *printer, entry compareJSON, diff *analysis.Comparison) {
	p.line("%s: %s", p.paint(bold, entry.Policy), entry.Status)
	for _, change := range entry.Changes {
		p.line("  %s", change)
	}
	if diff == nil || len(diff.Survivals) == 0 {
		return
	}
	p.line("  %s", p.paint(dim, fmt.Sprintf("%8s  %12s %12s  %12s %12s", "outage", "as it begins", "before", "any time", "before")))
	for _, s := range diff.Survivals {
		p.line("  %8s  %s %12s  %s %12s", analysis.Text(s.New.Outage),
			better(p, s.New.AtStart, s.Old.AtStart), s.Old.AtStart.Percent(), better(p, s.New.Within, s.Old.Within), s.Old.Within.Percent())
	}
}

func better(p *printer, now, before analysis.Share) string {
	s := fmt.Sprintf("%12s", now.Percent())
	switch {
	case now.Low() > before.High():
		return p.paint(green, s)
	case now.High() < before.Low():
		return p.paint(red, s)
	default:
		return s
	}
}
