package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const cannotBind = "cannot bind"

// occupied returns an address on which Envoy cannot listen until free is called.
func occupied(t *testing.T, m *harness.Machine) (at string, free func()) {
	t.Helper()
	at = must.FreeAddress(t, m)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at)
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return at, func() { must.Do(t, l.Close()) }
}

func TestRefusedListeners(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	taken, free := occupied(t, m)
	good, later := newInbound(t, m, "good", "http", "http"), newInbound(t, m, "later", "http", "http")
	bad := inbound{service: "bad", protocol: "http", at: taken, app: good.app}
	foreign := inbound{service: "foreign", protocol: "http", at: "192.0.2.1:8080", app: good.app} // not an address of this machine
	listener := "inbound:" + taken

	a := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"main", "good", "later", "bad"}})[0]
	b, err := m.Prepare(harness.ProxyOptions{Name: "b-1", Service: "main", Labels: map[string]string{"kuma.io/workload": "b"}})
	must.Do(t, err)
	put := func(more ...inbound) {
		t.Helper()
		must.Do(t, m.Put("b-1.yaml", withInbounds(t, b, more...)))
	}

	// refused at the start, in one response with valid listeners
	put(bad, good)
	must.Do(t, b.StartApp(t.Context()))
	must.Do(t, b.StartAgent(t.Context()))
	answersOf(t, a.Outbounds["main"], "b-1")
	answersOf(t, a.Outbounds["good"], "good")
	must.HaveEndpoints(t, a, "bad")
	refuses(t, b, listener)
	if table, err := m.Ctl(t.Context(), "get", "proxies"); err != nil || !strings.Contains(table, listener) || !strings.Contains(table, cannotBind) {
		t.Errorf("sondectl get proxies prints, error %v:\n%s", err, table)
	}
	if all, err := m.Metrics(t.Context()); err != nil || all[`sonde_xds_nacks_total{type="listener"}`] < 1 {
		t.Errorf("the metric of NACKs is missing: %v", err)
	}
	load := harness.StartLoad(t.Context(), 5*time.Millisecond, harness.NewHTTPCaller("http://"+a.Outbounds["main"]+"/", true, false),
		harness.NewHTTPCaller("http://"+a.Outbounds["good"]+"/", false, false))
	defer load.Stop()

	// refused alone
	put(bad, good, foreign)
	refuses(t, b, listener, "inbound:"+foreign.at)

	// Envoy still receives valid listeners
	put(bad, good, foreign, later)
	answersOf(t, a.Outbounds["later"], "later")
	refuses(t, b, listener, "inbound:"+foreign.at)
	for _, name := range []string{listener, "inbound:" + foreign.at} {
		if n, err := m.ControlPlane.Lines(`"proxy refused a resource"`, `"resource":"`+name+`"`, cannotBind); err != nil || n != 1 {
			t.Errorf("the log has %d lines that %s is refused and why, want 1: %v", n, name, err)
		}
	}

	// repaired: one listener is removed; the other has changed and its port is free
	free()
	bad.protocol = "tcp"
	put(bad, good, later)
	must.Poll(t, "b-1 to have everything", b.Synced)
	refuses(t, b)
	answersOf(t, a.Outbounds["bad"], "good")
	must.Do(t, b.WaitReady(t.Context()))
	must.Make(t, load, 50)
	must.Hold(t, load)
}

// TestRefusedOutbound occupies the address of a proxy's outbound with another program, and later frees it. The
// proxy's own callers are not affected.
func TestRefusedOutbound(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	at, free := occupied(t, m)
	host, _, err := net.SplitHostPort(at)
	must.Do(t, err)
	api := must.Add(t, m, harness.ProxyOptions{Name: "api-1", Service: "api", Outbound: []string{"web"}})[0]
	web, err := m.Prepare(harness.ProxyOptions{Name: "web-1", Service: "web"})
	must.Do(t, err)
	must.Do(t, m.Put("web-1.yaml", edited(t, web, func(networking object) {
		networking["outbound"] = []any{object{"address": host, "port": must.Port(t, at), "tags": object{"kuma.io/service": "api"}}}
	})))
	must.Do(t, web.StartApp(t.Context()))
	must.Do(t, web.StartAgent(t.Context()))
	must.Do(t, web.WaitReady(t.Context()))
	answersOf(t, api.Outbounds["web"], "web-1")
	refused := "outbounds warning: envoy refuses the listener at " + at
	must.Poll(t, "wait to name the listener", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, programs.Agent, "wait", "--admin-addr="+web.Admin, "--timeout=300ms").CombinedOutput()
		if err == nil || !strings.Contains(string(out), refused) || !strings.Contains(string(out), cannotBind) {
			return fmt.Errorf("wait = %w, %q, want %q", err, out, refused)
		}
		return nil
	})
	table, err := m.Ctl(t.Context(), "get", "dataplane", "web-1")
	if err != nil || !strings.Contains(table, "outbounds-not-ready") || !strings.Contains(table, at) || !strings.Contains(table, cannotBind) {
		t.Errorf("sondectl get dataplane prints, error %v:\n%s", err, table)
	}
	free()
	answersOf(t, at, "api-1")
	awaitAgent(t, web)
}

// refuses waits until sondectl reports exactly these listeners as refused, because Envoy cannot bind
// them.
func refuses(t *testing.T, p *harness.Proxy, listeners ...string) {
	t.Helper()
	slices.Sort(listeners)
	must.Poll(t, fmt.Sprintf("%s to refuse %q", p.Name, listeners), func(ctx context.Context) error {
		s, err := p.State(ctx)
		if err != nil {
			return err
		}
		if s.Agent == nil || len(s.Streams) != 1 {
			return errors.New("agent or Envoy is not connected")
		}
		var refused []string
		for _, of := range s.Streams[0].Types {
			for _, n := range of.NACKs {
				if !strings.Contains(n.Reason, cannotBind) {
					return fmt.Errorf("it refuses %s: %s", n.Resource, n.Reason)
				}
				refused = append(refused, n.Resource)
			}
		}
		slices.Sort(refused)
		if !slices.Equal(refused, listeners) {
			return fmt.Errorf("it refuses %q", refused)
		}
		return nil
	})
}

// TestDeletedWhileAway deletes a listener while Envoy is disconnected. Envoy had refused the response with the
// listener because of another listener.
func TestDeletedWhileAway(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	taken, _ := occupied(t, m)
	doomed, kept := newInbound(t, m, "doomed", "http", "http"), newInbound(t, m, "kept", "http", "http")
	bad := inbound{service: "bad", protocol: "http", at: taken, app: kept.app}
	b, err := m.Prepare(harness.ProxyOptions{Name: "b-1", Service: "main"})
	must.Do(t, err)
	must.Do(t, m.Put("b-1.yaml", withInbounds(t, b, bad, doomed, kept)))
	must.Do(t, b.StartAgent(t.Context()))
	refuses(t, b, "inbound:"+taken)
	runs(t, b, b.Inbound, doomed.at, kept.at)
	envoy := envoyOf(t, b)

	m.ControlPlane.Kill()
	must.Do(t, m.Put("b-1.yaml", withInbounds(t, b, bad, kept)))
	must.Do(t, m.StartControlPlane(t.Context()))
	runs(t, b, b.Inbound, kept.at)
	must.Poll(t, "the deleted listener to refuse", func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", doomed.at)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		if err == nil {
			_ = conn.Close()
		}
		return fmt.Errorf("it does not: %w", err)
	})
	refuses(t, b, "inbound:"+taken) // sent again once, on the new connection
	if envoyOf(t, b) != envoy {
		t.Error("Envoy was started anew")
	}
}

// envoyOf returns the process id of the Envoy of p.
func envoyOf(t *testing.T, p *harness.Proxy) int {
	t.Helper()
	pid, err := p.EnvoyPID()
	must.Do(t, err)
	return pid
}

// runs waits until the Envoy of p has inbound listeners at exactly these addresses.
func runs(t *testing.T, p *harness.Proxy, addresses ...string) {
	t.Helper()
	want := []string{"readiness"}
	for _, at := range addresses {
		want = append(want, "inbound:"+at)
	}
	slices.Sort(want)
	must.Poll(t, "the listeners of "+p.Name, func(ctx context.Context) error {
		got, err := listeners(ctx, p)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("they are %q, want %q", got, want)
		}
		return err
	})
}
