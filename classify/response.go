package classify

import (
	"fmt"
	"net/http"
	"time"

	"github.com/redeliver/redeliver/policy"
)

// A StatusError is an HTTP response as an error.
type StatusError struct {
	Code   int    // the status, such as 429
	Method string // of the request; empty where it is not known
	Host   string // of the request; empty where it is not known
}

// Error returns such as "POST api.example.com: 429 Too Many Requests". Paths and queries may hold secrets, and stay out.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("%d %s", e.Code, http.StatusText(e.Code))
	if e.Method == "" {
		return text
	}
	return fmt.Sprintf("%s %s: %s", e.Method, e.Host, text)
}

// StatusCode returns Code.
func (e *StatusError) StatusCode() int { return e.Code }

// Response returns nil for a response with a status below 400, and else a *StatusError. Where the response has a Retry-After,
// in seconds or as a date, and its status is transient, the error is marked with it, as by [policy.RetryAfter]. A date is read
// against the response's own Date, and by this machine's clock where it has none. The body is left alone; close it.
//
//	resp, err := http.DefaultClient.Do(req)
//	if err != nil {
//		return err // known by its type
//	}
//	defer resp.Body.Close()
//	if err := classify.Response(resp); err != nil {
//		return err
//	}
func Response(resp *http.Response) error {
	if resp.StatusCode < 400 {
		return nil
	}
	e := &StatusError{Code: resp.StatusCode}
	if req := resp.Request; req != nil && req.URL != nil {
		e.Method, e.Host = req.Method, req.URL.Host
	}
	header := resp.Header.Get("Retry-After")
	if header == "" || !Transient.Match(e) {
		return e
	}
	now, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	wait, ok := policy.ParseRetryAfter(header, now)
	if !ok {
		return e
	}
	return policy.RetryAfter(wait, e)
}
