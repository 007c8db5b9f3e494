package mesh

import (
	"context"
	"fmt"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const backendService = `type: MeshService
name: backend
spec:
  selector: {dataplaneLabels: {matchLabels: {app: backend}}}
  ports: [{port: 80, targetPort: main, appProtocol: http}]
`

// TestBothFormsOfKuma has Dataplanes of Kuma 2.x and of the current form in one mesh. One client calls the service of
// a tag; two clients name a MeshService, which selects a server with tags and a server without tags.
func TestBothFormsOfKuma(t *testing.T) {
	m := newMesh(t, strict)
	must.Do(t, m.Put("meshservice.yaml", backendService))
	prepare := func(o harness.ProxyOptions) *harness.Proxy {
		p, err := m.Prepare(o)
		must.Do(t, err)
		return p
	}
	labels := map[string]string{"app": "backend", "kuma.io/workload": "backend"}
	tagged, untagged := prepare(harness.ProxyOptions{Name: "b-1", Service: "backend", Labels: labels}), prepare(harness.ProxyOptions{Name: "b-2", Labels: labels})
	byTag := prepare(harness.ProxyOptions{Name: "t-1", Service: "t", Outbound: []string{"backend"}})
	byRef := prepare(harness.ProxyOptions{Name: "r-1", Labels: map[string]string{"kuma.io/workload": "r"}, Outbound: []string{"backend"}})
	alone := prepare(harness.ProxyOptions{Name: "d-1", Outbound: []string{"backend"}})

	declare(t, m, tagged, func(networking object) { first(networking, "inbound")["name"] = "main" })
	declare(t, m, untagged, func(networking object) {
		inbound := first(networking, "inbound")
		inbound["name"], inbound["protocol"] = "main", "http"
		delete(inbound, "tags")
	})
	declare(t, m, byTag, func(object) {})
	ref := object{"kind": "MeshService", "name": "backend", "port": 80}
	declare(t, m, byRef, func(networking object) {
		refer(networking, ref)
		delete(networking, "inbound")
	})
	declare(t, m, alone, func(networking object) {
		refer(networking, object{"kind": "MeshService", "labels": object{"kuma.io/display-name": "backend"}, "port": 80})
		delete(networking, "inbound")
	})
	for _, p := range []*harness.Proxy{tagged, untagged, byTag, byRef} {
		must.Do(t, p.StartApp(t.Context()))
		must.Do(t, p.StartAgent(t.Context()))
	}
	must.Poll(t, "a token for a Dataplane without a workload", func(ctx context.Context) error {
		token, err := m.Ctl(ctx, "generate", "dataplane-token", "--name=d-1")
		if err != nil {
			return err
		}
		return alone.SetToken(token)
	})
	must.Do(t, alone.RunAgent())
	for _, p := range []*harness.Proxy{tagged, untagged, byTag, byRef, alone} {
		must.Do(t, p.WaitReady(t.Context()))
	}

	must.HaveEndpoints(t, byTag, "backend", tagged.Inbound)
	must.HaveEndpoints(t, byRef, "backend_msvc_80", tagged.Inbound, untagged.Inbound)
	must.HaveEndpoints(t, alone, "kuma.io/display-name=backend_msvc_80", tagged.Inbound, untagged.Inbound)
	answers(t, byTag, "b-1")
	answers(t, byRef, "b-1", "b-2")
	answers(t, alone, "b-1", "b-2")
	if n := stat(t, byRef, "cluster.backend_msvc_80.ssl.handshake"); n == 0 {
		t.Error("no TLS handshake with the endpoints of the MeshService")
	}
	shows(t, m, "get proxies", "d-1")
	shows(t, m, "get services", "backend_msvc_80")

	must.Do(t, m.Remove("meshservice.yaml"))
	must.HaveEndpoints(t, byRef, "backend_msvc_80")
	if _, err := harness.NewHTTPCaller("http://"+byRef.Outbounds["backend"]+"/", false, false).Call(t.Context()); err == nil {
		t.Error("without its MeshService, somebody answers")
	}
	answers(t, byTag, "b-1")
	must.Do(t, m.Put("meshservice.yaml", backendService))
	answers(t, byRef, "b-1", "b-2")
}

// declare writes the Dataplane of p with changed networking.
func declare(t *testing.T, m *harness.Machine, p *harness.Proxy, change func(networking object)) {
	t.Helper()
	must.Do(t, m.Put(p.Name+".yaml", edited(t, p, change)))
}

// first returns the first inbound or outbound.
func first(networking object, list string) object {
	all, _ := networking[list].([]any)
	one, _ := all[0].(object)
	return one
}

// refer makes the first outbound name a MeshService instead of a tag.
func refer(networking, ref object) {
	outbound := first(networking, "outbound")
	delete(outbound, "tags")
	outbound["backendRef"] = ref
}

// answers waits until exactly these instances have responded to calls of p to the service backend.
func answers(t *testing.T, p *harness.Proxy, instances ...string) {
	t.Helper()
	caller := harness.NewHTTPCaller("http://"+p.Outbounds["backend"]+"/", false, false)
	waiting := map[string]bool{}
	for _, name := range instances {
		waiting[name] = true
	}
	must.Poll(t, fmt.Sprintf("%v to answer %s", instances, p.Name), func(ctx context.Context) error {
		instance, err := caller.Call(ctx)
		if err != nil {
			return err
		}
		if _, expected := waiting[instance]; !expected {
			t.Fatalf("%s is answered by %q, want %v", p.Name, instance, instances)
		}
		waiting[instance] = false
		for name, still := range waiting {
			if still {
				return fmt.Errorf("%s has not answered", name)
			}
		}
		return nil
	})
}
