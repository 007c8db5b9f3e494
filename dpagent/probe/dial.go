package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// plainClose is the kernel's usual close. The SO_LINGER of the kubelet's probes, a second, does not change what the
// application sees: it only makes close wait, which would delay a verdict. resetClose leaves nothing behind.
const (
	plainClose = false
	resetClose = true
)

// newDialer returns a dialer without TCP keepalive, since the peer is in the same kernel. The local address is not bound:
// connect chooses address and port.
func newDialer(reset bool) *net.Dialer {
	control := func(_, _ string, c syscall.RawConn) error {
		var err error
		outer := c.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, mesh.SocketPriority))
			if err == nil && reset {
				err = os.NewSyscallError("setsockopt", unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
			}
		})
		return errors.Join(outer, err)
	}
	return &net.Dialer{Control: control, KeepAlive: -1}
}

// Dial connects to a port of the application, as net.Dialer.DialContext does. A nil Dial opens sockets that the redirection leaves alone.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// or returns d, or a dialer of sockets if d is nil.
func (d Dial) or(reset bool) Dial {
	if d == nil {
		return newDialer(reset).DialContext
	}
	return d
}

// clients are equivalents of the kubelet's HTTP clients, shared by all entries. No connection outlives its call.
type clients struct {
	probe *http.Transport
	h2c   *http.Transport
	hook  *http.Transport
}

// close closes what probes have left open.
func (c clients) close() {
	c.probe.CloseIdleConnections()
	c.h2c.CloseIdleConnections()
}

// Source: kubernetes pkg/probe/http/http.go and pkg/kubelet/kubelet.go. What they leave at net/http's default stays so: the
// size of the read buffer, for example, limits chunk extensions and trailers.
func newClients(dial Dial, podIP netip.Addr, virtualPort int) clients {
	virtual := netip.AddrPortFrom(podIP, uint16(virtualPort))
	itself := func(at netip.AddrPort) netip.AddrPort { return at }
	dial = dialPod(dial.or(plainClose), virtual, itself)
	return clients{
		probe: newProbeTransport(dial),
		h2c:   newH2CTransport(dial),
		hook: &http.Transport{ // only HTTP/1.1, and no timeout
			DialContext:     dial,
			TLSClientConfig: unverified(),
		},
	}
}

func newProbeTransport(dial Dial) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     unverified(),
		TLSHandshakeTimeout: 10 * time.Second,
		DisableKeepAlives:   true,
		DisableCompression:  true,
		ForceAttemptHTTP2:   true, // by ALPN
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// newH2CTransport returns one that speaks HTTP/2 at once, to a server that need not be asked whether it does.
func newH2CTransport(dial Dial) *http.Transport {
	t := &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true, Protocols: new(http.Protocols)}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

func unverified() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the kubelet does not verify: it asks an address, not a name
}

// dialPod only dials the pod, where the application is that the kubelet would reach at an address. A redirect to the virtual port is
// refused: without the mesh, nothing would listen there.
func dialPod(dial Dial, virtual netip.AddrPort, application func(netip.AddrPort) netip.AddrPort) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		target, err := netip.ParseAddrPort(address)
		refused := &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(virtual)}
		switch {
		case err != nil || target.Addr() != virtual.Addr():
			refused.Err = errors.New("not the pod's address")
			return nil, refused
		case target == virtual:
			refused.Err = os.NewSyscallError("connect", syscall.ECONNREFUSED)
			return nil, refused
		}
		return dial(ctx, network, application(target).String())
	}
}

func hostPort(ip netip.Addr, port int32) string {
	return net.JoinHostPort(ip.String(), strconv.Itoa(int(port)))
}
