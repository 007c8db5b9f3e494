package envoy

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

const (
	// DefaultHangLimit is how long Envoy's main thread may be busy: a large update is slow, and a restart would cut all connections.
	DefaultHangLimit = time.Minute
	// pathAlive is the cheapest answer of the admin interface, before Envoy is ready too.
	pathAlive = "/hot_restart_version"
	askAlive  = time.Second
)

// alive is what is known of an Envoy that does not do what it should.
type alive struct {
	ended  time.Time // when Run has last seen it end, zero before and while it runs
	silent time.Time // when a question was asked that it has not answered, nor another one since; zero if it answers
	asked  time.Time // the last question
}

// Alive returns an error if nothing but a new process would help: Envoy runs, and has not answered for the limit, or it has ended, and is not
// started again. It is no error that Envoy was not started yet, nor that it ends again and again. It has to be asked more often than once in
// the limit: of a longer time nothing is known.
func (e *Envoy) Alive(ctx context.Context) error {
	now := time.Now()
	e.mu.Lock()
	down, ended := e.down, e.alive.ended
	e.mu.Unlock()
	if down != nil {
		if !ended.IsZero() && now.Sub(ended) > e.o.HangLimit {
			return fmt.Errorf("envoy ended %s ago, and was not started again: %w", now.Sub(ended).Round(time.Second), down)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askAlive)
	defer cancel()
	_, err := fetch(ctx, e.client, http.MethodGet, pathAlive)
	e.mu.Lock()
	defer e.mu.Unlock()
	unwatched := now.Sub(e.alive.asked) > e.o.HangLimit
	e.alive.asked = now
	switch {
	case err == nil || e.down != nil:
		e.alive.silent = time.Time{}
	case e.alive.silent.IsZero() || unwatched:
		e.alive.silent = now
	case now.Sub(e.alive.silent) > e.o.HangLimit:
		return fmt.Errorf("envoy has not answered for %s: %w", now.Sub(e.alive.silent).Round(time.Second), err)
	}
	return nil
}
