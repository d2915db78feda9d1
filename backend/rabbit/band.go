package rabbit

import (
	"fmt"
	"slices"
	"time"
)

// MaxDelay is the longest delay that a parking queue holds: RabbitMQ's oldest limit of a time to live, 2^32-1 ms, in whole
// hours.
const MaxDelay = 1193 * time.Hour

// mantissas is one decade of the ladder on which the limits of the bands lie: 10^(k/24), to three digits. They are part of
// the names of queues that hold messages, and so never change.
var mantissas = [...]int64{
	100, 110, 121, 133, 147, 162, 178, 196, 215, 237, 261, 287, 316, 348, 383, 422, 464, 511, 562, 619, 681, 750, 825, 909,
}

// shortestBand is the limit of the first band, in ms.
const shortestBand = 10

// band is a range of delays that wait in one queue: those up to the limit, and above the limit of the band before.
type band struct {
	limit int64 // in ms
}

// text is the band's name: its limit in seconds or milliseconds, whichever is whole.
func (b band) text() string {
	if b.limit%1000 == 0 {
		return fmt.Sprintf("%ds", b.limit/1000)
	}
	return fmt.Sprintf("%dms", b.limit)
}

func (b band) delay() time.Duration { return time.Duration(b.limit) * time.Millisecond }

// ladder is the bands that a queue uses, in ascending order.
type ladder []band

// newLadder returns the bands for delays up to longest. The coarser ladders are parts of the finest.
func newLadder(perDecade int, longest time.Duration) ladder {
	var l ladder
	step := len(mantissas) / perDecade
	for k, power := 0, int64(shortestBand); ; k += step {
		if k == len(mantissas) {
			k, power = 0, power*10
		}
		// The first decade has no room for three digits.
		limit := min((mantissas[k]*power+50)/100, int64(MaxDelay/time.Millisecond))
		l = append(l, band{limit})
		if (band{limit}).delay() >= longest {
			return l
		}
	}
}

// index returns the position of the band for a delay; longer delays than the last band's belong to that.
func (l ladder) index(d time.Duration) int {
	i, _ := slices.BinarySearchFunc(l, d, func(b band, d time.Duration) int {
		if b.delay() < d {
			return -1
		}
		return 1
	})
	return min(i, len(l)-1)
}

// stretch is by how much of its delay a message can be late at most because others of its band stand before it. The first
// decade, where that is a few milliseconds, is left out.
func (l ladder) stretch() float64 {
	worst := 0.0
	for i := 1; i < len(l); i++ {
		if l[i-1].limit >= 10*shortestBand {
			worst = max(worst, float64(l[i].limit)/float64(l[i-1].limit)-1)
		}
	}
	return (1+worst)*(1+1.0/clockShare) - 1
}

// Erlang brings its clock into line with the system's by letting it run faster or slower for a while, by a hundredth at most, and
// RabbitMQ measures delays with it. A retry would come early by as much after the system's clock was set. So it is held for
// longer by that, up to a limit, since the correction is of some milliseconds as a rule.
const (
	clockShare  = 100 // the inverse of a hundredth
	clockMargin = 50 * time.Millisecond
)

// held is for how long the broker is told to hold a message that is to wait for d.
func held(d time.Duration) time.Duration { return d + min(d/clockShare, clockMargin) }

// expiration is a delay as RabbitMQ takes it: whole milliseconds, in decimal digits. The broker counts from the beginning
// of the millisecond in which the message arrived, so that one more is needed for it never to be early.
func expiration(d time.Duration) int64 {
	return int64((d+time.Millisecond-1)/time.Millisecond) + 1
}
