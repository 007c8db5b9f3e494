package probesecurity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/sondedp"
)

// marker is a text that must not pass between caller and application.
const marker = "xyzzysecretxyzzy"

// found returns whether text contains the marker, ignoring case.
func found(text string) bool { return strings.Contains(strings.ToLower(text), marker) }

// callerHeaders are headers that no application may receive.
var callerHeaders = []string{
	"Cookie: session=" + marker, "Authorization: Bearer " + marker, "Proxy-Authorization: Basic " + marker, "X-Evil: " + marker,
	"X-" + marker + ": 1", "X-Forwarded-For: " + marker, "Forwarded: for=" + marker, "Referer: http://" + marker + "/", "Via: 1.1 " + marker,
	"Accept-Encoding: " + marker, "Accept: text/" + marker, "Range: bytes=0-1", "If-None-Match: " + marker, "TE: trailers",
	"Upgrade: " + marker, "Traceparent: 00-" + marker, "X-User: " + marker, "Host-Override: " + marker, "Grpc-Timeout: 1n", "Content-Type: " + marker,
	"X-Long: " + strings.Repeat(marker, 100),
}

// TestCallerHeaders checks that applications receive the same headers as from the kubelet itself, and none
// of the caller's.
func TestCallerHeaders(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	web, hook, tcp := p.listen(0, answer(ok)), p.listen(0, answer(ok)), p.listen(0, func(net.Conn, string) {})
	calls := make(chan metadata.MD, 100)
	rpc := p.serveGRPC(healthServer(func(md metadata.MD) error { calls <- md; return nil }))
	table := mesh.ProbeTable{
		{ID: "web", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(web.port), Path: "/live?a=1", HTTPHeaders: []mesh.HTTPHeader{{Name: "X-User", Value: "mine"}, {Name: "Host", Value: "shop.example"}}}},
		{ID: hookID, Type: mesh.ProbePreStop, HTTPGet: &mesh.HTTPGetProbe{Port: int32(hook.port), Path: "/stop"}},
		{ID: "rpc", TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: int32(rpc)}},
		{ID: "tcp", TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: int32(tcp.port)}},
	}
	a := p.startAgent(p.freePort(), table)
	agents := map[string]string{ // the caller's user agent, and the one that the application receives
		"kube-probe/1.36": "kube-probe/1.36", "kube-lifecycle/1.36": "kube-lifecycle/1.36", "kube-probe/1.33+" + "~_x": "kube-probe/1.33+~_x",
		"curl/8": "", "": "", "kube-probe/" + strings.Repeat("1", 65): "", "kube-probe/1 " + marker: "", "kube-probe/\t" + marker: "", "Kube-Probe/1": "",
		"kube-probe/(" + marker + ")": "", "kube-probe/1;" + marker: "", marker + " kube-probe/1.36": "",
	}
	bodies := []string{"\r\n", "Content-Length: 16\r\n\r\n" + marker, "Transfer-Encoding: chunked\r\n\r\n10\r\n" + marker + "\r\n0\r\n\r\n"}
	seen := []func(t *testing.T, agent string){
		func(t *testing.T, agent string) {
			same(t, web, "GET /live?a=1 HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: "+agent+"\r\nAccept: */*\r\nConnection: close\r\nX-User: mine\r\n\r\n")
		},
		func(t *testing.T, agent string) {
			same(t, hook, fmt.Sprintf("GET /stop HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n", p.address(hook.port), agent))
		},
		func(t *testing.T, agent string) {
			got := <-calls
			if values := got.Get("user-agent"); len(values) != 1 || !strings.HasPrefix(values[0], agent+" grpc-go/") {
				t.Errorf("gRPC user agent = %q, want %s", values, agent)
			}
			delete(got, "user-agent")
			if want := (metadata.MD{":authority": {p.address(rpc)}, "content-type": {"application/grpc"}, "grpc-accept-encoding": {"gzip"}}); !subset(got, want) {
				t.Errorf("gRPC metadata = %v, want of %v", got, want)
			}
		},
		func(t *testing.T, _ string) {
			if _, _, heads := tcp.seen(); len(heads) > 0 {
				t.Errorf("bytes on a TCP check: %q", heads)
			}
		},
	}
	sent := 0
	for agent, passed := range agents {
		for i, probe := range table {
			body := bodies[(sent+sent/len(table))%len(bodies)]
			answer := a.call(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s.example\r\n%s: %s\r\nUser-Agent: %s\r\n%s\r\n%s",
				probe.VirtualPath(), marker, mesh.ProbeHeader, probe.ID, agent, strings.Join(callerHeaders, "\r\n"), body))
			if statusOf(answer) != "200" {
				t.Errorf("probe %s with user agent %q and body %.20q is answered %q, want 200", probe.ID, agent, body, answer)
			}
			sent++
			want := passed
			switch {
			case want == "" && probe.Type.IsHook():
				want = "kube-lifecycle/sonde"
			case want == "":
				want = "kube-probe/sonde"
			}
			seen[i](t, want)
		}
	}
	if answer := a.call(a.request(table[0].VirtualPath(), "web", "Expect: "+marker)); statusOf(answer) != "417" || found(answer) {
		t.Errorf("Expect is answered %.200q, want 417", answer)
	}
	t.Logf("%d requests of callers with %d headers: applications see the kubelet's own, and its user agent", sent, len(callerHeaders))
}

// same compares the last request that an application received, ignoring the order of headers.
func same(t *testing.T, a *app, want string) {
	t.Helper()
	_, _, heads := a.seen()
	lines := func(head string) []string { return slices.Sorted(strings.Lines(head)) }
	if len(heads) == 0 || !slices.Equal(lines(heads[len(heads)-1]), lines(want)) {
		t.Errorf("requests = %q, want the last to be %q", heads, want)
	}
}

// subset returns whether want contains all of got.
func subset(got, want metadata.MD) bool {
	for key, values := range got {
		if !slices.Equal(values, want[key]) {
			return false
		}
	}
	return len(got) > 0
}

// healthServer responds to each check with answer's result for its metadata.
func healthServer(answer func(metadata.MD) error) *grpc.Server {
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if err := grpc.SetTrailer(ctx, metadata.Pairs("x-"+marker, marker)); err != nil {
			return nil, err
		}
		if err := grpc.SendHeader(ctx, metadata.Pairs("x-header", marker)); err != nil {
			return nil, err
		}
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, answer(md)
	}))
	healthpb.RegisterHealthServer(s, healthpb.UnimplementedHealthServer{})
	return s
}

// leaky returns responses of applications that contain the marker in every possible position.
func leaky(p *pod) map[string]string {
	const body = marker + marker
	m := "X-" + marker + ": " + marker + "\r\nSet-Cookie: " + marker + "\r\nServer: " + marker + "\r\nContent-Type: text/" + marker + "\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	line := func(status string) string { return "HTTP/1.1 " + status + " " + marker + "\r\n" + m }
	answers := map[string]string{
		"early hints":           "HTTP/1.1 103 " + marker + "\r\nLink: " + marker + "\r\n\r\n" + line("200") + length + "\r\n" + body,
		"switching protocols":   line("101") + "Upgrade: " + marker + "\r\nConnection: Upgrade\r\n\r\n" + body,
		"body cut":              line("200") + "Content-Length: 1000\r\n\r\n" + body,
		"body long":             line("200") + "Content-Length: 100000\r\n\r\n" + strings.Repeat(body, 4000),
		"bad chunk":             line("200") + "Transfer-Encoding: chunked\r\n\r\n" + marker + "\r\n" + body,
		"chunk extension":       line("500") + "Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n1;" + marker + "\r\na\r\n0\r\nX-T: " + marker + "\r\n\r\n",
		"bad transfer encoding": line("200") + "Transfer-Encoding: " + marker + "\r\n\r\n" + body,
		"bad content length":    line("200") + "Content-Length: " + marker + "\r\n\r\n" + body,
		"two content lengths":   line("200") + "Content-Length: 1\r\nContent-Length: 2" + marker + "\r\n\r\n" + body,
		"lying gzip":            line("200") + "Content-Encoding: gzip\r\n" + length + "\r\n" + body,
		"bad version":           "HTTP/" + marker + " 200 OK\r\n\r\n" + body,
		"bad status":            "HTTP/1.1 " + marker + " OK\r\n\r\n" + body,
		"long status":           "HTTP/1.1 2000" + marker + " OK\r\n\r\n" + body,
		"bad header":            "HTTP/1.1 200 OK\r\n" + marker + "\r\n\r\n" + body,
		"bad header name":       "HTTP/1.1 200 OK\r\n" + marker + " : x\r\n\r\n" + body,
		"no HTTP":               body + "\r\n\r\n",
		"a single line":         marker,
		"huge header":           "HTTP/1.1 200 OK\r\nX-Big: " + strings.Repeat(marker, 1<<17) + "\r\n\r\n",
		"hosts":                 line("302") + "Location: http://" + marker + ".example/" + marker + "\r\n" + length + "\r\n" + body,
		"user":                  line("302") + "Location: http://" + marker + ":" + marker + "@other.example/" + marker + "\r\n" + length + "\r\n" + body,
		"bad location":          line("302") + "Location: http://%zz" + marker + "\r\n" + length + "\r\n" + body,
		"bad port":              line("302") + "Location: http://" + p.ip.String() + ":" + marker + "/\r\n" + length + "\r\n" + body,
		"bad scheme":            line("302") + "Location: " + marker + "://" + p.ip.String() + "/\r\n" + length + "\r\n" + body,
		"closed port":           line("302") + "Location: http://" + p.ip.String() + ":1/" + marker + "?" + marker + "\r\n" + length + "\r\n" + body,
		"no location":           line("301") + length + "\r\n" + body,
	}
	for _, status := range []string{"200", "204", "304", "400", "404", "500", "599", "999"} {
		answers["status "+status] = line(status) + length + "\r\n" + body
	}
	return answers
}

// besidesRedirect returns a response without the Location and body of a redirect, which come from the application:
// the kubelet shows the body.
func besidesRedirect(answer string) string {
	if statusOf(answer) != "302" {
		return answer
	}
	head, _, _ := strings.Cut(answer, "\r\n\r\n")
	before, location, _ := strings.Cut(head, "\r\nLocation: ")
	_, after, _ := strings.Cut(location, "\r\n")
	return before + "\r\n" + after
}

// TestNothingLeaks searches the agent's responses for texts of the application, and its log, because logs leave the
// pod, too.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	var table mesh.ProbeTable
	names := map[string]string{}
	add := func(name string, probe mesh.Probe) {
		probe.TimeoutSeconds = 1
		probe.ID = fmt.Sprintf("%032d", len(table))
		names[probe.ID] = name
		table = append(table, probe)
	}
	for name, text := range leaky(p) {
		port := int32(p.listen(0, answer(text)).port)
		add(name, mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Port: port, Path: "/"}})
		add(name+", hook", mesh.Probe{Type: mesh.ProbePreStop, HTTPGet: &mesh.HTTPGetProbe{Port: port, Path: "/"}})
		add(name+", HTTPS", mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Port: port, Path: "/", Scheme: mesh.SchemeHTTPS}})
		add(name+", gRPC", mesh.Probe{GRPC: &mesh.GRPCProbe{Port: port}})
		add(name+", TCP", mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: port}})
	}
	secure := &http.Server{ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate(t)}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://"+marker+"/")
			http.Error(w, marker, http.StatusInternalServerError)
		})}
	tlsPort := int32(p.serveHTTP(secure, func(l net.Listener) error { return secure.ServeTLS(l, "", "") }))
	add("TLS", mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Port: tlsPort, Path: "/", Scheme: mesh.SchemeHTTPS}})
	add("TLS asked in clear", mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Port: tlsPort, Path: "/"}})
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		port := p.serveGRPC(healthServer(func(metadata.MD) error { return status.Error(code, marker) }))
		add("gRPC "+code.String(), mesh.Probe{GRPC: &mesh.GRPCProbe{Port: int32(port), Service: "x"}})
	}
	a := p.startAgent(p.freePort(), table)
	statuses := map[string]int{}
	results := make([]string, len(table))
	parallel(len(table), func(i int) { results[i] = a.probe(table[i].VirtualPath(), table[i].ID) })
	for i, text := range results {
		statuses[statusOf(text)]++
		if found(besidesRedirect(text)) {
			t.Errorf("%s: the answer has the application's words: %q", names[table[i].ID], text)
		}
	}
	for line := range strings.Lines(a.Log()) {
		if found(line) {
			t.Errorf("the log has the application's words: %s", line)
		}
	}
	t.Logf("%d probes of applications with secrets: none in the responses (%v) or in the log", len(table), statuses)
}

// certificate has the marker in its names.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: marker}, DNSNames: []string{marker}, NotAfter: time.Unix(1, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestNoRecursion directs the agent's checks to its own port in various ways.
func TestNoRecursion(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	t.Run("a probe of the virtual port", func(t *testing.T) {
		for kind, entry := range map[string]string{
			"httpGet": `{"id":"me","container":"c","httpGet":{"path":"/","port":9000}}`, "tcpSocket": `{"id":"me","container":"c","tcpSocket":{"port":9000}}`, "grpc": `{"id":"me","container":"c","grpc":{"port":9000}}`,
			"hook": `{"id":"me","container":"c","type":"preStop","httpGet":{"path":"/","port":9000}}`,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), callLimit)
			out, err := sondedp.Command(ctx, agentProgram, netip.AddrPortFrom(p.ip, 9000), slog.LevelInfo, "["+entry+"]").CombinedOutput()
			cancel()
			if err == nil || !strings.Contains(string(out), `id "me"`) || !strings.Contains(string(out), "virtual port") {
				t.Errorf("%s: sonde-dp probes ends with %v and %q, want an error that names the entry", kind, err, out)
			}
		}
	})
	port := p.freePort()
	virtual := fmt.Sprintf("%s:%d", p.ip, port)
	targets := map[string]string{
		"its address":         "http://" + virtual,
		"HTTPS":               "https://" + virtual,
		"mapped to IPv6":      fmt.Sprintf("http://[::ffff:%s]:%d", p.ip, port),
		"a name":              fmt.Sprintf("http://localhost:%d", port),
		"a number":            fmt.Sprintf("http://%d:%d", decimal(p), port),
		"127.0.0.1":           fmt.Sprintf("http://127.0.0.1:%d", port),
		"a port with zeros":   fmt.Sprintf("http://%s:0%d", p.ip, port),
		"with a user":         "http://a:b@" + virtual,
		"without a scheme":    "//" + virtual,
		"an unspecified host": fmt.Sprintf("http://0.0.0.0:%d", port),
	}
	var table mesh.ProbeTable
	var apps []*app
	names := slices.Sorted(maps.Keys(targets))
	for _, name := range names {
		// Each probe points to itself: a check that reached the agent would start the next check.
		at := p.freePort()
		probe := mesh.Probe{TimeoutSeconds: 2, HTTPGet: &mesh.HTTPGetProbe{Port: int32(at), Path: "/loop"}}
		table = append(table, probe)
		apps = append(apps, p.listen(at, answer(fmt.Sprintf("HTTP/1.1 302 Found\r\nLocation: %s%s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", targets[name], probe.VirtualPath()))))
	}
	a := p.startAgent(port, table)
	for i, probe := range table {
		answer := a.probe(probe.VirtualPath(), "")
		if n, _, _ := apps[i].seen(); n != 1 {
			t.Errorf("a redirect to %s: the application has seen %d checks, want 1", names[i], n)
		}
		if s := statusOf(answer); s != "503" && s != "302" {
			t.Errorf("a redirect to %s is answered %.200q, want 503 or 302", names[i], answer)
		}
		if _, location, _ := strings.Cut(answer, "Location: "); strings.HasPrefix(location, "http://"+p.ip.String()) {
			t.Errorf("a redirect to %s: the caller is sent to the virtual port: %q", names[i], answer)
		}
	}
}

// decimal returns the pod's address as one number.
func decimal(p *pod) uint32 {
	b := p.ip.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}
