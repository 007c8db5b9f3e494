package mesh

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// allowedProbePath describes the paths that the agent can match: without a query, which it passes on, and without a
// fragment, which no client sends.
const allowedProbePath = "must be a path of visible ASCII characters that begins with '/', without '?' and '#'"

// validateProbes checks the probes. Their ports can only conflict with other listeners in the per-port mode: otherwise
// the agent does not open them.
func (d *Dataplane) validateProbes(v *violations, taken *listeners) {
	if p := d.Spec.Probes; p != nil {
		d.validateProbePort(v, "probes", p.Port, taken)
		p.validate(v)
	}
	for i, p := range d.Spec.TCPProbes {
		path := tcpProbeField(i)
		d.validateProbePort(v, path, p.Port, taken)
		if p.InboundPort != p.Port {
			v.port(path+".inboundPort", p.InboundPort)
		}
		if p.Protocol != "" && p.Protocol != ProtocolTCP && p.Protocol != ProtocolGRPC {
			v.add(path+".protocol", string(p.Protocol), "must be tcp or grpc, or absent for either")
		}
	}
}

func (d *Dataplane) validateProbePort(v *violations, path string, port uint32, taken *listeners) {
	v.port(path+".port", port)
	address, err := netip.ParseAddr(d.Spec.Networking.Address)
	if err == nil && d.ProbesMode == ProbesPerPort { // a wrong address is reported already
		taken.add(v, path, address.Unmap(), port)
	}
}

func (p *Probes) validate(v *violations) {
	first := map[string]int{}
	for i, e := range p.Endpoints {
		path := fmt.Sprintf("probes.endpoints[%d]", i)
		v.port(path+".inboundPort", e.InboundPort)
		v.probePath(path+".inboundPath", e.InboundPath)
		if v.probePath(path+".path", e.Path) { // the kubelet escapes an invalid path of the application itself
			_, err := url.ParseRequestURI(e.Path)
			v.check(err == nil, path+".path", Shorten(e.Path, maxShown),
				"must have two hexadecimal digits after each '%', which is %25 itself: the agent answers 400 to anything else")
		}
		if other, used := first[e.Path]; used {
			v.add(path+".path", Shorten(e.Path, maxShown), fmt.Sprintf("must be unique: probes.endpoints[%d] has it too", other))
		} else {
			first[e.Path] = i
		}
	}
}

// probePath checks the path of an endpoint, except for its escapes. The agent's server rejects long ones
// (dpagent/probe/serve.go).
func (v *violations) probePath(field, path string) bool {
	before := len(*v)
	v.check(isProbePath(path), field, Shorten(path, maxShown), allowedProbePath)
	v.check(len(path) <= maxProbePath, field, Shorten(path, maxShown),
		fmt.Sprintf("must have at most %d characters", maxProbePath))
	return len(*v) == before
}

func isProbePath(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.ContainsFunc(path,
		func(r rune) bool { return r <= ' ' || r > '~' || r == '?' || r == '#' })
}
