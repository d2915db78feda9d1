package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/internal/chart"
	"github.com/redeliver/redeliver/simulate"
)

// A simulation is what the command simulate is asked for.
type simulation struct {
	source   source
	broker   brokerFlag
	scenario simulate.Scenario
	json     bool
	svg      string
}

func newSimulate() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate FILE",
		Short: "Play an outage with many messages, and show the load on the dependency",
		Long: `Simulate plays an outage: messages arrive, consumers take them and call a
dependency that serves so many calls a second, and that is down for a while. It
shows the load over time, and compares the policy with variants of it that differ
in their jitter, or have a retry budget: the peak after the outage, how many
messages are dead-lettered, and how long it takes until all is worked off.

The budget stretches waits to between two and four times their length while
there are more retries than 100 and a fifth of the successes. Nothing is given
up for it.

Time is virtual. The same flags give the same numbers on every machine.`,
		Example: `  redeliver simulate policies.yaml
  redeliver simulate policies.yaml --policy payments --messages 100000 --over 10m --capacity 300
  redeliver simulate policies.yaml --messages 5000 --over 0s --outage 10s --svg herd.svg`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return s.do(cmd.OutOrStdout(), args[0]) },
	}
	s.source.choose(cmd)
	s.broker.add(cmd)
	f := cmd.Flags()
	f.IntVarP(&s.scenario.Messages, "messages", "n", simulate.DefaultMessages, "how many messages")
	f.DurationVar(&s.scenario.Over, "over", 5*time.Minute, "the time in which they arrive; 0s is all at once")
	f.IntVarP(&s.scenario.Consumers, "consumers", "c", simulate.DefaultConsumers, "how many are handled at the same time")
	f.Float64Var(&s.scenario.Capacity, "capacity", 60, "calls a second that the dependency serves; 0 is no limit")
	f.DurationVar(&s.scenario.Outage.From, "from", time.Minute, "when the outage begins")
	f.DurationVarP(&s.scenario.Outage.For, "outage", "o", 90*time.Second, "how long it lasts")
	f.DurationVar(&s.scenario.Work, "work", simulate.DefaultWork, "how long a call takes")
	f.DurationVar(&s.scenario.Fail, "fail", 0, "how long a call takes that fails; as --work if none is given")
	f.DurationVar(&s.scenario.Step, "step", simulate.DefaultStep, "step in which the load is counted")
	f.Uint64Var(&s.scenario.Seed, "seed", 1, "another one is another chance")
	f.BoolVar(&s.json, "json", false, "write JSON, for programs")
	f.StringVar(&s.svg, "svg", "", "draw the load into this file")
	return cmd
}

func (s *simulation) do(w io.Writer, path string) error {
	chosen, err := s.source.pick(path)
	if err != nil {
		return err
	}
	broker, err := s.broker.broker()
	if err != nil {
		return err
	}
	s.scenario.Limits = broker.Limits
	variants := simulate.Variants(chosen)
	var results []*simulate.Result
	for _, v := range variants {
		r, err := v.Run(s.scenario)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if s.svg != "" {
		if err := s.draw(variants, results); err != nil {
			return err
		}
	}
	if s.json {
		return s.writeJSON(w, variants, results)
	}
	s.print(newPrinter(w), variants, results)
	return nil
}

// calls returns the load in calls a second.
func calls(r *simulate.Result) []float64 {
	var rates []float64
	for _, l := range r.Load {
		rates = append(rates, float64(l.Calls)/r.Scenario.Step.Seconds())
	}
	return rates
}

func (s *simulation) print(p *printer, variants []simulate.Variant, results []*simulate.Result) {
	policy, first := variants[0].Policy, results[0]
	p.line("%s  %s", p.paint(bold, policy.Name), analysis.Describe(policy))
	p.heading("Calls a second, from 0s to %s; down from %s to %s",
		analysis.Text(first.Drained), analysis.Text(s.scenario.Outage.From), analysis.Text(s.scenario.Outage.End()))
	p.columns(calls(first), 72, func(v float64) string { return fmt.Sprintf("%.0f", v) })
	p.heading("%d messages", first.Scenario.Messages)
	p.line("  %s", p.paint(dim, fmt.Sprintf("%-13s %13s %8s %9s %13s %16s", "", "dead-lettered", "calls", "refused", "peak after it", "worked off after")))
	for i, r := range results {
		p.line("  %-13s %s %8d %9d %11.0f/s %16s", variants[i].Name,
			p.paint(survivalStyle(1-r.DeadShare(), 0.99), fmt.Sprintf("%11.1f %%", 100*r.DeadShare())), r.Calls, r.Refused, r.PeakRate(), analysis.Text(r.AfterOutage()))
	}
}

func (s *simulation) draw(variants []simulate.Variant, results []*simulate.Result) error {
	scenario := results[0].Scenario
	shade := &chart.Shade{From: scenario.Outage.From, To: scenario.Outage.End(), Label: "down"}
	if scenario.Outage.For == 0 {
		shade = nil
	}
	loads := &chart.Lines{
		Head: "Calls a second", Shade: shade, Limit: scenario.Capacity, Level: "capacity",
		Format: func(v float64) string { return fmt.Sprintf("%.6g", v) },
	}
	waiting := &chart.Lines{Head: "Messages that are due and find no consumer", Shade: shade, Format: loads.Format}
	for i, r := range results {
		load, backlog := chart.Series{Label: variants[i].Name}, chart.Series{Label: variants[i].Name}
		for j, rate := range calls(r) {
			load.At, load.Value = append(load.At, r.Load[j].At), append(load.Value, rate)
			backlog.At, backlog.Value = append(backlog.At, r.Load[j].At), append(backlog.Value, float64(r.Load[j].Backlog))
		}
		loads.Series, waiting.Series = append(loads.Series, load), append(waiting.Series, backlog)
	}
	p, panels := variants[0].Policy, []chart.Panel{loads}
	if queued(results) {
		panels = append(panels, waiting)
	}
	return writeFile(s.svg, func(w io.Writer) error {
		return chart.WriteSVG(w, p.Name, analysis.Describe(p), panels...)
	})
}

// queued reports whether messages ever had to wait for a consumer.
func queued(results []*simulate.Result) bool {
	return slices.ContainsFunc(results, func(r *simulate.Result) bool {
		return slices.ContainsFunc(r.Load, func(l simulate.Load) bool { return l.Backlog > 0 })
	})
}

type simulateJSON struct {
	Variant      string     `json:"variant"`
	Policy       string     `json:"policy"`
	Messages     int        `json:"messages"`
	Succeeded    int        `json:"succeeded"`
	DeadLettered int        `json:"dead_lettered"`
	Discarded    int        `json:"discarded"`
	Calls        int        `json:"calls"`
	Down         int        `json:"down"`
	Refused      int        `json:"refused"`
	PeakRate     float64    `json:"peak_per_second"`
	PeakAt       text       `json:"peak_at"`
	Drained      text       `json:"drained"`
	AfterOutage  text       `json:"after_outage"`
	Step         text       `json:"step"`
	Load         []loadJSON `json:"load"`
}

type loadJSON struct {
	At      text `json:"at"`
	Calls   int  `json:"calls"`
	Down    int  `json:"down"`
	Refused int  `json:"refused"`
	Backlog int  `json:"backlog"`
}

func (s *simulation) writeJSON(w io.Writer, variants []simulate.Variant, results []*simulate.Result) error {
	var list []simulateJSON
	for i, r := range results {
		entry := simulateJSON{
			variants[i].Name, analysis.Describe(variants[i].Policy), r.Scenario.Messages, r.Succeeded, r.DeadLettered, r.Discarded, r.Calls, r.Down, r.Refused,
			r.PeakRate(), text(r.PeakAt), text(r.Drained), text(r.AfterOutage()), text(r.Scenario.Step), nil,
		}
		for _, l := range r.Load {
			entry.Load = append(entry.Load, loadJSON{text(l.At), l.Calls, l.Down, l.Refused, l.Backlog})
		}
		list = append(list, entry)
	}
	return writeJSON(w, list)
}
