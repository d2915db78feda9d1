package classify_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/redeliver/redeliver/classify"
	"github.com/redeliver/redeliver/policy"
)

// The errors of other libraries, as far as they matter here.
type (
	awsError    struct{ code string }
	awsResponse struct {
		status int
		cause  error
	}
	grpcError    struct{ code uint32 }
	grpcStatus   struct{ code uint32 }
	grpcCode     uint32
	temporary    bool
	nilReceiver  struct{ status int }
	impostor     struct{}
	unrecognised struct{}
)

func (e awsError) Error() string            { return e.code }
func (e awsError) ErrorCode() string        { return e.code }
func (e awsResponse) Error() string         { return strconv.Itoa(e.status) }
func (e awsResponse) HTTPStatusCode() int   { return e.status }
func (e awsResponse) Unwrap() error         { return e.cause }
func (e grpcError) Error() string           { return "rpc error" }
func (e grpcError) GRPCStatus() *grpcStatus { return &grpcStatus{e.code} }
func (s *grpcStatus) Code() grpcCode        { return grpcCode(s.code) }
func (e temporary) Error() string           { return "temporary" }
func (e temporary) Temporary() bool         { return bool(e) }
func (e *nilReceiver) Error() string        { return "nil" }
func (e *nilReceiver) StatusCode() int      { return e.status }
func (impostor) Error() string              { return "impostor" }
func (impostor) GRPCStatus(int) string      { return "" }
func (unrecognised) Error() string          { return "?" }

func status(code int) error { return &classify.StatusError{Code: code} }

func sqlState(state string) error { return fmt.Errorf("insert: %w", &pgconn.PgError{Code: state}) }

func errno(n syscall.Errno) error {
	return &url.Error{Op: "Get", URL: "http://x", Err: &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", n)}}
}

func TestTheTablesOfThePackageComment(t *testing.T) {
	groups := []classify.Class{classify.Transient, classify.Throttled, classify.Timeout, classify.Permanent, classify.Canceled}
	within := map[classify.Class][]classify.Class{
		"":                 nil,
		classify.Transient: {classify.Transient},
		classify.Throttled: {classify.Throttled, classify.Transient},
		classify.Timeout:   {classify.Timeout, classify.Transient},
		classify.Permanent: {classify.Permanent},
		classify.Canceled:  {classify.Canceled},
	}
	for _, tt := range []struct {
		err     error
		group   classify.Class
		classes string // that are no groups
	}{
		{status(400), classify.Permanent, "http-400 http-4xx http"},
		{status(401), classify.Permanent, "http-401 http-4xx http"},
		{status(404), classify.Permanent, "http-404 http-4xx http"},
		{status(408), classify.Timeout, "http-408 http-4xx http"},
		{status(409), classify.Permanent, "http-409 http-4xx http"},
		{status(425), classify.Transient, "http-425 http-4xx http"},
		{status(429), classify.Throttled, "http-429 http-4xx http"},
		{status(500), classify.Transient, "http-500 http-5xx http"},
		{status(501), classify.Transient, "http-501 http-5xx http"},
		{status(502), classify.Transient, "http-502 http-5xx http"},
		{status(503), classify.Transient, "http-503 http-5xx http"},
		{status(504), classify.Timeout, "http-504 http-5xx http"},
		{status(505), classify.Transient, "http-505 http-5xx http"},
		{status(599), classify.Transient, "http-599 http-5xx http"},
		{status(302), "", "http-302 http-3xx http"},
		{status(0), "", ""},

		{errno(syscall.ECONNREFUSED), classify.Transient, "net-refused net"},
		{errno(syscall.ECONNRESET), classify.Transient, "net-reset net"},
		{errno(syscall.ECONNABORTED), classify.Transient, "net-reset net"},
		{errno(syscall.EPIPE), classify.Transient, "net-reset net"},
		{errno(syscall.ENETRESET), classify.Transient, "net-reset net"},
		{errno(syscall.EHOSTUNREACH), classify.Transient, "net-unreachable net"},
		{errno(syscall.ENETUNREACH), classify.Transient, "net-unreachable net"},
		{errno(syscall.EHOSTDOWN), classify.Transient, "net-unreachable net"},
		{errno(syscall.ENETDOWN), classify.Transient, "net-unreachable net"},
		{errno(syscall.ETIMEDOUT), classify.Timeout, "net-timeout net"},
		{errno(syscall.EMFILE), classify.Transient, "net-resources net"},
		{errno(syscall.ENFILE), classify.Transient, "net-resources net"},
		{errno(syscall.ENOBUFS), classify.Transient, "net-resources net"},
		{errno(syscall.ENOMEM), classify.Transient, "net-resources net"},
		{errno(syscall.EADDRNOTAVAIL), classify.Transient, "net-resources net"},
		{errno(syscall.EPERM), classify.Transient, "net"},
		{&os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, "", ""},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, classify.Timeout, "net-timeout net"},
		{&net.OpError{Op: "read", Err: net.ErrClosed}, classify.Transient, "net-closed net"},
		{&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port", Addr: "x"}}, classify.Permanent, "net-address net"},
		{&net.OpError{Op: "dial", Err: net.UnknownNetworkError("tpc")}, classify.Permanent, "net-address net"},
		{&url.Error{Op: "Get", Err: io.EOF}, classify.Transient, "net-closed net"},
		{&url.Error{Op: "Get", Err: io.ErrUnexpectedEOF}, classify.Transient, "net-closed net"},
		{&url.Error{Op: "Get", Err: unrecognised{}}, classify.Transient, "net"},
		{io.ErrUnexpectedEOF, "", ""},
		{json.Unmarshal([]byte("{"), new(int)), "", ""},
		{&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}, classify.Transient, "dns-not-found dns"},
		{&net.OpError{Op: "dial", Err: &net.DNSError{IsTimeout: true, IsTemporary: true}}, classify.Timeout, "dns-timeout dns"},
		{&net.DNSError{Err: "server misbehaving", IsTemporary: true}, classify.Transient, "dns"},
		{&url.Error{Op: "Get", Err: x509.HostnameError{}}, classify.Permanent, "tls"},
		{x509.UnknownAuthorityError{}, classify.Permanent, "tls"},
		{x509.CertificateInvalidError{Reason: x509.Expired}, classify.Permanent, "tls"},
		{temporary(true), classify.Transient, ""},
		{temporary(false), "", ""},

		{context.DeadlineExceeded, classify.Timeout, "context-deadline context"},
		{fmt.Errorf("query: %w", context.Canceled), classify.Canceled, "context-canceled context"},
		{&url.Error{Op: "Get", Err: context.Canceled}, classify.Canceled, "context-canceled context"},

		{sqlState("08006"), classify.Transient, "sqlstate-08006 sqlstate-08 sqlstate"},
		{sqlState("08P01"), classify.Permanent, "sqlstate-08P01 sqlstate-08 sqlstate"},
		{sqlState("40001"), classify.Transient, "sqlstate-40001 sqlstate-40 sqlstate"},
		{sqlState("40P01"), classify.Transient, "sqlstate-40P01 sqlstate-40 sqlstate"},
		{sqlState("40002"), classify.Permanent, "sqlstate-40002 sqlstate-40 sqlstate"},
		{sqlState("53300"), classify.Transient, "sqlstate-53300 sqlstate-53 sqlstate"},
		{sqlState("55P03"), classify.Transient, "sqlstate-55P03 sqlstate-55 sqlstate"},
		{sqlState("55006"), classify.Transient, "sqlstate-55006 sqlstate-55 sqlstate"},
		{sqlState("55000"), "", "sqlstate-55000 sqlstate-55 sqlstate"},
		{sqlState("57P01"), classify.Transient, "sqlstate-57P01 sqlstate-57 sqlstate"},
		{sqlState("57P03"), classify.Transient, "sqlstate-57P03 sqlstate-57 sqlstate"},
		{sqlState("57P04"), classify.Permanent, "sqlstate-57P04 sqlstate-57 sqlstate"},
		{sqlState("57P05"), classify.Timeout, "sqlstate-57P05 sqlstate-57 sqlstate"},
		{sqlState("57014"), classify.Timeout, "sqlstate-57014 sqlstate-57 sqlstate"},
		{sqlState("25006"), classify.Transient, "sqlstate-25006 sqlstate-25 sqlstate"},
		{sqlState("25P02"), classify.Transient, "sqlstate-25P02 sqlstate-25 sqlstate"},
		{sqlState("25P03"), classify.Transient, "sqlstate-25P03 sqlstate-25 sqlstate"},
		{sqlState("25001"), "", "sqlstate-25001 sqlstate-25 sqlstate"},
		{sqlState("58030"), classify.Transient, "sqlstate-58030 sqlstate-58 sqlstate"},
		{sqlState("0A000"), classify.Permanent, "sqlstate-0A000 sqlstate-0A sqlstate"},
		{sqlState("21000"), classify.Permanent, "sqlstate-21000 sqlstate-21 sqlstate"},
		{sqlState("22P02"), classify.Permanent, "sqlstate-22P02 sqlstate-22 sqlstate"},
		{sqlState("23505"), classify.Permanent, "sqlstate-23505 sqlstate-23 sqlstate"},
		{sqlState("26000"), classify.Permanent, "sqlstate-26000 sqlstate-26 sqlstate"},
		{sqlState("28P01"), classify.Permanent, "sqlstate-28P01 sqlstate-28 sqlstate"},
		{sqlState("2BP01"), classify.Permanent, "sqlstate-2BP01 sqlstate-2B sqlstate"},
		{sqlState("34000"), classify.Permanent, "sqlstate-34000 sqlstate-34 sqlstate"},
		{sqlState("3D000"), classify.Permanent, "sqlstate-3D000 sqlstate-3D sqlstate"},
		{sqlState("3F000"), classify.Permanent, "sqlstate-3F000 sqlstate-3F sqlstate"},
		{sqlState("42P01"), classify.Permanent, "sqlstate-42P01 sqlstate-42 sqlstate"},
		{sqlState("44000"), classify.Permanent, "sqlstate-44000 sqlstate-44 sqlstate"},
		{sqlState("54001"), classify.Permanent, "sqlstate-54001 sqlstate-54 sqlstate"},
		{sqlState("XX000"), "", "sqlstate-XX000 sqlstate-XX sqlstate"},
		{sqlState("P0001"), "", "sqlstate-P0001 sqlstate-P0 sqlstate"},
		{sqlState(""), "", ""},

		{awsResponse{400, awsError{"ThrottlingException"}}, classify.Throttled, "aws-ThrottlingException aws http-400 http-4xx http"},
		{awsResponse{400, awsError{"RequestTimeout"}}, classify.Timeout, "aws-RequestTimeout aws http-400 http-4xx http"},
		{awsResponse{400, awsError{"ValidationException"}}, classify.Permanent, "aws-ValidationException aws http-400 http-4xx http"},
		{awsResponse{503, awsError{"ServiceUnavailable"}}, classify.Transient, "aws-ServiceUnavailable aws http-503 http-5xx http"},
		{awsError{"NoSuchKey"}, "", "aws-NoSuchKey aws"},

		{grpcError{0}, "", ""},
		{grpcError{1}, classify.Canceled, "grpc-canceled grpc"},
		{grpcError{2}, "", "grpc-unknown grpc"},
		{grpcError{3}, classify.Permanent, "grpc-invalid-argument grpc"},
		{grpcError{4}, classify.Timeout, "grpc-deadline-exceeded grpc"},
		{grpcError{5}, classify.Permanent, "grpc-not-found grpc"},
		{grpcError{6}, classify.Permanent, "grpc-already-exists grpc"},
		{grpcError{7}, classify.Permanent, "grpc-permission-denied grpc"},
		{grpcError{8}, classify.Throttled, "grpc-resource-exhausted grpc"},
		{grpcError{9}, classify.Permanent, "grpc-failed-precondition grpc"},
		{grpcError{10}, classify.Transient, "grpc-aborted grpc"},
		{grpcError{11}, classify.Permanent, "grpc-out-of-range grpc"},
		{grpcError{12}, classify.Permanent, "grpc-unimplemented grpc"},
		{grpcError{13}, "", "grpc-internal grpc"},
		{grpcError{14}, classify.Transient, "grpc-unavailable grpc"},
		{grpcError{15}, classify.Permanent, "grpc-data-loss grpc"},
		{grpcError{16}, classify.Permanent, "grpc-unauthenticated grpc"},
		{grpcError{17}, "", ""},
		{impostor{}, "", ""},

		{errors.Join(errors.New("x"), status(503), status(404)), classify.Transient, "http-503 http-5xx http"},
		{errors.Join(errors.New("x"), status(404), status(503)), classify.Permanent, "http-404 http-4xx http"},
		{policy.RetryAfter(time.Second, status(429)), classify.Throttled, "http-429 http-4xx http"},
		{nil, "", ""},
		{errors.New("connection refused"), "", ""},
		{(*nilReceiver)(nil), "", ""},
	} {
		name := fmt.Sprintf("%T %v", tt.err, tt.classes)
		want := []classify.Class{}
		for _, class := range strings.Fields(tt.classes) {
			want = append(want, classify.Class(class))
		}
		want = append(want, within[tt.group]...)
		require.Equal(t, want, append([]classify.Class{}, classify.Of(tt.err)...), name)
		for _, class := range want {
			require.True(t, class.Match(tt.err), "%s: %s", name, class)
			require.NoError(t, class.Validate(), "%s: %s", name, class)
		}
		for _, group := range groups {
			require.Equal(t, contains(within[tt.group], group), group.Match(tt.err), "%s: %s", name, group)
		}
		for _, other := range []classify.Class{"", "http-418", "http-1xx", "net-nothing", "dns-nothing", "context-x", "aws-x", "grpc-x", "sqlstate-99999", "x"} {
			require.False(t, other.Match(tt.err), "%s: %q", name, other)
		}
	}
}

func contains(classes []classify.Class, class classify.Class) bool {
	for _, c := range classes {
		if c == class {
			return true
		}
	}
	return false
}

func TestThrottlingCodesOfAWS(t *testing.T) {
	for _, code := range []string{
		"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottledException", "TooManyRequestsException",
		"ProvisionedThroughputExceededException", "TransactionInProgressException", "RequestLimitExceeded", "BandwidthLimitExceeded",
		"LimitExceededException", "RequestThrottled", "SlowDown", "PriorRequestNotComplete", "EC2ThrottledException",
	} {
		require.True(t, classify.Throttled.Match(awsError{code}), code)
	}
	require.True(t, classify.Timeout.Match(awsError{"RequestTimeoutException"}))
}

// The table above builds its errors; these come from where handlers get them.
func TestRealErrorsOfTheNetwork(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := listener.Addr().String()
	require.NoError(t, listener.Close())
	_, err = http.Get("http://" + nobody)
	require.True(t, classify.Class("net-refused").Match(err), "%v", classify.Of(err))

	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = discard
	secure.StartTLS()
	defer secure.Close()
	_, err = http.Get(secure.URL)
	require.Equal(t, []classify.Class{"tls", "permanent"}, classify.Of(err))

	done := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	defer slow.Close()
	defer close(done)
	client := &http.Client{Timeout: time.Millisecond}
	_, err = client.Get(slow.URL)
	require.Equal(t, []classify.Class{"net-timeout", "net", "timeout", "transient"}, classify.Of(err), "%v", err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, slow.URL, nil)
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(req)
	require.True(t, classify.Canceled.Match(err))

	rude := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer rude.Close()
	_, err = http.Get(rude.URL)
	require.True(t, classify.Class("net-closed").Match(err), "%v", classify.Of(err))

	broken := []string{"http://[::1"}
	_, err = url.Parse(broken[0])
	require.Equal(t, []classify.Class{"net-address", "net", "permanent"}, classify.Of(err))
	_, err = pgconn.Connect(t.Context(), "postgres://"+nobody+"/x?sslmode=disable")
	require.True(t, classify.Transient.Match(err), "%v", classify.Of(err))
}

func TestNamesThatAreNoClasses(t *testing.T) {
	for name, text := range map[classify.Class]string{
		"":              "http-429",
		"transcient":    "transient",
		"http-":         "http-429",
		"http-99":       "http-429",
		"http-6xx":      "http-429",
		"http-4xxx":     "http-429",
		"HTTP-429":      "http-429",
		"sqlstate-4":    "sqlstate-40001",
		"sqlstate-40p0": "sqlstate-40001",
		"aws-":          "aws-SlowDown",
		"grpc-ok":       "unavailable",
		"net-gone":      "refused",
		"dns-x":         "not-found",
		"tls-x":         "no details",
		"transient-x":   "transient",
	} {
		require.ErrorContains(t, name.Validate(), text, string(name))
		require.ErrorContains(t, name.Validate(), strconv.Quote(string(name)))
	}
}

func TestResponsesBecomeErrors(t *testing.T) {
	date := "Sun, 01 Mar 2026 12:00:00 GMT"
	response := func(status int, header ...string) *http.Response {
		req := httptest.NewRequest(http.MethodPost, "https://user:secret@api.example.com/charge?key=secret", nil)
		resp := &http.Response{StatusCode: status, Header: http.Header{}, Request: req}
		for i := 0; i < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		return resp
	}
	require.NoError(t, classify.Response(response(204)))
	require.NoError(t, classify.Response(response(302)))
	for name, tt := range map[string]struct {
		resp *http.Response
		wait time.Duration
		ok   bool
	}{
		"seconds":           {response(429, "Retry-After", "120"), 2 * time.Minute, true},
		"a date":            {response(503, "Retry-After", "Sun, 01 Mar 2026 12:00:42 GMT", "Date", date), 42 * time.Second, true},
		"long ago":          {response(503, "Retry-After", "Sun, 01 Mar 2026 12:00:42 GMT"), 0, true},
		"nonsense":          {response(503, "Retry-After", "soon"), 0, false},
		"nothing":           {response(503), 0, false},
		"not to be retried": {response(404, "Retry-After", "120"), 0, false},
	} {
		err := classify.Response(tt.resp)
		require.EqualError(t, err, "POST api.example.com: "+strconv.Itoa(tt.resp.StatusCode)+" "+http.StatusText(tt.resp.StatusCode), name)
		wait, ok := policy.Hint(err)
		require.Equal(t, tt.ok, ok, name)
		require.Equal(t, tt.wait, wait, name)
		var status *classify.StatusError
		require.ErrorAs(t, err, &status, name)
	}
	require.EqualError(t, classify.Response(&http.Response{StatusCode: 500}), "500 Internal Server Error")
}

// The rules of a file are classes, and most errors have none.
func TestDecideByTenClassesAllocatesNothing(t *testing.T) {
	p := policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second)}
	for _, class := range []classify.Class{
		classify.Throttled, classify.Permanent, classify.Canceled, "http-418", "http-5xx", "net-refused", "dns", "sqlstate-23505", "aws-SlowDown", "grpc-aborted",
	} {
		p.Rules = append(p.Rules, policy.Rule{Match: class, Action: policy.ActionDiscard})
	}
	f := policy.Failure{Attempt: 1, Err: io.ErrUnexpectedEOF, MessageID: "42"}
	require.Equal(t, policy.ActionRetry, p.Decide(f).Action)
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Decide(f) }))
	f.Err = errors.New("connection refused")
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Decide(f) }))
}

func TestClassesAreMatchersOfRules(t *testing.T) {
	p := policy.Policy{MaxAttempts: 3, Backoff: policy.Fixed(time.Second), Rules: []policy.Rule{
		{Name: "invalid", Match: classify.Permanent, Action: policy.ActionDeadLetter},
	}}
	require.NoError(t, p.Validate())
	require.Equal(t, "invalid", p.Decide(policy.Failure{Attempt: 1, Err: status(400)}).Rule())
	require.Empty(t, p.Decide(policy.Failure{Attempt: 1, Err: status(503)}).Rule())
	p.Rules[0].Match = classify.Class("permanant")
	require.ErrorContains(t, p.Validate(), `Rules[0].Match: no class is named "permanant"`)
}

var discard = log.New(io.Discard, "", 0)
