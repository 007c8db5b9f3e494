package mesh

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// tcpEverySecond is a serviceProbe with Kuma's defaults.
var tcpEverySecond = object{"interval": "1s", "tcp": object{}}

// replicas returns two replicas of a service with the given probe.
func replicas(service, protocol string, probe object) []harness.ProxyOptions {
	var all []harness.ProxyOptions
	for i := range 2 {
		all = append(all, harness.ProxyOptions{Name: fmt.Sprintf("%s-%d", service, i+1), Service: service, Protocol: protocol, ServiceProbe: probe})
	}
	return all
}

// dies ends an application but not its agent, and waits until the endpoint is removed.
func dies(t *testing.T, end func(app *harness.Process), client, dead, other *harness.Proxy) {
	t.Helper()
	began := time.Now()
	end(dead.App)
	must.HaveEndpoints(t, client, dead.Service, other.Inbound)
	t.Logf("the endpoint of %s has left %s after its application has died", dead.Name, time.Since(began))
}

// TestApplicationThatDies ends one of two applications of an HTTP service under load, and restarts it. Its agent
// keeps running.
func TestApplicationThatDies(t *testing.T) {
	t.Parallel()
	for name, killed := range map[string]bool{"killed": true, "terminated": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			diesUnderLoad(t, killed)
		})
	}
}

func diesUnderLoad(t *testing.T, killed bool) {
	t.Helper()
	m := newMesh(t, strict)
	all := must.Add(t, m, append(replicas("b", "http", tcpEverySecond), harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}})...)
	b1, b2, a := all[0], all[1], all[2]
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	target := "http://" + a.Outbounds["b"] + "/"
	callers := []harness.Caller{harness.NewHTTPCaller(target, true, false), harness.NewHTTPCaller(target, true, false), harness.NewHTTPCaller(target, false, false)}
	began := time.Now()
	load := harness.StartLoad(t.Context(), 10*time.Millisecond, callers...)
	must.Make(t, load, 100)

	closing := 0 // calls that arrived while the kernel closed the connections of the killed process, one by one
	end := func(app *harness.Process) {
		if !killed {
			must.Do(t, app.Terminate(t.Context()))
			return
		}
		app.Kill()
		closing = load.Report().Failed
	}
	dies(t, end, a, b1, b2)
	why(t, m, "b-1", "application probe failed: dial tcp "+b1.AppAddress+": connect: connection refused")
	gone := load.Report()
	must.Make(t, load, 200)
	if r := load.Report(); r.Failed != gone.Failed || r.Instances["b-1"] != gone.Instances["b-1"] {
		t.Errorf("calls fail, or are answered by b-1, after its endpoint has left: %s, before: %s", r, gone)
	}
	must.Do(t, b1.StartApp(t.Context()))
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	must.Make(t, load, 100)
	r := load.Stop()
	t.Logf("%.0f calls each second: %s", float64(r.Calls)/time.Since(began).Seconds(), r)
	if r.Instances["b-1"] == gone.Instances["b-1"] {
		t.Error("b-1 is no longer called")
	}
	// Each caller may lose one call: the call that the application was handling when it died.
	if r.Failed-closing > len(callers) {
		t.Errorf("%d calls have failed, and only %d can have been in the application that died", r.Failed, len(callers))
	}
	for reason := range r.Reasons {
		if !strings.Contains(reason, "connection termination") {
			t.Errorf("a call has failed that was not in the application: %s", reason)
		}
	}
}

// why waits until sondectl shows the reason why the inbound of a Dataplane is not ready.
func why(t *testing.T, m *harness.Machine, name, reason string) {
	t.Helper()
	for _, command := range [][]string{{"get", "dataplane", name}, {"why", name}} {
		must.Poll(t, "sondectl to say why "+name+" is not ready", func(ctx context.Context) error {
			out, err := m.Ctl(ctx, command...)
			if err == nil && !strings.Contains(out, reason) {
				err = fmt.Errorf("%s says %s, want %s", command, out, reason)
			}
			return err
		})
	}
}

// TestTCPApplicationThatDies is TestApplicationThatDies over TCP. Envoy cannot retry an accepted TCP connection on
// another endpoint: calls fail until the endpoint is removed, and no later call fails.
func TestTCPApplicationThatDies(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	all := must.Add(t, m, append(replicas("b", "tcp", object{"interval": "200ms", "tcp": object{}}), harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}})...)
	b1, b2, a := all[0], all[1], all[2]
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	load := harness.StartLoad(t.Context(), 10*time.Millisecond, harness.NewTCPCaller(a.Outbounds["b"], false), harness.NewTCPCaller(a.Outbounds["b"], false))
	must.Make(t, load, 100)
	dies(t, (*harness.Process).Kill, a, b1, b2)
	gone := load.Report()
	must.Make(t, load, 200)
	must.Do(t, b1.StartApp(t.Context()))
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	must.Make(t, load, 200)
	r := load.Stop()
	t.Logf("until its endpoint had left: %s; in all: %s", gone, r)
	if r.Failed > gone.Failed+2 { // the calls in progress
		t.Errorf("%d calls have failed after the endpoint has left: %s", r.Failed-gone.Failed, r)
	}
}

// controlled adds a proxy like add, with an application whose health can be changed at its control port.
func controlled(t *testing.T, m *harness.Machine, o harness.ProxyOptions) (p *harness.Proxy, set func(query string)) {
	t.Helper()
	p, err := m.Prepare(o)
	must.Do(t, err)
	control := must.FreeAddress(t, m)
	must.Do(t, p.Declare())
	_, err = m.StartAppWith(t.Context(), o.Name, p.Protocol, p.AppAddress, "--control="+control)
	must.Do(t, err)
	must.Do(t, p.StartAgent(t.Context()))
	must.Do(t, p.WaitReady(t.Context()))
	return p, func(query string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+control+query, http.NoBody)
		must.Do(t, err)
		answer, err := http.DefaultClient.Do(r)
		must.Do(t, err)
		must.Do(t, answer.Body.Close())
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("PUT %s answers %s", query, answer.Status)
		}
	}
}

// TestApplicationThatSaysItIsNotReady has an application that serves, but reports itself as unhealthy on its health
// path or over gRPC.
func TestApplicationThatSaysItIsNotReady(t *testing.T) {
	t.Parallel()
	quick := func(handler string, fields object) object {
		return object{handler: fields, "periodSeconds": 1, "failureThreshold": 2}
	}
	tests := map[string]struct {
		protocol, bad, good, reason string
		probe                       object
		caller                      func(at string) harness.Caller
	}{
		"HTTP": {
			"http", "/http?status=500", "/http?status=200", "application probe failed: HTTP probe failed with statuscode: 500",
			quick("httpGet", object{"path": "/healthz"}),
			func(at string) harness.Caller { return harness.NewHTTPCaller("http://"+at+"/", true, false) },
		},
		"gRPC": {
			"grpc", "/grpc?service=&status=NOT_SERVING", "/grpc?service=&status=SERVING",
			"application probe failed: service unhealthy (responded with NOT_SERVING)",
			quick("grpc", object{}), func(at string) harness.Caller { return harness.NewGRPCCaller(at, true) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, strict)
			b := replicas("b", tc.protocol, tc.probe)
			b2 := must.Add(t, m, b[1])[0]
			b1, set := controlled(t, m, b[0])
			a := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}})[0]
			must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
			load := harness.StartLoad(t.Context(), 10*time.Millisecond, tc.caller(a.Outbounds["b"]), tc.caller(a.Outbounds["b"]))
			must.Make(t, load, 50)
			began := time.Now()
			set(tc.bad)
			must.HaveEndpoints(t, a, "b", b2.Inbound)
			t.Logf("the endpoint has left after %s", time.Since(began))
			why(t, m, "b-1", tc.reason)
			must.Make(t, load, 100)
			set(tc.good)
			must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
			must.Make(t, load, 50)
			must.Hold(t, load)
		})
	}
}

// TestProbesAreAddedUnderLoad adds a probe to all replicas at once, and then restarts the control plane: neither
// removes an endpoint.
func TestProbesAreAddedUnderLoad(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	all := must.Add(t, m, append(replicas("b", "http", nil), harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}})...)
	b1, b2, a := all[0], all[1], all[2]
	must.HaveEndpoints(t, a, "b", b1.Inbound, b2.Inbound)
	target := "http://" + a.Outbounds["b"] + "/"
	load := harness.StartLoad(t.Context(), 5*time.Millisecond, harness.NewHTTPCaller(target, true, false), harness.NewHTTPCaller(target, false, false))
	must.Make(t, load, 50)
	for _, p := range []*harness.Proxy{b1, b2} {
		p.ServiceProbe = object{"httpGet": object{"path": "/healthz"}, "periodSeconds": 1}
		must.Do(t, p.Declare())
	}
	for _, p := range []*harness.Proxy{b1, b2} {
		must.Poll(t, p.Name+" to be probed", func(ctx context.Context) error {
			out, err := m.Get(ctx, "http://"+p.Admin+"/metrics")
			if want := fmt.Sprintf("sonde_service_probe_ready{inbound=%q} 1", p.Inbound); err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("its metrics do not have %s", want)
			}
			return err
		})
	}
	must.Do(t, m.ControlPlane.Terminate(t.Context()))
	must.Do(t, m.StartControlPlane(t.Context()))
	for _, p := range []*harness.Proxy{b1, b2} {
		must.Poll(t, p.Name+" to be connected", p.Synced)
	}
	must.Make(t, load, 100)
	must.Hold(t, load)
}

// TestOnlyUnsentRequestsAreRetried has an application that returns 503 with the header by which an Envoy reports a
// failed connection. Envoy must not retry the request, and must remove the header.
func TestOnlyUnsentRequestsAreRetried(t *testing.T) {
	t.Parallel()
	const header = "X-Sonde-Unsent"
	m := newMesh(t, strict)
	a := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}})[0]
	var asked atomic.Int32
	var b []*harness.Proxy
	var servers []*http.Server
	for _, o := range replicas("b", "http", nil) {
		p, err := m.Prepare(o)
		must.Do(t, err)
		must.Do(t, p.Declare())
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", p.AppAddress)
		must.Do(t, err)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.Header().Set(header, "true")
			w.WriteHeader(http.StatusServiceUnavailable)
		})}
		go func() { _ = s.Serve(l) }() // Close ends it
		t.Cleanup(func() { _ = s.Close() })
		must.Do(t, p.StartAgent(t.Context()))
		must.Do(t, p.WaitReady(t.Context()))
		b, servers = append(b, p), append(servers, s)
	}
	must.HaveEndpoints(t, a, "b", b[0].Inbound, b[1].Inbound)
	ask := func() {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.Outbounds["b"]+"/", strings.NewReader("order"))
		must.Do(t, err)
		answer, err := http.DefaultClient.Do(r)
		must.Do(t, err)
		must.Do(t, answer.Body.Close())
		if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get(header) != "" {
			t.Errorf("the answer is %s, with %s %q", answer.Status, header, answer.Header.Get(header))
		}
	}
	for i := range int32(4) {
		if ask(); asked.Load() != i+1 {
			t.Fatalf("the application was asked %d times for %d requests", asked.Load(), i+1)
		}
	}
	for _, s := range servers {
		must.Do(t, s.Close())
	}
	ask() // no application runs
}
