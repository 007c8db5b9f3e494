package mesh

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Validate implements Object.
func (d *Dataplane) Validate() error { return errors.Join(d.violations()...) }

// ValidateIn is Validate for a Dataplane that somebody writes in a namespace: it cannot claim a service of another one. On Kubernetes
// a service is named <service>_<namespace>_svc_<port>, or without the port, and none of the parts has a "_".
func (d *Dataplane) ValidateIn(namespace string) error {
	v := d.violations()
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

func (d *Dataplane) violations() violations {
	var v violations
	meshOK, nameOK := isDNSLabel(d.Mesh), isDNSSubdomain(d.Name)
	v.check(meshOK, "mesh", d.Mesh, allowedLabel)
	v.check(nameOK, "name", d.Name, allowedSubdomain)
	if dns := ProxyDNSName(d.Mesh, d.Name); meshOK && nameOK && len(dns) > maxName {
		v.add("name", d.Name, fmt.Sprintf("must be at most %d characters in this mesh: the certificate's DNS name %s may have %d",
			len(d.Name)-(len(dns)-maxName), dns, maxName))
	}
	if w, ok := d.Labels[LabelWorkload]; ok {
		v.check(isSegment(w), tagField("labels", LabelWorkload), w, allowedSegment)
	}
	d.Spec.Networking.validate(&v, d.Labels[LabelWorkload] != "")
	d.validateProbes(&v)
	return v
}

func (n *Networking) validate(v *violations, hasWorkload bool) {
	v.endpoint("networking.address", n.Address)
	if len(n.Inbound) == 0 && !hasWorkload {
		v.add("networking.inbound", "", "a Dataplane needs an inbound, or the label "+LabelWorkload+" that names what it is")
	}
	taken := newListeners()
	if n.TransparentProxying != nil {
		n.TransparentProxying.validate(v, taken)
	}
	for i := range n.Inbound {
		n.Inbound[i].validate(v, fmt.Sprintf("networking.inbound[%d]", i), n, taken)
	}
	for i := range n.Outbound {
		o, path := &n.Outbound[i], fmt.Sprintf("networking.outbound[%d]", i)
		addr, err := netip.ParseAddr(o.Address)
		addr = addr.Unmap()
		ok := err == nil && !addr.IsMulticast() && addr.Zone() == ""
		v.check(ok, path+".address", o.Address, allowedIP)
		v.port(path+".port", o.Port)
		if ok {
			taken.add(v, path, addr, o.Port)
		}
		v.tags(path+".tags", o.Tags)
	}
}

func (tp *TransparentProxying) validate(v *violations, taken *listeners) {
	const path = "networking.transparentProxying"
	in, out := path+".redirectPortInbound", path+".redirectPortOutbound"
	v.port(in, tp.RedirectPortInbound)
	v.port(out, tp.RedirectPortOutbound)
	taken.reserve(tp.RedirectPortInbound, in)
	if tp.RedirectPortOutbound == tp.RedirectPortInbound {
		v.add(out, strconv.FormatUint(uint64(tp.RedirectPortOutbound), 10), "must differ from redirectPortInbound")
	}
	taken.reserve(tp.RedirectPortOutbound, out)
	taken.reserve(PortReadiness, "the readiness port of the sidecar")
	for i, name := range tp.ReachableServices {
		v.check(isSegment(name), fmt.Sprintf("%s.reachableServices[%d]", path, i), name, allowedSegment)
	}
}

func (in *Inbound) validate(v *violations, path string, n *Networking, taken *listeners) {
	v.port(path+".port", in.Port)
	// A wrong networking.address is reported already, so do not report it for each inbound that has it by default.
	var addr netip.Addr
	ok := false
	if in.Address != n.Address {
		addr, ok = v.endpoint(path+".address", in.Address)
	} else if a, err := netip.ParseAddr(in.Address); err == nil {
		addr, ok = a.Unmap(), isEndpoint(a)
	}
	if in.ServicePort != in.Port {
		v.port(path+".servicePort", in.ServicePort)
	}
	var service netip.Addr
	serviceOK := in.ServiceAddress == in.Address
	if serviceOK {
		service = addr
	} else {
		service, serviceOK = v.endpoint(path+".serviceAddress", in.ServiceAddress)
	}
	if ok {
		taken.add(v, path, addr, in.Port)
	}
	if ok && serviceOK && service == addr && in.ServicePort == in.Port && n.TransparentProxying == nil {
		v.add(path+".servicePort", strconv.FormatUint(uint64(in.ServicePort), 10),
			"the proxy itself listens on "+JoinHostPort(in.Address, in.Port)+": serviceAddress and servicePort must name the application")
	}
	v.tags(path+".tags", in.Tags)
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
	return &listeners{at: map[netip.AddrPort]string{}, any: map[family]string{}, used: map[family]string{}, reserved: map[uint32]string{}}
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
		v.add(path+".port", strconv.FormatUint(uint64(port), 10),
			"must be free: "+other+" has it on the same address")
		return
	}
	l.at[at], l.used[of] = path, path
	if addr.IsUnspecified() {
		l.any[of] = path
	}
}

func (d *Dataplane) validateProbes(v *violations) {
	if p := d.Spec.Probes; p != nil {
		v.port("probes.port", p.Port)
		for i, e := range p.Endpoints {
			path := fmt.Sprintf("probes.endpoints[%d]", i)
			v.port(path+".inboundPort", e.InboundPort)
			v.check(strings.HasPrefix(e.InboundPath, "/"), path+".inboundPath", e.InboundPath, "must be a path that begins with '/'")
			v.check(strings.HasPrefix(e.Path, "/"), path+".path", e.Path, "must be a path that begins with '/'")
		}
	}
	for i, p := range d.Spec.TCPProbes {
		v.port(fmt.Sprintf("tcpProbes[%d].port", i), p.Port)
	}
}

// Warnings returns what is accepted but deprecated or without effect. Paths are those of Validate.
func (d *Dataplane) Warnings() (warnings []*FieldError) {
	note := func(path, value, text string) {
		warnings = append(warnings, &FieldError{Field: path, Value: value, Allowed: text})
	}
	if d.Spec.Probes != nil {
		note("probes", "", "is deprecated: the agent answers probes by itself")
	}
	if d.Spec.TCPProbes != nil {
		note("tcpProbes", "", "is deprecated: the agent answers probes by itself")
	}
	for i, out := range d.Spec.Networking.Outbound {
		for _, key := range slices.Sorted(maps.Keys(out.Tags)) {
			if key != TagService {
				note(tagField(fmt.Sprintf("networking.outbound[%d].tags", i), key), out.Tags[key], "has no effect: an outbound goes by "+TagService+" alone")
			}
		}
	}
	return warnings
}
