package mesh

import "net/netip"

// AddrPort returns an IP address and a port as one value, IPv4 never as IPv6. It is the zero AddrPort for values that
// Validate rejects.
func AddrPort(address string, port uint32) netip.AddrPort {
	ip, err := netip.ParseAddr(address)
	if err != nil || port == 0 || port > 65535 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port))
}

// InboundAddress returns the address at which others reach an inbound of d.
func (d *Dataplane) InboundAddress(in *Inbound) netip.AddrPort {
	if in.Address != "" {
		return AddrPort(in.Address, in.Port)
	}
	return AddrPort(d.Spec.Networking.Address, in.Port)
}

// ListenerAddress returns where Envoy listens for an inbound of d: with transparentProxying at its capture port.
func (d *Dataplane) ListenerAddress(in *Inbound) netip.AddrPort {
	at, tp := d.InboundAddress(in), d.Spec.Networking.TransparentProxying
	if tp == nil || !at.IsValid() {
		return at
	}
	return netip.AddrPortFrom(unspecified(at.Addr()), uint16(tp.RedirectPortInbound))
}

// unspecified returns the unspecified address of the same IP family.
func unspecified(of netip.Addr) netip.Addr {
	if of.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// OutboundListeners returns where Envoy listens for the application of d: at each outbound, or with transparentProxying
// at its capture port, of the IP family of d. A nil Dataplane has no listeners.
func (d *Dataplane) OutboundListeners() []netip.AddrPort {
	if d == nil {
		return nil
	}
	net := &d.Spec.Networking
	if tp := net.TransparentProxying; tp != nil {
		at := AddrPort(net.Address, tp.RedirectPortOutbound)
		return []netip.AddrPort{netip.AddrPortFrom(unspecified(at.Addr()), uint16(tp.RedirectPortOutbound))}
	}
	all := make([]netip.AddrPort, 0, len(net.Outbound))
	for _, o := range net.Outbound {
		all = append(all, AddrPort(o.Address, o.Port))
	}
	return all
}
