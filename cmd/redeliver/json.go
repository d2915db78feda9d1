package main

import (
	"encoding/json"
	"io"
	"time"

	"github.com/redeliver/redeliver/analysis"
)

// A text is a duration as it stands in policy files: "1.5s".
type text time.Duration

func (t text) MarshalText() ([]byte, error) { return []byte(time.Duration(t).String()), nil }

type rangeJSON struct {
	Earliest text `json:"earliest"`
	Mean     text `json:"mean"`
	Latest   text `json:"latest"`
}

func newRange(r analysis.Range) rangeJSON {
	return rangeJSON{text(r.Earliest), text(r.Mean), text(r.Latest)}
}

type shareJSON struct {
	Value float64 `json:"value"`
	Error float64 `json:"error"`
}

type survivalJSON struct {
	Outage  text      `json:"outage"`
	AtStart shareJSON `json:"at_start"`
	Within  shareJSON `json:"within"`
}

func newSurvival(s analysis.Survival) survivalJSON {
	return survivalJSON{text(s.Outage), shareJSON(s.AtStart), shareJSON(s.Within)}
}

type attemptJSON struct {
	Number  int       `json:"number"`
	Wait    rangeJSON `json:"wait"`
	At      rangeJSON `json:"at"`
	Reached shareJSON `json:"reached"`
}

type horizonJSON struct {
	rangeJSON
	Attempts float64 `json:"attempts"`
	Never    bool    `json:"never"`
}

func newHorizon(h analysis.Horizon) horizonJSON {
	return horizonJSON{newRange(h.Range), h.Attempts, h.Never}
}

type optionJSON struct {
	Code     string       `json:"code"`
	Text     string       `json:"text"`
	Survival survivalJSON `json:"survival"`
	Horizon  horizonJSON  `json:"horizon"`
}

type warningJSON struct {
	Code analysis.Code `json:"code"`
	Text string        `json:"text"`
	Note bool          `json:"note,omitempty"`
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
