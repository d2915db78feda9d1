package classify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/url"
	"os"
	"reflect"
	"syscall"
)

// A finding is what an error tells of itself. Of each field the innermost error that has it counts.
type finding struct {
	group Class

	family Class // of those that are no protocol: net, dns, tls, context
	detail string

	status   int
	sqlState string
	awsCode  string
	grpcCode string

	ended bool // a stream ended, which is of the network only below an error of it
}

func find(err error) (f finding) {
	// Methods of err may panic, as they do where a handler returned a nil pointer as an error.
	defer func() { _ = recover() }()
	f.walk(err)
	return f
}

// walk looks at the causes first, for they go before what wraps them.
func (f *finding) walk(err error) {
	if err == nil {
		return
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		f.walk(x.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range x.Unwrap() {
			f.walk(err)
		}
	}
	f.look(err)
}

// is notes the group, unless a cause had one.
func (f *finding) is(group Class) {
	if f.group == "" {
		f.group = group
	}
}

func (f *finding) from(family Class, detail string, group Class) {
	if f.family == "" {
		f.family, f.detail = family, detail
	}
	f.is(group)
}

// look notes what err itself says.
func (f *finding) look(err error) {
	switch err {
	case context.Canceled:
		f.from(Context, "canceled", Canceled)
		return
	case context.DeadlineExceeded:
		f.from(Context, "deadline", Timeout)
		return
	case os.ErrDeadlineExceeded:
		f.from(Net, "timeout", Timeout)
		return
	case net.ErrClosed:
		f.from(Net, "closed", Transient)
		return
	case io.EOF, io.ErrUnexpectedEOF:
		f.ended = true
		return
	}
	switch x := err.(type) {
	case syscall.Errno:
		f.errno(x)
	case *net.DNSError:
		switch {
		case x.IsTimeout:
			f.from(DNS, "timeout", Timeout)
		case x.IsNotFound:
			f.from(DNS, "not-found", Transient)
		default:
			f.from(DNS, "", Transient)
		}
	case *net.AddrError, *net.ParseError, net.InvalidAddrError, net.UnknownNetworkError, url.EscapeError, url.InvalidHostError:
		f.from(Net, "address", Permanent)
	case *tls.CertificateVerificationError, tls.RecordHeaderError, *tls.RecordHeaderError, tls.AlertError, *tls.ECHRejectionError,
		x509.CertificateInvalidError, x509.HostnameError, x509.UnknownAuthorityError, x509.SystemRootsError,
		x509.ConstraintViolationError, x509.UnhandledCriticalExtension:
		f.from(TLS, "", Permanent)
	case *url.Error:
		if x.Op == "parse" {
			f.from(Net, "address", Permanent)
			return
		}
		f.connection(x)
	case *net.OpError:
		f.connection(x)
	default:
		f.foreign(err)
	}
}

// connection notes what a call of a connection or of an HTTP client says, as far as its cause did not.
func (f *finding) connection(err net.Error) {
	switch {
	case err.Timeout():
		f.from(Net, "timeout", Timeout)
	case f.ended:
		f.from(Net, "closed", Transient)
	default:
		f.from(Net, "", Transient)
	}
}

func (f *finding) errno(n syscall.Errno) {
	switch n {
	case syscall.ECONNREFUSED:
		f.from(Net, "refused", Transient)
	case syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ENETRESET:
		f.from(Net, "reset", Transient)
	case syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN:
		f.from(Net, "unreachable", Transient)
	case syscall.ETIMEDOUT:
		f.from(Net, "timeout", Timeout)
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL:
		f.from(Net, "resources", Transient)
	}
}

// foreign knows the errors of other libraries by their methods.
func (f *finding) foreign(err error) {
	if x, ok := err.(interface{ ErrorCode() string }); ok && f.awsCode == "" {
		f.awsCode = x.ErrorCode()
		f.is(awsGroup(f.awsCode))
	}
	if x, ok := err.(interface{ SQLState() string }); ok && f.sqlState == "" && len(x.SQLState()) == 5 {
		f.sqlState = x.SQLState()
		f.is(sqlGroup(f.sqlState))
	}
	if code, ok := grpcCode(err); ok && f.grpcCode == "" {
		f.grpcCode = code
		f.is(grpcGroup(code))
	}
	status := 0
	switch x := err.(type) {
	case interface{ StatusCode() int }:
		status = x.StatusCode()
	case interface{ HTTPStatusCode() int }:
		status = x.HTTPStatusCode()
	}
	if f.status == 0 && status >= 100 && status <= 599 {
		f.status = status
		f.is(httpGroup(status))
	}
	if x, ok := err.(interface{ Timeout() bool }); ok && f.group == "" && x.Timeout() {
		f.is(Timeout)
	}
	if x, ok := err.(interface{ Temporary() bool }); ok && f.group == "" && x.Temporary() {
		f.is(Transient)
	}
}

func httpGroup(status int) Class {
	switch {
	case status == 408 || status == 504:
		return Timeout
	case status == 429:
		return Throttled
	case status == 425:
		return Transient
	case status >= 500:
		return Transient
	case status >= 400:
		return Permanent
	default:
		return ""
	}
}

func sqlGroup(state string) Class {
	switch state {
	case "08P01", "40002", "57P04":
		return Permanent
	case "57014", "57P05":
		return Timeout
	case "25006", "25P02", "25P03", "55006", "55P03":
		return Transient
	}
	switch state[:2] {
	case "08", "40", "53", "57", "58":
		return Transient
	case "0A", "21", "22", "23", "26", "28", "2B", "34", "3D", "3F", "42", "44", "54":
		return Permanent
	default:
		return ""
	}
}

func awsGroup(code string) Class {
	switch code {
	case "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottledException", "TooManyRequestsException",
		"ProvisionedThroughputExceededException", "TransactionInProgressException", "RequestLimitExceeded", "BandwidthLimitExceeded",
		"LimitExceededException", "RequestThrottled", "SlowDown", "PriorRequestNotComplete", "EC2ThrottledException":
		return Throttled
	case "RequestTimeout", "RequestTimeoutException":
		return Timeout
	default:
		return ""
	}
}

// grpcCodes are gRPC's codes, in the order of their numbers.
var grpcCodes = [...]string{
	"ok", "canceled", "unknown", "invalid-argument", "deadline-exceeded", "not-found", "already-exists", "permission-denied", "resource-exhausted",
	"failed-precondition", "aborted", "out-of-range", "unimplemented", "internal", "unavailable", "data-loss", "unauthenticated",
}

func grpcGroup(code string) Class {
	switch code {
	case "unavailable", "aborted":
		return Transient
	case "resource-exhausted":
		return Throttled
	case "deadline-exceeded":
		return Timeout
	case "canceled":
		return Canceled
	case "unknown", "internal":
		return ""
	default:
		return Permanent
	}
}

// grpcCode calls GRPCStatus().Code(). The types of both are gRPC's own, so that no interface of ours could name them.
func grpcCode(err error) (string, bool) {
	method := reflect.ValueOf(err).MethodByName("GRPCStatus")
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return "", false
	}
	method = method.Call(nil)[0].MethodByName("Code")
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return "", false
	}
	code := method.Call(nil)[0]
	if !code.CanUint() || code.Uint() == 0 || code.Uint() >= uint64(len(grpcCodes)) {
		return "", false
	}
	return grpcCodes[code.Uint()], true
}
