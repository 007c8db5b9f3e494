package mesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/memorytest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// reported is longer than the minute between two reports of an agent.
const reported = 100 * time.Second

// checkStrict runs sondectl check strict, and returns what it prints, with times as <time> and <ago>, and whether a line has failed.
func checkStrict(ctx context.Context, m *harness.Machine, args ...string) (text string, failed bool, err error) {
	cmd := exec.CommandContext(ctx, programs.Ctl, append(append([]string{"check", "strict"}, args...), m.CtlFlags()...)...)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if failed = exit.ExitCode() == 6; !failed {
			return "", false, fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		err = nil
	}
	text = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d`).ReplaceAllString(string(out), "<time>")
	text = regexp.MustCompile(`\(\d+[smh]\)`).ReplaceAllString(text, "(<ago>)")
	text = regexp.MustCompile(`(last|for) \d+[smh]`).ReplaceAllString(text, "$1 <ago>")
	return text, failed, err
}

// wantStrict waits until sondectl check strict prints that.
func wantStrict(t *testing.T, m *harness.Machine, wantFailed bool, want string, args ...string) {
	t.Helper()
	must(t, harness.Poll(t.Context(), reported, "sondectl check strict", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m, args...)
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("it prints (-want +got):\n%s", diff)
		}
		if err == nil && failed != wantFailed {
			err = fmt.Errorf("a line failed: %t, want %t", failed, wantFailed)
		}
		return err
	}))
}

// from dials from an address of this host.
func from(ip string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: limit}
}

// requestsFrom sends requests with a user agent on a connection each.
func requestsFrom(t *testing.T, ip, at, userAgent string, n int) {
	t.Helper()
	transport := &http.Transport{DialContext: from(ip).DialContext, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	for range n {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/", http.NoBody)
		must(t, err)
		r.Header.Set("User-Agent", userAgent)
		answer, err := (&http.Client{Transport: transport}).Do(r)
		must(t, err)
		_, err = io.Copy(io.Discard, answer.Body)
		must(t, errors.Join(err, answer.Body.Close()))
	}
}

// lineFrom opens a connection and sends a line, which is answered.
func lineFrom(t *testing.T, ip, at string) net.Conn {
	t.Helper()
	conn, err := from(ip).DialContext(t.Context(), "tcp", at)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("hello\n"))
	must(t, err)
	_, err = bufio.NewReader(conn).ReadString('\n')
	must(t, err)
	return conn
}

func TestCheckStrict(t *testing.T) {
	for _, envoy := range envoys {
		t.Run(filepath.Base(filepath.Dir(envoy)), func(t *testing.T) {
			t.Parallel()
			testCheckStrict(t, envoy)
		})
	}
}

func testCheckStrict(t *testing.T, envoy string) {
	with := programs
	with.Envoy = envoy
	m := harness.New(t, harness.Options{Programs: with, MeshYAML: harness.MeshYAML(permissive)})
	web, raw := newInbound(t, m, "web", "http", "http"), newInbound(t, m, "raw", "tcp", "tcp")
	greeting := newInbound(t, m, "greeting", "tcp", "tcp")
	greeting.serverFirst = true
	own := inbound{service: "own-tls", protocol: "tcp", at: freeAddress(t, m), app: freeAddress(t, m)}
	trusted := tlsApplication(t, own.app)
	p := newPair(t, m, web, raw, greeting, own)

	// Over mTLS, and by a probe that only connects.
	for _, i := range []inbound{web, raw} {
		_, err := applicationProtocols[i.protocol](t.Context(), p.a.Outbounds[i.service])
		must(t, err)
	}
	for _, i := range []inbound{raw, greeting} {
		conn, err := from("127.0.9.9").DialContext(t.Context(), "tcp", i.at)
		must(t, err)
		must(t, conn.Close())
	}
	const nothing = "[ok]   mesh default: nothing has come that STRICT would refuse, since <time> (<ago>), as far as 2 of 2 proxies tell; " +
		"what pods have got that are gone is known since then, for a day\n"
	wantStrict(t, m, false, nothing)

	requestsFrom(t, "127.0.9.1", web.at, "curl/8", 3)
	requestsFrom(t, "127.0.9.2", web.at, "kube-probe/1.36", 2)
	must(t, lineFrom(t, "127.0.9.3", raw.at).Close())
	open := lineFrom(t, "127.0.9.4", raw.at)
	if _, err := askTLS(t.Context(), own.at, trusted); err != nil {
		t.Fatal(err)
	}
	const outside = "       do: let senders outside of the mesh come through a gateway, or leave the port out of it: traffic.kuma.io/exclude-inbound-ports\n"
	port := func(i inbound) string {
		return fmt.Sprintf("mesh default: workload b, port %d (service %s): ", portOf(t, i.at), i.service)
	}
	seen := map[string]string{
		"web": "[fail] " + port(web) + "3 requests in plain text, last <ago> ago\n" +
			"       from 127.0.9.1, which is no pod's that is known: 3 requests since <time>, last <ago> ago\n" + outside,
		"probes": "[fail] " + port(web) + "probes of the kubelet come in plain text, last <ago> ago: STRICT would fail them, and the pod would not be Ready\n" +
			"       2 requests since <time>, last <ago> ago\n" +
			"       do: let the agent answer them: remove kuma.io/virtual-probes: disabled, and see sondectl probes explain for probes that cannot be translated\n",
		"own": "[fail] " + port(own) + "1 connection with TLS of the application's own, last <ago> ago\n" +
			"       from 127.0.0.1, which has a sidecar: dataplane a-1 of mesh default, workload a: 1 connection since <time>, last <ago> ago\n" +
			"       do: let senders with a sidecar call a service of the mesh by its name or ClusterIP: they call the address of a pod, or leave the port out of redirection\n",
	}
	// The one that is open is seen while it is, and the other one when it has ended.
	rawOpen := "[fail] " + port(raw) + "1 connection and 1 open in plain text, last <ago> ago\n" +
		"       from 127.0.9.3, which is no pod's that is known: 1 connection since <time>, last <ago> ago\n" +
		"       from 127.0.9.4, which is no pod's that is known: 1 open connection since <time>, last <ago> ago\n" + outside
	wantLines(t, m, seen["web"], seen["probes"], seen["own"], rawOpen)

	// What ends is not forgotten, but does not speak against STRICT when it was long enough ago.
	must(t, open.Close())
	wantLines(t, m, "[fail] "+port(raw)+"2 connections in plain text, last <ago> ago\n")
	must(t, harness.Poll(t.Context(), reported, "sondectl check strict --quiet", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m, "--quiet=1s")
		if err == nil && (failed || !strings.Contains(got, "[warn] "+port(web)+"3 requests in plain text, none for <ago>\n")) {
			err = fmt.Errorf("it prints:\n%s", got)
		}
		return err
	}))
	must(t, m.ControlPlaneReady(t.Context())) // it compares what it serves with what it would make anew
}

// wantLines waits until sondectl check strict prints these, among others, and fails.
func wantLines(t *testing.T, m *harness.Machine, want ...string) {
	t.Helper()
	must(t, harness.Poll(t.Context(), reported, "sondectl check strict", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m)
		for _, line := range want {
			if err == nil && (!failed || !strings.Contains(got, line)) {
				err = fmt.Errorf("it lacks\n%s\nin\n%s", line, got)
			}
		}
		return err
	}))
}

// What a client does that calls from very many addresses is counted, and a steady one is still told apart.
func TestCheckStrictOfAFlood(t *testing.T) {
	t.Parallel()
	m := newMesh(t, permissive)
	web := newInbound(t, m, "web", "http", "http")
	newPair(t, m, web)
	const flood = 1000
	for i := range flood {
		requestsFrom(t, fmt.Sprintf("127.1.%d.%d", i/250, i%250+1), web.at, "flood", 1)
		if i%20 == 0 {
			requestsFrom(t, "127.0.9.1", web.at, "steady", 1)
		}
	}
	must(t, harness.Poll(t.Context(), reported, "the flood to be counted", func(ctx context.Context) error {
		got, _, err := checkStrict(ctx, m)
		switch {
		case err != nil:
		case !strings.Contains(got, fmt.Sprintf(": %d requests in plain text", flood+flood/20)):
			err = errors.New("not all requests are counted")
		case !strings.Contains(got, fmt.Sprintf("from 127.0.9.1, which is no pod's that is known: %d requests", flood/20)):
			err = errors.New("the steady client is not told apart")
		case strings.Count(got, "       from 127.") != 20 || !strings.Contains(got, fmt.Sprintf("from others, which are not told apart: %d requests", flood-19)):
			err = errors.New("it names more than 20 sources, or does not count the others")
		}
		if err != nil {
			err = fmt.Errorf("%w:\n%s", err, got)
		}
		return err
	}))
}

// A mesh in mode STRICT has nothing of it, and the command needs no more.
func TestCheckStrictOfAStrictMesh(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	web := newInbound(t, m, "web", "http", "http")
	p := newPair(t, m, web)
	wantStrict(t, m, false, "[ok]   mesh default is in mode STRICT already\n")
	config, err := p.b.EnvoyGet(t.Context(), "/config_dump")
	must(t, err)
	if strings.Contains(config, "agent:records") { // which each of them names
		t.Error("Envoy has an access log")
	}
	if _, err := m.Ctl(t.Context(), "check", "strict", "--mesh=defalt"); err == nil || !strings.Contains(err.Error(), `mesh "defalt" not found: did you mean "default"?`) {
		t.Errorf("a mesh that is not there: %v", err)
	}
}

// A control plane that has restarted knows again what agents have counted, and since when it keeps what those have that are gone.
func TestCheckStrictAfterARestart(t *testing.T) {
	t.Parallel()
	m := newMesh(t, permissive)
	web := newInbound(t, m, "web", "http", "http")
	p := newPair(t, m, web)
	requestsFrom(t, "127.0.9.1", web.at, "curl/8", 1)
	line := fmt.Sprintf("[fail] mesh default: workload b, port %d (service web): 1 request in plain text, last <ago> ago\n", portOf(t, web.at))
	wantLines(t, m, line)
	m.ControlPlane.Kill()
	must(t, m.StartControlPlane(t.Context()))
	wantLines(t, m, line, "as far as 2 of 2 proxies tell")

	// Of a proxy that is gone it stays for the workload; one that is not connected cannot tell.
	must(t, p.a.KillAll(t.Context()))
	wantLines(t, m, line, "[warn] mesh default: dataplane a-1 cannot tell what it gets: its agent is not connected\n", "as far as 1 of 2 proxies tell")
	must(t, m.Remove("b-1.yaml"))
	gone := fmt.Sprintf("[fail] mesh default: workload b, port %d: 1 request in plain text, last <ago> ago\n", portOf(t, web.at))
	wantLines(t, m, gone, "as far as 0 of 1 proxies tell")
	m.ControlPlane.Kill()
	must(t, m.StartControlPlane(t.Context()))
	must(t, harness.Poll(t.Context(), limit, "it to be forgotten", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m)
		if err == nil && (failed || strings.Contains(got, "workload b")) {
			err = fmt.Errorf("it prints:\n%s", got)
		}
		return err
	}))
}

// An agent that hangs hides who, never that; and Envoy neither waits for it nor grows.
func TestCheckStrictWhileTheAgentHangs(t *testing.T) {
	t.Parallel()
	m := newMesh(t, permissive)
	web := newInbound(t, m, "web", "http", "http")
	p := newPair(t, m, web)
	requestsFrom(t, "127.0.9.1", web.at, "curl/8", 200) // what Envoy needs for connections
	wantLines(t, m, ": 200 requests in plain text")
	envoy, err := p.b.EnvoyPID()
	must(t, err)
	before, err := memorytest.Of(envoy)
	must(t, err)
	must(t, syscall.Kill(p.b.Agent.PID(), syscall.SIGSTOP))
	const hidden = 3000
	requestsFrom(t, "127.0.9.2", web.at, "curl/8", hidden)
	var lost int // of some the agent is told when it runs again
	poll(t, "Envoy to drop records", func(ctx context.Context) (err error) {
		lost, err = dropped(ctx, p.b, web)
		return err
	})
	after, err := memorytest.Of(envoy)
	must(t, err)
	must(t, syscall.Kill(p.b.Agent.PID(), syscall.SIGCONT))
	if grown := after.VmRSS - before.VmRSS; grown > 4<<20 {
		t.Errorf("Envoy has grown by %.0f bytes", grown)
	}
	requestsFrom(t, "127.0.9.3", web.at, "curl/8", 1)
	must(t, harness.Poll(t.Context(), 2*reported, "all requests to be counted", func(ctx context.Context) error {
		got, _, err := checkStrict(ctx, m)
		total, others := 0, 0
		if err == nil {
			total, others = numberIn(got, `: (\d+) requests in plain text`), numberIn(got, `from others, which are not told apart: (\d+) requests`)
		}
		if all := 201 + hidden; err == nil && (total != all || others < lost) {
			err = fmt.Errorf("%d are counted, %d of them as others, want %d:\n%s", total, others, all, got)
		}
		return err
	}))
}

// dropped returns how many records of requests Envoy has dropped, and an error if none.
func dropped(ctx context.Context, p *harness.Proxy, i inbound) (int, error) {
	_, port, _ := net.SplitHostPort(i.at)
	name := "access_logs.open_telemetry_access_log.requests.inbound_" + port + ".logs_dropped"
	stats, err := p.Stats(ctx, name)
	if err == nil && stats[name] == 0 {
		err = errors.New("no record is dropped")
	}
	return int(stats[name]), err
}

// numberIn returns the number that the group of an expression matches, 0 if it does not.
func numberIn(text, expression string) int {
	found := regexp.MustCompile(expression).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(found[1])
	return n
}
