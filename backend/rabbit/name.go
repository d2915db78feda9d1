package rabbit

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	deadLetterSuffix = "_dlq"

	// maxShortString is how many bytes AMQP gives to a name, a message ID or another short string.
	maxShortString = 255

	// longestSuffix is the longest that is appended to a queue's name to name what is made for it.
	longestSuffix = len(".retry.v1.4294800s")
)

// checkName refuses a name that RabbitMQ does not take, or that leaves no room for the names that are made of it.
func checkName(what, name string, reserve int) error {
	switch {
	case name == "":
		return fmt.Errorf("rabbit: %s is empty: give it a name", what)
	case len(name) > maxShortString-reserve:
		return fmt.Errorf("rabbit: %s %.40q... has %d bytes: at most %d are possible", what, name, len(name), maxShortString-reserve)
	case strings.HasPrefix(name, "amq."):
		return fmt.Errorf("rabbit: %s %q: RabbitMQ keeps names that begin with amq. for itself: choose another", what, name)
	case !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\r\n"):
		return fmt.Errorf("rabbit: %s %q: RabbitMQ takes UTF-8 text without line breaks: choose another", what, name)
	}
	return nil
}
