package pgmq

import "strconv"

const headerCounts = "redeliver-counts"

// counts is how a message's earlier deliveries ended, as far as somebody said so. The deliveries that nobody ended are the
// rest of read_ct.
type counts struct {
	failures, snoozes, releases, waits int
}

// readCounts reads the header, of which nothing is trusted: what is no count is 0, and together they are no more than the
// earlier deliveries.
func readCounts(raw []byte, earlier int) counts {
	var c counts
	eachMember(raw, func(name string, value []byte) {
		n, err := strconv.ParseInt(string(value), 10, 32)
		if err != nil || n < 0 {
			return
		}
		switch name {
		case "failures":
			c.failures = int(n)
		case "snoozes":
			c.snoozes = int(n)
		case "releases":
			c.releases = int(n)
		case "waits":
			c.waits = int(n)
		}
	})
	earlier = max(earlier, 0)
	for _, n := range []*int{&c.failures, &c.snoozes, &c.releases, &c.waits} {
		*n = min(*n, earlier)
		earlier -= *n
	}
	return c
}

func (c counts) sum() int { return c.failures + c.snoozes + c.releases + c.waits }

// appendTo appends the counts above 0 as a JSON object.
func (c counts) appendTo(b []byte) []byte {
	b = append(b, '{')
	for _, f := range [...]struct {
		name string
		n    int
	}{{"failures", c.failures}, {"snoozes", c.snoozes}, {"releases", c.releases}, {"waits", c.waits}} {
		if f.n == 0 {
			continue
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, f.name...)
		b = append(b, '"', ':')
		b = strconv.AppendInt(b, int64(f.n), 10)
	}
	return append(b, '}')
}
