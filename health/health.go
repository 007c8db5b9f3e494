// Package health serves /livez and /readyz from named checks.
//
// The format is that of kube-apiserver and etcd: 200 and "ok", or 503 and a line for each check; with ?verbose there is
// always a line for each check.
package health

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// checkTimeout is how long the checks may take. One that takes longer has failed.
const checkTimeout = 2 * time.Second

// Check returns why something is not healthy, nil if it is. It must return when ctx ends.
type Check func(ctx context.Context) error

// Checks is an ordered list of named checks, safe for concurrent use. The zero value has no checks and is healthy.
type Checks struct {
	mu     sync.RWMutex
	names  []string
	checks map[string]Check
}

// Add adds a check, or replaces the one with the same name.
func (c *Checks) Add(name string, check Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checks == nil {
		c.checks = map[string]Check{}
	}
	if _, known := c.checks[name]; !known {
		c.names = append(c.names, name)
	}
	c.checks[name] = check
}

// result of one check.
type result struct {
	name string
	err  error
}

// run runs all checks concurrently and returns their results in the order in which they were added.
func (c *Checks) run(ctx context.Context) []result {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c.mu.RLock()
	results := make([]result, len(c.names))
	var running sync.WaitGroup
	for i, name := range c.names {
		check := c.checks[name]
		running.Go(func() { results[i] = result{name, check(ctx)} })
	}
	c.mu.RUnlock()
	running.Wait()
	return results
}

var _ http.Handler = (*Checks)(nil)

// ServeHTTP runs the checks and answers with their results.
func (c *Checks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	var lines strings.Builder
	status := http.StatusOK
	for _, result := range c.run(r.Context()) {
		if result.err != nil {
			status = http.StatusServiceUnavailable
			fmt.Fprintf(&lines, "[-]%s failed: %s\n", result.name, result.err)
		} else {
			fmt.Fprintf(&lines, "[+]%s ok\n", result.name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if status != http.StatusOK || r.URL.Query().Has("verbose") {
		_, _ = w.Write([]byte(lines.String())) // the caller is gone: nobody to tell
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}
