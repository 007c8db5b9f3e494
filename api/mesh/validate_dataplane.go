package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Validate implements Object.
func (d *Dataplane) Validate() error { return errors.Join(d.violations()...) }

// ValidateIn is Validate for a Dataplane that an operator writes in a namespace: it cannot claim a service of another
// namespace, and there are no MeshServices. On Kubernetes a service is named <service>_<namespace>_svc_<port>, or
// without the port, and none of the parts has a "_".
func (d *Dataplane) ValidateIn(namespace string) error {
	v := d.violations()
	for i, out := range d.Spec.Networking.Outbound {
		if out.BackendRef != nil {
			v.add(fmt.Sprintf("networking.outbound[%d].backendRef.kind", i), out.BackendRef.Kind,
				"must not be given on Kubernetes, where no MeshService is read: write tags with "+TagService+
					", such as <service>_<namespace>_svc_<port>")
		}
	}
	for i, in := range d.Spec.Networking.Inbound {
		parts := strings.Split(in.Tags.Service(), "_")
		if len(parts) < 3 || len(parts) > 4 || parts[2] != "svc" || parts[1] == namespace {
			continue
		}
		v.add(tagField(fmt.Sprintf("networking.inbound[%d].tags", i), TagService), in.Tags.Service(),
			fmt.Sprintf("must not be a service of another namespace: this Dataplane is in %q", namespace))
	}
	return errors.Join(v...)
}

// fits reports whether no list has more items than are checked.
func (d *Dataplane) fits(v *violations) bool {
	n := &d.Spec.Networking
	all := v.fits("networking.inbound", len(n.Inbound))
	all = v.fits("networking.outbound", len(n.Outbound)) && all
	all = v.fits("tcpProbes", len(d.Spec.TCPProbes)) && all
	if n.TransparentProxying != nil {
		all = v.fits("networking.transparentProxying.reachableServices", len(n.TransparentProxying.ReachableServices)) && all
	}
	if d.Spec.Probes != nil {
		all = v.fits("probes.endpoints", len(d.Spec.Probes.Endpoints)) && all
	}
	return all
}

func (d *Dataplane) violations() violations {
	var v violations
	meshOK, nameOK := isDNSLabel(d.Mesh), isDNSSubdomain(d.Name)
	v.check(meshOK, "mesh", d.Mesh, allowedLabel)
	v.check(nameOK, "name", d.Name, allowedSubdomain)
	if dns := ProxyDNSName(d.Mesh, d.Name); meshOK && nameOK && len(dns) > maxName {
		v.add("name", d.Name, fmt.Sprintf(
			"must be at most %d characters in this mesh: the certificate's DNS name %s may have %d",
			len(d.Name)-(len(dns)-maxName), dns, maxName))
	}
	if w, ok := d.Labels[LabelWorkload]; ok {
		v.check(isSegment(w), tagField("labels", LabelWorkload), w, allowedSegment)
	}
	if mode, ok := d.Labels[AnnotationVirtualProbesMode]; ok {
		_, err := ParseProbesMode(mode)
		v.check(err == nil, tagField("labels", AnnotationVirtualProbesMode), mode, AllowedProbesMode)
	}
	if !d.fits(&v) {
		return v
	}
	taken := d.Spec.Networking.validate(&v)
	d.validateProbes(&v, taken)
	d.validateAsked(&v)
	return v
}

// validate returns the listeners of the proxy.
func (n *Networking) validate(v *violations) *listeners {
	v.endpoint("networking.address", n.Address)
	taken := newListeners()
	if n.TransparentProxying != nil {
		n.TransparentProxying.validate(v, taken)
	}
	if n.Gateway != nil {
		n.Gateway.validate(v, len(n.Inbound))
	}
	probed := n.countServiceProbes(v)
	for i := range n.Inbound {
		in, path := &n.Inbound[i], fmt.Sprintf("networking.inbound[%d]", i)
		in.validate(v, path, n, taken)
		if probed && in.ServiceProbe != nil {
			in.ServiceProbe.validate(v, path+".serviceProbe")
		}
	}
	n.validateWorkloads(v)
	for i := range n.Outbound {
		n.Outbound[i].validate(v, fmt.Sprintf("networking.outbound[%d]", i), taken)
	}
	return taken
}

func (tp *TransparentProxying) validate(v *violations, taken *listeners) {
	const path = "networking.transparentProxying"
	in, out := path+".redirectPortInbound", path+".redirectPortOutbound"
	v.port(in, tp.RedirectPortInbound)
	v.port(out, tp.RedirectPortOutbound)
	taken.reserve(tp.RedirectPortInbound, in)
	if tp.RedirectPortOutbound == tp.RedirectPortInbound {
		v.number(out, int64(tp.RedirectPortOutbound), "must differ from redirectPortInbound")
	}
	taken.reserve(tp.RedirectPortOutbound, out)
	taken.reserve(PortReadiness, "the readiness port of the sidecar")
	for i, name := range tp.ReachableServices {
		v.check(isSegment(name), fmt.Sprintf("%s.reachableServices[%d]", path, i), name, allowedSegment)
	}
}

// listeners records which field uses which address and port.
type listeners struct {
	at map[netip.AddrPort]string
	// any has the ports that a field uses on all addresses of a family, used the ports that any field uses in a family.
	any, used map[family]string
	reserved  map[uint32]string
}

type family struct {
	is4  bool
	port uint32
}

func newListeners() *listeners {
	return &listeners{at: map[netip.AddrPort]string{}, any: map[family]string{}, used: map[family]string{},
		reserved: map[uint32]string{}}
}

func (l *listeners) reserve(port uint32, who string) { l.reserved[port] = who }

// add records a listener, or adds a violation if its address and port are in use. An unspecified address stands for all
// addresses of its family.
func (l *listeners) add(v *violations, path string, addr netip.Addr, port uint32) {
	if port == 0 || port > 65535 {
		return
	}
	at, of := netip.AddrPortFrom(addr, uint16(port)), family{addr.Is4(), port}
	other := l.reserved[port]
	if other == "" {
		other = l.at[at]
	}
	if other == "" {
		other = l.any[of]
	}
	if other == "" && addr.IsUnspecified() {
		other = l.used[of]
	}
	if other != "" {
		v.number(path+".port", int64(port),
			"must be free: "+other+" has it on the same address")
		return
	}
	l.at[at], l.used[of] = path, path
	if addr.IsUnspecified() {
		l.any[of] = path
	}
}
