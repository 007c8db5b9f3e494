package redirect_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/dpagent/redirect"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

// The ports of the tests. Port 9000 is excluded for both directions: what arrives there shows that a test can fail.
const (
	probePort    = 9001
	appPort      = 6853
	excludedPort = 9000
)

// pause is how long the tests wait for unexpected data.
const pause = 100 * time.Millisecond

func tcpProbe(port, target int) redirect.TCPProbe {
	return redirect.TCPProbe{Port: port, Target: target}
}

func withProbes(probes ...redirect.TCPProbe) redirect.Options {
	o := defaults()
	o.TCPProbes, o.ExcludeOutboundPorts = probes, []int{excludedPort}
	return o
}

// newProbedPod returns a pod with the redirection of a probe, and a host. No application listens yet.
func newProbedPod(t *testing.T) *world {
	t.Helper()
	w := &world{pod: newNamespace(t), host: newNamespace(t)}
	redirecttest.Join(t, w.pod, w.host, [2][]string{{pod4 + "/24", second4 + "/24", pod6 + "/64", second6 + "/64"}, {host4 + "/24", host6 + "/64"}})
	w.install(t, withProbes(tcpProbe(probePort, appPort)))
	return w
}

// addrPort returns a port at an address of a family's table.
func addrPort(family, name string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addresses[family][name]), port)
}

// The pod has two addresses of each family.
const second4, second6 = "192.0.2.3", "2001:db8::3"

// wildcards are the addresses of servers that listen on all addresses.
var wildcards = map[string]netip.Addr{"IPv4": netip.IPv4Unspecified(), "IPv6": netip.IPv6Unspecified()}

// end is the end of a connection as the application sees it: without an error if the prober closed
// it.
type end struct {
	from netip.Addr
	err  error
}

// server is an application that sends its greeting, if any, to each client, and counts the received
// bytes.
type server struct {
	greeting []byte
	received atomic.Int64
	ends     chan end
}

func newServer(greeting []byte) *server {
	return &server{greeting: greeting, ends: make(chan end, 100)}
}

func (s *server) handle(conn net.Conn) {
	_, err := conn.Write(s.greeting)
	buffer := make([]byte, 64<<10)
	for err == nil {
		var n int
		n, err = conn.Read(buffer)
		s.received.Add(int64(n))
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	s.ends <- end{conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), err}
}

// wantEnd waits for the end of a connection from the host.
func (s *server) wantEnd(t *testing.T, family string, want error) {
	t.Helper()
	select {
	case got := <-s.ends:
		if !errors.Is(got.err, want) || got.from.String() != addresses[family]["host"] {
			t.Errorf("the application's connection from %s ended with %v, want %v", got.from, got.err, want)
		}
	case <-wait.Context(t).Done():
		t.Fatal("the application's connection does not end")
	}
}

// wantRefused expects a refused connection: if the packets were dropped, the kernel would time out after
// minutes.
func wantRefused(t *testing.T, from *redirecttest.Namespace, who redirecttest.Caller, to netip.AddrPort) {
	t.Helper()
	conn, err := from.Dial(who, to)
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("user %d with priority %d connects to %s: %v, want a refusal", who.User, who.Priority, to, err)
	}
}

// dial connects from the host.
func (w *world) dial(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	conn, err := w.host.Dial(root, to)
	must.Do(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// TestTCPProbe connects and closes as the kubelet does, with a linger time of a second.
func TestTCPProbe(t *testing.T) {
	ways := map[string]func(*net.TCPConn) error{
		"close":        func(*net.TCPConn) error { return nil },
		"linger for 1": func(c *net.TCPConn) error { return c.SetLinger(1) },
	}
	for family := range addresses {
		listeners := map[string]netip.Addr{"all addresses": wildcards[family], "the pod's": netip.MustParseAddr(addresses[family]["pod"])}
		for where, address := range listeners {
			t.Run(family+", "+where, func(t *testing.T) {
				w, app := newProbedPod(t), newServer(nil)
				to := addrPort(family, "pod", probePort)
				wantRefused(t, w.host, root, to)
				for range 2 { // opened, closed, and opened again
					stop := w.pod.ServeAt(t, netip.AddrPortFrom(address, appPort), app.handle)
					for name, prepare := range ways {
						conn := w.dial(t, to)
						must.Do(t, errors.Join(prepare(conn), conn.Close()))
						t.Log(name)
						app.wantEnd(t, family, nil)
					}
					stop()
					wantRefused(t, w.host, root, to)
				}
			})
		}
	}
}

// TestTCPProbeRefused has listeners that the kubelet could not reach without a mesh, and callers to whom the rules do
// not apply.
func TestTCPProbeRefused(t *testing.T) {
	for family := range addresses {
		t.Run(family, func(t *testing.T) {
			w := newProbedPod(t)
			stop := w.pod.ServeAt(t, addrPort(family, "loopback", appPort), newServer(nil).handle)
			wantRefused(t, w.host, root, addrPort(family, "pod", probePort))
			stop()
			w.pod.ServeAt(t, netip.AddrPortFrom(wildcards[family], appPort), newServer(nil).handle)
			for _, who := range []redirecttest.Caller{root, application, envoy, toApp} {
				wantRefused(t, w.pod, who, addrPort(family, "pod", probePort))
				wantRefused(t, w.pod, who, addrPort(family, "loopback", probePort))
			}
		})
	}
}

// TestTCPProbeAddresses has an application that listens on one of several addresses: only that address is open.
func TestTCPProbeAddresses(t *testing.T) {
	for family, all := range map[string][]string{"IPv4": {pod4, second4}, "IPv6": {pod6, second6}} {
		for _, open := range all {
			t.Run(family+", "+open, func(t *testing.T) {
				w, app := newProbedPod(t), newServer(nil)
				w.pod.ServeAt(t, netip.AddrPortFrom(netip.MustParseAddr(open), appPort), app.handle)
				for _, address := range all {
					to := netip.AddrPortFrom(netip.MustParseAddr(address), probePort)
					if address != open {
						wantRefused(t, w.host, root, to)
						continue
					}
					must.Do(t, w.dial(t, to).Close())
					app.wantEnd(t, family, nil)
				}
			})
		}
	}
}

// TestTCPProbeFamilies has rules for one family: the probe's port is closed in the other family, and applications
// receive all data.
func TestTCPProbeFamilies(t *testing.T) {
	others := map[string]redirect.Families{"IPv4": redirect.IPv6, "IPv6": redirect.IPv4}
	for family, other := range others {
		t.Run(family, func(t *testing.T) {
			w, app := newProbedPod(t), newServer([]byte("hello"))
			o := withProbes(tcpProbe(probePort, appPort))
			o.Families = other
			w.install(t, o)
			w.pod.ServeAt(t, netip.AddrPortFrom(wildcards[family], appPort), app.handle)
			wantRefused(t, w.host, root, addrPort(family, "pod", probePort))
			conn := w.dial(t, addrPort(family, "pod", appPort))
			_, err := io.WriteString(conn, "hello")
			must.Do(t, errors.Join(err, conn.CloseWrite()))
			answer, err := io.ReadAll(conn)
			must.Do(t, err)
			app.wantEnd(t, family, nil)
			if string(answer) != "hello" || app.received.Load() != 5 {
				t.Errorf("the host received %q, the application %d bytes", answer, app.received.Load())
			}
		})
	}
}

// TestTCPProbesOfOnePort has two ports that lead to the same application.
func TestTCPProbesOfOnePort(t *testing.T) {
	for family := range addresses {
		t.Run(family, func(t *testing.T) {
			w, app := newProbedPod(t), newServer(nil)
			w.install(t, withProbes(tcpProbe(9002, appPort), tcpProbe(probePort, appPort)))
			w.pod.ServeAt(t, netip.AddrPortFrom(wildcards[family], appPort), app.handle)
			for _, port := range []uint16{probePort, 9002} {
				must.Do(t, w.dial(t, addrPort(family, "pod", port)).Close())
				app.wantEnd(t, family, nil)
			}
		})
	}
}

// TestGreeting has applications that send first: nothing arrives, and their connections end as if the prober had
// closed them.
func TestGreeting(t *testing.T) {
	greetings := map[string][]byte{"short": []byte("220 ready\r\n"), "of many packets": make([]byte, 100<<10)}
	for family := range addresses {
		for name, greeting := range greetings {
			t.Run(family+", "+name, func(t *testing.T) {
				w, app := newProbedPod(t), newServer(greeting)
				for _, port := range []uint16{appPort, excludedPort} {
					w.pod.ServeAt(t, netip.AddrPortFrom(wildcards[family], port), app.handle)
				}
				conn := w.dial(t, addrPort(family, "pod", probePort))
				app.wantEnd(t, family, syscall.ECONNRESET)
				must.Do(t, conn.SetReadDeadline(time.Now().Add(pause)))
				if n, err := conn.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
					t.Errorf("the prober read %d bytes: %v, want 0", n, err)
				}
				heard, err := io.ReadFull(w.dial(t, addrPort(family, "pod", excludedPort)), make([]byte, len(greeting)))
				if err != nil {
					t.Errorf("at the excluded port, the host received %d bytes: %v", heard, err)
				}
			})
		}
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// TestCheckOtherProbes installs over a table with other probes.
func TestCheckOtherProbes(t *testing.T) {
	n := newNamespace(t)
	none := withProbes()
	older := withProbes(tcpProbe(9001, 6853), tcpProbe(9002, 3306))
	newer := withProbes(tcpProbe(9002, 6853), tcpProbe(9001, 6853))
	must.Do(t, n.Do(func() error { return redirect.Install(older) }))
	want := []string{
		"chain prerouting: missing rule: tcp dport 9002 dnat ip to ip daddr:6853",
		"chain prerouting: missing rule: tcp dport 9002 dnat ip6 to ip6 daddr:6853",
		"chain prerouting: unexpected rule: tcp dport 9002 dnat ip to ip daddr:3306",
		"chain prerouting: unexpected rule: tcp dport 9002 dnat ip6 to ip6 daddr:3306",
		"chain probe_input: unexpected rule: tcp dport 3306 ct state invalid drop",
		"chain probe_input: unexpected rule: tcp dport 3306 ct direction original ct status dnat jump payload",
		"chain probe_output: unexpected rule: tcp sport 3306 ct state invalid drop",
		"chain probe_output: unexpected rule: tcp sport 3306 ct state new tcp flags ! syn meta l4proto tcp reject with tcp reset",
		"chain probe_output: unexpected rule: tcp sport 3306 ct direction reply ct status dnat jump payload",
	}
	if diff := cmp.Diff(want, differences(t, n, newer)); diff != "" {
		t.Errorf("Check() of other probes: -want +got:\n%s", diff)
	}
	for range 2 {
		must.Do(t, n.Do(func() error { return redirect.Install(newer) }))
		if got := differences(t, n, newer); len(got) > 0 {
			t.Errorf("Check() = %q", got)
		}
	}
	without := []string{"chain payload is unknown", "chain probe_input is unknown", "chain probe_output is unknown"}
	if got := differences(t, n, none); !slices.Equal(got[len(got)-3:], without) {
		t.Errorf("Check() without probes = %q, want the suffix %q", got, without)
	}
	must.Do(t, n.Do(func() error { return redirect.Install(none) }))
	if got := differences(t, n, none); len(got) > 0 {
		t.Errorf("Check() without probes = %q", got)
	}
}
