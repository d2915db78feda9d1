package pgmq

import "encoding/json"

// eachMember calls f for each member of a JSON object that PostgreSQL wrote, so that it is valid, and reads no deeper than
// it must: this runs for every delivery. On anything but an object it calls nothing, and on text that is not valid it stops
// early. The values are parts of raw.
func eachMember(raw []byte, f func(name string, value []byte)) {
	i := skipSpace(raw, 0)
	if i == len(raw) || raw[i] != '{' {
		return
	}
	for i++; ; i++ {
		i = skipSpace(raw, i)
		end := endOfValue(raw, i)
		if end <= i || raw[i] != '"' {
			return
		}
		name, ok := text(raw[i:end])
		i = skipSpace(raw, end)
		if !ok || i == len(raw) || raw[i] != ':' {
			return
		}
		i = skipSpace(raw, i+1)
		end = endOfValue(raw, i)
		if end <= i {
			return
		}
		f(name, raw[i:end])
		i = skipSpace(raw, end)
		if i == len(raw) || raw[i] != ',' {
			return
		}
	}
}

// text returns the string that raw is in JSON.
func text(raw []byte) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	inner := raw[1 : len(raw)-1]
	for _, c := range inner {
		if c == '\\' {
			var s string
			err := json.Unmarshal(raw, &s)
			return s, err == nil
		}
	}
	return string(inner), true
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\t' || raw[i] == '\r') {
		i++
	}
	return i
}

// endOfValue returns where the value that starts at i ends, or i if none does.
func endOfValue(raw []byte, i int) int {
	depth := 0
	for j := i; j < len(raw); j++ {
		switch raw[j] {
		case '"':
			for j++; j < len(raw) && raw[j] != '"'; j++ {
				if raw[j] == '\\' {
					j++
				}
			}
			if j >= len(raw) {
				return i
			}
			if depth == 0 {
				return j + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return j
			}
			if depth--; depth == 0 {
				return j + 1
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return j
			}
		}
	}
	if depth > 0 {
		return i
	}
	return len(raw)
}
