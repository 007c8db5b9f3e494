package mesh_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestHandlers checks for each kind of handler, which are fields of Probe, that nothing has been forgotten.
func TestHandlers(t *testing.T) {
	kinds := 0
	for field := range reflect.TypeFor[mesh.Probe]().Fields() {
		if field.Type.Kind() != reflect.Pointer {
			continue
		}
		kinds++
		t.Run(field.Name, func(t *testing.T) {
			var p mesh.Probe
			reflect.ValueOf(&p).Elem().FieldByIndex(field.Index).Set(reflect.New(field.Type.Elem()))
			if (p.Protocol() == "") != (p.Exec != nil) {
				t.Fatalf("Protocol() = %q", p.Protocol())
			}
			if want := p.HandlerName() + ",omitempty"; field.Tag.Get("json") != want {
				t.Errorf("the name in JSON is %q, want %q", field.Tag.Get("json"), want)
			}
			at := p.At(8080)
			if at.Exec != nil {
				checkExec(t, at)
				return
			}
			if at.Port() != 8080 || p.Port() != 0 || at.HandlerName() != p.HandlerName() {
				t.Errorf("At(8080) = %+v, of port %d; the port of the original is %d", at, at.Port(), p.Port())
			}
			at.SetDefaults()
			data, err := mesh.ProbeTable{at}.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if table, unknown, err := mesh.ParseProbeTable(data); err != nil || len(unknown) > 0 || !cmp.Equal(table, mesh.ProbeTable{at}) {
				t.Errorf("ParseProbeTable(%s) = %+v, %q, %v", data, table, unknown, err)
			}
			var s mesh.ServiceProbe
			reflect.ValueOf(&s).Elem().FieldByName(field.Name).Set(reflect.ValueOf(at).FieldByIndex(field.Index))
			if check, _ := (&mesh.Inbound{ServiceProbe: &s}).ServiceCheck(); check.Port() != 8080 {
				t.Errorf("ServiceCheck() = %+v", check)
			}
		})
	}
	if kinds == 0 {
		t.Error("Probe has no handlers")
	}
}

// checkExec checks the kind without a port.
func checkExec(t *testing.T, p mesh.Probe) {
	t.Helper()
	p.Container, p.TimeoutSeconds, p.Exec.Command = "app", 1, []string{"/alive", "$(A)"}
	data, err := mesh.ProbeTable{p}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	table, unknown, err := mesh.ParseProbeTable(data)
	if err != nil || len(unknown) > 0 || !cmp.Equal(table, mesh.ProbeTable{p}) {
		t.Errorf("ParseProbeTable(%s) = %+v, %q, %v", data, table, unknown, err)
	}
	if p.Port() != 0 || p.WantsOwnPort() || p.VirtualPath() != "/exec/app" {
		t.Errorf("port %d, its own: %t, path %q", p.Port(), p.WantsOwnPort(), p.VirtualPath())
	}
}

func TestHandlerTexts(t *testing.T) {
	get := func(g mesh.HTTPGetProbe) mesh.Probe { return mesh.Probe{HTTPGet: &g} }
	grpc := func(service string) mesh.Probe { return mesh.Probe{GRPC: &mesh.GRPCProbe{Service: service}} }
	run := func(command ...string) mesh.Probe { return mesh.Probe{Exec: &mesh.ExecProbe{Command: command}} }
	tests := []struct {
		probe            mesh.Probe
		written, request string
	}{
		{get(mesh.HTTPGetProbe{}), "httpGet :web", "GET http://:8080/"},
		{get(mesh.HTTPGetProbe{Path: "/a b", Scheme: "HTTPS"}), "httpGet HTTPS :web /a b", "GET https://:8080/a%20b"},
		{get(mesh.HTTPGetProbe{Path: "/", HTTPHeaders: make([]mesh.HTTPHeader, 1)}), "httpGet :web /", "GET http://:8080/ with 1 header"},
		{get(mesh.HTTPGetProbe{Path: "/", HTTPHeaders: make([]mesh.HTTPHeader, 2)}), "httpGet :web /", "GET http://:8080/ with 2 headers"},
		{mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{}}, "tcpSocket :web", "connect to :8080"},
		{grpc(""), "grpc :web", `gRPC health of "" at :8080`},
		{run("/bin/sh", "-c", "a\n  b"), "exec /bin/sh -c a b", "exec /bin/sh -c a b, in the container"},
		{run(strings.Repeat("a", 61)), "exec " + strings.Repeat("a", 59) + "…", "exec " + strings.Repeat("a", 59) + "…, in the container"},
		{grpc("orders"), "grpc :web orders", `gRPC health of "orders" at :8080`},
	}
	for _, tc := range tests {
		if got := tc.probe.Written(":web"); got != tc.written {
			t.Errorf("Written() = %q, want %q", got, tc.written)
		}
		if got := tc.probe.Request(8080); got != tc.request {
			t.Errorf("Request() = %q, want %q", got, tc.request)
		}
	}
}
