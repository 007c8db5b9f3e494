// Package redirecttest provides network namespaces for tests of redirection: machines within this machine's kernel.
package redirecttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// Namespace is a thread dedicated to a network namespace.
type Namespace struct {
	tasks chan func()
}

// required is set where namespaces, cgroups and nft must be available, as by .ci/run; then no test is skipped.
const required = "SONDE_TEST_REDIRECTION"

// NotHere ends a test that this machine cannot run: it skips the test, or fails if $SONDE_TEST_REDIRECTION is
// "required".
func NotHere(t *testing.T, why string) {
	t.Helper()
	if os.Getenv(required) == "required" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// New makes a network namespace with its loopback device up. It ends with the test. Without root it skips the test.
func New(t *testing.T) *Namespace {
	t.Helper()
	n := start(t, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
	must(t, n.Do(LoopbackUp))
	return n
}

// Own returns the network namespace of this process.
func Own(t *testing.T) *Namespace {
	t.Helper()
	return start(t, func() error { return nil })
}

// start starts a thread that calls enter and then runs functions.
func start(t *testing.T, enter func() error) *Namespace {
	t.Helper()
	n := &Namespace{tasks: make(chan func())}
	ready, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		ready <- enter()
		for task := range n.tasks {
			task()
		}
	}()
	err := <-ready
	t.Cleanup(func() {
		close(n.tasks)
		<-done
	})
	if errors.Is(err, unix.EPERM) {
		NotHere(t, "creating network namespaces needs root: the rules were not tested in the kernel")
	}
	must(t, err)
	return n
}

// Do calls f in the namespace. Sockets that f opens belong to the namespace permanently.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error)
	n.tasks <- func() { result <- f() }
	return <-result
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// LoopbackUp switches the loopback device on, in the namespace of the calling thread.
func LoopbackUp() error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// Join connects two namespaces by a virtual cable. addresses has the prefixes of a, then of b.
func Join(t *testing.T, a, b *Namespace, addresses [2][]string) {
	t.Helper()
	var target *os.File
	must(t, b.Do(func() (err error) {
		target, err = os.Open("/proc/thread-self/ns/net")
		return err
	}))
	defer func() { _ = target.Close() }()
	must(t, a.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = "eth0"
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes,
			PeerName: "eth0", PeerNamespace: netlink.NsFd(int(target.Fd()))})
	}))
	for index, n := range []*Namespace{a, b} {
		must(t, n.Do(func() error { return address("eth0", addresses[index]) }))
	}
	for _, n := range []*Namespace{a, b} {
		wait.Until(t, "the kernel to notice that both ends are up",
			func() error { return n.Do(func() error { return carrier("eth0") }) })
	}
}

// carrier returns an error until the kernel has noticed that both ends are up. Until then, which may take a second, it
// drops packets.
func carrier(device string) error {
	link, err := netlink.LinkByName(device)
	if err == nil && link.Attrs().OperState != netlink.OperUp {
		err = fmt.Errorf("%s is %s", device, link.Attrs().OperState)
	}
	return err
}

// address adds addresses to a device. It makes them usable at once, without IPv6's check for duplicates.
func address(device string, prefixes []string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	for _, prefix := range prefixes {
		a, err := netlink.ParseAddr(prefix)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("add %s: %w", prefix, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// Route sends all other packets to a gateway, from the namespace of the calling thread.
func Route(gateway string) error {
	_, all, err := net.ParseCIDR("0.0.0.0/0")
	if netip.MustParseAddr(gateway).Is6() {
		_, all, err = net.ParseCIDR("::/0")
	}
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(gateway)})
}

// Caller is the client of a connection.
type Caller struct {
	User     int
	Priority int // SO_PRIORITY, 0 for none
	// From is the source address. Default: the kernel's choice.
	From netip.Addr
}

// Dial connects from the namespace.
func (n *Namespace) Dial(c Caller, to netip.AddrPort) (conn net.Conn, err error) {
	err = n.Do(func() (err error) {
		// The kernel takes the owner of a socket from the thread that opens it.
		if err := unix.Setfsuid(c.User); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unix.Setfsuid(os.Geteuid())) }()
		d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) {
				if c.Priority != 0 {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, c.Priority)
				}
			}), err)
		}}
		if c.From.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.From, 0))
		}
		conn, err = d.DialContext(context.Background(), "tcp", to.String())
		return err
	})
	return conn, err
}

// Serve handles connections to a port of the namespace, with one socket per address family, until the test ends.
func (n *Namespace) Serve(t *testing.T, port int, handle func(net.Conn)) {
	t.Helper()
	for _, at := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		n.ServeAt(t, netip.AddrPortFrom(at, uint16(port)), handle)
	}
}

// ServeAt handles connections to an address of the namespace until the test ends or calls stop, which closes them.
func (n *Namespace) ServeAt(t *testing.T, at netip.AddrPort, handle func(net.Conn)) (stop func()) {
	t.Helper()
	network := "tcp4"
	if at.Addr().Is6() {
		network = "tcp6"
	}
	var l net.Listener
	must(t, n.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), network, at.String())
		return err
	}))
	ctx, cancel := context.WithCancel(context.Background())
	var handlers sync.WaitGroup
	handlers.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handlers.Go(func() {
				defer func() { _ = conn.Close() }()
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				handle(conn)
			})
		}
	})
	stop = func() {
		_ = l.Close()
		cancel()
		handlers.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// OriginalDestination returns the destination of a connection before redirection, as Envoy does: the local address if
// the kernel reports no other.
func OriginalDestination(conn net.Conn) (netip.AddrPort, error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	var at netip.AddrPort
	var inner error
	outer := raw.Control(func(fd uintptr) {
		const soOriginalDst = 80 // linux/netfilter_ipv4.h, and the same for IPv6
		if local.Addr().Unmap().Is4() {
			var found *unix.IPv6Mreq // 16 bytes, like sockaddr_in: the system library has no call for it
			if found, inner = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, soOriginalDst); inner == nil {
				b := found.Multiaddr
				at = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
			}
			return
		}
		var found *unix.IPv6MTUInfo
		if found, inner = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, soOriginalDst); inner == nil {
			port := found.Addr.Port // in network byte order
			at = netip.AddrPortFrom(netip.AddrFrom16(found.Addr.Addr), port<<8|port>>8)
		}
	})
	if errors.Is(inner, unix.ENOENT) {
		return netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), outer
	}
	return at, errors.Join(outer, inner)
}
