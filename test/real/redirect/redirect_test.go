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
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// The machines: a pod, and a host without a sidecar to which all routes of the pod lead.
const (
	pod4, pod6   = "192.0.2.2", "2001:db8::2"
	host4, host6 = "192.0.2.1", "2001:db8::1"
)

var application = redirecttest.Caller{User: 1000}

// install has the arguments of the init container in testdata/inject/seed, and of one in the per-port mode.
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
}

func newPair(t *testing.T, programs harness.Programs, own *redirecttest.Namespace, mode string) *pair {
	t.Helper()
	w := &pair{programs: programs, pod: own, host: redirecttest.New(t)}
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
	must.Do(t, w.sondeDP(t, install...))
	m := harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML(mode)})
	p, err := m.Prepare(harness.ProxyOptions{Name: "web-1", Service: "web", AgentArgs: []string{"--metrics-addr=:5670"}})
	must.Do(t, err)
	w.machine, w.proxy, p.AppAddress = m, p, "[::]:8080"
	// One endpoint each: Envoy must not be able to go to the one of the other family.
	for name, at := range map[string]string{"web": destinations["the pod's service"][0], "web6": destinations["the pod's service"][1]} {
		must.Do(t, m.Put(name+".yaml", "type: Service\nmesh: default\nname: "+name+"\nprotocol: http\naddresses: ['"+at+"']\n"))
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

// declare writes the Dataplane of the pod, which is on a node.
func (w *pair) declare(t *testing.T, node string) {
	t.Helper()
	must.Do(t, w.machine.Put("web-1.yaml", `type: Dataplane
mesh: default
name: web-1
labels: {sonde.dev/node: "`+node+`"}
networking:
  address: `+pod4+`
  inbound:
  - {port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}
  - {port: 8080, tags: {kuma.io/service: web6, kuma.io/protocol: http}, address: '`+pod6+`'}
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

// ask makes one call and returns who answers and whether Envoy says that it came over mTLS: "web-1", "web-1 over mTLS".
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
		return "nobody"
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Sprintf("status %d: %s %v", answer.StatusCode, body, err)
	}
	var said harness.Answer
	if json.Unmarshal(body, &said) != nil || said.Instance == "" {
		return "the agent" // its readiness is no answer of an application
	}
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

// tryInPod tries, in the pod, who reaches whom through the real Envoy, and with how many connections. plain is who answers a host
// without a sidecar that calls the application.
func tryInPod(t *testing.T, programs harness.Programs, mode, plain string) {
	own := redirecttest.Own(t)
	must.Do(t, own.Do(redirecttest.LoopbackUp))
	w := newPair(t, programs, own, mode)
	w.try(t, "the host", w.host, map[string]string{
		"the pod's application": plain, "an excluded port": "excluded", "the pod's readiness": "the agent", "a TCP probe's port": "nobody",
		"the inbound capture": "nobody", "the outbound capture": "nobody",
	})
	w.try(t, "the application", w.pod, map[string]string{
		"the pod's application": "web-1", "an excluded port": "excluded", "the pod's service": "web-1 over mTLS",
		"the pod's readiness": "nobody", "the inbound capture": "nobody", "the outbound capture": "nobody", "a TCP probe's port": "nobody",
		"loopback": "web-1", "capture on loopback": "nobody", "the host": "the host", "a capture of the host": "nobody",
	})
	w.probe(t)
	w.scrape(t)
	w.noLoop(t)
	w.keepsToAnEndpoint(t)
	w.staysOnItsNode(t)
	w.nothingOutside(t, mode)
	must.Do(t, w.sondeDP(t, "check", "transparent-proxy", "--exclude-inbound-ports=9000,9800", "--metrics-port=5670", "--redirect-tcp-probes=9001:8080"))
	must.Do(t, w.sondeDP(t, "uninstall", "transparent-proxy"))
	w.try(t, "the host, without redirection,", w.host, map[string]string{
		"the pod's application": "web-1", "an excluded port": "excluded", "the pod's readiness": "nobody",
	})
	w.scrape(t)
	if err := w.sondeDP(t, "check", "transparent-proxy"); err == nil || !strings.Contains(err.Error(), "there is no table inet sonde") {
		t.Errorf("check without rules: %v", err)
	}
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

// nothingOutside has the mesh let nothing out: the application then reaches its services and nothing else.
func (w *pair) nothingOutside(t *testing.T, mode string) {
	t.Helper()
	must.Do(t, w.machine.Put("mesh.yaml", harness.MeshYAML(mode)+"networking: {outbound: {passthrough: false}}\n"))
	must.Poll(t, "the host to be out of reach", func(context.Context) error {
		if got := w.ask(w.pod, application, destinations["the host"][0]); got != "nobody" {
			return fmt.Errorf("%s answers", got)
		}
		return nil
	})
	w.try(t, "the application, with nothing outside,", w.pod, map[string]string{"the host": "nobody", "the pod's service": "web-1 over mTLS"})
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

// scrape has a Prometheus without a sidecar ask for the metrics of the pod, whatever the mode of the mesh, at both of its addresses.
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

// noLoop compares the connections that Envoy has accepted with the calls: one enters at most two of its listeners.
func (w *pair) noLoop(t *testing.T) {
	t.Helper()
	stats, err := w.proxy.Stats(t.Context(), `listener\.(?:inbound|outbound).*\.downstream_cx_total`)
	must.Do(t, err)
	var accepted int64
	for name, n := range stats {
		if !strings.Contains(name, ".worker_") { // a part of another one
			accepted += n
		}
	}
	t.Logf("%d calls became %d connections to Envoy", w.calls, accepted)
	if accepted == 0 || accepted > 2*w.calls {
		t.Errorf("%d calls became %d connections to Envoy: %v", w.calls, accepted, stats)
	}
}
