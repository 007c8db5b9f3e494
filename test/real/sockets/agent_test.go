package sockets

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/controlplane"
)

// TestSocketOptionsOfAgents checks that the kernel closes a connection to an unreachable control plane, with and
// without data in flight.
func TestSocketOptionsOfAgents(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := controlplane.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	checkOptions(t, conn, map[string]socketOption{
		"ms until it closes with data in flight": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30_000},
		"keepalive":                              {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"seconds until the first probe":          {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		"seconds between probes":                 {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
		"probes":                                 {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	})
}
