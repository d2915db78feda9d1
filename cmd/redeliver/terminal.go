package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/redeliver/redeliver/analysis"
)

// A printer writes for people. It is plain where the output is no terminal, or
// where NO_COLOR is set to anything (https://no-color.org).
type printer struct {
	w      io.Writer
	colour bool
}

func newPrinter(w io.Writer) *printer {
	file, ok := w.(*os.File)
	return &printer{w, ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))}
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(p.w, format+"\n", args...) }

// A style is a sequence of SGR parameters.
type style string

const (
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	blue   style = "34"
)

func (p *printer) paint(s style, text string) string {
	if !p.colour || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// heading writes a section's title.
func (p *printer) heading(format string, args ...any) {
	p.line("")
	p.line("%s", p.paint(bold, fmt.Sprintf(format, args...)))
}

// survivalStyle tells good from bad at a glance.
func survivalStyle(share, want float64) style {
	switch {
	case share >= want:
		return green
	case share >= 0.5:
		return yellow
	default:
		return red
	}
}

const chartWidth = 44

// span draws a range of time in a row, with its mean, and the outage behind it.
func (p *printer) span(r analysis.Range, most, outage time.Duration) string {
	cell := func(t time.Duration) int {
		return int(float64(chartWidth-1)*float64(t)/float64(max(most, 1)) + 0.5)
	}
	var b strings.Builder
	for i := range chartWidth {
		switch {
		case i == cell(r.Mean):
			b.WriteString(p.paint(blue, "●"))
		case i >= cell(r.Earliest) && i <= cell(r.Latest):
			b.WriteString(p.paint(blue, "━"))
		case outage > 0 && i <= cell(outage):
			b.WriteString(p.paint(red, "·"))
		default:
			b.WriteByte(' ')
		}
	}
	return strings.TrimRight(b.String(), " ")
}

const chartHeight = 8

// columns draws a value for each step of time as a column.
func (p *printer) columns(values []float64, width int, label func(float64) string) {
	most := 0.0
	shown := make([]float64, width)
	for i, v := range values {
		j := i * width / len(values)
		shown[j] = max(shown[j], v)
		most = max(most, v)
	}
	if len(values) < width { // a step is several columns wide
		for j := range shown {
			shown[j] = values[j*len(values)/width]
		}
	}
	eighths := []rune(" ▁▂▃▄▅▆▇█")
	for row := chartHeight - 1; row >= 0; row-- {
		var b strings.Builder
		for _, v := range shown {
			part := 0.0
			if most > 0 {
				part = v/most*chartHeight - float64(row)
			}
			b.WriteRune(eighths[int(min(max(part, 0), 1)*8+0.5)])
		}
		axis := ""
		if row == chartHeight-1 {
			axis = label(most)
		} else if row == 0 {
			axis = label(0)
		}
		p.line("  %7s %s", axis, strings.TrimRight(b.String(), " "))
	}
}
