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

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// checkStrict runs sondectl check strict, and returns its output, with times replaced by <time> and <ago>, and
// whether a line has failed.
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

// wantStrict waits until sondectl check strict prints exactly want.
func wantStrict(t *testing.T, m *harness.Machine, wantFailed bool, want string, args ...string) {
	t.Helper()
	must.Poll(t, "sondectl check strict", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m, args...)
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("it prints (-want +got):\n%s", diff)
		}
		if err == nil && failed != wantFailed {
			err = fmt.Errorf("a line failed: %t, want %t", failed, wantFailed)
		}
		return err
	})
}

// from returns a dialer with a source address of this host.
func from(ip string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
}

// requestsFrom sends requests with a user agent, on one connection each.
func requestsFrom(t *testing.T, ip, at, userAgent string, n int) {
	t.Helper()
	transport := &http.Transport{DialContext: from(ip).DialContext, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	for range n {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/", http.NoBody)
		must.Do(t, err)
		r.Header.Set("User-Agent", userAgent)
		answer, err := (&http.Client{Transport: transport}).Do(r)
		must.Do(t, err)
		_, err = io.Copy(io.Discard, answer.Body)
		must.Do(t, errors.Join(err, answer.Body.Close()))
	}
}

// lineFrom opens a connection, sends a line and reads the response.
func lineFrom(t *testing.T, ip, at string) net.Conn {
	t.Helper()
	conn, err := from(ip).DialContext(t.Context(), "tcp", at)
	must.Do(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("hello\n"))
	must.Do(t, err)
	_, err = bufio.NewReader(conn).ReadString('\n')
	must.Do(t, err)
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

// Source of these tests' requests, and the advice for it, in the output of sondectl check strict.
const (
	loopback = "a loopback address: any program in the proxy's pod or on its machine"
	there    = "       do: on machines, make programs call through the sidecar: at an outbound of its Dataplane, or with redirection\n"
)

func testCheckStrict(t *testing.T, envoy string) {
	with := programs
	with.Envoy = envoy
	m := harness.New(t, harness.Options{Programs: with, MeshYAML: harness.MeshYAML(permissive)})
	web, raw := newInbound(t, m, "web", "http", "http"), newInbound(t, m, "raw", "tcp", "tcp")
	greeting := newInbound(t, m, "greeting", "tcp", "tcp")
	greeting.serverFirst = true
	own := inbound{service: "own-tls", protocol: "tcp", at: must.FreeAddress(t, m), app: must.FreeAddress(t, m)}
	trusted := tlsApplication(t, own.app)
	p := newPair(t, m, web, raw, greeting, own)

	// Allowed in STRICT: calls over mTLS, and a probe that only connects.
	for _, i := range []inbound{web, raw} {
		_, err := applicationProtocols[i.protocol](t.Context(), p.a.Outbounds[i.service])
		must.Do(t, err)
	}
	for _, i := range []inbound{raw, greeting} {
		conn, err := from("127.0.9.9").DialContext(t.Context(), "tcp", i.at)
		must.Do(t, err)
		must.Do(t, conn.Close())
	}
	const nothing = "[ok]   mesh default: no traffic that STRICT would reject, since <time> (<ago>), as reported by 2 of 2 proxies; " +
		"traffic of deleted pods is included for a day\n"
	wantStrict(t, m, false, nothing)

	requestsFrom(t, "127.0.9.1", web.at, "curl/8", 3)
	requestsFrom(t, "127.0.9.2", web.at, "kube-probe/1.36", 2)
	must.Do(t, lineFrom(t, "127.0.9.3", raw.at).Close())
	open := lineFrom(t, "127.0.9.4", raw.at)
	if _, err := askTLS(t.Context(), own.at, trusted); err != nil {
		t.Fatal(err)
	}
	port := func(i inbound) string {
		return fmt.Sprintf("mesh default: workload b, port %d (service %s): ", must.Port(t, i.at), i.service)
	}
	seen := map[string]string{
		"web": "[fail] " + port(web) + "3 requests in plaintext, last <ago> ago\n" +
			"       from 127.0.9.1, " + loopback + ": 3 requests since <time>, last <ago> ago\n" + there,
		"probes": "[fail] " + port(web) + "probes of the kubelet come in plaintext, last <ago> ago: STRICT would reject them, and the pod would not be Ready\n" +
			"       2 requests since <time>, last <ago> ago\n" +
			"       do: let the agent answer them: remove kuma.io/virtual-probes: disabled, and see sondectl probes explain for probes that cannot be translated\n",
		"own": "[fail] " + port(own) + "1 connection with the application's own TLS, last <ago> ago\n" +
			"       from 127.0.0.1, " + loopback + ": 1 connection since <time>, last <ago> ago\n" + there,
	}
	// An open connection is counted while it is open, and a closed connection when it ends.
	rawOpen := "[fail] " + port(raw) + "1 connection and 1 open in plaintext, last <ago> ago\n" +
		"       from 127.0.9.3, " + loopback + ": 1 connection since <time>, last <ago> ago\n" +
		"       from 127.0.9.4, " + loopback + ": 1 open connection since <time>, last <ago> ago\n" + there
	wantLines(t, m, seen["web"], seen["probes"], seen["own"], rawOpen)

	// A closed connection stays counted, but only warns if it ended long enough ago.
	must.Do(t, open.Close())
	wantLines(t, m, "[fail] "+port(raw)+"2 connections in plaintext, last <ago> ago\n")
	must.Poll(t, "sondectl check strict --quiet", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m, "--quiet=1s")
		if err == nil && (failed || !strings.Contains(got, "[warn] "+port(web)+"3 requests in plaintext, none for <ago>\n")) {
			err = fmt.Errorf("it prints:\n%s", got)
		}
		return err
	})
	must.Do(t, m.ControlPlaneReady(t.Context())) // the ready check compares the served configuration with a fresh one
}

// wantLines waits until the output of sondectl check strict contains these lines and the command
// reports a failure.
func wantLines(t *testing.T, m *harness.Machine, want ...string) {
	t.Helper()
	must.Poll(t, "sondectl check strict", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m)
		for _, line := range want {
			if err == nil && (!failed || !strings.Contains(got, line)) {
				err = fmt.Errorf("it lacks\n%s\nin\n%s", line, got)
			}
		}
		return err
	})
}

// TestCheckStrictOfAFlood sends requests from very many addresses: all are counted, and a steady client is
// still listed by itself.
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
	must.Poll(t, "the flood to be counted", func(ctx context.Context) error {
		got, _, err := checkStrict(ctx, m)
		switch {
		case err != nil:
		case !strings.Contains(got, fmt.Sprintf(": %d requests in plaintext", flood+flood/20)):
			err = errors.New("not all requests are counted")
		case !strings.Contains(got, fmt.Sprintf("from 127.0.9.1, "+loopback+": %d requests", flood/20)):
			err = errors.New("the steady client is not listed")
		case strings.Count(got, "       from 127.") != 20 || !strings.Contains(got, fmt.Sprintf("from other sources: %d requests", flood-19)):
			err = errors.New("it lists more than 20 sources, or does not count the others")
		}
		if err != nil {
			err = fmt.Errorf("%w:\n%s", err, got)
		}
		return err
	})
}

// TestCheckStrictOfAStrictMesh checks a mesh in mode STRICT: its Envoys record no requests, and the
// command succeeds.
func TestCheckStrictOfAStrictMesh(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	web := newInbound(t, m, "web", "http", "http")
	p := newPair(t, m, web)
	wantStrict(t, m, false, "[ok]   mesh default is already in mode STRICT\n")
	config, err := p.b.EnvoyGet(t.Context(), "/config_dump")
	must.Do(t, err)
	if strings.Contains(config, "agent:records") { // each access log names this cluster
		t.Error("Envoy has an access log")
	}
	if _, err := m.Ctl(t.Context(), "check", "strict", "--mesh=defalt"); err == nil || !strings.Contains(err.Error(), `mesh "defalt" not found: did you mean "default"?`) {
		t.Errorf("unknown mesh: %v", err)
	}
}

// TestCheckStrictAfterARestart restarts the control plane: it restores the counts from the agents, but not the counts
// of deleted proxies.
func TestCheckStrictAfterARestart(t *testing.T) {
	t.Parallel()
	m := newMesh(t, permissive)
	web := newInbound(t, m, "web", "http", "http")
	p := newPair(t, m, web)
	requestsFrom(t, "127.0.9.1", web.at, "curl/8", 1)
	line := fmt.Sprintf("[fail] mesh default: workload b, port %d (service web): 1 request in plaintext, last <ago> ago\n", must.Port(t, web.at))
	wantLines(t, m, line)
	m.ControlPlane.Kill()
	must.Do(t, m.StartControlPlane(t.Context()))
	wantLines(t, m, line, "as reported by 2 of 2 proxies")

	// The counts of a deleted proxy stay with its workload. A disconnected proxy is reported as
	// unknown.
	must.Do(t, p.a.KillAll(t.Context()))
	wantLines(t, m, line, "[warn] mesh default: dataplane a-1 does not report its traffic: its agent is not connected\n", "as reported by 1 of 2 proxies")
	must.Do(t, m.Remove("b-1.yaml"))
	gone := fmt.Sprintf("[fail] mesh default: workload b, port %d: 1 request in plaintext, last <ago> ago\n", must.Port(t, web.at))
	wantLines(t, m, gone, "as reported by 0 of 1 proxies")
	m.ControlPlane.Kill()
	must.Do(t, m.StartControlPlane(t.Context()))
	must.Poll(t, "the counts of the deleted proxy to be forgotten", func(ctx context.Context) error {
		got, failed, err := checkStrict(ctx, m)
		if err == nil && (failed || strings.Contains(got, "workload b")) {
			err = fmt.Errorf("it prints:\n%s", got)
		}
		return err
	})
}

// TestCheckStrictWhileTheAgentHangs stops an agent. All requests are still counted, though not by
// client. Envoy neither waits for the agent nor uses more memory.
func TestCheckStrictWhileTheAgentHangs(t *testing.T) {
	t.Parallel()
	m := newMesh(t, permissive)
	web := newInbound(t, m, "web", "http", "http")
	p := newPair(t, m, web)
	requestsFrom(t, "127.0.9.1", web.at, "curl/8", 200) // allocates the memory that Envoy needs for connections
	wantLines(t, m, ": 200 requests in plaintext")
	envoy, err := p.b.EnvoyPID()
	must.Do(t, err)
	before, err := memorytest.Of(envoy)
	must.Do(t, err)
	must.Do(t, syscall.Kill(p.b.Agent.PID(), syscall.SIGSTOP))
	const hidden = 3000
	requestsFrom(t, "127.0.9.2", web.at, "curl/8", hidden)
	var lost int // the agent still receives some of the records when it continues
	must.Poll(t, "Envoy to drop records", func(ctx context.Context) (err error) {
		lost, err = dropped(ctx, p.b, web)
		return err
	})
	after, err := memorytest.Of(envoy)
	must.Do(t, err)
	must.Do(t, syscall.Kill(p.b.Agent.PID(), syscall.SIGCONT))
	if grown := after.VmRSS - before.VmRSS; grown > 4<<20 {
		t.Errorf("Envoy has grown by %.0f bytes", grown)
	}
	requestsFrom(t, "127.0.9.3", web.at, "curl/8", 1)
	must.Poll(t, "all requests to be counted", func(ctx context.Context) error {
		got, _, err := checkStrict(ctx, m)
		total, others := 0, 0
		if err == nil {
			total, others = numberIn(got, `: (\d+) requests in plaintext`), numberIn(got, `from other sources: (\d+) requests`)
		}
		if all := 201 + hidden; err == nil && (total != all || others < lost) {
			err = fmt.Errorf("%d are counted, %d of them as others, want %d:\n%s", total, others, all, got)
		}
		return err
	})
}

// dropped returns how many request records Envoy has dropped, and an error for 0.
func dropped(ctx context.Context, p *harness.Proxy, i inbound) (int, error) {
	_, port, _ := net.SplitHostPort(i.at)
	name := "access_logs.open_telemetry_access_log.requests.inbound_" + port + ".logs_dropped"
	stats, err := p.Stats(ctx, name)
	if err == nil && stats[name] == 0 {
		err = errors.New("no record is dropped")
	}
	return int(stats[name]), err
}

// numberIn returns the number that the group of an expression matches, or 0 without a match.
func numberIn(text, expression string) int {
	found := regexp.MustCompile(expression).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(found[1])
	return n
}
