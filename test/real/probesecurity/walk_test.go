package probesecurity

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// randomPaths is the number of random paths besides the listed ones.
const randomPaths = 100_000

const hookID = "9f86d081884c7d659a2feaa0c55ad015"

// walked is a pod with a probe of each kind, and many undeclared ports.
type walked struct {
	pod      *pod
	agent    *agent
	table    mesh.ProbeTable
	declared []string // virtual paths
	ports    []int    // all ports
}

func newWalked(t *testing.T) *walked {
	p := newPod(t)
	w := &walked{pod: p}
	port := func() int32 {
		a := p.listen(0, nil)
		w.ports = append(w.ports, a.port)
		return int32(a.port)
	}
	web := port()
	w.table = mesh.ProbeTable{
		{ID: "web.live", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: web, Path: "/healthz?full=1", HTTPHeaders: []mesh.HTTPHeader{{Name: "X-User", Value: "1"}}}},
		{ID: "web.same1", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: web, Path: "/same"}},
		{ID: "web.same2", TimeoutSeconds: 2, HTTPGet: &mesh.HTTPGetProbe{Port: web, Path: "/same"}},
		{ID: "db.ready", TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: port()}},
		{ID: "rpc.live", TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: port(), Service: "shop.v1/Cart"}},
		{ID: "rpc.ready", TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: port()}},
		{ID: "tls.live", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: port(), Path: "/tls", Scheme: "HTTPS"}},
		{ID: hookID, Type: mesh.ProbePostStart, HTTPGet: &mesh.HTTPGetProbe{Port: port(), Path: "/warm-up"}},
	}
	for _, probe := range w.table {
		w.declared = append(w.declared, probe.VirtualPath())
	}
	for _, popular := range []int{1080, 2375, 3000, 3128, 3306, 4191, 5000, 5432, 5678, 6379, 8000, 8080, 8081, 8443, 8888, 9090, 9901, 9999, 10250, 11211, 15000, 15001, 15006, 15020, 15021, 27017, 50051} {
		p.listen(popular, nil)
		w.ports = append(w.ports, popular)
	}
	for range 40 {
		port()
	}
	w.agent = p.startAgent(p.freePort(), w.table)
	return w
}

// TestNothingButDeclared requests everything except the declared paths.
func TestNothingButDeclared(t *testing.T) {
	t.Parallel()
	w := newWalked(t)
	count := 0
	for kind, list := range w.attacks() {
		count += len(list)
		t.Run(kind, func(t *testing.T) {
			parallel(len(list), func(i int) {
				answer := w.agent.call(list[i])
				if s := statusOf(answer); s != "" && s[0] != '4' && s[0] != '5' {
					t.Errorf("%.300q is answered %.300q, want 4xx, 5xx or nothing", list[i], answer)
				}
			})
			w.pod.untouched(t)
		})
	}
	t.Run("HTTP/2 clients", w.http2)
	t.Run("TLS", func(t *testing.T) {
		c, err := tls.Dial("tcp", w.agent.Address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
		if err == nil {
			_ = c.Close() // the port should not be open
			t.Error("TLS is spoken on the virtual port")
		}
		w.pod.untouched(t)
	})
	t.Run("random paths", w.random)
	if !t.Failed() {
		t.Logf("%d requests and %d random ones: no connection to any of %d ports", count, randomPaths, len(w.ports))
	}
	for i, probe := range w.table { // declared probes do reach their ports
		a := w.pod.apps[int(probe.Port())]
		before, _, _ := a.seen()
		w.agent.probe(w.declared[i], probe.ID)
		a.await(t, before+1)
	}
}

// attacks returns requests for undeclared paths, by kind.
func (w *walked) attacks() map[string][]string {
	attacks := map[string][]string{}
	add := func(kind string, requests ...string) { attacks[kind] = append(attacks[kind], requests...) }
	for _, port := range w.ports {
		for _, form := range []string{"/%d/", "/%d", "/%d/healthz", "/%d//", "/tcp/%d/", "/tcp/%d/x", "/tcp/0%d", "/tcp/+%d", "/grpc/%d/other", "/%d/metrics", "/http/%d/", "/%d:%[1]d/", "/:%d/", "//%d/healthz?full=1"} {
			path := fmt.Sprintf(form, port)
			add("other ports", w.get(path), w.get(path, id(w.table[0].ID)), w.get(path, id(hookID)))
		}
	}
	for _, path := range w.undeclared() {
		add("other paths", w.get(path))
	}
	for i, path := range w.declared {
		w.attackDeclared(add, i, path)
	}
	add("a hook without its id", w.get(w.declared[7]))
	add("a path that two have", w.get(w.declared[1]))
	web := w.declared[0]
	for _, port := range w.ports[:8] {
		at := w.pod.address(port)
		add("proxies", w.raw("CONNECT "+at+" HTTP/1.1"), w.raw("CONNECT "+at+" HTTP/1.0"), w.raw("GET http://"+at+"/ HTTP/1.1"), w.raw("GET http://"+at+"/healthz?full=1 HTTP/1.0"),
			"GET / HTTP/1.1\r\nHost: "+at+"\r\nConnection: close\r\n\r\n",
			w.get("/undeclared", "X-Forwarded-Host: "+at, "X-Original-URL: "+web, "X-Rewrite-URL: "+web, "X-HTTP-Method-Override: GET", "Forwarded: host="+at))
	}
	add("bad requests", "\r\n\r\n", "GET\r\n\r\n", "GET "+web+"\r\n\r\n", "GET "+web+" HTTP/9.9\r\n\r\n", "GET "+web+" HTTP/0.9\r\n\r\n",
		w.raw("GET "+web+"\x00 HTTP/1.1"), w.raw("GET "+web+" x HTTP/1.1"), w.raw("GET\t"+web+" HTTP/1.1"), "GET "+web+" HTTP/1.1\r\n\r\n", "GET "+web+" HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"GET "+web+" HTTP/1.1\r\nHost: a\r\n X: folded\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		w.get("*"), w.get(""), w.get("x"), w.get("?"+web), w.get("/?"+web), w.get("/#"+web), w.get(web+"#"), w.get("\xff\xfe"))
	upgrade := []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"}
	add("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "PRI * HTTP/2.0\r\n\r\n", "GET "+web+" HTTP/2.0\r\nHost: a\r\n\r\n",
		w.get("/undeclared", upgrade...), w.raw("OPTIONS * HTTP/1.1", upgrade...))
	add("more than one in a connection", "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n"+w.get("/2"), "POST "+web+" HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"+w.get("/3"),
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"+w.get("/4"))
	return attacks
}

// attackDeclared adds invalid variations around the path of an entry.
func (w *walked) attackDeclared(add func(kind string, requests ...string), entry int, path string) {
	for _, method := range []string{"HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PRI", "get", "GETT", "PROPFIND", "G%45T"} {
		add("methods", w.raw(method+" "+path+" HTTP/1.1"))
	}
	for _, encoded := range encodings(path) {
		add("encodings", w.get(encoded))
	}
	other, virtual := w.pod.address(w.ports[0]), w.agent.Address
	add("absolute URIs", w.get("http://"+other+path), w.get("http://"+virtual+path), w.get("https://"+virtual+path), w.get("//"+virtual+path), w.get("http:"+path))
	add("wrong ids", w.get(path, id("x")), w.get(path, id("")), w.get(path, id(hookID[:31])), w.get(path, id(hookID+", "+hookID)), w.get(path, id(hookID), id(w.table[0].ID)))
	for i, probe := range w.table {
		if i != entry && w.declared[i] != path {
			add("another probe's id", w.get(path, id(probe.ID)))
		}
	}
}

// raw returns a request with this first line, and more headers after Host.
func (w *walked) raw(line string, headers ...string) string {
	return line + "\r\nHost: " + w.agent.Address + "\r\n" + strings.Join(append(headers, "Connection: close"), "\r\n") + "\r\n\r\n"
}

func (w *walked) get(path string, headers ...string) string {
	return w.raw("GET "+path+" HTTP/1.1", headers...)
}

func id(id string) string { return mesh.ProbeHeader + ": " + id }

// undeclared returns paths that are similar to the table's.
func (w *walked) undeclared() []string {
	paths := []string{"/", "//", "/healthz", "/metrics", "/readyz", "/livez", "/debug/pprof/", "/config_dump", "/tcp", "/tcp/", "/grpc", "/grpc/", "/http", "/app-health/x/livez", "/favicon.ico"}
	for _, path := range w.declared {
		for i := range len(path) - 1 {
			if !slices.Contains(w.declared, path[:i]) {
				paths = append(paths, path[:i])
			}
		}
		paths = append(paths, path+"x", path+"&x=1", path+"%20", path+"/..", "/."+path, "/.."+path, "/x/.."+path, path+"//", path+";x", path+"?", path+"\\", strings.Replace(path, "/", "\\", 1))
	}
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" || w.means(path) })
}

// encodings returns encodings of a path that a careless server would treat as equal.
func encodings(path string) []string {
	var paths []string
	full := []byte("/")
	for _, c := range []byte(path[1:]) {
		full = fmt.Appendf(full, "%%%02x", c)
	}
	for i := 1; i < len(path); i += 3 {
		if path[i] != '%' && !strings.HasPrefix(path, "/grpc/") { // in these paths, the agent itself decodes the service's escapes
			paths = append(paths, fmt.Sprintf("%s%%%02X%s", path[:i], path[i], path[i+1:]))
		}
	}
	return append(paths, string(full), strings.ReplaceAll(path, "/", "%2f"), strings.ReplaceAll(path, "/", "//"), strings.ReplaceAll(path, "/", "/./"),
		"/%2e"+path, "/%252e%252e"+path, "/"+path, strings.ToUpper(path)+"X", path+"%00", path+"%0d%0a", strings.ReplaceAll(path, "/", "\xc0\xaf"), strings.ReplaceAll(path, "1", "\uff11")+"%")
}

// means returns whether the path is a declared one. Only the service of gRPC has more than one
// form.
func (w *walked) means(path string) bool {
	for i, declared := range w.declared {
		g := w.table[i].GRPC
		if g == nil || path == declared {
			if path == declared {
				return true
			}
			continue
		}
		port, service, _ := strings.Cut(strings.TrimPrefix(path, "/grpc/"), "/")
		service, err := url.PathUnescape(service)
		if strings.HasPrefix(path, "/grpc/") && port == strconv.Itoa(int(g.Port)) && err == nil && service == g.Service {
			return true
		}
	}
	return false
}

// http2 requests a declared path with HTTP/2, which the agent does not support.
func (w *walked) http2(t *testing.T) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: callLimit}
	res, err := client.Get("http://" + w.agent.Address + w.declared[0])
	if err == nil {
		_ = res.Body.Close() // there should be no response
		t.Errorf("GET with HTTP/2 is answered %s", res.Status)
	}
	w.pod.untouched(t)
}

// random requests many paths, several per connection: each response must be 404, or 400 for a bad escape.
func (w *walked) random(t *testing.T) {
	const each, workers = 20, 8
	seed := rand.Uint64()
	begin := time.Now()
	var answered, connections atomic.Int64
	parallel(workers, func(worker int) {
		g := generator{w: w, r: rand.New(rand.NewPCG(seed, uint64(worker)))}
		for remaining := randomPaths / workers; remaining > 0 && !t.Failed(); {
			n := min(each, remaining)
			var paths []string
			for range n {
				paths = append(paths, g.path())
			}
			for len(paths) > 0 && !t.Failed() {
				answer, err := w.agent.try(g.requests(paths))
				connections.Add(1)
				got := strings.Count(answer, "HTTP/1.1 404 Not Found\r\n") + strings.Count(answer, "HTTP/1.1 400 Bad Request")
				if got == 0 || got != strings.Count(answer, "HTTP/1.1 ") {
					t.Errorf("seed %d: %q is answered %.300q (%v), want 404", seed, paths, answer, err)
					return
				}
				paths = paths[got:] // after a bad escape, or not sent yet when the first response arrived
				answered.Add(int64(got))
			}
			remaining -= n
		}
	})
	if n := answered.Load(); !t.Failed() && n != randomPaths {
		t.Errorf("%d answers, want %d", n, randomPaths)
	}
	t.Logf("%d random paths on %d connections in %s", answered.Load(), connections.Load(), time.Since(begin).Round(time.Millisecond))
	w.pod.untouched(t)
}

// generator makes random paths, and variations of declared paths.
type generator struct {
	w *walked
	r *rand.Rand
}

func (g *generator) path() string {
	for {
		path := g.any()
		if !g.w.means(path) {
			return path
		}
	}
}

const pathBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@/?[]{}|^\\\"<>`"

func (g *generator) any() string {
	port := g.r.IntN(1 << 16)
	if g.r.IntN(2) == 0 {
		port = g.w.ports[g.r.IntN(len(g.w.ports))]
	}
	switch g.r.IntN(6) {
	case 0:
		return fmt.Sprintf("/%d/%s", port, g.text())
	case 1:
		return fmt.Sprintf("/tcp/%d%s", port, g.text()+"/")
	case 2:
		return fmt.Sprintf("/grpc/%d/%s", port, g.text()+"x")
	case 3:
		return "/" + g.text()
	}
	path := []byte(g.w.declared[g.r.IntN(len(g.w.declared))])
	for range 1 + g.r.IntN(3) {
		i := 1 + g.r.IntN(len(path)-1)
		switch g.r.IntN(4) {
		case 0:
			path[i] = g.byte()
		case 1:
			path = slices.Insert(path, i, g.byte())
		case 2:
			path = slices.Replace(path, i, i+1, fmt.Appendf(nil, "%%%02x", g.r.IntN(256))...)
		case 3:
			if len(path) > 2 {
				path = slices.Delete(path, i, i+1)
			}
		}
	}
	return string(path)
}

func (g *generator) byte() byte { return pathBytes[g.r.IntN(len(pathBytes))] }

func (g *generator) text() string {
	b := make([]byte, 0, 40)
	for range g.r.IntN(12) {
		if g.r.IntN(5) == 0 {
			b = fmt.Appendf(b, "%%%02X", g.r.IntN(256))
		} else {
			b = append(b, g.byte())
		}
	}
	return string(b)
}

// requests returns requests for all paths, one after the other, some with an ID.
func (g *generator) requests(paths []string) string {
	var b strings.Builder
	for i, path := range paths {
		fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: a\r\n", path)
		switch g.r.IntN(8) {
		case 0:
			fmt.Fprintf(&b, "%s: %08x\r\n", mesh.ProbeHeader, g.r.Uint32())
		case 1:
			fmt.Fprintf(&b, "%s: %s\r\n", mesh.ProbeHeader, g.w.table[g.r.IntN(len(g.w.table))].ID)
		}
		if i == len(paths)-1 {
			b.WriteString("Connection: close\r\n")
		}
		b.WriteString("\r\n")
	}
	return b.String()
}

// parallel calls f for 0 to n-1, several at a time.
func parallel(n int, f func(i int)) {
	const most = 16
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(most, n) {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	running.Wait()
}
