package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// gateway stands for the payment service, without a network: it is an http.RoundTripper. Until upAt it answers 503. Of each
// throttled payment it answers the first call with 429, and says when to come back.
type gateway struct {
	upAt       time.Time
	retryAfter time.Duration

	mu   sync.Mutex
	seen map[string]bool // idempotency keys of throttled payments
}

func (g *gateway) RoundTrip(req *http.Request) (*http.Response, error) {
	header := make(http.Header)
	status := http.StatusOK
	switch {
	case strings.HasSuffix(req.URL.Path, "throttled"):
		if g.first(req.Header.Get("Idempotency-Key")) {
			status = http.StatusTooManyRequests
			header.Set("Retry-After", fmt.Sprintf("%.0f", g.retryAfter.Seconds()))
		}
	case time.Now().Before(g.upAt):
		status = http.StatusServiceUnavailable
	}
	return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: req}, nil
}

func (g *gateway) first(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == nil {
		g.seen = make(map[string]bool)
	}
	first := !g.seen[key]
	g.seen[key] = true
	return first
}
