package probe_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// FuzzRequest sends arbitrary requests to a port for HTTP probes of either kind, as any client may: only a GET of a
// known path may reach an application.
func FuzzRequest(f *testing.F) {
	app := netip.MustParseAddrPort("127.0.0.1:8080")
	table := mesh.ProbeTable{{ID: "id", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(app.Port()), Path: "/x"}}}
	probePath := table[0].VirtualPath()
	kinds := map[string]probe.Options{
		"of a table": {Table: table}, "of targets": {Target: only(probePath, probe.Target{Asked: app, Application: app, Path: "/x"})},
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
		may := r.Method == http.MethodGet && target == probePath
		for name, o := range kinds {
			synctest.Test(t, func(t *testing.T) {
				asked := false
				o.PodIP, o.Port = app.Addr(), 1
				o.Dial = func(context.Context, string, string) (net.Conn, error) {
					asked = true
					return nil, syscall.ECONNREFUSED
				}
				h, err := probe.New(o)
				if err != nil {
					t.Fatal(err)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r.WithContext(t.Context()))
				if asked && !may || !may && w.Code != http.StatusNotFound {
					t.Errorf("%s: %q reaches the application: %t, status %d", name, text, asked, w.Code)
				}
			})
		}
	})
}

// FuzzMessage sends arbitrary messages in a gRPC call: only a message that Protocol Buffers can parse may reach the
// application.
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
