package pgmq

import "fmt"

const (
	deadLetterSuffix = "_dlq"

	// PGMQ makes table names of up to 16 more bytes (template_pgmq_q_...), and PostgreSQL silently cuts a name after 63.
	maxNameBytes = 47
)

// checkName refuses what would be another queue than it says: PGMQ lowers upper case, counts characters where PostgreSQL
// counts bytes, and leaves some characters unquoted.
func checkName(what, name string, limit int) error {
	if name == "" {
		return fmt.Errorf("pgmq: %s is empty: give it a name of a-z, 0-9 and _", what)
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_') {
			return fmt.Errorf("pgmq: %s %q holds %q: use a-z, 0-9 and _ only", what, name, firstRune(name[i:]))
		}
	}
	if len(name) > limit {
		reserve := ""
		if limit < maxNameBytes {
			reserve = fmt.Sprintf(", since its dead-letter queue %q may have %d", name+deadLetterSuffix, maxNameBytes)
		}
		return fmt.Errorf("pgmq: %s %q has %d bytes: at most %d are possible%s", what, name, len(name), limit, reserve)
	}
	return nil
}

func firstRune(s string) string {
	for _, r := range s {
		return string(r)
	}
	return ""
}
