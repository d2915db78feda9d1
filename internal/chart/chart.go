// Package chart draws the two kinds of chart that the command needs: spans of
// time, one a row, and lines over time. A drawing is one SVG file without
// scripts or fonts of its own. It follows the reader's light or dark colour
// scheme, and its letters are large enough to be read at half its size.
package chart

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"

	"github.com/redeliver/redeliver/internal/timetext"
)

// The drawing is as wide as this, in units that a browser scales.
const (
	width  = 720
	left   = 104 // of the plot
	right  = 696
	line   = 22 // from one line of text to the next
	margin = 24
)

// style gives each part a class. Colours are those that hold 4.5 to 1 against
// their background, and that readers who do not tell red from green can tell.
const style = `
svg { color-scheme: light dark; font: 15px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  --paper: #ffffff; --ink: #1f2328; --muted: #57606a; --grid: #dde2e8; --shade: #fde9e4; --shade-ink: #a3330f;
  --c0: #0b63ce; --c1: #c2410c; --c2: #0f766e; --c3: #7c3aed; --c4: #a16207; }
@media (prefers-color-scheme: dark) { svg {
  --paper: #0f1419; --ink: #e6edf3; --muted: #9aa6b2; --grid: #2a323b; --shade: #33201b; --shade-ink: #ffb199;
  --c0: #6cb0ff; --c1: #ff9a5c; --c2: #4fd1c0; --c3: #c4a5ff; --c4: #e3c04f; } }
.paper { fill: var(--paper) } .shade { fill: var(--shade) }
text { fill: var(--ink) } .muted { fill: var(--muted) } .shade-ink { fill: var(--shade-ink) }
.title { font-size: 20px; font-weight: 650 } .head { font-size: 16px; font-weight: 600 }
.grid { stroke: var(--grid); stroke-width: 1 } .limit { stroke: var(--muted); stroke-width: 1.5; stroke-dasharray: 6 5 }
.end { text-anchor: end } .middle { text-anchor: middle }
.span { stroke: var(--c0); stroke-width: 10; stroke-linecap: round; opacity: .38 } .mean { fill: var(--c0) }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
`

// A Panel is one chart of a drawing: *Spans or *Lines.
type Panel interface {
	height() int
	draw(d *drawing, top int)
}

// A Shade marks a stretch of time in a panel, such as an outage.
type Shade struct {
	From, To time.Duration
	Label    string
}

// A Span is a row of Spans: a range of time with a mean.
type Span struct {
	Label                string
	Earliest, Mean, Last time.Duration
}

// Spans shows ranges of time below each other, on one axis.
type Spans struct {
	Head  string
	Rows  []Span
	Shade *Shade // nil is none
}

// A Series is a line of Lines.
type Series struct {
	Label string
	At    []time.Duration
	Value []float64
}

// Lines shows values over time.
type Lines struct {
	Head   string
	Series []Series
	Shade  *Shade               // nil is none
	Top    float64              // of the axis; 0 is the largest value
	Limit  float64              // a level to mark; 0 is none
	Level  string               // what that level is
	Format func(float64) string // of the values on the axis
}

// WriteSVG draws the panels below each other.
func WriteSVG(w io.Writer, title, subtitle string, panels ...Panel) error {
	height := margin + 2*line + margin/2
	for _, p := range panels {
		height += p.height() + margin
	}
	d := &drawing{}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, height, html.EscapeString(title+": "+subtitle))
	d.add(`<title>%s</title><style>%s</style>`, html.EscapeString(title), style)
	d.add(`<rect class="paper" width="%d" height="%d"/>`, width, height)
	d.text(margin, float64(margin+line-6), "title", title)
	d.text(margin, float64(margin+2*line), "muted", subtitle)
	top := margin + 2*line + margin
	for _, p := range panels {
		p.draw(d, top)
		top += p.height() + margin
	}
	d.add(`</svg>`)
	_, err := io.WriteString(w, d.String())
	return err
}

type drawing struct{ strings.Builder }

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(x, y float64, class, s string) {
	if s != "" {
		d.add(`<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, class, html.EscapeString(s))
	}
}

// A scale places times on the axis.
type scale struct{ most time.Duration }

func (s scale) x(t time.Duration) float64 {
	return left + (right-left)*min(float64(t)/float64(max(s.most, 1)), 1)
}

func (d *drawing) shade(s *Shade, sc scale, top, bottom int) {
	if s == nil || s.From >= sc.most {
		return
	}
	from, to := sc.x(s.From), sc.x(s.To)
	d.add(`<rect class="shade" x="%.1f" y="%d" width="%.1f" height="%d"/>`, from, top, to-from, bottom-top)
}

// label names the shade, on top of what is drawn there.
func (d *drawing) label(s *Shade, sc scale, top int) {
	if s != nil && s.From < sc.most {
		d.text(sc.x(s.From)+8, float64(top+17), "shade-ink", s.Label)
	}
}

// timeAxis draws the vertical lines of the grid and their labels.
func (d *drawing) timeAxis(sc scale, top, bottom int) {
	for _, t := range Ticks(sc.most, 7) {
		x := sc.x(t)
		d.add(`<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x, top, x, bottom)
		class := "muted middle"
		if x > right-30 {
			class = "muted end"
			x = right + 12
		}
		d.text(x, float64(bottom+19), class, TickText(t))
	}
}

const rowHeight = 26

func (s *Spans) height() int { return line + 12 + rowHeight*len(s.Rows) + line + 4 }

func (s *Spans) draw(d *drawing, top int) {
	d.text(margin, float64(top+16), "head", s.Head)
	top += line + 6
	bottom := top + rowHeight*len(s.Rows) + 6
	sc := scale{}
	for _, r := range s.Rows {
		sc.most = max(sc.most, r.Last)
	}
	if s.Shade != nil {
		sc.most = max(sc.most, s.Shade.To)
	}
	d.shade(s.Shade, sc, top, bottom)
	d.timeAxis(sc, top, bottom)
	for i, r := range s.Rows {
		y := float64(top + 3 + i*rowHeight + rowHeight/2)
		d.text(left-14, y+5, "muted end", r.Label)
		if r.Last > r.Earliest {
			d.add(`<line class="span" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, sc.x(r.Earliest), y, sc.x(r.Last), y)
		}
		d.add(`<circle class="mean" cx="%.1f" cy="%.1f" r="5"/>`, sc.x(r.Mean), y)
	}
	if s.Shade != nil {
		// Rows fill from the upper left, and leave room at the right or below.
		d.add(`<text x="%.1f" y="%d" class="shade-ink end">%s</text>`, sc.x(s.Shade.To)-8, top+18, html.EscapeString(s.Shade.Label))
	}
}

const plotHeight = 190

func (l *Lines) height() int {
	h := line + 12 + plotHeight + line + 4
	if len(l.Series) > 1 {
		h += line
	}
	return h
}

func (l *Lines) draw(d *drawing, top int) {
	d.text(margin, float64(top+16), "head", l.Head)
	top += line + 6
	if len(l.Series) > 1 {
		x := float64(left)
		for i, s := range l.Series {
			d.add(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="var(--c%d)" stroke-width="4" stroke-linecap="round"/>`, x, top+8, x+18, top+8, i%5)
			d.text(x+26, float64(top+13), "", s.Label)
			x += 26 + 8.2*float64(len([]rune(s.Label))) + 22
		}
		top += line
	}
	bottom := top + plotHeight
	sc, most := scale{}, l.Top
	for _, s := range l.Series {
		for i, t := range s.At {
			sc.most = max(sc.most, t)
			if l.Top == 0 {
				most = max(most, s.Value[i]*1.05, l.Limit*1.05)
			}
		}
	}
	if most == 0 {
		most = 1
	}
	y := func(v float64) float64 { return float64(bottom) - plotHeight*min(v/most, 1) }
	d.shade(l.Shade, sc, top, bottom)
	d.timeAxis(sc, top, bottom)
	for _, v := range levels(most) {
		d.add(`<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`, left, y(v), right, y(v))
		d.text(left-12, y(v)+5, "muted end", l.Format(v))
	}
	for i := len(l.Series) - 1; i >= 0; i-- { // the first is the subject, on top
		s := l.Series[i]
		d.WriteString(`<path class="line" stroke="var(--c` + fmt.Sprint(i%5) + `)" d="`)
		for j, t := range s.At {
			command := 'L'
			if j == 0 {
				command = 'M'
			}
			fmt.Fprintf(d, "%c%.1f %.1f", command, sc.x(t), y(s.Value[j]))
		}
		d.add(`"/>`)
	}
	if l.Limit > 0 {
		d.add(`<line class="limit" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`, left, y(l.Limit), right, y(l.Limit))
		d.text(right, y(l.Limit)-6, "muted end", l.Level)
	}
	d.label(l.Shade, sc, top)
}

// levels are round values from 0 to the top of an axis, up to six of them.
func levels(most float64) []float64 {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.1, 0.2, 0.25, 0.5, 1, 2} {
		if most/(step*part) <= 5 {
			step *= part
			break
		}
	}
	var vs []float64
	for i := 0; float64(i)*step <= most*(1+1e-9); i++ {
		vs = append(vs, float64(i)*step)
	}
	return vs
}

// Ticks are round times from 0 to the most, up to n steps.
func Ticks(most time.Duration, n int) []time.Duration {
	var step time.Duration
	for _, s := range steps() {
		step = s
		if most/s <= time.Duration(n) {
			break
		}
	}
	var ts []time.Duration
	for t := time.Duration(0); t <= most; t += step {
		if ts = append(ts, t); len(ts) > 2*n {
			return ts[:1] // centuries
		}
	}
	return ts
}

// steps are the distances between ticks that people count in.
func steps() []time.Duration {
	var all []time.Duration
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		all = append(all, unit, 2*unit, 5*unit)
	}
	all = append(all,
		10*time.Second, 15*time.Second, 30*time.Second, time.Minute, 2*time.Minute, 5*time.Minute, 10*time.Minute,
		15*time.Minute, 30*time.Minute, time.Hour, 2*time.Hour, 3*time.Hour, 6*time.Hour, 12*time.Hour,
	)
	for day := 24 * time.Hour; day < math.MaxInt64/20; day *= 10 {
		all = append(all, day, 2*day, 5*day)
	}
	return all
}

// TickText writes a round time, such as "1.5s", "2m" or "3d".
func TickText(t time.Duration) string {
	if t >= 48*time.Hour && t%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", t/(24*time.Hour))
	}
	return timetext.Short(t)
}
