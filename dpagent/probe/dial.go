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

// priority marks sockets of the agent's that the redirection leaves alone: they go to the application and not to Envoy.
// Up to 6 it takes no capability.
const priority = 6

// control sets up a socket before it connects. The local port is chosen by connect, with the peer in view: nothing is bound.
type control func(network, address string, c syscall.RawConn) error

// socketControl marks sockets, and sets SO_LINGER if it is not negative.
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

// newDialer returns one without keep-alive: the other end is in the same kernel.
func newDialer(c control) *net.Dialer { return &net.Dialer{Control: c, KeepAlive: -1} }

// Seconds of SO_LINGER: probes as in the kubelet; its hooks have none; a TCP check resets, and leaves nothing behind.
const (
	lingerProbe = 1
	lingerNone  = -1
	lingerReset = 0
)

// clients are the kubelet's two HTTP clients, shared by all entries. No connection outlives its call.
type clients struct {
	probe *http.Transport
	hook  *http.Transport
}

// Source: kubernetes pkg/probe/http/http.go and pkg/kubelet/kubelet.go.
func newClients(podIP netip.Addr, virtualPort int) clients {
	virtual := netip.AddrPortFrom(podIP, uint16(virtualPort))
	return clients{
		probe: &http.Transport{
			DialContext:         dialPod(newDialer(socketControl(lingerProbe)), virtual),
			TLSClientConfig:     unverified(),
			TLSHandshakeTimeout: 10 * time.Second,
			DisableKeepAlives:   true,
			DisableCompression:  true,
			ReadBufferSize:      1 << 10, // garbage of each probe
			ForceAttemptHTTP2:   true,    // by ALPN
			HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		},
		hook: &http.Transport{ // HTTP/1.1 alone, and no limit of time
			DialContext:     dialPod(newDialer(socketControl(lingerNone)), virtual),
			TLSClientConfig: unverified(),
		},
	}
}

func unverified() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the kubelet does not verify: it asks an address, not a name
}

// dialPod dials the pod alone. A redirect may lead to the virtual port, on which nothing listens for the kubelet.
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
