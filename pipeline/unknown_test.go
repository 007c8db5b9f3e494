package pipeline

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// TestUnknownServicesAreLogged shows the lines for services that only outbounds name: when that begins, and when it is
// over.
func TestUnknownServicesAreLogged(t *testing.T) {
	b := meshview.NewBuilder(meshview.Options{Sources: []string{"files"}})
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	timestamp := regexp.MustCompile(`(?m)^time=\S+ `)
	logged := func(what string, want ...string) {
		t.Helper()
		text.Reset()
		if c, ok := b.Build(); ok {
			logUnknown(t.Context(), log, c)
		}
		var got []string
		for line := range strings.Lines(timestamp.ReplaceAllString(text.String(), "")) {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	set := func(o mesh.Object) {
		o.SetDefaults()
		b.Set("files", o)
	}
	remove := func(o mesh.Object) {
		o.SetDefaults()
		b.Delete("files", o.Key())
	}
	client := func(name string, services ...string) *mesh.Dataplane {
		d := &mesh.Dataplane{Meta: mesh.Meta{Name: name}}
		d.Spec.Networking.Address = "10.0.0.1"
		for i, s := range services {
			d.Spec.Networking.Outbound = append(d.Spec.Networking.Outbound, mesh.Outbound{Port: uint32(10001 + i), Tags: mesh.Tags{mesh.TagService: s}})
		}
		return d
	}
	service := func(name string) *mesh.Service { return &mesh.Service{Meta: mesh.Meta{Name: name}} }

	set(client("web-1", "api"))
	logged("the files are being read")
	set(service("api"))
	b.Synced("files")
	logged("the files are read")

	set(client("web-1", "api", "wev"))
	const begins = `level=WARN msg="an outbound names a service that does not exist, calls of it fail" mesh=default service=`
	logged("an outbound", begins+`wev dataplanes=web-1`)
	set(client("web-2", "wev"))
	logged("another outbound")
	remove(service("api"))
	logged("the service goes", begins+`api dataplanes=web-1`)
	set(service("wev"))
	logged("the service comes without an endpoint", `level=INFO msg="an unknown service exists now" mesh=default service=wev`)
	set(client("web-1"))
	logged("the outbound goes", `level=INFO msg="an unknown service is no longer named by any outbound" mesh=default service=api`)

	set(service("backend"))
	set(client("web-4", "bakend"))
	logged("a misspelt name", begins+`bakend dataplanes=web-4 hint="did you mean \"backend\"?"`)
	remove(client("web-4"))
	logged("it is gone", `level=INFO msg="an unknown service is no longer named by any outbound" mesh=default service=bakend`)

	var many []string
	for i := range maxLoggedServices + 2000 {
		many = append(many, fmt.Sprintf("s%04d", i))
	}
	first := "default/" + strings.Join(many[:maxLoggedServices], ", default/")
	set(client("web-3", many...))
	logged("many", fmt.Sprintf(`level=WARN msg="outbounds name services that do not exist, calls of them fail" services=2020 first="%s"`, first))
	remove(client("web-3"))
	logged("none of the many", fmt.Sprintf(`level=INFO msg="services exist now, or no outbound names them" services=2020 first="%s"`, first))

	set(client("web-1", "api"))
	logged("again", begins+`api dataplanes=web-1`)
	set(&mesh.Mesh{Name: "other"})
	logged("the mesh goes", `level=INFO msg="an unknown service is no longer named by any outbound" mesh=default service=api`)
}
