package policyfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Fault is one thing that is wrong in a file or in the environment.
type Fault struct {
	File         string // its name; "environment variable " and its name, where the value is from there
	Line, Column int    // from 1; the column in characters; both 0 in the environment
	Path         string // where in the document, such as "policies.standard.backoff.base"; empty for the whole
	Problem      string // what is wrong, and what would be right
}

func newFault(at place, path, format string, args ...any) *Fault {
	return &Fault{at.file, at.line, at.column, path, fmt.Sprintf(format, args...)}
}

// Error returns the fault in the form of a compiler's: "policies.yaml:7:13: policies.standard.max_age: ...".
func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	if f.Path != "" {
		b.WriteString(": " + f.Path)
	}
	b.WriteString(": " + f.Problem)
	return b.String()
}

// An Error holds all faults of a file, in the order of their places.
type Error struct{ Faults []*Fault }

// Error returns the faults, one a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults, so that errors.As finds the first of them.
func (e *Error) Unwrap() []error {
	errs := make([]error, len(e.Faults))
	for i, f := range e.Faults {
		errs[i] = f
	}
	return errs
}

// nearest returns " (did you mean ...?)" if one of the names is close to the word.
func nearest(word string, names []string) string {
	best, least := "", len(word)/3+1
	for _, name := range names {
		if d := distance(strings.ToLower(word), strings.ToLower(name)); d <= least && (best == "" || d < least) {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// distance is how many characters to insert, delete or replace to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// arranged returns the faults in the order of their places, and once each: what several policies inherit is read several
// times.
func arranged(faults []*Fault) []*Fault {
	slices.SortStableFunc(faults, func(a, b *Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(faults, func(a, b *Fault) bool {
		return a.Line > 0 && a.Line == b.Line && a.Column == b.Column && a.Problem == b.Problem
	})
}
