// Package redirect_test tests the rules of dpagent/redirect with the kernel, in its own network namespaces.
package redirect_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/must"
)

// The addresses of the tests: a pod, and another host, which is the next hop of all its routes.
const (
	pod4, pod6   = "192.0.2.2", "2001:db8::2"
	host4, host6 = "192.0.2.1", "2001:db8::1"
	// these addresses are unassigned, like a Service's on Kubernetes
	service4, service6 = "198.51.100.7", "2001:db8:7::7"
)

// Callers.
var (
	application = redirecttest.Caller{User: 1000}
	root        = redirecttest.Caller{User: 0}
	envoy       = redirecttest.Caller{User: mesh.SidecarUser}
	toApp       = redirecttest.Caller{User: mesh.SidecarUser, Priority: mesh.SocketPriority} // connections of Envoy and of the agent to the application
	faker       = redirecttest.Caller{User: 1000, Priority: mesh.SocketPriority}
)

func defaults() redirect.Options {
	return redirect.Options{
		OutboundPort: mesh.PortRedirectOut, InboundPort: mesh.PortRedirectIn, User: mesh.SidecarUser, Families: redirect.DualStack,
		ExcludeInboundPorts: []int{9000, 9800},
	}
}

// newNamespace returns a separate machine.
func newNamespace(t *testing.T) *redirecttest.Namespace {
	t.Helper()
	slowtest.Skip(t, "network namespaces")
	return redirecttest.New(t)
}

// world is a pod and a host, with servers that return which of them was reached.
type world struct {
	pod, host *redirecttest.Namespace
}

// newWorld starts applications in the pod and on the host, without Envoy.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{pod: newNamespace(t), host: newNamespace(t)}
	redirecttest.Join(t, w.pod, w.host, [2][]string{{pod4 + "/24", pod6 + "/64"}, {host4 + "/24", host6 + "/64"}})
	for _, gateway := range []string{host4, host6} {
		must.Do(t, w.pod.Do(func() error { return redirecttest.Route(gateway) }))
	}
	for _, port := range []int{8080, 9000, 9800, 5432, mesh.PortPodMetrics} {
		w.pod.Serve(t, port, say("the application"))
		w.host.Serve(t, port, say("the host"))
	}
	return w
}

func say(text string) func(net.Conn) {
	return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
}

// sayOriginal runs servers on the capture ports that return the original destination.
func (w *world) sayOriginal(t *testing.T) {
	for _, port := range []int{mesh.PortRedirectIn, mesh.PortRedirectOut} {
		w.pod.Serve(t, port, func(conn net.Conn) {
			at, err := redirecttest.OriginalDestination(conn)
			if err != nil {
				_, _ = fmt.Fprint(conn, err)
				return
			}
			_, _ = fmt.Fprintf(conn, "%d for %s", port, at)
		})
	}
}

func (w *world) install(t *testing.T, o redirect.Options) {
	t.Helper()
	must.Do(t, w.pod.Do(func() error { return redirect.Install(o) }))
}

// ask connects and returns the server's text.
func ask(from *redirecttest.Namespace, who redirecttest.Caller, to netip.AddrPort) string {
	conn, err := from.Dial(who, to)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	text, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// connection is a row of the table of callers and destinations.
type connection struct {
	fromHost bool
	who      redirecttest.Caller
	to       string // pod, host, service or loopback
	port     uint16
	// want is the server's text with redirection: "15006" and "15001" stand for the whole sentence.
	want string
}

const (
	theApplication = "the application"
	theHost        = "the host"
)

var connections = map[string]connection{
	"inbound":                               {fromHost: true, to: "pod", port: 8080, want: "15006"},
	"inbound, closed port":                  {fromHost: true, to: "pod", port: mesh.PortReadiness, want: "15006"},
	"inbound, excluded":                     {fromHost: true, to: "pod", port: 9000, want: theApplication},
	"inbound, also excluded":                {fromHost: true, to: "pod", port: 9800, want: theApplication},
	"inbound, excluded for outbound":        {fromHost: true, to: "pod", port: 5432, want: "15006"},
	"inbound, for Prometheus":               {fromHost: true, to: "pod", port: mesh.PortPodMetrics, want: theApplication},
	"outbound, for Prometheus":              {who: application, to: "host", port: mesh.PortPodMetrics, want: "15001"},
	"Envoy to its own pod, for Prometheus":  {who: envoy, to: "pod", port: mesh.PortPodMetrics, want: theApplication},
	"inbound to the inbound capture":        {fromHost: true, to: "pod", port: 15006, want: "15006"},
	"inbound to the outbound capture":       {fromHost: true, to: "pod", port: 15001, want: "15006"},
	"outbound":                              {who: application, to: "host", port: 8080, want: "15001"},
	"outbound of root":                      {who: root, to: "host", port: 8080, want: "15001"},
	"outbound to a service":                 {who: application, to: "service", port: 80, want: "15001"},
	"outbound, excluded":                    {who: application, to: "host", port: 5432, want: theHost},
	"outbound, excluded for inbound":        {who: application, to: "host", port: 9000, want: "15001"},
	"outbound to another's capture":         {who: application, to: "host", port: 15006, want: "15001"},
	"priority of another user":              {who: faker, to: "host", port: 8080, want: "15001"},
	"Envoy's outbound":                      {who: envoy, to: "host", port: 8080, want: theHost},
	"Envoy's outbound with the priority":    {who: toApp, to: "host", port: 8080, want: theHost},
	"Envoy to its own pod":                  {who: envoy, to: "pod", port: 8080, want: "15006"},
	"Envoy to its own pod, excluded":        {who: envoy, to: "pod", port: 9000, want: theApplication},
	"Envoy to its own pod's readiness":      {who: envoy, to: "pod", port: mesh.PortReadiness, want: "15006"},
	"Envoy to its own inbound capture":      {who: envoy, to: "pod", port: 15006, want: "15006"},
	"Envoy to its own outbound capture":     {who: envoy, to: "pod", port: 15001, want: "15006"},
	"Envoy to the application":              {who: toApp, to: "pod", port: 8080, want: theApplication},
	"Envoy on loopback":                     {who: envoy, to: "loopback", port: 8080, want: theApplication},
	"Envoy on loopback with the priority":   {who: toApp, to: "loopback", port: 8080, want: theApplication},
	"application to its own pod":            {who: application, to: "pod", port: 8080, want: theApplication},
	"application on loopback":               {who: application, to: "loopback", port: 8080, want: theApplication},
	"application to the outbound capture":   {who: application, to: "loopback", port: 15001, want: "15001"},
	"application to the inbound capture":    {who: application, to: "loopback", port: 15006, want: "15006"},
	"application to the pod's own captures": {who: application, to: "pod", port: 15001, want: "15001"},
}

var addresses = map[string]map[string]string{
	"IPv4": {"pod": pod4, "host": host4, "service": service4, "loopback": "127.0.0.1"},
	"IPv6": {"pod": pod6, "host": host6, "service": service6, "loopback": "::1"},
}

// straight returns the server's text without redirection, or "".
func (c *connection) straight() string {
	switch {
	case c.to == "service" || c.port == mesh.PortReadiness:
		return ""
	case c.to == "host" && c.port > 15000:
		return ""
	case c.to == "host":
		return theHost
	case c.port == mesh.PortRedirectIn || c.port == mesh.PortRedirectOut:
		return strconv.Itoa(int(c.port))
	}
	return theApplication
}

// try makes each connection and compares who responds.
func (w *world) try(t *testing.T, family string, want func(connection) string) {
	t.Helper()
	for name, c := range connections {
		answer := want(c)
		if answer == "" {
			continue
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(addresses[family][c.to]), c.port)
		if answer == "15006" || answer == "15001" {
			answer += " for " + to.String()
		}
		from := w.pod
		if c.fromHost {
			from = w.host
		}
		if got := ask(from, c.who, to); got != answer {
			t.Errorf("%s, %s: %s from user %d with priority %d reached %q, want %q", family, name, to, c.who.User, c.who.Priority, got, answer)
		}
	}
}

func redirected(c connection) string { return c.want }
func straight(c connection) string   { return c.straight() }

// outboundOnly returns the expected text if incoming connections are not redirected.
func outboundOnly(c connection) string {
	if c.want == "15006" {
		return c.straight()
	}
	return c.want
}

// gateway returns the expected text if, of the incoming connections, only those to the readiness port are
// redirected. Envoy itself does not connect there.
func gateway(c connection) string {
	switch {
	case c.port != mesh.PortReadiness:
		return outboundOnly(c)
	case c.fromHost:
		return c.want
	}
	return ""
}

// TestConnections has all callers connect to all destinations, in each mode and after its removal.
func TestConnections(t *testing.T) {
	tests := map[string]struct {
		change     func(*redirect.Options)
		ipv4, ipv6 func(connection) string
	}{
		"dual stack":    {func(*redirect.Options) {}, redirected, redirected},
		"IPv4":          {func(o *redirect.Options) { o.Families = redirect.IPv4 }, redirected, straight},
		"IPv6":          {func(o *redirect.Options) { o.Families = redirect.IPv6 }, straight, redirected},
		"outbound only": {func(o *redirect.Options) { o.OutboundOnly = true }, outboundOnly, outboundOnly},
		"gateway":       {func(o *redirect.Options) { o.OutboundOnly, o.Readiness = true, true }, gateway, gateway},
		"TCP probes": {func(o *redirect.Options) {
			o.TCPProbes = []redirect.TCPProbe{tcpProbe(9001, 8080), tcpProbe(9002, 9000)}
		}, redirected, redirected},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.sayOriginal(t)
			o := defaults()
			o.ExcludeOutboundPorts, o.MetricsPort = []int{5432}, mesh.PortPodMetrics
			tc.change(&o)
			w.try(t, "IPv4", straight)
			w.install(t, o)
			w.try(t, "IPv4", tc.ipv4)
			w.try(t, "IPv6", tc.ipv6)
			must.Do(t, w.pod.Do(func() error {
				removed, err := redirect.Uninstall()
				if err == nil && !removed {
					t.Error("Uninstall() found no table")
				}
				return err
			}))
			w.try(t, "IPv4", straight)
			w.try(t, "IPv6", straight)
		})
	}
}

// TestWithoutIPv6 installs the rules of both families on a machine with only IPv4.
func TestWithoutIPv6(t *testing.T) {
	w := newWorld(t)
	w.sayOriginal(t)
	must.Do(t, w.pod.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	}))
	o := defaults()
	o.ExcludeOutboundPorts, o.MetricsPort = []int{5432}, mesh.PortPodMetrics
	w.install(t, o)
	w.try(t, "IPv4", redirected)
}

// TestReplacedAtOnce connects while the rules are installed repeatedly: the rules always apply.
func TestReplacedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.sayOriginal(t)
	w.install(t, defaults())
	installed := make(chan error)
	go func() {
		var err error
		for n := 0; n < 200 && err == nil; n++ {
			err = w.pod.Do(func() error { return redirect.Install(defaults()) })
		}
		installed <- err
	}()
	to := netip.MustParseAddrPort(pod4 + ":8080")
	for calls := 0; ; calls++ {
		select {
		case err := <-installed:
			must.Do(t, err)
			t.Logf("%d connections", calls)
			return
		default:
		}
		if got, want := ask(w.host, root, to), "15006 for "+to.String(); got != want {
			t.Errorf("connection %d reached %q, want %q", calls, got, want)
		}
	}
}

// TestManyExclusions has more rules than fit into the socket's default buffers.
func TestManyExclusions(t *testing.T) {
	n := newNamespace(t)
	o := defaults()
	for port := 1; port <= 1000; port++ {
		o.ExcludeInboundPorts = append(o.ExcludeInboundPorts, port)
		o.ExcludeOutboundPorts = append(o.ExcludeOutboundPorts, port)
	}
	must.Do(t, n.Do(func() error { return redirect.Install(o) }))
	must.Do(t, n.Do(func() error {
		differences, err := redirect.Check(o)
		if len(differences) > 0 {
			t.Errorf("Check() = %s", strings.Join(differences, "\n"))
		}
		return err
	}))
}
