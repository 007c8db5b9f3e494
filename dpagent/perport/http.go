package perport

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// web answers the HTTP probes in Config.Paths.
type web struct{ at netip.AddrPort }

// String returns a description for messages.
func (t web) String() string { return fmt.Sprintf("HTTP probes on %s", t.at) }

func (t web) run(ctx context.Context, s *Server) {
	if t.at == s.o.Virtual { // the virtual port is already open
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil {
		s.report(t, t.serve(ctx, s))
		select {
		case <-ctx.Done():
		case <-time.After(period):
		}
	}
}

func (t web) serve(ctx context.Context, s *Server) error {
	target := func(path string) (probe.Target, bool) { return s.TargetAt(t.at, path) }
	h, err := probe.New(probe.Options{
		PodIP: t.at.Addr(), Port: int(t.at.Port()), Target: target, Dial: s.o.Dial, Logger: s.o.Logger,
		Registerer: s.o.Registerer,
	})
	if err != nil {
		return err
	}
	l, err := s.o.Listen(ctx, "tcp", t.at.String())
	if err != nil {
		return err
	}
	s.report(t, nil)
	return h.Serve(ctx, l)
}

// TargetAt returns the target of a GET of a path at an address; false if none.
func (s *Server) TargetAt(at netip.AddrPort, path string) (probe.Target, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.config.Paths[path]
	return t, ok && at == s.config.HTTP
}
