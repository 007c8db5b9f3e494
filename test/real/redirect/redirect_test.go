package redirect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// The addresses of a pod, and of a host without a sidecar, which is the next hop of all routes of the pod.
const (
	pod4, pod6   = "192.0.2.2", "2001:db8::2"
	host4, host6 = "192.0.2.1", "2001:db8::1"
)

var application = redirecttest.Caller{User: 1000}

// install has the arguments of the init container in testdata/inject/seed, and of an init container in the
// per-port mode.
var install = []string{
	"install", "transparent-proxy", "--redirect-outbound-port", "15001", "--redirect-inbound=true", "--redirect-inbound-port", "15006",
	"--kuma-dp-uid", "5678", "--exclude-inbound-ports", "9000,9800", "--exclude-outbound-ports", "", "--verbose", "--ip-family-mode", "dualstack",
	"--metrics-port", "5670", "--redirect-tcp-probes", "9001:8080",
}

// pair is the pod, with its mesh, and the host.
type pair struct {
	programs  harness.Programs
	pod, host *redirecttest.Namespace
	machine   *harness.Machine
	proxy     *harness.Proxy
	calls     int64
	// seen is the last caller's address that the application received.
	seen string
	// gateway means that the pod's incoming connections are not redirected.
	gateway bool
}

func newPair(t *testing.T, programs harness.Programs, own *redirecttest.Namespace, mode string, gateway bool) *pair {
	t.Helper()
	w := &pair{programs: programs, pod: own, host: redirecttest.New(t), gateway: gateway}
	redirecttest.Join(t, w.pod, w.host, [2][]string{append([]string{pod4 + "/24", pod6 + "/64"}, otherSources()...), {host4 + "/24", host6 + "/64"}})
	must.Do(t, w.pod.Do(func() error {
		for _, gateway := range []string{host4, host6} {
			if err := redirecttest.Route(gateway); err != nil {
				return err
			}
		}
		return nil
	}))
	w.host.Serve(t, 8080, func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"instance\": \"the host\"}")
		}
	})
	must.Do(t, w.sondeDP(t, w.install()...))
	m := harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML(mode)})
	p, err := m.Prepare(harness.ProxyOptions{Name: "web-1", Service: "web", AgentArgs: []string{"--metrics-addr=:5670"}})
	must.Do(t, err)
	w.machine, w.proxy, p.AppAddress = m, p, "[::]:8080"
	// One endpoint each: Envoy must not be able to use the endpoint of the other family.
	for name, at := range map[string]string{"web": destinations["the pod's service"][0], "web6": destinations["the pod's service"][1]} {
		service := "type: Service\nmesh: default\nname: " + name + "\nprotocol: http\naddresses: ['" + at + "']\n"
		if gateway { // like a port of the pod without an inbound
			service += "endpoints: [{address: '" + map[string]string{"web": pod4, "web6": pod6}[name] + "', port: 8080}]\n"
		}
		must.Do(t, m.Put(name+".yaml", service))
	}
	w.declare(t, "")
	must.Do(t, p.StartApp(t.Context()))
	_, err = m.StartApp(t.Context(), "excluded", "http", "[::]:9000")
	must.Do(t, err)
	must.Do(t, p.StartAgent(t.Context()))
	must.Do(t, p.WaitReady(t.Context()))
	must.Poll(t, "both endpoints", func(ctx context.Context) error {
		return errors.Join(p.HasEndpoints(ctx, "web", pod4+":8080"), p.HasEndpoints(ctx, "web6", net.JoinHostPort(pod6, "8080")))
	})
	return w
}

// install returns the arguments of the init container.
func (w *pair) install() []string {
	if !w.gateway {
		return install
	}
	args := slices.DeleteFunc(slices.Clone(install), func(arg string) bool { return arg == "--redirect-inbound=true" })
	return append(args, "--redirect-inbound=false", "--redirect-readiness")
}

// declare writes the Dataplane of the pod, which is on a node.
func (w *pair) declare(t *testing.T, node string) {
	t.Helper()
	serves := `inbound:
  - {port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}
  - {port: 8080, tags: {kuma.io/service: web6, kuma.io/protocol: http}, address: '` + pod6 + `'}`
	if w.gateway {
		serves = "gateway: {tags: {kuma.io/service: web}}"
	}
	must.Do(t, w.machine.Put("web-1.yaml", `type: Dataplane
mesh: default
name: web-1
labels: {sonde.dev/node: "`+node+`"}
networking:
  address: `+pod4+`
  `+serves+`
  transparentProxying: {redirectPortInbound: 15006, redirectPortOutbound: 15001}
`))
}

// sondeDP runs sonde-dp in the pod.
func (w *pair) sondeDP(t *testing.T, args ...string) error {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), w.programs.Agent, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("sonde-dp %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// ask makes a call, and returns who responds, and whether Envoy reports mTLS: "web-1", "web-1 over mTLS".
func (w *pair) ask(from *redirecttest.Namespace, who redirecttest.Caller, to string) string {
	w.calls++
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return nil, err
			}
			return from.Dial(who, at)
		},
	}}
	answer, err := client.Get("http://" + to + "/readyz")
	if err != nil {
		return "no answer"
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Sprintf("status %d: %s %v", answer.StatusCode, body, err)
	}
	var said harness.Answer
	if json.Unmarshal(body, &said) != nil || said.Instance == "" {
		return "the agent" // the readiness response is not the application's
	}
	w.seen = said.Remote
	if said.Headers.Get("X-Forwarded-Client-Cert") != "" {
		return said.Instance + " over mTLS"
	}
	return said.Instance
}

// destinations of calls, IPv4 and IPv6.
var destinations = map[string][2]string{
	"the pod's application": {pod4 + ":8080", "[" + pod6 + "]:8080"},
	"an excluded port":      {pod4 + ":9000", "[" + pod6 + "]:9000"},
	"the pod's service":     {"198.51.100.7:80", "[2001:db8:7::7]:80"},
	"a TCP probe's port":    {pod4 + ":9001", "[" + pod6 + "]:9001"},
	"the pod's readiness":   {pod4 + ":15022", "[" + pod6 + "]:15022"},
	"the inbound capture":   {pod4 + ":15006", "[" + pod6 + "]:15006"},
	"the outbound capture":  {pod4 + ":15001", "[" + pod6 + "]:15001"},
	"loopback":              {"127.0.0.1:8080", "[::1]:8080"},
	"capture on loopback":   {"127.0.0.1:15001", "[::1]:15001"},
	"the host":              {host4 + ":8080", "[" + host6 + "]:8080"},
	"a capture of the host": {host4 + ":15006", "[" + host6 + "]:15006"},
}

// tryInPod checks in the pod which caller reaches which destination through the real Envoy, and over how many
// connections. plain is the response to a host without a sidecar that calls the application.
func tryInPod(t *testing.T, programs harness.Programs, mode, plain string) {
	own := redirecttest.Own(t)
	must.Do(t, own.Do(redirecttest.LoopbackUp))
	w := newPair(t, programs, own, mode, false)
	w.try(t, "the host", w.host, map[string]string{
		"the pod's application": plain, "an excluded port": "excluded", "the pod's readiness": "the agent", "a TCP probe's port": "no answer",
		"the inbound capture": "no answer", "the outbound capture": "no answer",
	})
	w.try(t, "the application", w.pod, map[string]string{
		"the pod's application": "web-1", "an excluded port": "excluded", "the pod's service": "web-1 over mTLS",
		"the pod's readiness": "no answer", "the inbound capture": "no answer", "the outbound capture": "no answer", "a TCP probe's port": "no answer",
		"loopback": "web-1", "capture on loopback": "no answer", "the host": "the host", "a capture of the host": "no answer",
	})
	if plain != "no answer" {
		w.sees(t, pod4) // Envoy makes the connection
	}
	w.probe(t)
	w.scrape(t)
	w.noLoop(t)
	w.keepsToAnEndpoint(t)
	w.staysOnItsNode(t)
	w.nothingOutside(t, mode)
	must.Do(t, w.sondeDP(t, "check", "transparent-proxy", "--exclude-inbound-ports=9000,9800", "--metrics-port=5670", "--redirect-tcp-probes=9001:8080"))
	must.Do(t, w.sondeDP(t, "uninstall", "transparent-proxy"))
	w.try(t, "the host, without redirection,", w.host, map[string]string{
		"the pod's application": "web-1", "an excluded port": "excluded", "the pod's readiness": "no answer",
	})
	w.scrape(t)
	if err := w.sondeDP(t, "check", "transparent-proxy"); err == nil || !strings.Contains(err.Error(), "table inet sonde is missing") {
		t.Errorf("check without rules: %v", err)
	}
}

// tryGateway has a pod that accepts calls from anywhere in a mesh in mode STRICT, while its own calls pass
// its Envoy.
func tryGateway(t *testing.T, programs harness.Programs) {
	own := redirecttest.Own(t)
	must.Do(t, own.Do(redirecttest.LoopbackUp))
	w := newPair(t, programs, own, "STRICT", true)
	w.try(t, "the host", w.host, map[string]string{
		"the pod's application": "web-1", "an excluded port": "excluded", "the pod's readiness": "the agent", "a TCP probe's port": "no answer",
		"the inbound capture": "no answer", "the outbound capture": "no answer",
	})
	w.try(t, "the application", w.pod, map[string]string{
		"the pod's application": "web-1", "the pod's service": "web-1", "the pod's readiness": "no answer", "the inbound capture": "no answer",
		"the outbound capture": "no answer", "loopback": "web-1", "capture on loopback": "no answer", "the host": "the host",
	})
	w.sees(t, host4)
	w.probe(t)
	w.scrape(t)
	w.noLoop(t)
	w.nothingOutside(t, "STRICT") // only Envoy can refuse it
	must.Do(t, w.sondeDP(t, append([]string{"check"}, w.install()[1:]...)...))
}

// try calls each destination over both families.
func (w *pair) try(t *testing.T, who string, from *redirecttest.Namespace, want map[string]string) {
	t.Helper()
	for name, answer := range want {
		for _, at := range destinations[name] {
			if got := w.ask(from, application, at); got != answer {
				t.Errorf("%s calls %s, %s: %s answers, want %s", who, name, at, got, answer)
			}
		}
	}
}

// sees compares the caller's address that the application receives when the host calls, because allow
// lists depend on it.
func (w *pair) sees(t *testing.T, want string) {
	t.Helper()
	w.ask(w.host, application, destinations["the pod's application"][0])
	if host, _, _ := net.SplitHostPort(w.seen); host != want {
		t.Errorf("the application sees %q, want %s", w.seen, want)
	}
}

// nothingOutside disables calls to destinations outside of the mesh: the application then reaches only its
// services.
func (w *pair) nothingOutside(t *testing.T, mode string) {
	t.Helper()
	must.Do(t, w.machine.Put("mesh.yaml", harness.MeshYAML(mode)+"networking: {outbound: {passthrough: false}}\n"))
	must.Poll(t, "the host to be out of reach", func(context.Context) error {
		for _, at := range destinations["the host"] { // Envoy has a listener for each family
			if got := w.ask(w.pod, application, at); got != "no answer" {
				return fmt.Errorf("%s: %s answers", at, got)
			}
		}
		return nil
	})
	w.try(t, "the application, with nothing outside,", w.pod, map[string]string{"the host": "no answer", "the pod's service": w.overMesh()})
}

// overMesh returns who responds at the pod's service.
func (w *pair) overMesh() string {
	if w.gateway {
		return "web-1"
	}
	return "web-1 over mTLS"
}

// probe connects to the port of the TCP probe, which is open in each mode of the mesh.
func (w *pair) probe(t *testing.T) {
	t.Helper()
	for _, at := range destinations["a TCP probe's port"] {
		conn, err := w.host.Dial(application, netip.MustParseAddrPort(at))
		if err != nil {
			t.Errorf("the host probes %s: %v", at, err)
			continue
		}
		must.Do(t, conn.Close())
	}
}

// scrape requests the metrics of the pod at both of its addresses, like a Prometheus without a sidecar. They work in
// each mode of the mesh.
func (w *pair) scrape(t *testing.T) {
	t.Helper()
	for _, at := range []string{pod4 + ":5670", "[" + pod6 + "]:5670"} {
		client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return w.host.Dial(application, netip.MustParseAddrPort(at))
			},
		}}
		page, err := harness.Get(t.Context(), &client, "http://"+at+"/metrics")
		if err != nil || !strings.Contains(page, "\nenvoy_server_live") || !strings.Contains(page, "\nsonde_dpagent_session_connected 1\n") {
			t.Errorf("the metrics at %s: %v\n%s", at, err, page)
		}
	}
}

// noLoop compares the number of connections that Envoy has accepted with the calls: a call enters at most two of
// its listeners.
func (w *pair) noLoop(t *testing.T) {
	t.Helper()
	stats, err := w.proxy.Stats(t.Context(), `listener\.(?:inbound|outbound).*\.downstream_cx_total`)
	must.Do(t, err)
	var accepted int64
	for name, n := range stats {
		if !strings.Contains(name, ".worker_") { // included in the listener's total
			accepted += n
		}
	}
	t.Logf("%d calls became %d connections to Envoy", w.calls, accepted)
	if accepted == 0 || accepted > 2*w.calls {
		t.Errorf("%d calls became %d connections to Envoy: %v", w.calls, accepted, stats)
	}
}
