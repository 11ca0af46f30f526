// Package slidegate is a client of slidegate: one attempt within a budget, and a circuit breaker.
package slidegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	maxFailures = 3
	openTime    = time.Second
)

// Limiter checks requests. AllowOnFailure is the decision while slidegate does not decide.
type Limiter struct {
	URL            string        // such as http://localhost:8080
	Budget         time.Duration // such as 100 * time.Millisecond
	AllowOnFailure bool

	lock      sync.Mutex
	failures  int
	openUntil time.Time
}

// Decision is the result of a check. Header has the headers for the response to the client.
type Decision struct {
	Allowed      bool
	Status       int
	Reason       string
	RetryAfterMs *int64
	Header       http.Header
}

var client = http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// Check decides about a request.
func (l *Limiter) Check(ctx context.Context, attributes map[string]any) Decision {
	if !l.mayCall() {
		return l.failed("breaker_open")
	}
	decision, err := l.call(ctx, attributes)
	if err != nil && ctx.Err() != nil {
		return l.failed("canceled") // the client has left, which says nothing about slidegate
	}
	l.record(err == nil)
	if err != nil {
		log.Printf("slidegate does not decide: %v", err)
		return l.failed("slidegate_failed")
	}
	return decision
}

func (l *Limiter) call(ctx context.Context, attributes map[string]any) (Decision, error) {
	body, err := json.Marshal(map[string]any{"attributes": attributes})
	if err != nil {
		return Decision{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.Budget)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", l.URL+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return Decision{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return Decision{}, err
	}
	defer response.Body.Close()
	var result struct {
		Allowed      *bool  `json:"allowed"`
		Reason       string `json:"reason"`
		RetryAfterMs *int64 `json:"retry_after_ms"`
		Detail       string `json:"detail"`
	}
	if err := json.NewDecoder(response.Body).Decode(&result); err != nil {
		return Decision{}, err
	}
	if result.Allowed == nil && response.StatusCode >= 500 {
		return Decision{}, errors.New(result.Detail)
	}
	if result.Allowed == nil {
		log.Printf("the check is invalid: %s", result.Detail)
		return Decision{Status: http.StatusInternalServerError, Reason: "invalid_check"}, nil
	}
	header := http.Header{}
	for name, values := range response.Header {
		if strings.Contains(name, "Ratelimit") || name == "Retry-After" || name == "Cache-Control" {
			header[name] = values
		}
	}
	return Decision{*result.Allowed, response.StatusCode, result.Reason, result.RetryAfterMs, header}, nil
}

// mayCall returns whether the breaker is closed. While a check tests whether slidegate responds again, the others do
// not wait for it.
func (l *Limiter) mayCall() bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	now := time.Now()
	if now.Before(l.openUntil) {
		return false
	}
	if l.failures >= maxFailures {
		l.openUntil = now.Add(openTime)
	}
	return true
}

func (l *Limiter) record(succeeded bool) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if succeeded {
		l.failures, l.openUntil = 0, time.Time{}
		return
	}
	l.failures++
	if l.failures >= maxFailures {
		l.openUntil = time.Now().Add(openTime)
	}
}

func (l *Limiter) failed(reason string) Decision {
	if l.AllowOnFailure {
		return Decision{Allowed: true, Status: http.StatusOK, Reason: reason}
	}
	return Decision{Status: http.StatusServiceUnavailable, Reason: reason}
}

// Middleware copies the headers of the decision, and responds to denied requests.
func (l *Limiter) Middleware(attributes func(*http.Request) map[string]any, next http.Handler) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		decision := l.Check(request.Context(), attributes(request))
		for name, values := range decision.Header {
			writer.Header()[name] = values
		}
		if !decision.Allowed {
			http.Error(writer, decision.Reason, decision.Status)
			return
		}
		next.ServeHTTP(writer, request)
	})
}
