package mesh

import (
	"fmt"
	"net/netip"
	"sync"
)

// held are the addresses where the proxy or its agent listens, with the field that sets them. A probe of such an
// address does not reach the application. An unspecified address stands for its family: Envoy uses [::] only for IPv6.
type held map[netip.AddrPort]string

// held returns the addresses where the proxy of d and its agent listen. With TransparentProxying the agent's
// connections are not redirected, and only the ports for redirected connections have listeners.
func (d *Dataplane) held() held {
	all, n := held{}, &d.Spec.Networking
	if tp := n.TransparentProxying; tp != nil {
		for _, anywhere := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			all.add(AddrPort(anywhere.String(), tp.RedirectPortInbound), "networking.transparentProxying.redirectPortInbound")
			all.add(AddrPort(anywhere.String(), tp.RedirectPortOutbound), "networking.transparentProxying.redirectPortOutbound")
		}
	} else {
		for i := range n.Inbound {
			if in := &n.Inbound[i]; in.State != InboundIgnored {
				all.add(d.InboundAddress(in), fmt.Sprintf("networking.inbound[%d]", i))
			}
		}
		for i, o := range n.Outbound {
			all.add(AddrPort(o.Address, o.Port), fmt.Sprintf("networking.outbound[%d]", i))
		}
	}
	if d.ProbesMode != ProbesPerPort {
		return all
	}
	if p := d.Spec.Probes; p != nil && len(p.Endpoints) > 0 {
		all.add(AddrPort(n.Address, p.Port), "probes")
	}
	for i, p := range d.Spec.TCPProbes {
		all.add(AddrPort(n.Address, p.Port), tcpProbeField(i))
	}
	return all
}

func tcpProbeField(i int) string { return fmt.Sprintf("tcpProbes[%d]", i) }

// add records a listener at an address. A second one is a separate violation.
func (h held) add(at netip.AddrPort, who string) {
	if _, ok := h[at]; !ok && at.IsValid() {
		h[at] = who
	}
}

// by returns the field of the listener at an address, "" without one.
func (h held) by(at netip.AddrPort) string {
	if who := h[at]; who != "" || !at.IsValid() {
		return who
	}
	return h[netip.AddrPortFrom(unspecified(at.Addr()), at.Port())]
}

// validateAsked rejects probes that would reach the proxy or its agent instead of the application: most of them could
// never fail.
func (d *Dataplane) validateAsked(v *violations) {
	all := sync.OnceValue(d.held) // most Dataplanes have no such probe
	for i := range d.Spec.Networking.Inbound {
		in := &d.Spec.Networking.Inbound[i]
		if in.ServiceProbe == nil || len(in.ServiceProbe.handlers()) != 1 {
			continue
		}
		_, at := in.ServiceCheck()
		if who := all().by(at); who != "" {
			v.add(fmt.Sprintf("networking.inbound[%d].serviceProbe", i), at.String(),
				"must name the application: the proxy itself listens there, for "+who)
		}
	}
	if d.ProbesMode != ProbesPerPort {
		return
	}
	asked := func(own, field string, port uint32) {
		at := d.Application(port)
		switch who := all().by(at); who {
		case "":
		case own:
			v.number(field, int64(port), "must name the application: this is the port for probes itself")
		default:
			v.number(field, int64(port), fmt.Sprintf("must name the application: the proxy itself listens on %s, for %s",
				at, who))
		}
	}
	if p := d.Spec.Probes; p != nil {
		for i, e := range p.Endpoints {
			asked("probes", fmt.Sprintf("probes.endpoints[%d].inboundPort", i), e.InboundPort)
		}
	}
	for i, p := range d.Spec.TCPProbes {
		asked(tcpProbeField(i), tcpProbeField(i)+".inboundPort", p.InboundPort)
	}
}
