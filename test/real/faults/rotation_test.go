package faults

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// exitUnfinished is the exit code of "sondectl rotate ca" for an unfinished rotation.
const exitUnfinished = 4

// TestRotation replaces the CA under load twice, with new connections all the time.
func TestRotation(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b", "t"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "b-2", Service: "b"},
		harness.ProxyOptions{Name: "t-1", Service: "t", Protocol: "tcp"})
	a, b := proxies[0], proxies[1]
	synced(t, proxies...)
	load := startLoad(t, append(httpCallers(a, "b"), tcpCallers(a, "t")...)...)
	for range 2 {
		former := identityOf(t, a)
		for _, server := range []tlsServer{{b.Inbound, mesh}, {m.Agents, http2}} {
			if err := admits(t.Context(), server, former); err != nil {
				t.Fatalf("the certificate of %s is refused at %s before the rotation: %v", a.Name, server.at, err)
			}
		}
		must.Make(t, load, 20)
		authorities := trustedBy(t, a)
		started := time.Now()
		if _, err := m.Ctl(t.Context(), "rotate", "ca", "--wait"); err != nil {
			t.Fatal(err)
		}
		t.Logf("rotated in %s", time.Since(started))
		for _, p := range proxies {
			trustsOnly(t, p, authorities)
		}
		for _, server := range []tlsServer{{b.Inbound, mesh}, {m.Agents, http2}} {
			if err := admits(t.Context(), server, former); !isRefusal(err) {
				t.Errorf("a certificate of the old CA at %s: %v, want a refusal", server.at, err)
			}
			if err := admits(t.Context(), server, identityOf(t, a)); err != nil {
				t.Errorf("the new certificate is refused at %s: %v", server.at, err)
			}
		}
		must.Make(t, load, 100)
	}
	want := slices.Repeat([]string{"trust both", "renew leaves", "trust new", ""}, 2)
	if got := rotationSteps(t, m, "CA rotation"); !slices.Equal(got, want) {
		t.Errorf("the rotations took the steps %q, want %q", got, want)
	}
	synced(t, proxies...)
	must.Hold(t, load)
}

func identityOf(t *testing.T, p *harness.Proxy) tls.Certificate {
	t.Helper()
	c, err := p.Identity()
	must.Do(t, err)
	return c
}

// trustedBy returns the serial numbers of a proxy's trusted CAs, once its Envoy uses them.
func trustedBy(t *testing.T, p *harness.Proxy) []string {
	t.Helper()
	roots, err := p.Trusted()
	must.Do(t, err)
	var serials []string
	for _, root := range roots {
		serials = append(serials, serialOf(root))
	}
	return serials
}

// serialOf returns the serial number in Envoy's format.
func serialOf(c *x509.Certificate) string { return hex.EncodeToString(c.SerialNumber.Bytes()) }

// trustsOnly fails the test unless file and Envoy trust exactly one new CA, and Envoy uses the certificate in the
// file, which that CA issued. For ADS, Envoy also trusts the control plane's serving CA.
func trustsOnly(t *testing.T, p *harness.Proxy, old []string) {
	t.Helper()
	roots, err := p.Trusted()
	must.Do(t, err)
	if len(roots) != 1 || slices.Contains(old, serialOf(roots[0])) {
		t.Errorf("%s trusts %d authorities, want only the new one", p.Name, len(roots))
	}
	leaf := identityOf(t, p).Leaf
	if err := leaf.CheckSignatureFrom(roots[0]); err != nil {
		t.Errorf("the certificate of %s is not of the new authority: %v", p.Name, err)
	}
	must.Poll(t, "the Envoy of "+p.Name+" to have what its files say", func(ctx context.Context) error {
		now, err := certificates(ctx, p)
		if err != nil {
			return err
		}
		for _, serial := range old {
			if now.authorities[serial] {
				return fmt.Errorf("it trusts %s", serial)
			}
		}
		if !now.authorities[serialOf(roots[0])] || len(now.leaves) != 1 || !now.leaves[serialOf(leaf)] {
			return fmt.Errorf("Envoy has %v, want the authority %s and the certificate %s", now, serialOf(roots[0]), serialOf(leaf))
		}
		return nil
	})
}

// tlsServer is a server to which the test presents a certificate, and its ALPN: mesh as between Envoys, http2 as for
// the control plane.
type tlsServer struct {
	at   string
	alpn []string
}

var (
	mesh  = []string{"sonde", "http/1.1"}
	http2 = []string{"h2"}
)

// admits connects with a certificate, and waits until the server accepts or rejects it: with TLS 1.3, a client sees
// the rejection after its handshake.
func admits(ctx context.Context, server tlsServer, identity tls.Certificate) error {
	// the server's identity does not matter here
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: server.alpn, Certificates: []tls.Certificate{identity}}}
	conn, err := dialer.DialContext(ctx, "tcp", server.at)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if slices.Equal(server.alpn, http2) { // the control plane sends first
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: b\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s: %w", answer.Status, err)
	}
	return nil
}

// isRefusal returns whether the peer has closed the connection with an alert, or with a reset if the kernel has
// dropped the alert.
func isRefusal(err error) bool {
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error" || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// rotationSteps returns the rotation steps in the control plane's log.
func rotationSteps(t *testing.T, m *harness.Machine, msg string) []string {
	t.Helper()
	var steps []string
	for line := range strings.Lines(read(t, m.ControlPlane.Log)) {
		var record struct{ Msg, Step string }
		if json.Unmarshal([]byte(line), &record) == nil && record.Msg == msg {
			steps = append(steps, record.Step)
		}
	}
	return steps
}

// TestRotationWaits stops an agent. The rotation waits until the agent continues, even across a restart of the
// control plane.
func TestRotationWaits(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	a, b, silent, load := rotationWithSilent(t, m)

	must.Do(t, syscall.Kill(silent.Agent.PID(), syscall.SIGCONT))
	ctx := wait.Context(t)
	must.Do(t, rotate(ctx, m, "--wait"))
	for _, p := range []*harness.Proxy{a, b, silent} {
		if roots := trustedBy(t, p); len(roots) != 1 {
			t.Errorf("%s trusts %q, want one authority", p.Name, roots)
		}
	}
	must.Hold(t, load)
	calls(t, a, "c")
}

// TestRotationForced is TestRotationWaits with an agent that stays stopped: --force makes the rotation skip it. When
// the agent continues, it is no longer trusted, joins again, and gets calls.
func TestRotationForced(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	a, b, silent, load := rotationWithSilent(t, m)
	old := identityOf(t, silent)

	if err := rotate(t.Context(), m, "--force"); !strings.Contains(fmt.Sprint(err), silent.Name+" (silent") {
		t.Errorf("a rotation that was just forced: %v, want it to wait for %s, which has been silent only briefly", err, silent.Name)
	}
	const forced = time.Minute // 30 s of silence, and more for a busy machine
	ctx, cancel := context.WithTimeout(t.Context(), forced)
	defer cancel()
	must.Do(t, rotate(ctx, m, "--wait"))
	if got := len(trustedBy(t, silent)); got != 1 || !identityOf(t, silent).Leaf.Equal(old.Leaf) {
		t.Errorf("the stopped agent has changed its files")
	}
	if err := admits(t.Context(), tlsServer{b.Inbound, mesh}, old); !isRefusal(err) {
		t.Errorf("a certificate of the old CA: %v, want a refusal", err)
	}
	must.Do(t, syscall.Kill(silent.Agent.PID(), syscall.SIGCONT))
	must.Poll(t, silent.Name+" to have a new certificate", func(context.Context) error {
		now, err := silent.Identity()
		if err == nil && now.Leaf.Equal(old.Leaf) {
			err = errors.New("it has the old CA")
		}
		return err
	})
	synced(t, a, b, silent)
	must.Hold(t, load)
	calls(t, a, "c")
}

// rotationWithSilent starts a rotation that waits for a proxy of service c whose agent is stopped. Meanwhile, it
// kills and restarts the control plane. The load calls b from a.
func rotationWithSilent(t *testing.T, m *harness.Machine) (a, b, silent *harness.Proxy, load *harness.Load) {
	t.Helper()
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b", "c"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "c-1", Service: "c"})
	a, b, silent = proxies[0], proxies[1], proxies[2]
	synced(t, proxies...)
	load = startLoad(t, httpCallers(a, "b")...)

	must.Do(t, syscall.Kill(silent.Agent.PID(), syscall.SIGSTOP))
	// A stopped process would not handle SIGTERM.
	t.Cleanup(func() { _ = syscall.Kill(silent.Agent.PID(), syscall.SIGCONT) })
	must.Poll(t, "the rotation to wait for "+silent.Name, func(ctx context.Context) error {
		return waitsFor(ctx, m, "step 1 of 3", silent.Name+" (connected")
	})
	for _, p := range []*harness.Proxy{a, b} {
		if roots := trustedBy(t, p); len(roots) != 2 {
			t.Errorf("%s trusts %q at step 1, want two authorities", p.Name, roots)
		}
	}
	m.ControlPlane.Kill()
	must.Make(t, load, 20)
	must.Do(t, m.StartControlPlane(t.Context()))
	must.Poll(t, "the rotation to wait on for "+silent.Name, func(ctx context.Context) error {
		return waitsFor(ctx, m, "step 1 of 3", silent.Name+" (silent")
	})
	synced(t, a, b)
	return a, b, silent, load
}

// rotate starts a rotation, or gets its progress. It returns nil when the rotation is finished.
func rotate(ctx context.Context, m *harness.Machine, args ...string) error {
	cmd := exec.CommandContext(ctx, programs.Ctl, slices.Concat([]string{"rotate", "ca"}, args, m.CtlFlags())...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s%s", err, out, stderr.String())
	}
	return nil
}

// waitsFor returns an error unless the rotation is at that step and waits only for that proxy.
func waitsFor(ctx context.Context, m *harness.Machine, step, silent string) error {
	err := rotate(ctx, m)
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != exitUnfinished {
		return fmt.Errorf("the rotation is not in progress: %w", err)
	}
	if text := err.Error(); !strings.Contains(text, step) || !strings.Contains(text, silent) || strings.Count(text, "waits for") != 1 {
		return err
	}
	return nil
}

// calls makes some calls over new connections. Each must succeed.
func calls(t *testing.T, p *harness.Proxy, service string) {
	t.Helper()
	load := startLoad(t, httpCallers(p, service)...)
	must.Make(t, load, 20)
	must.Hold(t, load)
}
