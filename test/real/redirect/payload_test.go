package redirect_test

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/test/must"
)

// payloads are ways to send bytes. Each returns a connection that may have been reset.
var payloads = map[string]func(t *testing.T, w *world, to netip.AddrPort) (*net.TCPConn, error){
	"1 byte":        func(t *testing.T, w *world, to netip.AddrPort) (*net.TCPConn, error) { return w.send(t, to, 1) },
	"500 bytes":     func(t *testing.T, w *world, to netip.AddrPort) (*net.TCPConn, error) { return w.send(t, to, 500) },
	"100,000 bytes": func(t *testing.T, w *world, to netip.AddrPort) (*net.TCPConn, error) { return w.send(t, to, 100_000) },
	"after a pause": func(t *testing.T, w *world, to netip.AddrPort) (*net.TCPConn, error) {
		conn := w.dial(t, to)
		time.Sleep(3 * pause)
		_, err := conn.Write(make([]byte, 10))
		return conn, err
	},
	"with IP options": func(t *testing.T, w *world, to netip.AddrPort) (*net.TCPConn, error) {
		conn := w.dial(t, to)
		control(t, conn, func(fd int) error {
			if to.Addr().Is4() {
				return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x01") // no operation
			}
			return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, "\x00\x00\x01\x04\x00\x00\x00\x00") // padding
		})
		_, err := conn.Write(make([]byte, 10))
		return conn, err
	},
	"in the SYN": sendInSYN,
}

// TestPayload sends bytes to the port of a probe: none arrives, and the sender gets a reset. At the excluded port,
// all bytes arrive.
func TestPayload(t *testing.T) {
	for family := range addresses {
		for name, send := range payloads {
			t.Run(family+", "+name, func(t *testing.T) {
				w, app := newProbedPod(t), newServer(nil)
				must.Do(t, w.pod.Do(func() error { return fastOpen("0x602") })) // listeners accept data in a SYN without a cookie
				must.Do(t, w.host.Do(func() error { return fastOpen("0x5") }))  // clients may send data in a SYN without a cookie
				for _, port := range []uint16{appPort, excludedPort} {
					w.pod.ServeAt(t, netip.AddrPortFrom(wildcards[family], port), app.handle)
				}
				conn, err := send(t, w, addrPort(family, "pod", probePort))
				if err == nil {
					_, err = conn.Read(make([]byte, 1))
				}
				if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("the sender's connection ended with %v, want a reset", err)
				}
				if n := app.received.Load(); n != 0 {
					t.Errorf("the application received %d bytes, want 0", n)
				}
				conn, err = send(t, w, addrPort(family, "pod", excludedPort))
				must.Do(t, errors.Join(err, conn.CloseWrite()))
				app.wantEnd(t, family, nil)
				if app.received.Load() == 0 {
					t.Error("at the excluded port, the application received nothing")
				}
			})
		}
	}
}

func fastOpen(mode string) error {
	return os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte(mode), 0)
}

func (w *world) send(t *testing.T, to netip.AddrPort, sizeBytes int) (*net.TCPConn, error) {
	conn := w.dial(t, to)
	_, err := conn.Write(make([]byte, sizeBytes))
	return conn, err
}

// sendInSYN connects with TCP Fast Open.
func sendInSYN(t *testing.T, w *world, to netip.AddrPort) (*net.TCPConn, error) {
	t.Helper()
	const sentInSYN = 32 // TCPI_OPT_SYN_DATA of linux/tcp.h: the peer has accepted the data
	fd := w.socket(t, to)
	if err := unix.Sendto(fd, []byte("GET /"), unix.MSG_FASTOPEN, sockaddr(to)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	must.Do(t, err)
	if info.Options&sentInSYN == 0 {
		t.Error("the SYN had no data")
	}
	return fileConn(t, fd), nil
}

// socket returns a TCP socket of the host, which the caller must close.
func (w *world) socket(t *testing.T, to netip.AddrPort) (fd int) {
	t.Helper()
	must.Do(t, w.host.Do(func() (err error) {
		family := unix.AF_INET6
		if to.Addr().Is4() {
			family = unix.AF_INET
		}
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	return fd
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// fileConn returns a connected socket as a connection, which ends with the test.
func fileConn(t *testing.T, fd int) *net.TCPConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socket")
	conn, err := net.FileConn(file)
	must.Do(t, errors.Join(err, file.Close()))
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// control calls f with the file descriptor of a connection.
func control(t *testing.T, conn *net.TCPConn, f func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	must.Do(t, err)
	var inner error
	outer := raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	must.Do(t, errors.Join(outer, inner))
}

// forge returns a second socket for a connection of the host whose remote port is the application's own port, so that
// it bypasses the redirection.
func (w *world) forge(t *testing.T, conn *net.TCPConn, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	const receiving, sending = 1, 2                 // TCP_RECV_QUEUE and TCP_SEND_QUEUE of linux/tcp.h
	queues := map[int]int{receiving: 0, sending: 0} // and the next sequence number of each
	repair := func(fd, on int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, on) }
	each := func(fd int, f func(queue int) error) error {
		errs := []error{repair(fd, unix.TCP_REPAIR_ON)}
		for queue := range queues {
			errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue), f(queue))
		}
		return errors.Join(errs...)
	}
	control(t, conn, func(fd int) error {
		return errors.Join(each(fd, func(queue int) (err error) {
			queues[queue], err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
			return err
		}), repair(fd, unix.TCP_REPAIR_OFF_NO_WP))
	})
	fd := w.socket(t, to)
	must.Do(t, each(fd, func(queue int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ, queues[queue])
	}))
	must.Do(t, unix.Bind(fd, sockaddr(conn.LocalAddr().(*net.TCPAddr).AddrPort())))
	must.Do(t, unix.Connect(fd, sockaddr(to)))
	var window []byte // struct tcp_repair_window of linux/tcp.h
	for _, n := range []int{queues[receiving], math.MaxUint16, math.MaxUint16, math.MaxUint16, queues[receiving]} {
		window = binary.NativeEndian.AppendUint32(window, uint32(n))
	}
	must.Do(t, unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW, string(window)))
	must.Do(t, repair(fd, unix.TCP_REPAIR_OFF_NO_WP))
	return fileConn(t, fd)
}

// sayLast sends a text and FIN in one packet. Connection tracking treats the packet as invalid if it has no such
// connection, so NAT does not change it.
func sayLast(conn *net.TCPConn, text string) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	outer := raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
	_, err = io.WriteString(conn, text)
	return errors.Join(outer, inner, err, conn.CloseWrite())
}

// TestInvalidInput opens a probe's connection, and then sends packets on it to the application's own port. If nothing
// dropped them, they would reach the connection, bypassing Envoy.
func TestInvalidInput(t *testing.T) {
	for family := range addresses {
		for _, flush := range []bool{false, true} {
			t.Run(family+map[bool]string{true: ", without the filter"}[flush], func(t *testing.T) {
				w, app := newProbedPod(t), newServer(nil)
				if flush {
					change(t, w.pod, func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Name: "probe_input", Table: table()}) })
				}
				w.pod.ServeAt(t, netip.AddrPortFrom(wildcards[family], appPort), app.handle)
				conn := w.dial(t, addrPort(family, "pod", probePort))
				must.Do(t, sayLast(w.forge(t, conn, addrPort(family, "pod", appPort)), "GET /"))
				must.Do(t, conn.Close()) // arrives after the forged packet, and closes the connection if that packet did not
				app.wantEnd(t, family, nil)
				if got := app.received.Load() > 0; got != flush {
					t.Errorf("the application received %d bytes", app.received.Load())
				}
			})
		}
	}
}

// TestForgottenConnection has an application send on a probe's connection that connection tracking has removed. Its
// packets would leave with its own port, and the host would treat them as responses to its forged socket. The
// prober's port is excluded for outbound, so that the packets are not redirected to Envoy, either.
func TestForgottenConnection(t *testing.T) {
	speakers := map[string]func(*net.TCPConn, string) error{
		"goes on": func(conn *net.TCPConn, text string) error {
			_, err := io.WriteString(conn, text)
			return err
		},
		"ends": sayLast,
	}
	for family := range addresses {
		for name, say := range speakers {
			for _, flush := range []bool{false, true} {
				t.Run(family+", "+name+map[bool]string{true: ", without the filter"}[flush], func(t *testing.T) {
					w := newProbedPod(t)
					if flush {
						change(t, w.pod, func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Name: "probe_output", Table: table()}) })
					}
					speak, said := make(chan struct{}), make(chan error, 1)
					w.pod.ServeAt(t, netip.AddrPortFrom(wildcards[family], appPort), func(conn net.Conn) {
						<-speak
						said <- say(conn.(*net.TCPConn), "secret")
						_, _ = conn.Read(make([]byte, 1)) // until a reset, or the end of the test
					})
					conn := w.dialFrom(t, addrPort(family, "host", excludedPort), addrPort(family, "pod", probePort))
					forged := w.forge(t, conn, addrPort(family, "pod", appPort))
					must.Do(t, w.pod.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
					close(speak)
					must.Do(t, <-said)
					must.Do(t, forged.SetReadDeadline(time.Now().Add(5*pause)))
					n, err := forged.Read(make([]byte, 10))
					if got := n > 0; got != flush {
						t.Errorf("the host received %d bytes: %v", n, err)
					}
				})
			}
		}
	}
}

// dialFrom connects from an address of the host.
func (w *world) dialFrom(t *testing.T, from, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	fd := w.socket(t, to)
	must.Do(t, errors.Join(unix.Bind(fd, sockaddr(from)), unix.Connect(fd, sockaddr(to))))
	return fileConn(t, fd)
}
