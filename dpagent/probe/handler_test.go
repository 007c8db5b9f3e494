package probe_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// raw sends a request unchanged and returns the response.
func (p *pod) raw(address, request string) string {
	p.t.Helper()
	c := p.connect(address)
	_, _ = io.WriteString(c, request)
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// TestOnlyDeclaredProbes checks that only declared probes reach a port of the pod.
func TestOnlyDeclaredProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		app := pod.answer(ok)
		other := pod.answer(ok)
		p, q := get(app.port, "/a?b=%2F"), get(app.port, "/q")
		q.ID = "other"
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{
			p, q, {TCPSocket: &mesh.TCPSocketProbe{Port: app.port}}, {GRPC: &mesh.GRPCProbe{Port: app.port, Service: "s"}},
		}})
		path, id := p.VirtualPath(), p.ID
		get := func(target string, headers ...string) string {
			return "GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
		}
		tests := map[string]struct{ request, want string }{
			"the port alone":         {get(fmt.Sprintf("/%d", app.port)), "404"},
			"no query":               {get(fmt.Sprintf("/%d/a", app.port)), "404"},
			"another query":          {get(fmt.Sprintf("/%d/a?b=/", app.port)), "404"},
			"a fragment":             {get(path + "#x"), "404"},
			"an escaped path":        {get(strings.Replace(path, "/a", "/%61", 1)), "404"},
			"dots":                   {get(fmt.Sprintf("/%d/x/../a?b=%%2F", app.port)), "404"},
			"two slashes":            {get("/" + path), "404"},
			"another port":           {get(fmt.Sprintf("/%d/a?b=%%2F", other.port)), "404"},
			"the port with a zero":   {get(fmt.Sprintf("/0%d/a?b=%%2F", app.port)), "404"},
			"another TCP port":       {get(fmt.Sprintf("/tcp/%d", other.port)), "404"},
			"TCP and more":           {get(fmt.Sprintf("/tcp/%d/", app.port)), "404"},
			"another gRPC port":      {get(fmt.Sprintf("/grpc/%d/s", other.port)), "404"},
			"no gRPC service":        {get(fmt.Sprintf("/grpc/%d", app.port)), "404"},
			"another gRPC service":   {get(fmt.Sprintf("/grpc/%d/s/", app.port)), "404"},
			"gRPC with a query":      {get(fmt.Sprintf("/grpc/%d/s?", app.port)), "404"},
			"an absolute URI":        {get("http://127.0.0.1" + path), "404"},
			"a URI of another":       {get(fmt.Sprintf("http://127.0.0.1:%d/", app.port)), "404"},
			"an unknown id":          {get(path, "Sonde-Probe: unknown"), "404"},
			"an empty id":            {get(path, "Sonde-Probe:"), "404"},
			"two ids":                {get(path, "Sonde-Probe: "+id, "Sonde-Probe: "+id), "404"},
			"the path of another id": {get(q.VirtualPath(), "Sonde-Probe: "+id), "404"},
			"no path":                {"GET  HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
			"POST":                   {"POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "404"},
			"HEAD":                   {"HEAD " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "404"},
			"a body that is late":    {"PUT " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", "404"},
			"a body without an end":  {"PUT " + path + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "404"},
			"OPTIONS *":              {"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "404"},
			"CONNECT":                {fmt.Sprintf("CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", app.port), "404"},
			"HTTP/2":                 {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""},
			"a header bomb":          {get(path, "X: "+strings.Repeat("x", 20<<10)), "431"},
		}
		for name, tc := range tests {
			got := pod.raw(address, tc.request)
			if status, _, _ := strings.Cut(strings.TrimPrefix(got, "HTTP/1.1 "), " "); status != tc.want && tc.want != "" {
				t.Errorf("%s: answer to %q = %q, want %s", name, tc.request, got, tc.want)
			}
		}
		transport := &http.Transport{DialContext: pod.dial}
		defer transport.CloseIdleConnections()
		for range 1000 {
			target := make([]byte, 1+rand.IntN(30))
			for i := range target {
				target[i] = "/1234567890abtcprg%?.2F:*"[rand.IntN(25)]
			}
			if status := pod.get(transport, address, "/"+string(target)); status != http.StatusNotFound && status != http.StatusBadRequest {
				t.Errorf("answer to %q = %d", target, status)
			}
		}
		for _, a := range []*application{app, other} {
			if heads, connections := a.requests(); connections > 0 {
				t.Errorf("an application has seen %d connections, %q", connections, heads)
			}
		}
	})
}

// get sends a request for an unchanged target, and returns the status of the response.
func (p *pod) get(transport *http.Transport, address, target string) int {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+address, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r.URL.Opaque = target
	response, err := transport.RoundTrip(r)
	if err != nil {
		p.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode
}

// Probes that share a path differ by their IDs. A request with the path alone must match one of them unambiguously.
func TestSelection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		good, bad := pod.answer(ok), pod.answer("HTTP/1.1 500 x\r\n\r\n")
		one, two, only := get(good.port, "/x y"), get(good.port, "/x%20y"), get(bad.port, "/")
		two.ID, only.ID = "two", "only"
		two.HTTPGet.HTTPHeaders = []mesh.HTTPHeader{{Name: "Two", Value: "2"}}
		grpc := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: bad.port}}
		service := mesh.Probe{TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: pod.closedPort(), Service: "a/b"}}
		// Without IDs, as in Kuma's tables: a liveness and a readiness probe that are equal, and two that differ.
		same, again, quick := get(good.port, "/same"), get(good.port, "/same"), get(good.port, "/quick")
		same.ID, again.ID, quick.ID = "", "", ""
		again.Type, again.Container = mesh.ProbeReadiness, "other"
		slow := quick
		slow.TimeoutSeconds++
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{one, two, only, grpc, service, same, again, quick, slow}})
		tests := map[string]struct{ path, id, want string }{
			"by id":                  {one.VirtualPath(), one.ID, "success"},
			"by the other id":        {two.VirtualPath(), two.ID, "success"},
			"not by the path":        {one.VirtualPath(), "", "404"},
			"by its own path":        {only.VirtualPath(), "", "statuscode: 500"},
			"two that are the same":  {same.VirtualPath(), "", "success"},
			"two that differ":        {quick.VirtualPath(), "", "404"},
			"gRPC":                   {fmt.Sprintf("/grpc/%d", bad.port), "", "failed to connect service"},
			"gRPC with a slash":      {fmt.Sprintf("/grpc/%d/", bad.port), "", "failed to connect service"},
			"service, escaped":       {service.VirtualPath(), "", "failed to connect service"},
			"service, as it is":      {fmt.Sprintf("/grpc/%d/a/b", service.Port()), "", "failed to connect service"},
			"service, other escapes": {fmt.Sprintf("/grpc/%d/%%61%%2fb", service.Port()), "", "failed to connect service"},
		}
		for name, tc := range tests {
			if verdict, text := pod.probe(address, tc.path, tc.id); !strings.Contains(text, tc.want) {
				t.Errorf("%s: verdict = %s %q, want %q", name, verdict, text, tc.want)
			}
		}
		heads, _ := good.requests()
		if len(heads) != 3 || strings.Count(strings.Join(heads, ""), "\r\nTwo: 2\r\n") != 1 {
			t.Errorf("requests = %q, want one of each probe", heads)
		}
	})
}

// A path of the maximum length that Kubernetes admits reaches the application.
func TestLongPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		app := pod.answer(ok)
		p := get(app.port, "/"+strings.Repeat("x", 64<<10-1))
		if verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), p.ID); verdict != "success" {
			t.Errorf("verdict = %s %q", verdict, text)
		}
	})
}

// Idle connections, and those that do very little, do not lock out the kubelet.
func TestKubeletGetsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		app := pod.answer(ok)
		p := get(app.port, "/")
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}})
		for i := range 1500 {
			c := pod.connect(address)
			switch i % 3 {
			case 1:
				_, _ = io.WriteString(c, "GET / HT")
			case 2:
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			}
		}
		for range 4 {
			verdict, text := kubelet{pod: pod, timeout: time.Second}.probe(address, p.VirtualPath(), p.ID)
			if verdict != "success" {
				t.Errorf("verdict = %s %q", verdict, text)
			}
		}
	})
}

func TestEmptyTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		if verdict, text := pod.probe(pod.serve(probe.Options{}), "/", ""); !strings.HasPrefix(text, "404") {
			t.Errorf("verdict = %s %q, want 404", verdict, text)
		}
	})
}

func TestNewErrors(t *testing.T) {
	tests := map[string]struct {
		o    probe.Options
		want string
	}{
		"no address":     {probe.Options{Port: 1}, "PodIP"},
		"all addresses":  {probe.Options{Port: 1, PodIP: netip.IPv6Unspecified()}, `PodIP: "::"`},
		"several":        {probe.Options{Port: 1, PodIP: netip.MustParseAddr("ff02::1")}, "ff02::1"},
		"with a zone":    {probe.Options{Port: 1, PodIP: netip.MustParseAddr("fe80::1%eth0")}, "fe80::1%eth0"},
		"no port":        {probe.Options{PodIP: netip.IPv6Loopback()}, `Port: "0"`},
		"port 65536":     {probe.Options{PodIP: netip.IPv6Loopback(), Port: 65536}, `Port: "65536"`},
		"the same port":  {probe.Options{PodIP: netip.IPv6Loopback(), Port: 9, Table: mesh.ProbeTable{get(9, "/")}}, `probes[0] (id "app/liveness", container "app", type "liveness"): port: 9`},
		"no port of own": {probe.Options{PodIP: netip.IPv6Loopback(), PerPort: true, Table: mesh.ProbeTable{get(9, "/")}}, `Port: "0": must be a port from 1 to 65535: probes[0] (id "app/liveness", container "app", type "liveness") has no virtualPort`},
		"another metric": {probe.Options{PodIP: netip.IPv6Loopback(), Port: 9, Registerer: registered(t)}, "register metrics of probes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := probe.New(tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

// registered returns a registerer that already has a metric of another kind with the same name.
func registered(t testing.TB) prometheus.Registerer {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "sonde_probe_total", Help: "Something else."}))
	return r
}

func TestEnvironment(t *testing.T) {
	good := probe.Environment{Table: `[{"grpc":{"port":1}}]`, InstanceIP: "::ffff:192.0.2.1", Port: 9000}
	tests := map[string]struct {
		change func(*probe.Environment)
		want   string // in the error, "" for none
		needed bool
	}{
		"good":       {func(*probe.Environment) {}, "", true},
		"no table":   {func(e *probe.Environment) { e.Table = "" }, "", false},
		"empty":      {func(e *probe.Environment) { e.Table = "[]" }, "", false},
		"bad table":  {func(e *probe.Environment) { e.Table = "[{}]" }, "KUMA_DATAPLANE_PROBES: parse probe table: probes[0]", false},
		"no address": {func(e *probe.Environment) { e.InstanceIP = "" }, "INSTANCE_IP: is required", true},
		"a name":     {func(e *probe.Environment) { e.InstanceIP = "localhost" }, `INSTANCE_IP: "localhost"`, true},
		"all":        {func(e *probe.Environment) { e.InstanceIP = "0.0.0.0" }, `INSTANCE_IP: "0.0.0.0": must be the address of the pod`, true},
		"many":       {func(e *probe.Environment) { e.InstanceIP = "224.0.0.1" }, `INSTANCE_IP: "224.0.0.1"`, true},
		"a zone":     {func(e *probe.Environment) { e.InstanceIP = "fe80::1%eth0" }, `INSTANCE_IP: "fe80::1%eth0"`, true},
		"port 0":     {func(e *probe.Environment) { e.Port = 0 }, `Port: "0"`, false},
		"port 65536": {func(e *probe.Environment) { e.Port = 65536 }, `Port: "65536"`, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := good
			tc.change(&e)
			o, err := e.Options(slog.New(slog.DiscardHandler))
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Options() error = %v, want %q", err, tc.want)
			}
			if err == nil {
				if h, err := probe.New(o); err != nil || h.Address() != netip.MustParseAddrPort("192.0.2.1:9000") {
					t.Errorf("New() = %v, %v", h, err)
				}
			}
			if needed, _ := e.Needed(); needed != tc.needed {
				t.Errorf("Needed() = %t, want %t", needed, tc.needed)
			}
		})
	}
}

// In per-port mode the kernel answers the TCP probes that have their own port, and the agent all others.
func TestEnvironmentPerPort(t *testing.T) {
	e := probe.Environment{
		Table:      `[{"tcpSocket":{"port":1}},{"virtualPort":9001,"tcpSocket":{"port":2}},{"virtualPort":9002,"grpc":{"port":3}}]`,
		InstanceIP: "192.0.2.1", Port: 9000, Mode: mesh.ProbesPerPort,
	}
	o, err := e.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var ports []int32
	for _, p := range o.Table {
		ports = append(ports, p.Port())
	}
	if diff := cmp.Diff([]int32{1, 3}, ports); diff != "" {
		t.Errorf("ports of the applications that the agent probes (-want +got):\n%s", diff)
	}
}

// The log has unknown keys once, verdicts when they change, and never text from the application.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		var logs bytes.Buffer
		logger := slog.New(slog.NewJSONHandler(&logs, nil))
		answers := []string{ok, ok, "HTTP/1.1 500 SECRET\r\n\r\nSECRET", "HTTP/1.1 500 x\r\n\r\n", ok}
		var asked atomic.Int32
		app := pod.apply(localhost.String(), func(c net.Conn) { _, _ = io.WriteString(c, answers[asked.Add(1)-1]) })
		env := probe.Environment{InstanceIP: "127.0.0.1", Port: 9000, Table: fmt.Sprintf(
			`[{"id":"a","container":"app","type":"liveness","future":1,"httpGet":{"port":%d,"httpHeaders":[{"name":"Authorization","value":"SECRET"}]}}]`, app.port)}
		o, err := env.Options(logger)
		if err != nil {
			t.Fatal(err)
		}
		metrics := prometheus.NewRegistry()
		o.Registerer = metrics
		address := pod.serve(o)
		for range answers {
			pod.probe(address, o.Table[0].VirtualPath(), "a")
		}
		got := logs.String()
		if strings.Contains(got, "SECRET") {
			t.Errorf("log has text of the application:\n%s", got)
		}
		for text, want := range map[string]int{
			`"keys":["future"]`: 1, `"msg":"probe verdict"`: 3, `"verdict":"failure","err":"HTTP probe failed with statuscode: 500"`: 1,
			`"verdict":"success"`: 2, `"container":"app","probe":"liveness"`: 3,
		} {
			if n := strings.Count(got, text); n != want {
				t.Errorf("log has %d times %s, want %d:\n%s", n, text, want, got)
			}
		}
		want := map[string]float64{
			"sonde_probe_total app liveness errored": 0, "sonde_probe_total app liveness failure": 2,
			"sonde_probe_total app liveness success": 3, "sonde_probe_total app liveness warning": 0,
			"sonde_probe_duration_seconds app liveness": 5,
		}
		if diff := cmp.Diff(want, counts(t, metrics)); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

// counts returns counters, and the counts of histograms, by name and values of labels.
func counts(t testing.TB, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := []string{family.GetName()}
			for _, label := range metric.GetLabel() {
				name = append(name, label.GetValue())
			}
			found[strings.Join(name, " ")] = metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return found
}

// FuzzSelection checks that the handler finds the entry for the virtual path of an httpGet, as a client of net/http
// sends it.
func FuzzSelection(f *testing.F) {
	for _, path := range []string{"/", "a b", "//h/x?y z", "/%zz#ü", "*", "a:b", "/?\"<>|"} {
		f.Add(path, path)
	}
	f.Fuzz(func(t *testing.T, path, service string) {
		if len(path)+len(service) > 32<<10 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			pod := newPod(t)
			health := pod.serveGRPC(says(healthpb.HealthCheckResponse_SERVING, nil))
			table := mesh.ProbeTable{get(pod.answer(ok).port, path), {ID: "g", TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: health, Service: service}}}
			address := pod.serve(probe.Options{Table: table})
			for _, p := range table {
				u, err := (&mesh.HTTPGetProbe{Path: p.VirtualPath(), Port: 1}).URL("127.0.0.1")
				if err != nil {
					t.Fatal(err)
				}
				if verdict, text := pod.probe(address, u.RequestURI(), p.ID); strings.Contains(text, "Not Found") {
					t.Errorf("%q: verdict = %s %q", u.RequestURI(), verdict, text)
				}
			}
		})
	})
}
