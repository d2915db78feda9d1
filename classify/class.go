package classify

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Class is a kind of error. It is a matcher for the rules of a policy; the package comment lists the classes.
type Class string

// The groups.
const (
	Transient Class = "transient"
	Throttled Class = "throttled"
	Timeout   Class = "timeout"
	Permanent Class = "permanent"
	Canceled  Class = "canceled"
)

// The families.
const (
	HTTP     Class = "http"
	Net      Class = "net"
	DNS      Class = "dns"
	TLS      Class = "tls"
	Context  Class = "context"
	SQLState Class = "sqlstate"
	AWS      Class = "aws"
	GRPC     Class = "grpc"
)

// Match reports whether the error has the class. An error whose own methods panic, as those of a nil pointer do, has none
// beside those that were found before.
func (c Class) Match(err error) bool {
	f := find(err)
	switch c {
	case f.group:
		return f.group != ""
	case Transient:
		return f.group == Throttled || f.group == Timeout
	}
	family, detail, _ := strings.Cut(string(c), "-")
	switch Class(family) {
	case HTTP:
		return f.status != 0 && (detail == "" || hasStatus(detail, f.status))
	case SQLState:
		return f.sqlState != "" && (detail == "" || detail == f.sqlState || detail == f.sqlState[:2])
	case AWS:
		return f.awsCode != "" && (detail == "" || detail == f.awsCode)
	case GRPC:
		return f.grpcCode != "" && (detail == "" || detail == f.grpcCode)
	case Net, DNS, TLS, Context:
		return f.family == Class(family) && (detail == "" || detail == f.detail)
	default:
		return false
	}
}

// hasStatus reports whether "429" or "4xx" says what the status is.
func hasStatus(detail string, status int) bool {
	if digit, ok := strings.CutSuffix(detail, "xx"); ok {
		return digit == strconv.Itoa(status/100)
	}
	return detail == strconv.Itoa(status)
}

// details are the details of the families that have a fixed set of them.
var details = map[Class][]string{
	Net:     {"refused", "reset", "unreachable", "timeout", "resources", "closed", "address"},
	DNS:     {"not-found", "timeout"},
	TLS:     {},
	Context: {"deadline", "canceled"},
	GRPC:    grpcCodes[1:],
}

// forms are the details of the others.
var forms = map[Class]*regexp.Regexp{
	HTTP:     regexp.MustCompile(`^[1-5]([0-9][0-9]|xx)$`),
	SQLState: regexp.MustCompile(`^[0-9A-Z]{2}([0-9A-Z]{3})?$`),
	AWS:      regexp.MustCompile(`^[A-Za-z0-9._-]+$`),
}

// String returns the name.
func (c Class) String() string { return string(c) }

// Validate says what is wrong with a name that is not of a class.
func (c Class) Validate() error {
	switch c {
	case Transient, Throttled, Timeout, Permanent, Canceled:
		return nil
	}
	name, detail, hasDetail := strings.Cut(string(c), "-")
	family := Class(name)
	known, fixed := details[family]
	form, free := forms[family]
	switch {
	case !fixed && !free:
		return fmt.Errorf("no class is named %q: want transient, throttled, timeout, permanent, canceled, "+
			"or one of http, net, dns, tls, context, sqlstate, aws, grpc, with a detail or without, as in http-429", string(c))
	case !hasDetail, fixed && slices.Contains(known, detail), free && form.MatchString(detail):
		return nil
	case fixed && len(known) == 0:
		return fmt.Errorf("no class is named %q: %s has no details", string(c), family)
	case fixed:
		return fmt.Errorf("no class is named %q: %s is followed by one of %s", string(c), family, strings.Join(known, ", "))
	default:
		example := map[Class]string{HTTP: "http-429 or http-5xx", SQLState: "sqlstate-40001 or sqlstate-40", AWS: "aws-SlowDown"}
		return fmt.Errorf("no class is named %q: want one such as %s", string(c), example[family])
	}
}

// Of returns the classes of the error, from the most special to the most general; none if nothing is known of it.
func Of(err error) []Class {
	f := find(err)
	var classes []Class
	add := func(family Class, details ...string) {
		for _, detail := range details {
			if detail != "" {
				classes = append(classes, family+"-"+Class(detail))
			}
		}
		classes = append(classes, family)
	}
	if f.awsCode != "" {
		add(AWS, f.awsCode)
	}
	if f.grpcCode != "" {
		add(GRPC, f.grpcCode)
	}
	if f.sqlState != "" {
		add(SQLState, f.sqlState, f.sqlState[:2])
	}
	if f.status != 0 {
		add(HTTP, strconv.Itoa(f.status), strconv.Itoa(f.status/100)+"xx")
	}
	if f.family != "" {
		add(f.family, f.detail)
	}
	if f.group != "" {
		classes = append(classes, f.group)
	}
	if f.group == Throttled || f.group == Timeout {
		classes = append(classes, Transient)
	}
	return classes
}
