package source

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestReadPod(t *testing.T) {
	created := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	usual := Pod{UID: "u-1", Mesh: "default", ServiceAccount: "web", Address: "10.0.0.1", Ports: []uint32{8080}}
	tests := map[string]struct {
		option func(*corev1.Pod)
		change func(*Pod)
	}{
		"as it comes": {option: func(*corev1.Pod) {}, change: func(*Pod) {}},
		"another mesh": {
			option: inMesh("prod"), change: func(p *Pod) { p.Mesh = "prod" },
		},
		"no address yet": {
			option: func(p *corev1.Pod) { p.Status.PodIP = "" }, change: func(p *Pod) { p.Address = "" },
		},
		"dual-stack": {
			option: func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}} }, change: func(p *Pod) { p.SecondAddress = "fd00::1" },
		},
		"succeeded": {option: inPhase(corev1.PodSucceeded), change: func(p *Pod) { p.Ended = true }},
		"failed":    {option: inPhase(corev1.PodFailed), change: func(p *Pod) { p.Ended = true }},
		"pending":   {option: inPhase(corev1.PodPending), change: func(*Pod) {}},
		"terminating": {
			option: func(p *corev1.Pod) { p.DeletionTimestamp = &created }, change: func(p *Pod) { p.Terminating = true },
		},
		"ports of several containers": {
			option: func(p *corev1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers,
					corev1.Container{Name: "two", Ports: []corev1.ContainerPort{{ContainerPort: 9090}, {ContainerPort: 8080}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}}})
				p.Spec.InitContainers = append(p.Spec.InitContainers,
					corev1.Container{Name: "native", Ports: []corev1.ContainerPort{{ContainerPort: 7070, Protocol: corev1.ProtocolTCP}}})
			},
			change: func(p *Pod) { p.Ports = []uint32{7070, 8080, 9090} },
		},
		"an ordinary sidecar": {
			option: func(p *corev1.Pod) {
				p.Spec.Containers, p.Spec.InitContainers = append(p.Spec.Containers, p.Spec.InitContainers...), nil
			},
			change: func(*Pod) {},
		},
		"excluded ports": {
			option: excludes("9800,9801"), change: func(p *Pod) { p.Excluded = []uint32{9800, 9801} },
		},
		"the port for Prometheus is not redirected": {
			option: func(p *corev1.Pod) {
				excludes("9800")(p)
				p.Spec.InitContainers[0].Args = []string{"run", "--metrics-addr=:5670", "--metrics-include=envoy_"}
			},
			change: func(p *Pod) { p.Excluded = []uint32{9800, 5670} },
		},
		"annotations that came after injection": {
			option: func(p *corev1.Pod) {
				excludes("9800")(p)
				annotated(mesh.AnnotationExcludeInboundPorts, "8080")(p)
				annotated(mesh.AnnotationVirtualProbesPort, "8081")(p)
			},
			change: func(p *Pod) { p.Excluded = []uint32{9800} },
		},
		"server-first ports": {
			option: annotated(mesh.AnnotationServerFirstPorts, "3306"), change: func(p *Pod) { p.ServerFirst = []uint32{3306} },
		},
		"reachable services": {
			option: annotated(mesh.AnnotationReachableServices, "a_shop_svc_80, b_shop_svc_80"),
			change: func(p *Pod) { p.Reachable = []string{"a_shop_svc_80", "b_shop_svc_80"} },
		},
		"no reachable service": {
			option: annotated(mesh.AnnotationReachableServices, ""), change: func(p *Pod) { p.Reachable = []string{} },
		},
		"all services reachable": {
			option: annotated(mesh.AnnotationReachableServices, "*"), change: func(*Pod) {},
		},
		"warnings": {
			option: annotated(mesh.AnnotationInjectionWarnings, "one\ntwo"), change: func(p *Pod) { p.Warnings = "one\ntwo" },
		},
		"owner is the controller": {
			option: func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u-n"},
					{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u-rs", Controller: new(true)},
				}
			},
			change: func(p *Pod) { p.Owner = Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u-rs"} },
		},
		"restarts of all containers": {
			option: func(p *corev1.Pod) {
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1}}
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 2}, {RestartCount: 3}}
			},
			change: func(p *Pod) { p.Restarts = 6 },
		},
		"node and age": {
			option: func(p *corev1.Pod) { p.Spec.NodeName, p.CreationTimestamp = "node-1", created },
			change: func(p *Pod) { p.Node, p.Created = "node-1", created.Time },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := usual
			tc.change(&want)
			got, ok := readPod(pod("web", "u-1", "10.0.0.1", tc.option))
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(probeSet{})); !ok || diff != "" {
				t.Errorf("readPod() = %t (-want +got):\n%s", ok, diff)
			}
		})
	}
	if p, ok := readPod(pod("web", "u-1", "10.0.0.1", withoutSidecar)); ok {
		t.Errorf("readPod() of a pod without a sidecar = %v", p)
	}
}

func TestProtocolOf(t *testing.T) {
	tests := map[string]struct {
		app  *string
		name string
		want mesh.Protocol
	}{
		"nothing said":                   {want: mesh.ProtocolTCP},
		"name":                           {name: "http", want: mesh.ProtocolHTTP},
		"prefix of the name":             {name: "grpc-api", want: mesh.ProtocolGRPC},
		"http2 by prefix":                {name: "http2-api", want: mesh.ProtocolHTTP2},
		"only a whole part counts":       {name: "httpbin", want: mesh.ProtocolTCP},
		"https is bytes":                 {name: "https", want: mesh.ProtocolTCP},
		"appProtocol":                    {app: new("grpc"), name: "tcp-x", want: mesh.ProtocolGRPC},
		"appProtocol wins":               {app: new("tcp"), name: "http", want: mesh.ProtocolTCP},
		"an unknown appProtocol":         {app: new("example.com/mine"), name: "http", want: mesh.ProtocolTCP},
		"gRPC-Web by name":               {name: "grpc-web", want: mesh.ProtocolHTTP},
		"gRPC-Web by prefix":             {name: "grpc-web-api", want: mesh.ProtocolHTTP},
		"gRPC whose name begins so":      {name: "grpc-webhook", want: mesh.ProtocolGRPC},
		"gRPC-Web by appProtocol":        {app: new("grpc-web"), name: "grpc", want: mesh.ProtocolHTTP},
		"appProtocol in another case":    {app: new("HTTP"), want: mesh.ProtocolHTTP},
		"appProtocol of a vendor's case": {app: new("Kubernetes.io/H2C"), want: mesh.ProtocolHTTP2},
		"h2c of Kubernetes":              {app: new("kubernetes.io/h2c"), want: mesh.ProtocolHTTP2},
		"WebSocket of Kubernetes":        {app: new("kubernetes.io/ws"), want: mesh.ProtocolHTTP},
		"WebSocket over TLS is bytes":    {app: new("kubernetes.io/wss"), want: mesh.ProtocolTCP},
		"appProtocol is not split by -":  {app: new("http-metrics"), want: mesh.ProtocolTCP},
		"the name of another protocol":   {name: "redis-http", want: mesh.ProtocolTCP},
		"names are in lower case always": {name: "HTTP", want: mesh.ProtocolTCP},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := protocolOf(tc.app, tc.name); got != tc.want {
				t.Errorf("protocolOf() = %s, want %s", got, tc.want)
			}
		})
	}
}

// all compares everything.
var all = cmp.AllowUnexported(service{}, servicePort{}, slice{}, slicePort{}, sliceEndpoint{})

func TestReadService(t *testing.T) {
	udp := corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}
	usual := service{clusterIPs: []string{"10.96.0.1"}, family: discoveryv1.AddressTypeIPv4, ports: []servicePort{{"http", 80, mesh.ProtocolHTTP}}}
	tests := map[string]struct {
		change func(*corev1.Service)
		want   func(*service)
	}{
		"as it comes": {func(*corev1.Service) {}, func(*service) {}},
		"UDP ports are left out": {
			func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, udp) }, func(*service) {},
		},
		"headless": {
			func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} },
			func(s *service) { s.headless, s.clusterIPs = true, nil },
		},
		"dual stack, IPv6 first": {
			func(s *corev1.Service) {
				s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{"fd00::1", "10.96.0.1"}, []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			},
			func(s *service) {
				s.clusterIPs, s.family = []string{"fd00::1", "10.96.0.1"}, discoveryv1.AddressTypeIPv6
			},
		},
		"without an address yet": {
			func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, func(s *service) { s.clusterIPs = nil },
		},
		"session affinity, with any timeout": {
			func(s *corev1.Service) {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(1))}}
			},
			func(s *service) { s.affinity = mesh.AffinityClientIP },
		},
		"no session affinity": {
			func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityNone }, func(*service) {},
		},
		"a session affinity that Kubernetes does not have": {
			func(s *corev1.Service) { s.Spec.SessionAffinity = "clientip" }, func(*service) {},
		},
		"internal traffic policy Local": {
			func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) },
			func(s *service) { s.policy = mesh.TrafficLocal },
		},
		"internal traffic policy Cluster": {
			func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
			}, func(*service) {},
		},
		"an internal traffic policy that Kubernetes does not have": {
			func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicy("PreferLocal"))
			}, func(*service) {},
		},
		"external traffic policy Local": {
			func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }, func(*service) {},
		},
		"headless with policies, which kube-proxy does not see": {
			func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.SessionAffinity = "None", []string{"None"}, corev1.ServiceAffinityClientIP
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			},
			func(s *service) { s.headless, s.clusterIPs = true, nil },
		},
		"appProtocol": {
			func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = new("grpc") }, func(s *service) { s.ports[0].protocol = mesh.ProtocolGRPC },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in, want := serviceOf("web", "10.96.0.1", port("http", 80)), usual
			want.ports = []servicePort{usual.ports[0]}
			tc.change(in)
			tc.want(&want)
			got, ok := readService(in)
			if diff := cmp.Diff(want, got, all); !ok || diff != "" {
				t.Errorf("readService() = %t (-want +got):\n%s", ok, diff)
			}
		})
	}
	named := serviceOf("web", "", port("http", 80))
	named.Spec.Type = corev1.ServiceTypeExternalName
	if s, ok := readService(named); ok {
		t.Errorf("readService() of an ExternalName = %v", s)
	}
}

func TestReadSlice(t *testing.T) {
	udp := at("dns", 53)
	udp.Protocol = new(corev1.ProtocolUDP)
	unnamed := discoveryv1.EndpointPort{Port: new(int32(81))}
	in := sliceOf("web-1", "web", []discoveryv1.EndpointPort{at("http", 8080), udp, unnamed, {Name: new("any")}},
		endpoint("10.0.0.1", "web-a", "u-1", isReady),
		discoveryv1.Endpoint{Addresses: []string{"10.0.0.2"}, NodeName: new("node-1"), TargetRef: &corev1.ObjectReference{Kind: "Node", Name: "n", UID: "u-n"}},
		discoveryv1.Endpoint{},
	)
	got, ok := readSlice(in)
	want := slice{
		service: "web", family: discoveryv1.AddressTypeIPv4,
		ports: []slicePort{{"http", 8080, mesh.ProtocolHTTP}, {"", 81, mesh.ProtocolTCP}},
		endpoints: []sliceEndpoint{
			{address: "10.0.0.1", pod: "u-1", podName: "web-a", ready: true},
			{address: "10.0.0.2", node: "node-1", ready: true},
		},
	}
	if diff := cmp.Diff(want, got, all, cmpopts.EquateEmpty()); !ok || diff != "" {
		t.Errorf("readSlice() = %t (-want +got):\n%s", ok, diff)
	}
	names := sliceOf("web-2", "web", ports1("http", 80))
	names.AddressType = discoveryv1.AddressTypeFQDN
	mine := sliceOf("mine", "", ports1("http", 80))
	for _, s := range []*discoveryv1.EndpointSlice{names, mine} {
		if r, ok := readSlice(s); ok {
			t.Errorf("readSlice(%s) = %v", s.Name, r)
		}
	}
}

func TestReadEndpoint(t *testing.T) {
	tests := map[string]struct {
		conditions     discoveryv1.EndpointConditions
		ready, serving bool
	}{
		"nothing said":             {ready: true},
		"ready":                    {conditions: isReady, ready: true},
		"not ready":                {conditions: isNotReady},
		"ends, and still serves":   {conditions: isDraining, serving: true},
		"ends, and does not serve": {conditions: isEnding},
		"publishNotReadyAddresses": {conditions: isPublished, ready: true},
		// kube-proxy uses an endpoint that is not ready only while it terminates.
		"serving, not ready, not ending": {conditions: discoveryv1.EndpointConditions{Ready: new(bool), Serving: new(true)}},
		"not ready, and nothing else":    {conditions: discoveryv1.EndpointConditions{Ready: new(bool)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := endpoint("10.0.0.1", "web", "u-1", tc.conditions)
			if got := readEndpoint(&in); got.ready != tc.ready || got.serving != tc.serving {
				t.Errorf("readEndpoint() = %+v, want ready %t, serving %t", got, tc.ready, tc.serving)
			}
		})
	}
}
