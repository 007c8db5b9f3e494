package meshview

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestService(t *testing.T) {
	at := netip.MustParseAddrPort
	plainUnready := service("api", "10.0.0.1")
	no, yes := false, true
	plainUnready.Spec.Endpoints[0].Health = &mesh.EndpointHealth{Ready: &no}
	declared := service("api")
	declared.Spec.Protocol = mesh.ProtocolGRPC
	twoPorts := dataplane("api-1", "10.0.0.1", "api")
	twoPorts.Spec.Networking.Inbound = append(twoPorts.Spec.Networking.Inbound,
		mesh.Inbound{Address: "10.0.0.7", Port: 81, Tags: tags("api")}, mesh.Inbound{Port: 82, Tags: tags("other")})
	drained := map[mesh.ID]mesh.Observation{"default/api-1": {Draining: true}}

	sidecar := func(address string, h Health) Endpoint {
		return Endpoint{Address: at(address), Health: h, Sidecar: true}
	}
	plain := func(address string, h Health) Endpoint { return Endpoint{Address: at(address), Health: h} }
	api := func(id ...string) []string {
		for i := range id {
			id[i] = "spiffe://default.sonde.internal/workload/" + id[i]
		}
		return id
	}
	tests := map[string]struct {
		objects  []mesh.Object
		observed map[mesh.ID]mesh.Observation
		want     Service // without Mesh and Name, which are the same in all cases
	}{
		"inbounds with an address of their own, ports of other services": {
			objects: []mesh.Object{twoPorts},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready), sidecar("10.0.0.7:81", Ready)}},
		},
		"endpoints with and without a sidecar, sorted by address": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.10", "api"), service("api", "10.0.0.9", "10.0.0.11", "240.0.0.2:80", "240.0.0.1:80")},
			want: Service{
				Protocol: "tcp", Identities: api("api"), Addresses: []netip.AddrPort{at("240.0.0.1:80"), at("240.0.0.2:80")},
				Endpoints: []Endpoint{plain("10.0.0.9:80", Ready), sidecar("10.0.0.10:80", Ready), plain("10.0.0.11:80", Ready)},
			},
		},
		"the sidecar counts at an address, even if it is not ready": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready), service("api", "10.0.0.1")},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", NotReady)}},
		},
		"of two proxies at one address the healthier counts": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready), dataplane("api-2", "10.0.0.1", "api"), dataplane("api-3", "10.0.0.1", "api", unready)},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready)}},
		},
		"a server that speaks first": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", serverFirst), dataplane("api-2", "10.0.0.1", "api")},
			want: Service{
				Protocol: "tcp", Identities: api("api"),
				Endpoints: []Endpoint{{Address: at("10.0.0.1:80"), Health: Ready, Sidecar: true, ServerFirst: true}},
			},
		},
		"draining": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api"), dataplane("api-2", "10.0.0.2", "api")}, observed: drained,
			want: Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Draining), sidecar("10.0.0.2:80", Ready)}},
		},
		"not ready stays not ready while it drains": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready)}, observed: drained,
			want: Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", NotReady)}},
		},
		"a plain endpoint that is not ready": {
			objects: []mesh.Object{plainUnready},
			want:    Service{Protocol: "tcp", Endpoints: []Endpoint{plain("10.0.0.1:80", NotReady)}},
		},
		"endpoints that name Dataplanes: what they are is theirs, how they are is the Service's": {
			objects: []mesh.Object{
				named("api", endpoint{"10.0.0.1", "api-1", &mesh.EndpointHealth{Ready: &no, Serving: &yes}}, endpoint{"10.0.0.2", "api-2", nil}),
				dataplane("api-1", "10.0.0.1", "other", unready, serverFirst), dataplane("api-2", "10.0.0.2", "other", unready),
			},
			want: Service{
				Protocol: "tcp", Identities: api("other"),
				Endpoints: []Endpoint{{Address: at("10.0.0.1:80"), Health: Draining, Sidecar: true, ServerFirst: true}, sidecar("10.0.0.2:80", Ready)},
			},
		},
		"an endpoint that names a Dataplane that is not there": {
			objects: []mesh.Object{named("api", endpoint{"10.0.0.1", "api-1", nil})},
			want:    Service{Protocol: "tcp", Endpoints: []Endpoint{plain("10.0.0.1:80", NotReady)}},
		},
		"identities of all inbounds, ready or not, each once": {
			objects: []mesh.Object{
				dataplane("api-1", "10.0.0.1", "api", workload("z")), dataplane("api-2", "10.0.0.2", "api", workload("a"), unready),
				dataplane("api-3", "10.0.0.3", "api", workload("a")),
			},
			want: Service{
				Protocol: "tcp", Identities: api("a", "z"),
				Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready), sidecar("10.0.0.2:80", NotReady), sidecar("10.0.0.3:80", Ready)},
			},
		},
		"the protocol of the Service object": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", speaks("http")), declared},
			want:    Service{Protocol: "grpc", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready)}},
		},
		"known by an outbound alone": {
			objects: []mesh.Object{dataplane("web-1", "10.0.0.1", "web", calls("api"))},
			want:    Service{Protocol: "tcp", Unknown: true},
		},
		"IPv6, and IPv4 in its form": {
			objects: []mesh.Object{dataplane("api-1", "::ffff:10.0.0.1", "api"), dataplane("api-2", "fd00::1", "api")},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready), sidecar("[fd00::1]:80", Ready)}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := set(tc.objects...)
			for id, o := range tc.observed {
				b.Observe(id, o)
			}
			tc.want.Mesh, tc.want.Name = "default", "api"
			_, got := mustBuild(t, b).After.Service("default/api")
			if diff := cmp.Diff(&tc.want, got, lists, forClients); diff != "" {
				t.Errorf("Service (-want +got):\n%s", diff)
			}
		})
	}
}

type endpoint struct {
	address, dataplane string
	health             *mesh.EndpointHealth
}

// named returns a Service whose endpoints name Dataplanes.
func named(name string, endpoints ...endpoint) *mesh.Service {
	s := service(name)
	for _, e := range endpoints {
		s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{Address: e.address, Port: 80, Dataplane: e.dataplane, Health: e.health})
	}
	return s
}

// TestNamedDataplaneComesLater checks that a service is built again when a Dataplane that it names is added, changed
// and removed.
func TestNamedDataplaneComesLater(t *testing.T) {
	b := set(named("api", endpoint{"10.0.0.1", "api-1", nil}))
	mustBuild(t, b)
	check := func(when string, want Endpoint, identities ...string) {
		t.Helper()
		c := mustBuild(t, b)
		_, s := c.After.Service("default/api")
		want.Address = netip.MustParseAddrPort("10.0.0.1:80")
		if diff := cmp.Diff([]Endpoint{want}, s.Endpoints, lists, forClients); diff != "" {
			t.Errorf("%s: endpoints (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff(identities, s.Identities, lists); diff != "" {
			t.Errorf("%s: identities (-want +got):\n%s", when, diff)
		}
		if !slices.Contains(c.Endpoints, "default/api") {
			t.Errorf("%s: the change does not name the endpoints", when)
		}
	}
	d := dataplane("api-1", "10.0.0.1", "")
	d.Identity.Path = "/ns/shop/sa/api"
	b.Set("files", d)
	check("the Dataplane comes", Endpoint{Health: Ready, Sidecar: true}, "spiffe://default.sonde.internal/ns/shop/sa/api")
	first := dataplane("api-1", "10.0.0.1", "other", serverFirst)
	b.Set("files", first)
	check("the server speaks first", Endpoint{Health: Ready, Sidecar: true, ServerFirst: true}, "spiffe://default.sonde.internal/workload/other")
	b.Delete("files", d.Key())
	check("the Dataplane goes", Endpoint{Health: NotReady})
}

// TestHeldEndpoints checks that an endpoint of a Service object drains while a liveness probe of its pod fails, but
// that an endpoint that is not ready stays not ready.
func TestHeldEndpoints(t *testing.T) {
	no := false
	pod := func(name, address string) *mesh.Dataplane {
		d := dataplane(name, address, "")
		d.Identity = mesh.Identity{Path: "/ns/shop/sa/api", Instance: name}
		return d
	}
	b := set(pod("api-1", "10.0.0.1"), pod("api-2", "10.0.0.2"), pod("api-3", "10.0.0.3"),
		named("api", endpoint{"10.0.0.1", "api-1", nil}, endpoint{"10.0.0.2", "api-2", nil}, endpoint{"10.0.0.3", "api-3", &mesh.EndpointHealth{Ready: &no}}))
	mustBuild(t, b)
	steps := []struct {
		what    string
		proxy   mesh.ID
		held    bool
		want    []InboundHealth
		serving []string
	}{
		{"one is held", "default/api-1", true, []InboundHealth{{Draining, LivenessHeld}, {Ready, NoReason}, {NotReady, DeclaredNotReady}}, []string{"10.0.0.2:80"}},
		{"all are held", "default/api-2", true, []InboundHealth{{Draining, LivenessHeld}, {Draining, LivenessHeld}, {NotReady, DeclaredNotReady}}, []string{"10.0.0.1:80", "10.0.0.2:80"}},
		{"one passes again", "default/api-1", false, []InboundHealth{{Ready, NoReason}, {Draining, LivenessHeld}, {NotReady, DeclaredNotReady}}, []string{"10.0.0.1:80"}},
	}
	for _, step := range steps {
		b.Observe(step.proxy, mesh.Observation{Joined: true, Held: step.held})
		c := mustBuild(t, b)
		_, s := c.After.Service("default/api")
		var got []InboundHealth
		for _, e := range s.Endpoints {
			got = append(got, InboundHealth{e.Health, e.Reason})
		}
		var serving []string
		for _, e := range s.Serving() {
			serving = append(serving, e.Address.String())
		}
		if diff := cmp.Diff(step.want, got) + cmp.Diff(step.serving, serving); diff != "" || !slices.Contains(c.Endpoints, s.ID()) {
			t.Errorf("%s: endpoints and which of them serve (-want +got):\n%s\nthe change names the endpoints of %v", step.what, diff, c.Endpoints)
		}
	}
}

// TestFrozenEndpoints checks that an endpoint whose state differs from the state in Kubernetes has reason Frozen,
// unless there is another reason against it.
func TestFrozenEndpoints(t *testing.T) {
	no, yes := false, true
	pod := func(name, address string) *mesh.Dataplane {
		d := dataplane(name, address, "")
		d.Identity = mesh.Identity{Path: "/ns/shop/sa/api", Instance: name}
		return d
	}
	s := named("api", endpoint{"10.0.0.1", "api-1", nil}, endpoint{"10.0.0.2", "api-2", &mesh.EndpointHealth{Ready: &no, Serving: &yes}},
		endpoint{"10.0.0.3", "api-3", nil}, endpoint{"10.0.0.4", "api-4", nil}, endpoint{"10.0.0.5", "", &mesh.EndpointHealth{Ready: &no, Serving: &yes}})
	for i := range s.Spec.Endpoints {
		s.Spec.Endpoints[i].Frozen = true
	}
	b := set(pod("api-1", "10.0.0.1"), pod("api-2", "10.0.0.2"), pod("api-3", "10.0.0.3"), s)
	b.Observe("default/api-3", mesh.Observation{Joined: true, Held: true})
	_, built := mustBuild(t, b).After.Service("default/api")
	var got []InboundHealth
	for _, e := range built.Endpoints {
		got = append(got, InboundHealth{e.Health, e.Reason})
	}
	want := []InboundHealth{{Ready, Frozen}, {Draining, Frozen}, {Draining, LivenessHeld}, {NotReady, UnknownDataplane}, {Draining, Frozen}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// TestRestartingEndpoint checks that an endpoint has reason Restarting while the kubelet restarts all containers of its
// pod, unless its Dataplane does not exist.
func TestRestartingEndpoint(t *testing.T) {
	away := &mesh.EndpointHealth{Ready: new(bool), Serving: new(bool)}
	s := named("api", endpoint{"10.0.0.1", "api-1", away}, endpoint{"10.0.0.2", "api-2", away})
	for i := range s.Spec.Endpoints {
		s.Spec.Endpoints[i].Restarting = true
	}
	_, built := mustBuild(t, set(dataplane("api-1", "10.0.0.1", ""), s)).After.Service("default/api")
	var got []InboundHealth
	for _, e := range built.Endpoints {
		got = append(got, InboundHealth{e.Health, e.Reason})
	}
	if diff := cmp.Diff([]InboundHealth{{NotReady, Restarting}, {NotReady, UnknownDataplane}}, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// TestHeadlessService checks that a headless service is reached at each of its endpoints, ready or not.
func TestHeadlessService(t *testing.T) {
	no := false
	headless := func(endpoints ...endpoint) *mesh.Service {
		s := named("api", endpoints...)
		s.Spec.Headless = true
		return s
	}
	b := set(dataplane("web-1", "10.0.0.9", "web", transparent), headless(endpoint{"10.0.0.1", "", nil}))
	c := mustBuild(t, b)
	if _, p := c.After.Proxy("default/web-1"); !slices.Contains(p.Scope.Services, "api") {
		t.Error("a redirected proxy does not see the headless service")
	}
	b.Set("files", headless(endpoint{"10.0.0.1", "", &mesh.EndpointHealth{Ready: &no}}, endpoint{"10.0.0.2", "", nil}))
	c = mustBuild(t, b)
	_, s := c.After.Service("default/api")
	if !slices.Contains(c.Services, s.ID()) || len(s.Listeners()) != 2 || len(s.Serving()) != 2 {
		t.Errorf("the change names services %v, listeners are %v, serving are %v", c.Services, s.Listeners(), s.Serving())
	}
}

// TestEndpointsOfANode checks which endpoints of a Local service callers on a node get. They are the endpoints that
// kube-proxy would choose.
func TestEndpointsOfANode(t *testing.T) {
	no := false
	notReady, draining := &mesh.EndpointHealth{Ready: &no}, &mesh.EndpointHealth{Ready: &no, Serving: new(true)}
	on := func(node, address string, health *mesh.EndpointHealth) mesh.ServiceEndpoint {
		return mesh.ServiceEndpoint{Address: address, Port: 80, NodeName: node, Health: health}
	}
	tests := map[string]struct {
		node      string
		endpoints []mesh.ServiceEndpoint
		want      []string
	}{
		"ready ones":                      {"n1", []mesh.ServiceEndpoint{on("n1", "10.0.0.1", nil), on("n1", "10.0.0.2", nil), on("n2", "10.0.0.3", nil)}, []string{"10.0.0.1", "10.0.0.2"}},
		"a ready one, and one that ends":  {"n1", []mesh.ServiceEndpoint{on("n1", "10.0.0.1", draining), on("n1", "10.0.0.2", nil)}, []string{"10.0.0.2"}},
		"one that ends, others elsewhere": {"n1", []mesh.ServiceEndpoint{on("n1", "10.0.0.1", draining), on("n2", "10.0.0.2", nil)}, []string{"10.0.0.1"}},
		"one that is not ready":           {"n1", []mesh.ServiceEndpoint{on("n1", "10.0.0.1", notReady), on("n2", "10.0.0.2", nil)}, nil},
		"none":                            {"n3", []mesh.ServiceEndpoint{on("n1", "10.0.0.1", nil)}, nil},
		"unknown node of the caller":      {"", []mesh.ServiceEndpoint{on("n1", "10.0.0.1", nil), on("", "10.0.0.2", nil)}, nil},
		"unknown node of the endpoint":    {"n1", []mesh.ServiceEndpoint{on("", "10.0.0.1", nil)}, nil},
		"the node is the Dataplane's":     {"n1", []mesh.ServiceEndpoint{{Address: "10.0.0.9", Port: 80, Dataplane: "api-1"}}, []string{"10.0.0.9"}},
		"the endpoint's own node wins":    {"n1", []mesh.ServiceEndpoint{{Address: "10.0.0.9", Port: 80, Dataplane: "api-1", NodeName: "n2"}}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := named("api")
			s.Spec.InternalTrafficPolicy, s.Spec.Endpoints = mesh.TrafficLocal, tc.endpoints
			d := dataplane("api-1", "10.0.0.9", "other")
			d.Labels = map[string]string{mesh.LabelNode: "n1"}
			_, service := mustBuild(t, set(s, d)).After.Service("default/api")
			var got []string
			for _, e := range service.For(tc.node).Serving() {
				got = append(got, e.Address.Addr().String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProtocolOfDisagreeingInbounds(t *testing.T) {
	tests := map[string]struct {
		inbounds []mesh.Protocol
		want     mesh.Protocol
	}{
		"all agree":                   {inbounds: []mesh.Protocol{"http", "http"}, want: "http"},
		"grpc is http2 underneath":    {inbounds: []mesh.Protocol{"grpc", "http2", "grpc"}, want: "http2"},
		"http and http2 are bytes":    {inbounds: []mesh.Protocol{"http", "http2"}, want: "tcp"},
		"http2, grpc and then http":   {inbounds: []mesh.Protocol{"http2", "grpc", "http"}, want: "tcp"},
		"one that carries bytes only": {inbounds: []mesh.Protocol{"http", "tcp", "http"}, want: "tcp"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for range tc.inbounds {
				if got := protocolOf(nil, nil, tc.inbounds); got != tc.want {
					t.Errorf("protocolOf(%v) = %s, want %s", tc.inbounds, got, tc.want)
				}
				tc.inbounds = append(tc.inbounds[1:], tc.inbounds[0])
			}
		})
	}
}

func TestServing(t *testing.T) {
	tests := map[string]struct {
		health []Health
		want   []int
	}{
		"ready ones alone":                {health: []Health{Ready, Draining, NotReady, Ready}, want: []int{0, 3}},
		"draining ones while none is":     {health: []Health{NotReady, Draining, NotReady}, want: []int{1}},
		"none where all are out of order": {health: []Health{NotReady}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &Service{}
			for i, h := range tc.health {
				s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i)), Health: h})
			}
			var got []int
			for _, e := range s.Serving() {
				got = append(got, int(e.Address.Port()))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
