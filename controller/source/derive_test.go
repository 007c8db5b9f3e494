package source

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// The usual Service and slice of the tests.
var (
	webService = serviceOf("web", "10.96.0.1", port("http", 80))
	webPorts   = ports1("http", 8080)
)

const webName = "web_shop_svc_80"

// proxied returns the endpoint of a pod with a sidecar in namespace shop; health is nil, notReady or draining.
func proxied(address string, port uint32, pod string, health *mesh.EndpointHealth) mesh.ServiceEndpoint {
	return mesh.ServiceEndpoint{Address: address, Port: port, Dataplane: pod + ".shop", Health: health}
}

func plain(address string, port uint32) mesh.ServiceEndpoint {
	return mesh.ServiceEndpoint{Address: address, Port: port}
}

var (
	notReady = &mesh.EndpointHealth{Ready: new(bool), Serving: new(bool)}
	draining = &mesh.EndpointHealth{Ready: new(bool), Serving: new(true)}
)

func checkValid(t *testing.T, r *recorder) {
	t.Helper()
	for key, o := range r.objects {
		err := o.Validate()
		if d, ok := o.(*mesh.Dataplane); ok && err != nil {
			// Inbounds of pods name no service, unlike inbounds in files.
			c := *d
			c.Spec.Networking.Inbound = nil
			err = c.Validate()
		}
		if err != nil {
			t.Errorf("%v: %v", key, err)
		}
	}
}

func TestDataplanes(t *testing.T) {
	inbound := func(port uint32, protocol mesh.Protocol) mesh.Inbound {
		return mesh.Inbound{
			Port: port, ServicePort: port, ServiceAddress: "10.0.0.1", Address: "10.0.0.1", Tags: mesh.Tags{mesh.TagProtocol: string(protocol)},
		}
	}
	tests := map[string]struct {
		objects []metav1.Object
		want    []mesh.Inbound
		none    bool
	}{
		"declared ports": {
			objects: []metav1.Object{pod("web", "u-1", "10.0.0.1")},
			want:    []mesh.Inbound{inbound(8080, mesh.ProtocolTCP)},
		},
		"a port that only a Service names": {
			objects: []metav1.Object{
				pod("web", "u-1", "10.0.0.1"),
				sliceOf("web-1", "web", []discoveryv1.EndpointPort{at("http", 8080), at("grpc-x", 9090)}, endpoint("10.0.0.1", "web", "u-1", isReady)),
			},
			want: []mesh.Inbound{inbound(8080, mesh.ProtocolHTTP), inbound(9090, mesh.ProtocolGRPC)},
		},
		"Services that disagree about a protocol": {
			objects: []metav1.Object{
				pod("web", "u-1", "10.0.0.1"),
				sliceOf("web-1", "web", ports1("http", 8080), endpoint("10.0.0.1", "web", "u-1", isReady)),
				sliceOf("raw-1", "raw", ports1("tcp", 8080), endpoint("10.0.0.1", "web", "u-1", isReady)),
			},
			want: []mesh.Inbound{inbound(8080, mesh.ProtocolTCP)},
		},
		"a slice of an earlier pod of the name": {
			objects: []metav1.Object{
				pod("web", "u-2", "10.0.0.1"),
				sliceOf("web-1", "web", ports1("http", 9090), endpoint("10.0.0.9", "web", "u-1", isReady)),
			},
			want: []mesh.Inbound{inbound(8080, mesh.ProtocolTCP)},
		},
		"an excluded port": {
			objects: []metav1.Object{pod("web", "u-1", "10.0.0.1", excludes("8080"))},
		},
		"the port of the readiness is Envoy's": {
			objects: []metav1.Object{
				pod("web", "u-1", "10.0.0.1"),
				sliceOf("web-1", "web", ports1("http", mesh.PortReadiness), endpoint("10.0.0.1", "web", "u-1", isReady)),
			},
			want: []mesh.Inbound{inbound(8080, mesh.ProtocolTCP)},
		},
		"no address yet": {objects: []metav1.Object{pod("web", "u-1", "")}, none: true},
		"completed":      {objects: []metav1.Object{pod("web", "u-1", "10.0.0.1", inPhase(corev1.PodSucceeded))}, none: true},
		"no sidecar":     {objects: []metav1.Object{pod("web", "u-1", "10.0.0.1", withoutSidecar)}, none: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRecorder()
			newSynced(t, r, tc.objects...)
			checkValid(t, r)
			d := r.dataplane("web.shop")
			if tc.none {
				if d != nil {
					t.Errorf("Dataplane %+v", d)
				}
				return
			}
			if d == nil {
				t.Fatalf("no Dataplane: %v", r.objects)
			}
			if diff := cmp.Diff(tc.want, d.Spec.Networking.Inbound, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("inbounds (-want +got):\n%s", diff)
			}
		})
	}
}

// TestGateway checks that only injection makes a pod a gateway: the annotation has no effect on a pod that an earlier
// release has injected.
func TestGateway(t *testing.T) {
	asked := annotated(mesh.AnnotationGateway, "enabled")
	r := newRecorder()
	newSynced(t, r, pod("web", "u-1", "10.0.0.1", asked, gateway), pod("old", "u-2", "10.0.0.2", asked), webService,
		sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady), endpoint("10.0.0.2", "old", "u-2", isReady)))
	checkValid(t, r)
	for name, gateway := range map[string]bool{"web.shop": true, "old.shop": false} {
		n := r.dataplane(name).Spec.Networking
		if (n.Gateway != nil) != gateway || (len(n.Inbound) == 0) != gateway || n.TransparentProxying == nil {
			t.Errorf("%s: %+v", name, n)
		}
	}
	want := []mesh.ServiceEndpoint{plain("10.0.0.1", 8080), proxied("10.0.0.2", 8080, "old", nil)}
	if diff := cmp.Diff(want, r.service(webName).Spec.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// TestExcludedLater checks that a change of the annotation of a running pod has no effect, since the pod's redirection
// does not change.
func TestExcludedLater(t *testing.T) {
	later := annotated(mesh.AnnotationExcludeInboundPorts, "8080")
	r := newRecorder()
	newSynced(t, r, pod("web", "u-1", "10.0.0.1", later), webService,
		sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady)))
	if got := r.dataplane("web.shop").Spec.Networking.Inbound; len(got) != 1 || got[0].Port != 8080 {
		t.Errorf("inbounds %+v, want 8080", got)
	}
	want := []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil)}
	if diff := cmp.Diff(want, r.service(webName).Spec.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

func TestIdentityOfAPod(t *testing.T) {
	r := newRecorder()
	s := newSynced(t, r, pod("web", "u-1", "10.0.0.1", annotated(mesh.AnnotationReachableServices, webName)))
	d := r.dataplane("web.shop")
	if want := (mesh.Identity{Path: "/ns/shop/sa/web", Instance: "u-1"}); d.Identity != want {
		t.Errorf("identity %+v, want %+v", d.Identity, want)
	}
	if got := d.Spec.Networking.TransparentProxying.ReachableServices; !cmp.Equal(got, []string{webName}) {
		t.Errorf("reachable %v", got)
	}
	s.change(t, pod("web", "u-2", "10.0.0.1")) // a StatefulSet's pod, recreated between two reads
	if got := r.dataplane("web.shop").Identity.Instance; got != "u-2" {
		t.Errorf("instance %s, want u-2", got)
	}
	if key, p := s.Pod("u-1"); p != nil {
		t.Errorf("Pod(u-1) = %v, %v", key, p)
	}
	if key, p := s.Pod("u-2"); p == nil || key.Name != "web" {
		t.Errorf("Pod(u-2) = %v, %v", key, p)
	}
	s.change(t, pod("web", "u-2", "10.0.0.1", inMesh("prod")))
	if r.dataplane("web.shop") != nil || len(r.objects) != 1 {
		t.Errorf("a pod in another mesh: %v", r.objects)
	}
}

func TestEndpoints(t *testing.T) {
	web := pod("web", "u-1", "10.0.0.1")
	slice := func(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return sliceOf("web-1", "web", webPorts, endpoints...)
	}
	tests := map[string]struct {
		objects []metav1.Object
		want    []mesh.ServiceEndpoint
	}{
		"a pod with sidecar": {
			objects: []metav1.Object{web, slice(endpoint("10.0.0.1", "web", "u-1", isReady))},
			want:    []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil)},
		},
		"health": {
			objects: []metav1.Object{
				web, pod("b", "u-2", "10.0.0.2"), pod("c", "u-3", "10.0.0.3"), pod("d", "u-4", "10.0.0.4"),
				slice(endpoint("10.0.0.1", "web", "u-1", isNotReady), endpoint("10.0.0.2", "b", "u-2", isDraining),
					endpoint("10.0.0.3", "c", "u-3", isEnding), endpoint("10.0.0.4", "d", "u-4", isPublished)),
			},
			want: []mesh.ServiceEndpoint{
				proxied("10.0.0.1", 8080, "web", notReady), proxied("10.0.0.2", 8080, "b", draining),
				proxied("10.0.0.3", 8080, "c", notReady), proxied("10.0.0.4", 8080, "d", nil),
			},
		},
		"no pod, a pod without sidecar, a pod of another mesh": {
			objects: []metav1.Object{
				pod("b", "u-2", "10.0.0.2", withoutSidecar), pod("c", "u-3", "10.0.0.3", inMesh("prod")),
				slice(endpoint("10.0.0.1", "", "", isReady), endpoint("10.0.0.2", "b", "u-2", isReady), endpoint("10.0.0.3", "c", "u-3", isReady)),
			},
			want: []mesh.ServiceEndpoint{plain("10.0.0.1", 8080), plain("10.0.0.2", 8080), plain("10.0.0.3", 8080)},
		},
		"an excluded port has no sidecar": {
			objects: []metav1.Object{
				pod("web", "u-1", "10.0.0.1", excludes("8080")), slice(endpoint("10.0.0.1", "web", "u-1", isReady)),
			},
			want: []mesh.ServiceEndpoint{plain("10.0.0.1", 8080)},
		},
		"a pod whose address the other watch does not have yet": {
			objects: []metav1.Object{pod("web", "u-1", ""), slice(endpoint("10.0.0.1", "web", "u-1", isReady))},
			want:    []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil)},
		},
		"a completed pod is no endpoint": {
			objects: []metav1.Object{pod("web", "u-1", "10.0.0.1", inPhase(corev1.PodSucceeded)), slice(endpoint("10.0.0.1", "web", "u-1", isReady))},
		},
		"a completed pod whose address another pod has": {
			objects: []metav1.Object{
				pod("job", "u-0", "10.0.0.1", inPhase(corev1.PodSucceeded)), web,
				slice(endpoint("10.0.0.1", "job", "u-0", isReady), endpoint("10.0.0.1", "web", "u-1", isReady)),
			},
			want: []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil)},
		},
		"an earlier pod of the name has no sidecar that we know": {
			objects: []metav1.Object{pod("web", "u-2", "10.0.0.2"), slice(endpoint("10.0.0.1", "web", "u-1", isReady))},
			want:    []mesh.ServiceEndpoint{plain("10.0.0.1", 8080)},
		},
		"another name than the pod's": {
			objects: []metav1.Object{web, slice(endpoint("10.0.0.1", "victim", "u-1", isReady))},
			want:    []mesh.ServiceEndpoint{plain("10.0.0.1", 8080)},
		},
		"two slices split the endpoints": {
			objects: []metav1.Object{
				web, slice(endpoint("10.0.0.2", "", "", isReady)), sliceOf("web-2", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady)),
			},
			want: []mesh.ServiceEndpoint{plain("10.0.0.2", 8080), proxied("10.0.0.1", 8080, "web", nil)},
		},
		"two slices have an endpoint, and the healthier one counts": {
			objects: []metav1.Object{
				web, slice(endpoint("10.0.0.1", "web", "u-1", isNotReady)), sliceOf("web-2", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady)),
				sliceOf("web-3", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isDraining)),
			},
			want: []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil)},
		},
		"a named target port has another number in another pod": {
			objects: []metav1.Object{
				web, pod("b", "u-2", "10.0.0.2"), slice(endpoint("10.0.0.1", "web", "u-1", isReady)),
				sliceOf("web-2", "web", ports1("http", 9090), endpoint("10.0.0.2", "b", "u-2", isReady)),
			},
			want: []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil), proxied("10.0.0.2", 9090, "b", nil)},
		},
		"a slice of another port of the Service": {
			objects: []metav1.Object{web, sliceOf("web-2", "web", ports1("metrics", 9090), endpoint("10.0.0.1", "web", "u-1", isReady))},
		},
		"a slice of the other family": {
			objects: []metav1.Object{web, slice(endpoint("10.0.0.1", "web", "u-1", isReady)), ofIPv6(sliceOf("web-2", "web", webPorts, endpoint("fd00::1", "web", "u-1", isReady)))},
			want:    []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil)},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRecorder()
			newSynced(t, r, append(tc.objects, webService)...)
			checkValid(t, r)
			s := r.service(webName)
			if s == nil {
				t.Fatalf("no service: %v", r.objects)
			}
			if diff := cmp.Diff(tc.want, s.Spec.Endpoints, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if !cmp.Equal(s.Spec.Addresses, []string{"10.96.0.1:80"}) || s.Spec.Protocol != mesh.ProtocolHTTP {
				t.Errorf("addresses %v, protocol %s", s.Spec.Addresses, s.Spec.Protocol)
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	s := serviceOf("web", "10.96.0.1", port("http", 80), port("", 5432))
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	here, host := endpoint("10.0.0.1", "web", "u-1", isReady), endpoint("192.168.0.2", "", "", isReady)
	here.NodeName, host.NodeName = new("node-1"), new("node-2") // host has hostNetwork
	r := newRecorder()
	newSynced(t, r, s, pod("web", "u-1", "10.0.0.1", onNode("node-1")), pod("caller", "u-2", "10.0.0.2"),
		sliceOf("web-1", "web", []discoveryv1.EndpointPort{at("http", 8080), at("", 5432)}, here, host))
	checkValid(t, r)
	for _, name := range []string{"web_shop_svc_80", "web_shop_svc_5432"} {
		spec := r.service(name).Spec
		if spec.SessionAffinity != mesh.AffinityClientIP || spec.InternalTrafficPolicy != mesh.TrafficLocal {
			t.Errorf("%s has %q and %q", name, spec.SessionAffinity, spec.InternalTrafficPolicy)
		}
		var nodes []string
		for _, e := range spec.Endpoints {
			nodes = append(nodes, e.NodeName)
		}
		if diff := cmp.Diff([]string{"node-1", "node-2"}, nodes); diff != "" {
			t.Errorf("nodes of the endpoints of %s (-want +got):\n%s", name, diff)
		}
	}
	for name, want := range map[string]string{"web.shop": "node-1", "caller.shop": ""} {
		if got := r.dataplane(name).Node(); got != want {
			t.Errorf("%s is on node %q, want %q", name, got, want)
		}
	}
}

func ofIPv6(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.AddressType = discoveryv1.AddressTypeIPv6
	return s
}

// Users can write a slice that names a pod of another namespace. Its address does not get the identity of that pod.
func TestSliceOfAnotherNamespace(t *testing.T) {
	r := newRecorder()
	stolen, svc := sliceOf("evil-1", "web", webPorts, endpoint("10.0.0.66", "web", "u-1", isReady)), serviceOf("web", "10.96.0.2", port("http", 80))
	stolen.Namespace, svc.Namespace = "evil", "evil"
	newSynced(t, r, pod("web", "u-1", "10.0.0.1"), svc, stolen)
	want := []mesh.ServiceEndpoint{plain("10.0.0.66", 8080)}
	if diff := cmp.Diff(want, r.service("web_evil_svc_80").Spec.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

func TestPodInSeveralServices(t *testing.T) {
	r := newRecorder()
	admin := serviceOf("admin", "10.96.0.2", port("grpc", 9), port("http", 80))
	newSynced(t, r, pod("web", "u-1", "10.0.0.1"), webService, admin,
		sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady)),
		sliceOf("admin-1", "admin", []discoveryv1.EndpointPort{at("grpc", 9090), at("http", 8080)}, endpoint("10.0.0.1", "web", "u-1", isNotReady)))
	checkValid(t, r)
	want := map[string]struct {
		protocol mesh.Protocol
		endpoint mesh.ServiceEndpoint
	}{
		webName:             {mesh.ProtocolHTTP, proxied("10.0.0.1", 8080, "web", nil)},
		"admin_shop_svc_9":  {mesh.ProtocolGRPC, proxied("10.0.0.1", 9090, "web", notReady)},
		"admin_shop_svc_80": {mesh.ProtocolHTTP, proxied("10.0.0.1", 8080, "web", notReady)},
	}
	for name, w := range want {
		s := r.service(name)
		if s == nil || s.Spec.Protocol != w.protocol || !cmp.Equal(s.Spec.Endpoints, []mesh.ServiceEndpoint{w.endpoint}) {
			t.Errorf("%s: %+v, want %+v", name, s, w)
		}
	}
	if n := len(r.dataplane("web.shop").Spec.Networking.Inbound); n != 2 {
		t.Errorf("%d inbounds, want 2", n)
	}
}

func TestDualStack(t *testing.T) {
	both := serviceOf("web", "10.96.0.1", port("http", 80))
	both.Spec.ClusterIPs, both.Spec.IPFamilies = []string{"10.96.0.1", "fd00::96"}, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	headless := serviceOf("db", "None", port("http", 80))
	headless.Spec.IPFamilies = both.Spec.IPFamilies
	four := func(name, service string) *discoveryv1.EndpointSlice {
		return sliceOf(name, service, webPorts, endpoint("10.0.0.1", "web", "u-1", isReady))
	}
	six := func(name, service string) *discoveryv1.EndpointSlice {
		return ofIPv6(sliceOf(name, service, webPorts, endpoint("fd00::1", "web", "u-1", isReady)))
	}
	r := newRecorder()
	newSynced(t, r, pod("web", "u-1", "10.0.0.1"), both, headless, four("web-4", "web"), six("web-6", "web"), four("db-4", "db"), six("db-6", "db"))
	checkValid(t, r)
	s := r.service(webName)
	if !cmp.Equal(s.Spec.Addresses, []string{"10.96.0.1:80", "[fd00::96]:80"}) {
		t.Errorf("addresses %v", s.Spec.Addresses)
	}
	if diff := cmp.Diff([]mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil)}, s.Spec.Endpoints); diff != "" {
		t.Errorf("a pod counts once (-want +got):\n%s", diff)
	}
	db := r.service("db_shop_svc_80")
	want := []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", nil), proxied("fd00::1", 8080, "web", nil)}
	if diff := cmp.Diff(want, db.Spec.Endpoints); diff != "" || !db.Spec.Headless || len(db.Spec.Addresses) > 0 {
		t.Errorf("headless %t, addresses %v, endpoints (-want +got):\n%s", db.Spec.Headless, db.Spec.Addresses, diff)
	}
}

func TestServicesThatAreNone(t *testing.T) {
	named := serviceOf("named", "", port("http", 80))
	named.Spec.Type, named.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	dns := serviceOf("dns", "10.96.0.10", corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})
	r := newRecorder()
	s := newSynced(t, r, named, dns, serviceOf("web", "10.96.0.1", port("http", 80), corev1.ServicePort{Name: "quic", Port: 80, Protocol: corev1.ProtocolUDP}))
	if len(r.objects) != 1 || r.service(webName) == nil {
		t.Errorf("objects %v, want %s alone", r.objects, webName)
	}
	// A Service becomes an ExternalName.
	web := serviceOf("web", "", port("http", 80))
	web.Spec.Type = corev1.ServiceTypeExternalName
	s.change(t, web)
	if len(r.objects) != 0 {
		t.Errorf("objects %v, want none", r.objects)
	}
}

// A Service belongs to the mesh of its namespace, a pod to the mesh in its label.
func TestMeshOfAService(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{mesh.LabelMesh: "prod"}}}
	slice := sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady))
	inProd := mesh.Key{Kind: mesh.KindService, Mesh: "prod", Name: webName}
	r := newRecorder()
	s := newSynced(t, r, pod("web", "u-1", "10.0.0.1", inMesh("prod")), webService, slice)
	if got := r.service(webName).Spec.Endpoints[0].Dataplane; got != "" {
		t.Errorf("a pod of another mesh is %s", got)
	}
	s.change(t, namespace)
	o, _ := r.objects[inProd].(*mesh.Service)
	if r.service(webName) != nil || o == nil || o.Spec.Endpoints[0].Dataplane != "web.shop" {
		t.Errorf("objects %v", r.objects)
	}
	s.remove(t, namespace)
	s.derive()
	if r.service(webName) == nil || r.objects[inProd] != nil {
		t.Errorf("objects %v", r.objects)
	}
}
