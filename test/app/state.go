package main

import (
	"context"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/health"
)

// state is the state that the control port reads and changes.
type state struct {
	name   string
	health *health.Server
	// endOfRequests is how long requests in progress may take when the application ends.
	endOfRequests time.Duration

	mu     sync.Mutex
	status int // of /healthz
	counts map[string]int64
}

func newState(name string, endOfRequests time.Duration) *state {
	return &state{
		name: name, endOfRequests: endOfRequests, health: health.NewServer(), status: http.StatusOK,
		counts: map[string]int64{},
	}
}

// count counts a request by its path, or by "tcp", and returns the total of all kinds.
func (s *state) count(what string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
	var all int64
	for _, n := range s.counts {
		all += n
	}
	return all
}

func (s *state) countsNow() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

func (s *state) setStatus(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *state) statusNow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// door is a port that can be closed and reopened.
type door struct {
	address string
	serve   func(net.Listener)

	mu sync.Mutex
	l  net.Listener // nil if it is closed
}

// open listens, if the door is closed.
func (d *door) open(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.l != nil {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.address)
	if err != nil {
		return err
	}
	d.l = l
	d.serve(l)
	return nil
}

// close closes the listener and, through the server, its connections.
func (d *door) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.l == nil {
		return nil
	}
	err := d.l.Close()
	d.l = nil
	return err
}
