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
)

// priority is the SO_PRIORITY by which the kernel's rules recognise connections that go to the application and must not be
// redirected to Envoy. Up to 6 it takes no capability. generator/address.go has the same for Envoy.
const priority = 6

// control sets up a socket before it connects. The local address is not bound: connect chooses address and port.
type control func(network, address string, c syscall.RawConn) error

// socketControl sets SO_PRIORITY, and SO_LINGER unless lingerSeconds is negative.
func socketControl(lingerSeconds int) control {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		outer := c.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, priority))
			if err == nil && lingerSeconds >= 0 {
				linger := unix.Linger{Onoff: 1, Linger: int32(lingerSeconds)}
				err = os.NewSyscallError("setsockopt", unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &linger))
			}
		})
		return errors.Join(outer, err)
	}
}

// newDialer returns a dialer without TCP keepalive, since the peer is in the same kernel.
func newDialer(c control) *net.Dialer { return &net.Dialer{Control: c, KeepAlive: -1} }

// Seconds of SO_LINGER: that of the kubelet's probes; none, as for its hooks; 0 for TCP checks, to close with a reset.
const (
	lingerProbe = 1
	lingerNone  = -1
	lingerReset = 0
)

// clients are equivalents of the kubelet's two HTTP clients, shared by all entries. No connection outlives its call.
type clients struct {
	probe *http.Transport
	hook  *http.Transport
}

// Source: kubernetes pkg/probe/http/http.go and pkg/kubelet/kubelet.go. What they leave at net/http's default stays so: the
// size of the read buffer, for example, limits chunk extensions and trailers.
func newClients(podIP netip.Addr, virtualPort int) clients {
	virtual := netip.AddrPortFrom(podIP, uint16(virtualPort))
	return clients{
		probe: &http.Transport{
			DialContext:         dialPod(newDialer(socketControl(lingerProbe)), virtual),
			TLSClientConfig:     unverified(),
			TLSHandshakeTimeout: 10 * time.Second,
			DisableKeepAlives:   true,
			DisableCompression:  true,
			ForceAttemptHTTP2:   true, // by ALPN
			HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		},
		hook: &http.Transport{ // only HTTP/1.1, and no timeout
			DialContext:     dialPod(newDialer(socketControl(lingerNone)), virtual),
			TLSClientConfig: unverified(),
		},
	}
}

func unverified() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the kubelet does not verify: it asks an address, not a name
}

// dialPod only dials the pod. A redirect to the virtual port is refused: without the mesh, nothing would listen there.
func dialPod(dialer *net.Dialer, virtual netip.AddrPort) func(context.Context, string, string) (net.Conn, error) {
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
		return dialer.DialContext(ctx, network, address)
	}
}

func hostPort(ip netip.Addr, port int32) string {
	return net.JoinHostPort(ip.String(), strconv.Itoa(int(port)))
}
