package chart_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redeliver/redeliver/internal/chart"
)

// texts returns the text elements of a drawing, and fails where it is not XML.
func texts(t require.TestingT, svg string) (all []string) {
	decoder := xml.NewDecoder(strings.NewReader(svg))
	inText := false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			inText = x.Name.Local == "text"
			for _, a := range x.Attr {
				require.NotContains(t, a.Value, "NaN")
				require.NotContains(t, a.Value, "Inf")
			}
		case xml.CharData:
			if inText {
				all = append(all, string(x))
			}
		case xml.EndElement:
			inText = false
		}
	}
}

func TestTextIsEscaped(t *testing.T) {
	var b strings.Builder
	name := `<orders> & "co"`
	require.NoError(t, chart.WriteSVG(&b, name, "1 < 2", &chart.Spans{Head: "a > b", Rows: []chart.Span{{Label: "<1>"}}}))
	require.Subset(t, texts(t, b.String()), []string{name, "1 < 2", "a > b", "<1>"})
}

func TestWhateverIsDrawnIsADrawing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duration := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, int64(time.Hour)), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "d"))
		})
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e9), 0, 5).Draw(t, "values")
		at := rapid.SliceOfN(duration, len(values), len(values)).Draw(t, "at")
		var b strings.Builder
		require.NoError(t, chart.WriteSVG(&b, "title", "",
			&chart.Spans{Rows: []chart.Span{{Earliest: 0, Mean: duration.Draw(t, "mean"), Last: duration.Draw(t, "last")}}, Shade: &chart.Shade{To: duration.Draw(t, "to")}},
			&chart.Lines{Series: []chart.Series{{At: at, Value: values}}, Format: func(v float64) string { return fmt.Sprint(v) }, Limit: 5},
		))
		texts(t, b.String())
	})
}

func TestTicksAreFewAndRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := time.Duration(rapid.OneOf(rapid.Int64Range(1, 1000), rapid.Int64Range(1, int64(400*24*time.Hour))).Draw(t, "most"))
		ticks := chart.Ticks(most, 7)
		require.NotEmpty(t, ticks)
		require.LessOrEqual(t, len(ticks), 8)
		for i, tick := range ticks {
			require.LessOrEqual(t, tick, most)
			require.Equal(t, ticks[len(ticks)-1]/time.Duration(max(len(ticks)-1, 1))*time.Duration(i), tick, "evenly")
			require.LessOrEqual(t, len(chart.TickText(tick)), 7)
		}
		if most >= 4 {
			require.GreaterOrEqual(t, len(ticks), 3)
		}
	})
}

func ExampleTicks() {
	for _, t := range chart.Ticks(100*time.Second, 7) {
		fmt.Print(chart.TickText(t), " ")
	}
	fmt.Println(chart.TickText(72 * time.Hour))
	// Output:
	// 0s 15s 30s 45s 1m 1m15s 1m30s 3d
}
