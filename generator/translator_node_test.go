package generator

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// localService returns a Local service with endpoints on these nodes.
func localService(nodes ...string) *mesh.Service {
	s := service("api", mesh.ProtocolHTTP, "240.0.0.1:80")
	s.Spec.InternalTrafficPolicy = mesh.TrafficLocal
	for i, node := range nodes {
		s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{Address: "10.0.1.1", Port: uint32(i + 1), NodeName: node})
	}
	return s
}

// TestProxiesOfANodeShareASet checks that an endpoint of a Local service is encoded once per node, and affects no other
// node.
func TestProxiesOfANodeShareASet(t *testing.T) {
	b := newBench(t, localService("n1", "n2"), service("web", mesh.ProtocolHTTP, "240.0.0.2:80"),
		dataplane("a", "10.0.0.1", "", workload("w"), transparent, onNode("n1")), dataplane("b", "10.0.0.2", "", workload("w"), transparent, onNode("n1")),
		dataplane("c", "10.0.0.3", "", workload("w"), transparent, onNode("n2")), dataplane("d", "10.0.0.4", "", workload("w"), transparent))
	b.apply()
	had := map[string]resource.Desired{}
	for _, name := range []string{"a", "b", "c", "d"} {
		had[name] = b.translator.Attach("default/"+name, resource.Metadata{})
	}
	if had["a"].Node != had["b"].Node || had["a"].Node == had["c"].Node || had["a"].Shared != had["d"].Shared {
		t.Errorf("the sets of proxies on n1, n1, n2 and nowhere are %v", had)
	}
	api := resource.Name{Type: resource.Endpoint, Name: "api"}
	if had["a"].Shared.Get(api) != nil || had["a"].Node.Get(api) == nil || had["d"].Node.Get(api) == nil {
		t.Error("the endpoints of api are not only in the node sets")
	}

	b.set(localService("n1", "n2", "n2"))
	changed := b.apply()
	if _, told := changed["default/c"]; !told || len(changed) != 1 {
		t.Errorf("an endpoint on n2 affects %v", changed)
	}
	put, remove := difference(had["c"], changed["default/c"])
	if diff := cmp.Diff([]string{"endpoint api"}, put); diff != "" || len(remove) > 0 {
		t.Errorf("removed %v, put (-want +got):\n%s", remove, diff)
	}

	b.set(localService("n1")) // n2 loses its endpoints: new connections are closed
	put, _ = difference(changed["default/c"], b.apply()["default/c"])
	if diff := cmp.Diff([]string{"endpoint api", "listener outbound:240.0.0.1:80"}, put); diff != "" {
		t.Errorf("put (-want +got):\n%s", diff)
	}
	for name := range had {
		b.translator.Detach("default/" + name)
	}
	checkEmpty(t, b.translator)
}

// TestLocalServiceWithTheAddressOfAnother checks which service gets the listener.
func TestLocalServiceWithTheAddressOfAnother(t *testing.T) {
	b := newBench(t, localService("n1"), service("web", mesh.ProtocolTCP, "240.0.0.1:80"),
		dataplane("a", "10.0.0.1", "", workload("w"), transparent, onNode("n1")))
	b.apply()
	b.translator.Attach("default/a", resource.Metadata{})
	in := func() (shared, node bool) {
		d, _ := b.translator.Resources("default/a")
		name := resource.Name{Type: resource.Listener, Name: "outbound:240.0.0.1:80"}
		return d.Shared.Get(name) != nil, d.Node.Get(name) != nil
	}
	if shared, node := in(); !shared || node {
		t.Errorf("the listener is in the shared set: %t, in the node's: %t", shared, node)
	}
	b.set(service("web", mesh.ProtocolTCP, "240.0.0.2:80"))
	b.apply()
	if shared, node := in(); shared || !node {
		t.Errorf("once web has left the address, the listener is in the shared set: %t, in the node's: %t", shared, node)
	}
}

// BenchmarkTranslatorLocalEndpointChange changes one endpoint of a Local service, such as a DaemonSet's: each of 1,000
// nodes has an endpoint and an attached proxy.
func BenchmarkTranslatorLocalEndpointChange(b *testing.B) {
	bench := newBench(b)
	bench.translator.encode = resource.Encode
	nodes := make([]string, 1000)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%03d", i)
		bench.set(dataplane(nodes[i], fmt.Sprintf("10.0.%d.%d", i/250, i%250), "", workload("w"), transparent, onNode(nodes[i])))
	}
	changed := localService(nodes...)
	changed.Spec.Endpoints[500].Health = &mesh.EndpointHealth{Ready: new(bool)}
	services := []*mesh.Service{changed, localService(nodes...)}
	bench.set(services[1])
	bench.apply()
	for _, node := range nodes {
		bench.translator.Attach("default/"+node, resource.Metadata{})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		bench.set(services[i%2])
		c, _ := bench.builder.Build()
		b.StartTimer()
		if changed, err := bench.translator.Apply(c); err != nil || len(changed) == 0 {
			b.Fatal(len(changed), err)
		}
	}
}
