package why

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// endpoints checks that the Services that select the pod have it as an endpoint.
func endpoints(f *Facts, before []Finding) []Finding {
	if f.Unread || f.Pod.DeletionTimestamp != nil { // drains reports it
		return nil
	}
	selecting := f.selecting()
	if len(selecting) == 0 {
		if keeps(before) {
			return nil // many pods have no Service
		}
		return []Finding{f.unselected()}
	}
	var all []Finding
	for _, s := range selecting {
		all = append(all, f.endpointOf(s)...)
	}
	if found(all, endpointNotReady) { // the mesh agrees with Kubernetes, which the endpoint already shows
		return all
	}
	return append(all, f.leftOut()...)
}

// selecting returns the Services that select the pod, sorted by name.
func (f *Facts) selecting() []*corev1.Service {
	var all []*corev1.Service
	for i := range f.Services {
		s := &f.Services[i]
		if len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName &&
			labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(f.Pod.Labels)) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *corev1.Service) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Causes: no Service selects the pod, or an EndpointSlice reports a Ready pod as not ready.
const (
	noService        Cause = "NoService"
	endpointNotReady Cause = "EndpointNotReady"
)

// unselected reports that no Service selects the pod, with a Service that probably should.
func (f *Facts) unselected() Finding {
	r := Finding{Cause: noService, Text: "no Service of namespace " + f.Pod.Namespace + " selects it"}
	var near []string
	for i := range f.Services {
		s := &f.Services[i]
		if says := f.nearly(s.Spec.Selector); says != "" {
			near = append(near, s.Name)
			r.Evidence = append(r.Evidence, Evidence{Of: "selector of Service " + s.Name, Says: says})
		}
	}
	if len(near) > 0 {
		r.Text += ", but only one label differs from the selector of Service " + mesh.Few(near)
	}
	return r
}

// nearly returns the only label in which the pod differs from a selector, "" if several differ. For a selector with one
// label, the values must be similar, since most namespaces have several Services with the same label key.
func (f *Facts) nearly(selector map[string]string) string {
	var differs []string
	says := ""
	for key, value := range selector {
		if is, ok := f.Pod.Labels[key]; !ok || is != value {
			differs = append(differs, key)
			says = fmt.Sprintf("%s=%s, and the pod has %s", key, value, cmp.Or(is, "no such label"))
		}
	}
	if len(differs) != 1 {
		return ""
	}
	if len(selector) == 1 {
		if near, _ := mesh.Nearest(f.Pod.Labels[differs[0]], []string{selector[differs[0]]}); near == "" {
			return ""
		}
	}
	return says
}

// endpointOf checks that a Service that selects the pod has it as an endpoint of each port.
func (f *Facts) endpointOf(s *corev1.Service) []Finding {
	var all []Finding
	for i := range s.Spec.Ports {
		if text := f.noPort(&s.Spec.Ports[i]); text != "" {
			all = append(all, Finding{
				Cause: "NoSuchPort", Keeps: FromTraffic,
				Text:     fmt.Sprintf("port %s of Service %s %s", portText(&s.Spec.Ports[i]), s.Name, text),
				Evidence: []Evidence{{Of: "Service " + s.Name, Says: fmt.Sprintf("port %s, targetPort %s", portText(&s.Spec.Ports[i]), s.Spec.Ports[i].TargetPort.String())}},
			})
		}
	}
	e, name := f.endpointIn(s)
	switch {
	case !f.ready() && (e == nil || !isReady(e)):
		return all // the pod's readiness explains this
	case e == nil && len(all) < len(s.Spec.Ports):
		all = append(all, Finding{
			Cause: "NoEndpoint", Keeps: FromTraffic, Text: fmt.Sprintf("no EndpointSlice of Service %s contains it, although its labels match", s.Name),
			Evidence: []Evidence{{Of: "Service " + s.Name, Says: "selects " + labels.SelectorFromSet(s.Spec.Selector).String()}},
		})
	case e != nil && f.ready() && !isReady(e):
		all = append(all, Finding{
			Cause: endpointNotReady, Keeps: FromTraffic, Text: fmt.Sprintf("EndpointSlice %s of Service %s says that it is not ready", name, s.Name),
			Evidence: []Evidence{{Of: "EndpointSlice " + name, Says: "ready is false"}},
		})
	case e != nil && !f.ready() && s.Spec.PublishNotReadyAddresses:
		all = append(all, Finding{
			Cause: "TrafficNevertheless", Text: fmt.Sprintf("Service %s has publishNotReadyAddresses: it gets traffic although it is not Ready", s.Name),
			Evidence: []Evidence{{Of: "EndpointSlice " + name, Says: "ready is true"}},
		})
	}
	return all
}

// endpointIn returns the pod's endpoint in a Service, and its EndpointSlice; nil without one.
func (f *Facts) endpointIn(s *corev1.Service) (*discoveryv1.Endpoint, string) {
	for i := range f.Slices {
		part := &f.Slices[i]
		if part.Labels[discoveryv1.LabelServiceName] != s.Name {
			continue
		}
		for j := range part.Endpoints {
			if ref := part.Endpoints[j].TargetRef; ref != nil && ref.UID == f.Pod.UID {
				return &part.Endpoints[j], part.Name
			}
		}
	}
	return nil, ""
}

func isReady(e *discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

// noPort reports that no container has a Service's named port, "" if one has.
func (f *Facts) noPort(p *corev1.ServicePort) string {
	if p.TargetPort.Type != intstr.String {
		return ""
	}
	var names []string
	for _, c := range f.running() {
		for _, port := range c.Ports {
			if port.Name == p.TargetPort.StrVal &&
				cmp.Or(port.Protocol, corev1.ProtocolTCP) == cmp.Or(p.Protocol, corev1.ProtocolTCP) {
				return ""
			}
			if port.Name != "" {
				names = append(names, port.Name)
			}
		}
	}
	return fmt.Sprintf("has targetPort %s, but no container declares a port with that name: they have %s", p.TargetPort.StrVal, cmp.Or(mesh.Few(names), "none with a name"))
}

func portText(p *corev1.ServicePort) string {
	if p.Name == "" {
		return strconv.Itoa(int(p.Port))
	}
	return fmt.Sprintf("%d (%s)", p.Port, p.Name)
}

// leftOut checks that the mesh has the pod as an endpoint of its Services.
func (f *Facts) leftOut() []Finding {
	if f.Plane == nil || !f.ready() {
		return nil
	}
	var all []Finding
	for _, s := range f.Plane.Services {
		for _, e := range s.GetEndpoints() {
			if e.GetDataplane() == f.dataplane() && e.GetHealth() == adminv1.Endpoint_NOT_READY && e.GetReason() != "" {
				all = append(all, Finding{
					Cause: "LeftOut", Keeps: FromTraffic,
					Text: fmt.Sprintf("the mesh omits it from service %s: %s", s.GetName(), e.GetReason()),
					Evidence: []Evidence{{
						Of:   controlPlane,
						Says: fmt.Sprintf("endpoint %s of service %s is not ready: %s", e.GetAddress(), s.GetName(), e.GetReason()),
					}},
				})
			}
		}
	}
	return all
}
