package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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

// plainClose is the kernel's usual close. The kubelet's probes set SO_LINGER to a second, which makes no difference to
// the application: close would only wait, and delay the verdict. resetClose resets the connection, which leaves no
// TIME_WAIT.
const (
	plainClose = false
	resetClose = true
)

// newDialer returns a dialer without TCP keepalive, since the peer is in the same kernel. It binds no local address, so
// connect chooses address and port.
func newDialer(reset bool) *net.Dialer {
	control := func(_, _ string, c syscall.RawConn) error {
		var err error
		outer := c.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY,
				mesh.SocketPriority))
			if err == nil && reset {
				err = os.NewSyscallError("setsockopt", unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER,
					&unix.Linger{Onoff: 1}))
			}
		})
		return errors.Join(outer, err)
	}
	return &net.Dialer{Control: control, KeepAlive: -1}
}

// Dial connects to a port of the application, like net.Dialer.DialContext. A nil Dial opens sockets that the
// redirection does not affect.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// or returns d, or a dialer of such sockets if d is nil.
func (d Dial) or(reset bool) Dial {
	if d == nil {
		return newDialer(reset).DialContext
	}
	return d
}

// clients are equivalents of the kubelet's HTTP clients. All entries share them. No connection outlives its call.
type clients struct {
	probe *http.Transport
	h2c   *http.Transport
	hook  *http.Transport
}

// close closes idle connections.
func (c clients) close() {
	c.probe.CloseIdleConnections()
	c.h2c.CloseIdleConnections()
}

// newClients returns clients configured like the kubelet's. Settings that the kubelet leaves at net/http's defaults
// stay so; for example, the size of the read buffer limits chunk extensions and trailers.
// Source: kubernetes pkg/probe/http/http.go and pkg/kubelet/kubelet.go.
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

// newH2CTransport returns a transport that uses HTTP/2 without TLS, without negotiation.
func newH2CTransport(dial Dial) *http.Transport {
	t := &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true,
		Protocols: new(http.Protocols)}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

func unverified() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // as the kubelet, which calls an address, not a name
}

// dialPod returns a Dial that only reaches the pod. application maps the address that the kubelet would use to the
// address where the application listens. A redirect to the virtual port is refused, since without the mesh nothing
// would listen there.
func dialPod(dial Dial, virtual netip.AddrPort, application func(netip.AddrPort) netip.AddrPort) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		target, err := netip.ParseAddrPort(address)
		refused := &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(virtual)}
		switch {
		case err != nil || target.Addr() != virtual.Addr():
			refused.Err = fmt.Errorf("%s is not the pod's address", address)
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
