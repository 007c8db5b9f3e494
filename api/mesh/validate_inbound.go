package mesh

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

func (in *Inbound) validate(v *violations, path string, n *Networking, taken *listeners) {
	v.port(path+".port", in.Port)
	if in.ServicePort != in.Port {
		v.port(path+".servicePort", in.ServicePort)
	}
	in.validateAddresses(v, path, n, taken)
	v.portName(path+".name", in.Name)
	if number, err := strconv.ParseUint(in.Name, 10, 32); err == nil && number != uint64(in.Port) {
		v.add(path+".name", in.Name, "must not be the number of another port: a targetPort could mean either")
	}
	v.tags(path+".tags", in.Tags)
	if in.Protocol != "" {
		v.protocol(path+".protocol", in.Protocol)
		if tag, ok := in.Tags[TagProtocol]; ok && tag != string(in.Protocol) {
			v.add(path+".protocol", string(in.Protocol), fmt.Sprintf("must be the same as %s, %q", tagField(path+
				".tags", TagProtocol), Shorten(tag, maxText)))
		}
	}
	if in.State != "" {
		v.check(slices.Contains(InboundStates(), in.State), path+".state", string(in.State),
			meant("must be one of "+list(InboundStates()), in.State, InboundStates()...))
	}
}

// validateAddresses checks where the proxy and the application listen.
func (in *Inbound) validateAddresses(v *violations, path string, n *Networking, taken *listeners) {
	// A wrong networking.address is reported already, so do not report it for each inbound that has it by default.
	var addr netip.Addr
	ok := false
	if in.Address != n.Address {
		addr, ok = v.endpoint(path+".address", in.Address)
	} else if a, err := netip.ParseAddr(in.Address); err == nil {
		addr, ok = a.Unmap(), isEndpoint(a)
	}
	var service netip.Addr
	serviceOK := in.ServiceAddress == in.Address
	if serviceOK {
		service = addr
	} else {
		service, serviceOK = v.address(path+".serviceAddress", in.ServiceAddress, allowedWorkload)
	}
	if !ok || in.State == InboundIgnored {
		return
	}
	taken.add(v, path, addr, in.Port)
	if serviceOK && service == addr && in.ServicePort == in.Port && n.TransparentProxying == nil {
		allowed := "the proxy itself listens on " + JoinHostPort(in.Address, in.Port) +
			": serviceAddress and servicePort must name the application"
		if addr.IsLoopback() {
			allowed += ". If it listens there, write the address under which others reach this machine as networking.address"
		}
		v.number(path+".servicePort", int64(in.ServicePort), allowed)
	}
}

// validateWorkloads checks that inbounds do not name different workloads: a proxy has one certificate.
func (n *Networking) validateWorkloads(v *violations) {
	first, workload := "", ""
	for i, in := range n.Inbound {
		path := tagField(fmt.Sprintf("networking.inbound[%d].tags", i), LabelWorkload)
		switch w := in.Tags[LabelWorkload]; {
		case w == "":
		case first == "":
			first, workload = path, w
		case w != workload:
			v.add(path, w, fmt.Sprintf("must be the same as %s, %q: a proxy has one identity",
				first, Shorten(workload, maxText)))
		}
	}
}

func (g *Gateway) validate(v *violations, inbounds int) {
	const path = "networking.gateway"
	switch g.Type {
	case "", GatewayDelegated:
	case "BUILTIN":
		v.add(path+".type", g.Type,
			"must be "+GatewayDelegated+
				": Sonde's proxy is not a gateway itself. Run your own gateway beside it, such as nginx or Kong, "+
				"write type: "+GatewayDelegated+
				", and an outbound for each service that it calls; a MeshGateway and its routes are its own configuration then")
	default:
		v.add(path+".type", g.Type, meant("must be "+GatewayDelegated, g.Type, GatewayDelegated))
	}
	v.tags(path+".tags", g.Tags)
	if inbounds > 0 {
		v.bare("networking.inbound", "[...]",
			"must be absent with networking.gateway: a delegated gateway takes its traffic itself. "+
				"Remove networking.gateway where the mesh is to reach the application")
	}
}
