package probe_test

import (
	"bufio"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// FuzzRequest is what strangers send to a port for HTTP probes of either kind: only a GET of a path that there is asks an application.
func FuzzRequest(f *testing.F) {
	var asked atomic.Int64
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	f.Cleanup(app.Close)
	at := netip.MustParseAddrPort(app.Listener.Addr().String())
	const path = "/x"
	table := mesh.ProbeTable{{ID: "id", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(at.Port()), Path: path}}}
	probePath := table[0].VirtualPath()
	handlers := map[string]*probe.Handler{}
	for _, o := range []probe.Options{
		{Table: table}, {Target: only(probePath, probe.Target{Asked: at, Application: at, Path: path})},
	} {
		o.PodIP, o.Port = at.Addr(), 1
		h, err := probe.New(o)
		if err != nil {
			f.Fatal(err)
		}
		name := "of a table"
		if o.Target != nil {
			name = "of targets"
		}
		handlers[name] = h
	}
	for _, text := range []string{
		"GET " + probePath + " HTTP/1.1\r\nHost: a\r\nSonde-Probe: id\r\n\r\n", "GET " + probePath + "?a=b HTTP/1.0\r\n\r\n", "HEAD " + probePath + " HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /x/.." + probePath + " HTTP/1.1\r\nHost: a\r\n\r\n", "GET http://a" + probePath + " HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST " + probePath + " HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: GET\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		target, _, _ := strings.Cut(r.RequestURI, "?")
		for name, h := range handlers {
			before, w := asked.Load(), httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(t.Context()))
			may := r.Method == http.MethodGet && target == probePath
			if n := asked.Load() - before; n > 0 && !may || !may && w.Code != http.StatusNotFound {
				t.Errorf("%s: %q asks %d times, and is answered %d", name, text, n, w.Code)
			}
		}
	})
}

// FuzzMessage is the message of a call by gRPC: only one that Protocol Buffers take asks for a service.
func FuzzMessage(f *testing.F) {
	for _, service := range []string{"", "shop", strings.Repeat("s", 1000)} {
		message, err := proto.Marshal(&healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))
	}
	f.Add([]byte("\x01\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x00\x02\xff\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, healthpb.Health_Check_FullMethodName, strings.NewReader(string(body)))
		r.Header.Set("Content-Type", "application/grpc")
		service, asked := "", false
		w := httptest.NewRecorder()
		probe.ServeGRPC(w, r, func(name string) { service, asked = name, true })
		var want healthpb.HealthCheckRequest
		good := len(body) >= 5 && body[0] == 0 && int(binary.BigEndian.Uint32(body[1:])) == len(body)-5 && proto.Unmarshal(body[5:], &want) == nil
		if asked != good || service != want.GetService() && good {
			t.Errorf("%q: asked %t for %q, want %t, %q", body, asked, service, good, want.GetService())
		}
		if code := w.Header().Get("Grpc-Status"); !good && code != "3" {
			t.Errorf("%q: the code is %q, want 3", body, code)
		}
	})
}
