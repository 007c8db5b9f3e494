package drain

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// polled is an Envoy that returns one response per poll, and repeats the last one. nil means no response.
type polled struct {
	answers []*active
	down    error
	posts   []string
}

func (e *polled) Post(_ context.Context, path string) error {
	e.posts = append(e.posts, path)
	return nil
}

func (e *polled) Get(context.Context, string) ([]byte, error) {
	now := e.answers[0]
	if len(e.answers) > 1 {
		e.answers = e.answers[1:]
	}
	switch {
	case now == nil:
		return nil, errors.New("busy")
	case now.inboundRequests > 0:
		return []byte("http.inbound_80.downstream_rq_active: 1\ncluster.inbound_80.upstream_rq_active: 1\n"), nil
	}
	return nil, nil
}

func (e *polled) Running() error { return e.down }

// TestQuiet checks how long the inbound must be idle before its listeners close. An open request, or a poll without a
// response, restarts this time.
func TestQuiet(t *testing.T) {
	const quiet = time.Second
	idle, open := &active{}, &active{inboundRequests: 1}
	for name, tc := range map[string]struct {
		polls []*active
		want  time.Duration
	}{
		"idle from the start":          {[]*active{idle}, quiet},
		"open for three polls":         {[]*active{open, open, open, idle}, 2*pollEvery + quiet},
		"a request within the quiet":   {[]*active{idle, idle, open, idle}, 2*pollEvery + quiet},
		"busy, for longer than quiet":  {append(slices.Repeat([]*active{nil}, 20), idle), 19*pollEvery + quiet},
		"busy for a poll, and idle":    {[]*active{idle, nil, idle}, pollEvery + quiet},
		"busy while a request is open": {[]*active{open, nil, open, idle}, 2*pollEvery + quiet},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, began := &polled{answers: tc.polls}, time.Now()
				if err := Run(t.Context(), e, quiet, slog.New(slog.DiscardHandler)); err != nil {
					t.Fatal(err)
				}
				if got := time.Since(began); got != tc.want {
					t.Errorf("Run() took %s, want %s", got, tc.want)
				}
				if last := e.posts[len(e.posts)-1]; last != "/drain_listeners" {
					t.Errorf("the last of %q, want /drain_listeners", e.posts)
				}
			})
		})
	}
}

// TestEnvoyThatHasEnded checks that a drain does not wait for an ended Envoy.
func TestEnvoyThatHasEnded(t *testing.T) {
	down := errors.New("exit status 1")
	e := &polled{answers: []*active{nil}, down: down}
	if err := Run(t.Context(), e, time.Second, slog.New(slog.DiscardHandler)); !errors.Is(err, down) {
		t.Errorf("Run() = %v, want %v", err, down)
	}
}
