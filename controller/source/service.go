package source

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// service is the record of a Service.
type service struct {
	uid types.UID
	// clusterIPs are its virtual addresses; empty for a headless service.
	clusterIPs []string
	headless   bool
	// family is the first of its IP families; empty if the API server does not support them.
	family discoveryv1.AddressType
	// affinity and policy are set if they differ from the default, but not for a headless service, whose callers choose
	// the endpoint.
	affinity mesh.SessionAffinity
	policy   mesh.InternalTrafficPolicy
	ports    []servicePort
	// problem is which part of the Service has no effect; beyond says that all of it has none, as in Pod.
	problem string
	beyond  bool
}

// servicePort is a TCP port of a Service.
type servicePort struct {
	name     string
	port     uint32
	protocol mesh.Protocol
}

// readService returns the record of a Service, and false for an ExternalName.
func readService(s *corev1.Service) (service, bool) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return service{}, false
	}
	r := service{uid: s.UID, headless: s.Spec.ClusterIP == corev1.ClusterIPNone, family: discoveryv1.AddressTypeIPv4}
	if len(s.Spec.IPFamilies) > 0 && s.Spec.IPFamilies[0] == corev1.IPv6Protocol {
		r.family = discoveryv1.AddressTypeIPv6
	}
	if !r.headless && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		r.affinity = mesh.AffinityClientIP
	}
	if p := s.Spec.InternalTrafficPolicy; !r.headless && p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		r.policy = mesh.TrafficLocal
	}
	for _, ip := range s.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone && ip != "" {
			r.clusterIPs = append(r.clusterIPs, strings.Clone(ip))
		}
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
			r.ports = append(r.ports, servicePort{
				name: strings.Clone(p.Name), port: uint32(p.Port), protocol: protocolOf(p.AppProtocol, p.Name),
			})
		}
	}
	var wrong problems
	r.ports = atMost(&wrong, "spec.ports", r.ports, maxServicePorts)
	r.problem = wrong.String()
	return r, true
}

// ClusterIPs returns the virtual addresses of a Service, nil if it has none or does not exist.
func (s *Source) ClusterIPs(key watch.Key) []string {
	if r := s.services.Get(key); r != nil {
		return r.clusterIPs
	}
	return nil
}

// slice is the record of an EndpointSlice.
type slice struct {
	uid types.UID
	// service is the name of its Service, in its namespace.
	service   string
	family    discoveryv1.AddressType
	ports     []slicePort
	endpoints []sliceEndpoint
	// problem and beyond are as in service.
	problem string
	beyond  bool
}

// slicePort is a TCP port of the endpoints.
type slicePort struct {
	name     string // name of the Service's port
	port     uint32
	protocol mesh.Protocol
}

// sliceEndpoint is an endpoint, at each port of the slice.
type sliceEndpoint struct {
	address        string
	pod            types.UID // "" if the endpoint is not a pod
	podName        string
	node           string // "" if unknown
	ready, serving bool
	// published says that it is ready although its pod is not (publishNotReadyAddresses).
	published bool
}

// ref returns the pod of the endpoint.
func (e *sliceEndpoint) ref(namespace string) podRef {
	return podRef{e.pod, watch.Key{Namespace: namespace, Name: e.podName}}
}

// readSlice returns the record of an EndpointSlice, and false for a slice without a Service, or with names instead of
// addresses.
func readSlice(s *discoveryv1.EndpointSlice) (slice, bool) {
	name := s.Labels[discoveryv1.LabelServiceName]
	if name == "" || s.AddressType == discoveryv1.AddressTypeFQDN {
		return slice{}, false
	}
	r := slice{uid: s.UID, service: strings.Clone(name), family: s.AddressType}
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		port := slicePort{port: uint32(*p.Port)}
		if p.Name != nil {
			port.name = strings.Clone(*p.Name)
		}
		port.protocol = protocolOf(p.AppProtocol, port.name)
		r.ports = append(r.ports, port)
	}
	var wrong problems
	r.ports = atMost(&wrong, "ports", r.ports, maxServicePorts)
	r.problem = wrong.String()
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; len(e.Addresses) > 0 {
			r.endpoints = append(r.endpoints, readEndpoint(e))
		}
	}
	return r, true
}

// readEndpoint reads an endpoint. Absent conditions have the API's defaults: ready is true, and serving equals ready.
// As in kube-proxy, serving matters only while the endpoint is terminating.
func readEndpoint(e *discoveryv1.Endpoint) sliceEndpoint {
	isTrue := func(b *bool, absent bool) bool {
		if b == nil {
			return absent
		}
		return *b
	}
	r := sliceEndpoint{address: strings.Clone(e.Addresses[0]), ready: isTrue(e.Conditions.Ready, true)}
	r.published = r.ready && !isTrue(e.Conditions.Serving, true)
	r.serving = isTrue(e.Conditions.Serving, r.ready) && isTrue(e.Conditions.Terminating, false)
	if e.NodeName != nil {
		r.node = intern(*e.NodeName)
	}
	if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" && len(ref.UID) <= maxUID && len(ref.Name) <= maxPodName {
		r.pod, r.podName = ref.UID, strings.Clone(ref.Name)
	}
	return r
}

// protocolOf returns the protocol of a port: its appProtocol, in any letter case and with Kubernetes' names, as Istio
// and Kuma read it, otherwise the first part of the name, as in http-metrics. Unknown protocols are bytes. grpc-web is
// HTTP, because callers such as browsers may only support HTTP/1.
func protocolOf(appProtocol *string, name string) mesh.Protocol {
	text, _, _ := strings.Cut(name, "-")
	if web := "grpc-web"; name == web || strings.HasPrefix(name, web+"-") {
		text = web
	}
	if appProtocol != nil {
		text = strings.ToLower(*appProtocol)
	}
	switch text {
	case "http", "http1", "grpc-web", "kubernetes.io/ws":
		return mesh.ProtocolHTTP
	case "http2", "h2c", "kubernetes.io/h2c":
		return mesh.ProtocolHTTP2
	case "grpc":
		return mesh.ProtocolGRPC
	}
	return mesh.ProtocolTCP
}

// portNamed returns the slice's port for a port of the Service.
func (s *slice) portNamed(name string) (slicePort, bool) {
	i := slices.IndexFunc(s.ports, func(p slicePort) bool { return p.name == name })
	if i < 0 {
		return slicePort{}, false
	}
	return s.ports[i], true
}
