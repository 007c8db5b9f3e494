package probe_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func get(port int32, path string, headers ...mesh.HTTPHeader) mesh.Probe {
	return mesh.Probe{
		ID: "app/liveness", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1,
		HTTPGet: &mesh.HTTPGetProbe{Path: path, Port: port, Scheme: mesh.SchemeHTTP, HTTPHeaders: headers},
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// The application's response decides the verdict. None of its text leaves the pod, except for the parts of a redirect
// that the kubelet shows.
func TestVerdicts(t *testing.T) {
	const secret = "SECRET"
	status := func(code string) string { return "HTTP/1.1 " + code + "\r\nContent-Length: 6\r\n\r\n" + secret }
	tests := map[string]struct {
		answer  string
		verdict string
		text    string // part of the response to the kubelet
	}{
		"200":                      {status("200 OK"), "success", ""},
		"204":                      {"HTTP/1.1 204 No Content\r\n\r\n", "success", ""},
		"299":                      {status("299 x"), "success", ""},
		"HTTP/1.0":                 {"HTTP/1.0 200 OK\r\n\r\n" + secret, "success", ""},
		"10 KiB and more":          {"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 10<<10), "success", ""},
		"10 KiB of a failure":      {"HTTP/1.1 500 no\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 10<<10), "failure", "500"},
		"cut before 10 KiB":        {"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 10<<10-1), "errored", "unexpected EOF"},
		"a lie about gzip":         {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", "success", ""},
		"after 100 and 103":        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + ok, "success", ""},
		"101":                      {"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "failure", "101"},
		"000":                      {status("000 x"), "failure", "statuscode: 0"},
		"099":                      {status("099 x"), "failure", "503"},
		"300":                      {status("300 x"), "warning", secret},
		"304":                      {"HTTP/1.1 304 Not Modified\r\n\r\n", "warning", ""},
		"302 elsewhere":            {"HTTP/1.1 302 x\r\nLocation: http://SECRET/\r\nContent-Length: 6\r\n\r\n" + secret, "warning", secret},
		"302 to loopback by name":  {"HTTP/1.1 302 x\r\nLocation: http://localhost/SECRET\r\nContent-Length: 0\r\n\r\n", "warning", ""},
		"302 nowhere":              {"HTTP/1.1 302 x\r\nContent-Length: 6\r\n\r\n" + secret, "warning", secret},
		"302 to no URL":            {"HTTP/1.1 302 x\r\nLocation: :SECRET\r\nContent-Length: 0\r\n\r\n", "failure", "failed to parse Location header"},
		"400":                      {status("400 x"), "failure", "400 Bad Request\nHTTP probe failed with statuscode: 400"},
		"404":                      {status("404 x"), "failure", "404"},
		"418":                      {status("418 x"), "failure", "418"},
		"503":                      {status("503 SECRET"), "failure", "statuscode: 503"},
		"600":                      {status("600 x"), "failure", "600"},
		"999":                      {status("999 SECRET"), "failure", "999"},
		"1000":                     {status("1000 SECRET"), "failure", "malformed HTTP status code"},
		"no answer":                {"", "failure", "EOF"},
		"garbage":                  {"SSH-2.0-SECRET\r\n", "failure", "malformed HTTP response"},
		"half a head":              {"HTTP/1.1 200 OK\r\nX: SECRET", "failure", "unexpected EOF"},
		"a bad header":             {"HTTP/1.1 200 OK\r\nSECRET\r\n\r\n", "failure", "malformed MIME header"},
		"a bad length":             {"HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\n", "failure", "bad Content-Length"},
		"a cut body":               {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + secret, "errored", "unexpected EOF"},
		"a cut body of a failure":  {"HTTP/1.1 503 no\r\nContent-Length: 100\r\n\r\n" + secret, "errored", "unexpected EOF"},
		"a cut body of a redirect": {"HTTP/1.1 302 x\r\nLocation: http://SECRET/\r\nContent-Length: 100\r\n\r\n" + secret, "errored", "unexpected EOF"},
		"a cut chunk":              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nSECRET", "errored", "unexpected EOF"},
		"a long chunk extension":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("e", 3000) + "\r\nok\r\n0\r\n\r\n", "success", ""},
		"a long trailer":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: " + strings.Repeat("x", 3000) + "\r\n\r\n", "success", ""},
		"no chunk":                 {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n", "errored", "invalid byte in chunk length"},
		"a huge head":              {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 11<<20) + "\r\n\r\n", "failure", "exceeded"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			p := get(pod.answer(tc.answer).port, "/")
			verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), p.ID)
			if verdict != tc.verdict || !strings.Contains(text, tc.text) {
				t.Errorf("verdict = %s %q, want %s %q", verdict, text, tc.verdict, tc.text)
			}
			if strings.Contains(text, secret) && verdict != "warning" {
				t.Errorf("the response has text of the application: %q", text)
			}
		})
	}
}

func TestVerdictsOverTime(t *testing.T) {
	wait := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) } // until the agent disconnects
	reset := func(c net.Conn) { _ = c.(interface{ SetLinger(int) error }).SetLinger(0) }
	tests := map[string]struct {
		serve   func(net.Conn)
		verdict string
		text    string
		took    time.Duration
	}{
		"silence":   {wait, "failure", "context deadline exceeded", time.Second},
		"late body": {func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")); wait(c) }, "errored", "context deadline exceeded", time.Second},
		"silence after 101": { // the kubelet's own check would never end
			func(c net.Conn) {
				_, _ = c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"))
				wait(c)
			}, "errored", "", time.Second,
		},
		"reset": {reset, "failure", "connection reset by peer", 0},
		"reset in the body": {
			func(c net.Conn) {
				_, _ = c.Write([]byte("HTTP/1.1 503 OK\r\nContent-Length: 100\r\n\r\nx"))
				reset(c)
			},
			"errored", "", 0,
		},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			p := get(pod.apply(localhost.String(), tc.serve).port, "/")
			address, began := pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), time.Now()
			verdict, text := pod.probe(address, p.VirtualPath(), p.ID)
			if took := time.Since(began); verdict != tc.verdict || !strings.Contains(text, tc.text) || took != tc.took {
				t.Errorf("verdict after %s = %s %q, want %s %q after %s", took, verdict, text, tc.verdict, tc.text, tc.took)
			}
		})
	}
}

func TestConnectionRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		p := get(pod.closedPort(), "/")
		verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), p.ID)
		want := fmt.Sprintf("503 Service Unavailable\ndial tcp 127.0.0.1:%d: connect: connection refused\n", p.Port())
		if verdict != "failure" || text != want {
			t.Errorf("verdict = %s %q, want failure %q", verdict, text, want)
		}
	})
}

// The application sees the request that the kubelet would have sent.
func TestRequest(t *testing.T) {
	header := func(pairs ...string) (headers []mesh.HTTPHeader) {
		for i := 0; i < len(pairs); i += 2 {
			headers = append(headers, mesh.HTTPHeader{Name: pairs[i], Value: pairs[i+1]})
		}
		return headers
	}
	tests := map[string]struct {
		path    string
		headers []mesh.HTTPHeader
		agent   string
		want    string // @ is the application's address
	}{
		"plain":             {"/healthz", nil, "", "GET /healthz|Host: @|User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"raw query":         {"/a//b%2F?q=a b", nil, "", "GET /a//b%2F?q=a b|Host: @|User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"user in the path":  {"//u:p@h/x", nil, "", "GET /x|Host: @|User-Agent: kube-probe/1.36|Accept: */*|Authorization: Basic dTpw|Connection: close"},
		"Host":              {"/", header("Host", "x"), "", "GET /|Host: x|User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"host":              {"/", header("host", "x:1"), "", "GET /|Host: x:1|User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"two Hosts":         {"/", header("Host", "a", "hOST", "b"), "", "GET /|Host: a|User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"no Host":           {"/", header("Host", ""), "", "GET /|Host: @|User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"a Host with space": {"/", header("Host", "a b"), "", "GET /|Host: |User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"no User-Agent":     {"/", header("user-agent", ""), "", "GET /|Host: @|Accept: */*|Connection: close"},
		"own User-Agent":    {"/", header("User-Agent", "me"), "", "GET /|Host: @|User-Agent: me|Accept: */*|Connection: close"},
		"no Accept":         {"/", header("Accept", ""), "", "GET /|Host: @|User-Agent: kube-probe/1.36|Connection: close"},
		"own Accept":        {"/", header("accept", "text/html"), "", "GET /|Host: @|User-Agent: kube-probe/1.36|Accept: text/html|Connection: close"},
		"dropped":           {"/", header("Content-Length", "5", "Transfer-Encoding", "chunked", "Trailer", "X"), "", "GET /|Host: @|User-Agent: kube-probe/1.36|Accept: */*|Connection: close"},
		"Connection":        {"/", header("connection", "keep-alive"), "", "GET /|Host: @|User-Agent: kube-probe/1.36|Accept: */*|Connection: keep-alive|Connection: close"},
		"repeated, empty, odd": {
			"/", header("x-b", "1", "X-A", "\tü ", "X-B", "", "accept-encoding", "gzip", "sonde-probe", "mine"), "",
			"GET /|Host: @|User-Agent: kube-probe/1.36|Accept: */*|Accept-Encoding: gzip|Sonde-Probe: mine|X-A: ü|X-B: 1|X-B: |Connection: close",
		},
		"another kubelet":         {"/", nil, "kube-probe/1.29+", "GET /|Host: @|User-Agent: kube-probe/1.29+|Accept: */*|Connection: close"},
		"a kubelet of no version": {"/", nil, "kube-probe/.", "GET /|Host: @|User-Agent: kube-probe/.|Accept: */*|Connection: close"},
		"somebody":                {"/", nil, "curl/8", "GET /|Host: @|User-Agent: kube-probe/sonde|Accept: */*|Connection: close"},
		"a kubelet of 7 KiB":      {"/", nil, "kube-probe/1." + strings.Repeat("9", 7<<10), "GET /|Host: @|User-Agent: kube-probe/sonde|Accept: */*|Connection: close"},
		"a disguise":              {"/", nil, "kube-probe/1 (evil)", "GET /|Host: @|User-Agent: kube-probe/sonde|Accept: */*|Connection: close"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			app := pod.answer(ok)
			p := get(app.port, tc.path, tc.headers...)
			verdict, text := kubelet{pod: pod, agent: tc.agent}.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), p.ID)
			if verdict != "success" {
				t.Errorf("verdict = %s %q", verdict, text)
			}
			line, rest, _ := strings.Cut(strings.ReplaceAll(tc.want, "@", fmt.Sprintf("127.0.0.1:%d", app.port)), "|")
			want := []string{line + " HTTP/1.1\r\n" + strings.ReplaceAll(rest, "|", "\r\n") + "\r\n\r\n"}
			got, _ := app.requests()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// Requests that the kubelet would not send are not sent, and the verdict is the kubelet's.
func TestRequestNotSent(t *testing.T) {
	tests := map[string]struct {
		path    string
		headers []mesh.HTTPHeader
		text    string
	}{
		"a header with a newline": {"/", []mesh.HTTPHeader{{Name: "X-C", Value: "a\nSECRET"}}, "invalid header field value"},
		"a header without a name": {"/", []mesh.HTTPHeader{{Name: "a b", Value: "SECRET"}}, "invalid header field name"},
		"a URL without a host":    {"a:SECRET", nil, "no Host in request URL"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			app := pod.answer(ok)
			p := get(app.port, tc.path, tc.headers...)
			verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), p.ID)
			if verdict != "failure" || !strings.Contains(text, tc.text) || strings.Contains(text, "SECRET") {
				t.Errorf("verdict = %s %q, want failure %q", verdict, text, tc.text)
			}
			if _, connections := app.requests(); connections > 0 {
				t.Errorf("the application has seen %d connections", connections)
			}
		})
	}
}

func TestRedirects(t *testing.T) {
	tests := map[string]struct{ path, verdict, text string }{
		"relative":                {"/relative", "success", ""},
		"another port":            {"/port", "success", ""},
		"to TLS":                  {"/tls", "success", ""},
		"another host":            {"/host", "warning", "http://127.0.0.2/"},
		"the virtual port":        {"/self", "failure", "connect: connection refused"},
		"a closed port":           {"/closed", "failure", "connect: connection refused"},
		"another protocol":        {"/scheme", "failure", "unsupported protocol scheme"},
		"nine":                    {"/nine", "success", ""},
		"ten, which is too often": {"/ten", "failure", "stopped after 10 redirects"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			target := pod.web(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, nil)
			secure := pod.web(func(http.ResponseWriter, *http.Request) {}, &tls.Config{Certificates: []tls.Certificate{expired(t)}, NextProtos: []string{"h2", "http/1.1"}})
			to := map[string]string{
				"/relative": "/end", "/port": fmt.Sprintf("http://127.0.0.1:%d/x", target), "/tls": fmt.Sprintf("https://127.0.0.1:%d/x", secure),
				"/host": "http://127.0.0.2/", "/closed": fmt.Sprintf("http://127.0.0.1:%d/", pod.closedPort()),
				"/scheme": "ftp://127.0.0.1/", "/nine": "/nine", "/ten": "/ten",
			}
			var steps int
			p := get(pod.web(func(w http.ResponseWriter, r *http.Request) {
				steps++
				limit := map[string]int{"/nine": 9, "/ten": 10}[r.URL.Path]
				if to[r.URL.Path] == "" || limit > 0 && steps > limit {
					w.WriteHeader(http.StatusOK)
					return
				}
				http.Redirect(w, r, to[r.URL.Path], http.StatusFound)
			}, nil), tc.path)
			address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}})
			to["/self"] = "http://" + address + p.VirtualPath()
			verdict, text := pod.probe(address, p.VirtualPath(), p.ID)
			if verdict != tc.verdict || !strings.Contains(text, tc.text) {
				t.Errorf("verdict = %s %q, want %s %q", verdict, text, tc.verdict, tc.text)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	certificates := []tls.Certificate{expired(t)}
	tests := map[string]struct {
		config  *tls.Config
		verdict string
		proto   string
	}{
		"HTTP/2":          {&tls.Config{Certificates: certificates, NextProtos: []string{"h2"}}, "success", "HTTP/2.0"},
		"both":            {&tls.Config{Certificates: certificates, NextProtos: []string{"h2", "http/1.1"}}, "success", "HTTP/2.0"},
		"HTTP/1.1":        {&tls.Config{Certificates: certificates, NextProtos: []string{"http/1.1"}}, "success", "HTTP/1.1"},
		"TLS 1.2":         {&tls.Config{Certificates: certificates, MaxVersion: tls.VersionTLS12}, "success", "HTTP/1.1"},
		"TLS 1.1":         {&tls.Config{Certificates: certificates, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "failure", ""},
		"client's asked":  {&tls.Config{Certificates: certificates, ClientAuth: tls.RequestClientCert}, "success", "HTTP/1.1"},
		"client's needed": {&tls.Config{Certificates: certificates, ClientAuth: tls.RequireAnyClientCert}, "failure", ""},
		"none":            {nil, "failure", ""},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			protos := make(chan string, 10)
			port := pod.web(func(_ http.ResponseWriter, r *http.Request) { protos <- r.Proto }, tc.config)
			p := get(port, "/")
			p.HTTPGet.Scheme = mesh.SchemeHTTPS
			verdict, text := pod.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), p.ID)
			if verdict != tc.verdict {
				t.Errorf("verdict = %s %q, want %s", verdict, text, tc.verdict)
			}
			close(protos)
			if proto := <-protos; proto != tc.proto {
				t.Errorf("the application saw %q, want %q", proto, tc.proto)
			}
		})
	}
}

func TestFamilies(t *testing.T) {
	for family, ip := range loopback {
		virtual.Run(t, family, func(t *testing.T) {
			pod := newPod(t)
			app := pod.apply(ip, func(c net.Conn) { _, _ = c.Write([]byte(ok)) })
			p := get(app.port, "/")
			tcp := mesh.Probe{TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: app.port}}
			address := pod.serve(probe.Options{Table: mesh.ProbeTable{p, tcp}, PodIP: netip.MustParseAddr(ip)})
			for _, p := range []mesh.Probe{p, tcp} {
				if verdict, text := pod.probe(address, p.VirtualPath(), p.ID); verdict != "success" {
					t.Errorf("%s: verdict = %s %q", p.VirtualPath(), verdict, text)
				}
			}
			heads, _ := app.requests()
			if want := fmt.Sprintf("Host: %s\r\n", net.JoinHostPort(ip, strconv.Itoa(int(app.port)))); len(heads) != 1 || !strings.Contains(heads[0], want) {
				t.Errorf("requests = %q, want one with %q", heads, want)
			}
		})
	}
}
