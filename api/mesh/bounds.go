package mesh

import (
	"errors"
	"fmt"
	"strconv"
)

// Bounds of a Mesh and of a Dataplane, as in the definitions on Kubernetes: many times the usual size, and more than an
// Envoy has memory for.
const (
	MaxBackends          = 100
	MaxInbounds          = 1000
	MaxOutbounds         = 5000
	MaxReachableServices = 5000
	MaxProbes            = 1000
	MaxTags              = 32
	MaxProbeHeaders      = 100
)

// Bounded is an Object that has bounds on Kubernetes.
//
// +kubebuilder:object:generate=false
type Bounded interface {
	Object
	// Exceeds returns an error for exceeded bounds. The API server accepted such objects before there were bounds, so
	// they are used as they are.
	Exceeds() error
}

var _, _ Bounded = (*Mesh)(nil), (*Dataplane)(nil)

// atMost reports more items than are allowed.
func (v *violations) atMost(field string, items, most int) {
	v.check(items <= most, field, strconv.Itoa(items)+" items", fmt.Sprintf("must have at most %d items", most))
}

// Exceeds implements Bounded.
func (m *Mesh) Exceeds() error {
	var v violations
	if m.Spec.MTLS != nil {
		v.atMost("mtls.backends", len(m.Spec.MTLS.Backends), MaxBackends)
	}
	return errors.Join(v...)
}

// Exceeds implements Bounded.
func (d *Dataplane) Exceeds() error {
	var v violations
	n := &d.Spec.Networking
	if n.Gateway != nil {
		v.atMost("networking.gateway.tags", len(n.Gateway.Tags), MaxTags)
	}
	v.atMost("networking.inbound", len(n.Inbound), MaxInbounds)
	for i := range n.Inbound {
		in, path := &n.Inbound[i], fmt.Sprintf("networking.inbound[%d]", i)
		v.atMost(path+".tags", len(in.Tags), MaxTags)
		if in.ServiceProbe != nil && in.ServiceProbe.HTTPGet != nil {
			v.atMost(path+".serviceProbe.httpGet.httpHeaders", len(in.ServiceProbe.HTTPGet.HTTPHeaders), MaxProbeHeaders)
		}
	}
	v.atMost("networking.outbound", len(n.Outbound), MaxOutbounds)
	for i := range n.Outbound {
		out, path := &n.Outbound[i], fmt.Sprintf("networking.outbound[%d]", i)
		v.atMost(path+".tags", len(out.Tags), MaxTags)
		if out.BackendRef != nil {
			v.atMost(path+".backendRef.labels", len(out.BackendRef.Labels), MaxTags)
		}
	}
	if n.TransparentProxying != nil {
		v.atMost("networking.transparentProxying.reachableServices",
			len(n.TransparentProxying.ReachableServices), MaxReachableServices)
	}
	if d.Spec.Probes != nil {
		v.atMost("probes.endpoints", len(d.Spec.Probes.Endpoints), MaxProbes)
	}
	v.atMost("tcpProbes", len(d.Spec.TCPProbes), MaxProbes)
	return errors.Join(v...)
}
