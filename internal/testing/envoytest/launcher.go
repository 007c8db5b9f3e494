// Package envoytest runs Envoys in memory, for tests in virtual time.
package envoytest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// Host is the IP address of the pod.
const Host = "10.0.0.2"

// Launcher launches Envoys whose sockets are on a virtual network.
type Launcher struct {
	// Begin is called for each Envoy before it serves. Default: no call.
	Begin func(*Process)

	network *virtual.Network

	mu      sync.Mutex
	version string
	all     []*Process
}

var _ envoy.Launcher = (*Launcher)(nil)

// New returns a launcher of a supported version.
func New(n *virtual.Network) *Launcher { return &Launcher{network: n, version: "1.40.0"} }

// SetVersion replaces the binary.
func (l *Launcher) SetVersion(version string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version = version
}

// Version implements envoy.Launcher.
func (l *Launcher) Version(context.Context, string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version, nil
}

// Launch implements envoy.Launcher.
func (l *Launcher) Launch(c envoy.Command) (envoy.Process, error) {
	const firstPID = 1000
	l.mu.Lock()
	p := newProcess(firstPID+len(l.all), c)
	l.all = append(l.all, p)
	l.mu.Unlock()
	if l.Begin != nil {
		l.Begin(p)
	}
	return p, p.serve(l.network)
}

// All returns the launched Envoys, in order.
func (l *Launcher) All() []*Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Last returns the Envoy that was launched last.
func (l *Launcher) Last() *Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[len(l.all)-1]
}

// Listen opens a port or a Unix socket of the pod.
func (l *Launcher) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return l.network.Listen(ctx, network, socketPath(network, address))
}

// Dial connects to a port or a Unix socket, from the pod.
func (l *Launcher) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return l.network.DialFrom(Host)(ctx, network, socketPath(network, address))
}

// socketPath returns the path of a socket's address: an agent refers to its directory by a file descriptor.
func socketPath(network, address string) string {
	dir, err := os.Readlink(filepath.Dir(address))
	if network != "unix" || err != nil {
		return address
	}
	return filepath.Join(dir, filepath.Base(address))
}
