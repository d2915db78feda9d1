package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/redeliver/redeliver/analysis"
	"github.com/redeliver/redeliver/internal/chart"
)

// A plan is what the command plan is asked for.
type plan struct {
	source source
	broker brokerFlag
	outage outageFlag
	run    time.Duration
	json   bool
	svg    string
}

func newPlan() *cobra.Command {
	var p plan
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "Show when a policy retries, when it gives up, and which outages it outlives",
		Long: `Plan shows when the attempts of a message fall that fails each time, when it is
given up, and what share of the messages outlives an outage.

The share is given twice. "As it begins" is for messages that fail first as the
outage begins, and so have to last for all of it. "Any time" is for messages that
fail first at any time within it, as those of a steady stream do. Both are
computed, not sampled.

With --outage it also says what to change so that --survive of the messages
outlive it, and what that costs: how long a message that can never succeed is
kept being tried.`,
		Example: `  redeliver plan policies.yaml
  redeliver plan policies.yaml --policy payments --outage 90s
  redeliver plan policies.yaml --outage 10m --broker sqs --run 5s
  redeliver plan policies.yaml --outage 90s --svg plan.svg
  redeliver plan policies.yaml --json | jq -r .horizon.mean`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return p.do(cmd.OutOrStdout(), args[0]) },
	}
	p.source.choose(cmd)
	p.broker.add(cmd)
	p.broker.addRetention(cmd)
	p.outage.add(cmd)
	cmd.Flags().DurationVar(&p.run, "run", 0, "how long an attempt takes until it has failed, such as the timeout of a call")
	cmd.Flags().BoolVar(&p.json, "json", false, "write JSON, for programs")
	cmd.Flags().StringVar(&p.svg, "svg", "", "draw the plan into this file")
	return cmd
}

func (p *plan) do(w io.Writer, path string) error {
	if err := errors.Join(p.outage.check(), notNegative("run", p.run)); err != nil {
		return err
	}
	chosen, err := p.source.pick(path)
	if err != nil {
		return err
	}
	broker, err := p.broker.broker()
	if err != nil {
		return err
	}
	conditions := analysis.Conditions{Run: p.run, Broker: broker}
	s, err := analysis.New(chosen, conditions)
	if err != nil {
		return err
	}
	r := report{plan: p, schedule: s, horizon: s.Horizon()}
	if r.warnings, err = analysis.Lint(chosen, conditions, p.outage.length, p.outage.survive); err != nil {
		return err
	}
	outages := analysis.Outages
	if p.outage.length > 0 {
		outages = []time.Duration{p.outage.length}
		if r.advice, err = analysis.Advise(chosen, p.outage.length, p.outage.survive, conditions); err != nil {
			return err
		}
	}
	for _, o := range outages {
		r.survivals = append(r.survivals, s.Survival(o))
	}
	if p.svg != "" {
		if err := r.draw(p.svg); err != nil {
			return err
		}
	}
	if p.json {
		return r.writeJSON(w)
	}
	r.print(newPrinter(w))
	return nil
}

// A report is what a plan has found.
type report struct {
	plan      *plan
	schedule  *analysis.Schedule
	horizon   analysis.Horizon
	survivals []analysis.Survival
	advice    *analysis.Advice // nil without an outage
	warnings  []analysis.Warning
}

// mostRows is how many attempts people are shown.
const mostRows = 40

func (r *report) print(p *printer) {
	s := r.schedule
	p.line("%s  %s", p.paint(bold, s.Policy.Name), analysis.Describe(s.Policy))
	p.heading("Attempts")
	most := max(s.Attempts[len(s.Attempts)-1].At.Latest, r.plan.outage.length)
	p.line("  %s", p.paint(dim, fmt.Sprintf("%3s  %9s  %9s %9s %9s", "", "waits", "begins", "mean", "latest")))
	for i, a := range s.Attempts {
		if i == mostRows && len(s.Attempts) > mostRows+1 {
			p.line("  ... and so on")
			break
		}
		wait := ""
		if i > 0 {
			wait = analysis.Text(a.Wait.Mean)
		}
		reached := ""
		if share := a.Reached.Percent(); share != "100 %" {
			reached = "  " + share
		}
		p.line("  %3d  %9s  %9s %9s %9s  %s%s", a.Number, wait, analysis.Text(a.At.Earliest), analysis.Text(a.At.Mean), analysis.Text(a.At.Latest),
			p.span(a.At, most, r.plan.outage.length), reached)
	}
	p.line("")
	p.line("  A message that fails each time is %s.", ending(r.horizon))
	r.printRules(p)

	p.heading("Outages, and the share of the messages that outlives them")
	p.line("  %s", p.paint(dim, fmt.Sprintf("%8s  %12s  %12s", "", "as it begins", "any time")))
	for _, v := range r.survivals {
		p.line("  %8s  %s  %s", analysis.Text(v.Outage), r.share(p, v.AtStart), r.share(p, v.Within))
	}
	if r.advice != nil && !r.advice.Enough {
		r.printAdvice(p)
	}
	printWarnings(p, r.warnings)
}

func (r *report) share(p *printer, s analysis.Share) string {
	return p.paint(survivalStyle(s.Value, r.plan.outage.survive), fmt.Sprintf("%12s", s.Percent()))
}

// ending says when a message is given up.
func ending(h analysis.Horizon) string {
	if h.Never {
		return "never given up"
	}
	if h.Earliest == h.Latest {
		return fmt.Sprintf("given up after %s and %.3g calls", analysis.Text(h.Mean), h.Attempts)
	}
	return fmt.Sprintf("given up after %s on average, %s to %s, and %.3g calls",
		analysis.Text(h.Mean), analysis.Text(h.Earliest), analysis.Text(h.Latest), h.Attempts)
}

func (r *report) printAdvice(p *printer) {
	a := r.advice
	p.heading("To outlive %s with %.4g %% of the messages, one of", analysis.Text(a.Outage), 100*a.Want)
	if len(a.Options) == 0 {
		p.line("  nothing found: the outage is too long for this curve; write another, with longer delays")
	}
	for _, o := range a.Options {
		p.line("  %s: %s; a poison message is given up after %s", o.Text, o.Survival.AtStart.Percent(), analysis.Text(o.Horizon.Mean))
	}
}

// printRules says what becomes of the errors that a rule is for.
func (r *report) printRules(p *printer) {
	if len(r.schedule.Policy.Rules) == 0 {
		return
	}
	p.heading("Rules, for some errors")
	for i, rule := range r.schedule.Policy.Rules {
		what := analysis.DescribeRule(r.schedule.Policy, i)
		if rule.Retries() {
			if s, err := analysis.New(r.schedule.Policy.Branch(i), r.schedule.Conditions); err == nil {
				what += "; " + ending(s.Horizon())
			}
		}
		p.line("  %s %s", analysis.RuleName(r.schedule.Policy, i), what)
	}
}

func printWarnings(p *printer, warnings []analysis.Warning) {
	if len(warnings) == 0 {
		return
	}
	p.heading("Findings")
	for _, w := range warnings {
		p.line("  %s %s: %s", severity(p, w), w.Code, w.Text)
	}
}

func severity(p *printer, w analysis.Warning) string {
	if w.Note {
		return p.paint(dim, "note")
	}
	return p.paint(yellow, "warning")
}

// draw makes the drawing, and the file only when it is whole.
func (r *report) draw(path string) error {
	s := r.schedule
	spans := &chart.Spans{Head: "When each attempt begins: earliest to latest, and the mean"}
	for _, a := range s.Attempts[:min(len(s.Attempts), mostRows)] {
		spans.Rows = append(spans.Rows, chart.Span{
			Label: fmt.Sprintf("attempt %d", a.Number), Earliest: a.At.Earliest, Mean: a.At.Mean, Last: a.At.Latest,
		})
	}
	most := spans.Rows[len(spans.Rows)-1].Last
	var shade *chart.Shade
	if r.plan.outage.length > 0 {
		shade = &chart.Shade{To: r.plan.outage.length, Label: "outage of " + analysis.Text(r.plan.outage.length)}
		most = max(most, r.plan.outage.length)
	}
	spans.Shade = shade

	const points = 100
	start, within := chart.Series{Label: "failed first as it began"}, chart.Series{Label: "at any time in it"}
	for i := range points + 1 {
		outage := time.Duration(float64(most) * 1.15 * float64(i) / points)
		v := s.Survival(outage)
		start.At, start.Value = append(start.At, outage), append(start.Value, v.AtStart.Value)
		within.At, within.Value = append(within.At, outage), append(within.Value, v.Within.Value)
	}
	lines := &chart.Lines{
		Head: "Share of messages that outlive an outage, by its length", Series: []chart.Series{start, within}, Top: 1,
		Format: func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
	}
	if shade != nil {
		at := fmt.Sprintf("%.4g %% wanted", 100*r.plan.outage.survive)
		lines.Limit, lines.Level = r.plan.outage.survive, at
	}
	return writeFile(path, func(w io.Writer) error {
		return chart.WriteSVG(w, s.Policy.Name, analysis.Describe(s.Policy), spans, lines)
	})
}

func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

type planJSON struct {
	Policy    string         `json:"policy"`
	Text      string         `json:"text"`
	Attempts  []attemptJSON  `json:"attempts"`
	Endless   bool           `json:"endless"`
	Horizon   horizonJSON    `json:"horizon"`
	Survivals []survivalJSON `json:"survivals"`
	Advice    []optionJSON   `json:"advice,omitempty"`
	Warnings  []warningJSON  `json:"warnings"`
}

func (r *report) writeJSON(w io.Writer) error {
	s := r.schedule
	out := planJSON{
		Policy: s.Policy.Name, Text: analysis.Describe(s.Policy), Endless: s.Endless, Horizon: newHorizon(r.horizon), Warnings: []warningJSON{},
	}
	for _, a := range s.Attempts {
		out.Attempts = append(out.Attempts, attemptJSON{a.Number, newRange(a.Wait), newRange(a.At), shareJSON(a.Reached)})
	}
	for _, v := range r.survivals {
		out.Survivals = append(out.Survivals, newSurvival(v))
	}
	if r.advice != nil {
		for _, o := range r.advice.Options {
			out.Advice = append(out.Advice, optionJSON{o.Code, o.Text, newSurvival(o.Survival), newHorizon(o.Horizon)})
		}
	}
	for _, found := range r.warnings {
		out.Warnings = append(out.Warnings, warningJSON(found))
	}
	return writeJSON(w, out)
}
