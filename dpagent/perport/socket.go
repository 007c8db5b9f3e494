package perport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// socketMode of mesh.SocketProbes: only Envoy, which has the agent's user, connects to it.
const socketMode = 0o600

// socket answers the HTTP probes that Envoy passes on.
type socket struct {
	envoy netip.AddrPort // where Envoy listens for them
}

// String says for people what it answers.
func (t socket) String() string { return fmt.Sprintf("HTTP probes on %s", t.envoy) }

func (t socket) run(ctx context.Context, s *Server) {
	for ctx.Err() == nil {
		s.report(t, t.serve(ctx, s))
		select {
		case <-ctx.Done():
		case <-time.After(period):
		}
	}
}

func (t socket) serve(ctx context.Context, s *Server) error {
	h, err := probe.New(probe.Options{
		PodIP: t.envoy.Addr(), Port: int(t.envoy.Port()), BehindEnvoy: true, Targets: true, Logger: s.o.Logger, Registerer: s.o.Registerer,
	})
	if err != nil {
		return err
	}
	l, err := listen(ctx, s.o.Socket(mesh.SocketProbes))
	if err != nil {
		return err
	}
	s.report(t, nil)
	return h.Serve(ctx, l)
}

// listen opens a socket, of which an agent that has died may have left a file behind.
func listen(ctx context.Context, at *net.UnixAddr) (net.Listener, error) {
	conn, err := (&net.Dialer{Timeout: period}).DialContext(ctx, at.Net, at.Name)
	if err == nil {
		return nil, errors.Join(fmt.Errorf("somebody answers on %s already: is the agent started with a probe table for the mode %s?",
			mesh.SocketProbes, mesh.ProbesPerPort), conn.Close())
	}
	if err := os.Remove(at.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix(at.Net, at)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(at.Name, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
