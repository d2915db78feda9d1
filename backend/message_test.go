package backend_test

import (
	"errors"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/backend"
)

func TestMessageValidate(t *testing.T) {
	for name, c := range map[string]struct {
		msg  backend.Message
		want string // "" if it is valid
	}{
		"empty":                   {},
		"plain":                   {msg: backend.Message{ID: "7", Body: []byte{0, 0xff}, Headers: map[string]string{"traceparent": "00-1", "x-death": "", "日": "本"}, Group: "g"}},
		"close to the prefix":     {msg: backend.Message{Headers: map[string]string{"redeliver": "", "x-redeliver-id": ""}}},
		"NUL in ID":               {msg: backend.Message{ID: "a\x00"}, want: `ID "a\x00"`},
		"ID is not UTF-8":         {msg: backend.Message{ID: "\xff"}, want: "UTF-8"},
		"NUL in group":            {msg: backend.Message{ID: "7", Group: "\x00"}, want: `"7": group`},
		"nameless header":         {msg: backend.Message{ID: "7", Headers: map[string]string{"": "v"}}, want: `"7": a header has an empty name`},
		"reserved header":         {msg: backend.Message{ID: "7", Headers: map[string]string{"redeliver-failure": "{}"}}, want: "reserved"},
		"no wish in another case": {msg: backend.Message{Headers: map[string]string{"Redeliver-Policy": "x"}}, want: "reserved"},
		"reserved, any case":      {msg: backend.Message{Headers: map[string]string{"Redeliver-X": ""}}, want: `"Redeliver-X"`},
		"NUL in header name":      {msg: backend.Message{Headers: map[string]string{"a\x00": ""}}, want: "header name"},
		"header is not UTF-8":     {msg: backend.Message{Headers: map[string]string{"a": "\xc3("}}, want: `header "a"`},
		"NUL in header value":     {msg: backend.Message{Headers: map[string]string{"a": "\x00"}}, want: `header "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.msg.Validate()
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, backend.ErrInvalidMessage)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestNewID(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		id := backend.NewID()
		require.Regexp(t, regexp.MustCompile(`^[A-Z2-7]{26}$`), id)
		require.False(t, seen[id])
		seen[id] = true
	}
}

func TestSettlementIsClaimedOnce(t *testing.T) {
	d := &backend.Delivery{Message: backend.Message{ID: "7"}, Queue: "orders"}
	require.NoError(t, d.BeginSettle())
	err := d.BeginSettle()
	require.ErrorIs(t, err, backend.ErrSettled)
	require.ErrorContains(t, err, `"7"`)
	require.ErrorContains(t, err, `"orders"`)
	require.False(t, d.Settled(), "not before it has ended")

	d.EndSettle(errors.New("broker is down"))
	require.False(t, d.Settled())
	require.NoError(t, d.BeginSettle(), "what failed may be tried again")
	d.EndSettle(nil)
	require.True(t, d.Settled())
	require.ErrorIs(t, d.BeginSettle(), backend.ErrSettled)
}

func TestMarkSettled(t *testing.T) {
	d := new(backend.Delivery)
	d.MarkSettled()
	require.True(t, d.Settled())
	require.ErrorIs(t, d.BeginSettle(), backend.ErrSettled)

	// The handler settles it in its transaction while the consumer, which gave the handler up, tries to.
	d = new(backend.Delivery)
	require.NoError(t, d.BeginSettle())
	d.MarkSettled()
	d.EndSettle(errors.New("lease lost"))
	require.True(t, d.Settled())
}

func TestOneOfManySettlementsWins(t *testing.T) {
	for range 100 {
		d := new(backend.Delivery)
		var wins atomic.Int32
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				d.OnLost(func() {})
				d.Settled()
				if err := d.BeginSettle(); err == nil {
					wins.Add(1)
					d.EndSettle(nil)
				} else if !errors.Is(err, backend.ErrSettled) {
					t.Errorf("BeginSettle: %v", err)
				}
				if i == 0 {
					d.StopExtending()
					d.MarkLost()
				}
				d.Extending()
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, wins.Load())
		require.True(t, d.Settled())
		require.False(t, d.Extending())
	}
}

func TestExtendingUntilStopped(t *testing.T) {
	d := new(backend.Delivery)
	require.True(t, d.Extending())
	d.StopExtending()
	require.False(t, d.Extending())
}

func TestOnLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second, late atomic.Int32
		d := new(backend.Delivery)
		d.OnLost(func() { first.Add(1) })
		d.OnLost(func() { second.Add(1) })
		synctest.Wait()
		require.Zero(t, second.Load())

		d.MarkLost()
		d.MarkLost()
		synctest.Wait()
		require.Zero(t, first.Load(), "a later function replaces it")
		require.EqualValues(t, 1, second.Load())

		d.OnLost(func() { late.Add(1) })
		synctest.Wait()
		require.EqualValues(t, 1, late.Load(), "what is lost already is told at once")
	})
}
