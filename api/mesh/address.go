package mesh

import "net/netip"

// AddrPort returns an IP address and a port as one value, IPv4 never as IPv6. It is the zero AddrPort for what Validate refuses.
func AddrPort(address string, port uint32) netip.AddrPort {
	ip, err := netip.ParseAddr(address)
	if err != nil || port == 0 || port > 65535 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port))
}

// InboundAddress returns where others reach an inbound of d.
func (d *Dataplane) InboundAddress(in *Inbound) netip.AddrPort {
	if in.Address != "" {
		return AddrPort(in.Address, in.Port)
	}
	return AddrPort(d.Spec.Networking.Address, in.Port)
}

// ListenerAddress returns where Envoy listens for an inbound of d; with transparentProxying that is its capture port.
func (d *Dataplane) ListenerAddress(in *Inbound) netip.AddrPort {
	at, tp := d.InboundAddress(in), d.Spec.Networking.TransparentProxying
	switch {
	case tp == nil || !at.IsValid():
		return at
	case at.Addr().Is6():
		return netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(tp.RedirectPortInbound))
	default:
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(tp.RedirectPortInbound))
	}
}
