package mesh

import (
	"net/netip"
	"slices"
	"strings"
)

// Observation is what is known about a proxy beyond its Dataplane: from its certificates, its agent and its Envoy.
// Observations can be compared by ==.
type Observation struct {
	// Joined means that a certificate has been issued to the proxy.
	Joined bool
	// Draining proxies get new traffic only if no other endpoint is ready. It stays set until the agent sends a Hello
	// without it.
	Draining bool
	// Held means that a guarded liveness probe of the pod fails, whether or not a restart is granted. Such a proxy
	// counts as draining.
	Held bool
	// Administrator is why an administrator drains the proxy; "" if not. In a pod it comes from an annotation.
	Administrator string
	// Path is the SPIFFE path in the certificate in use, "" if unknown.
	Path string
	// Expired means that the certificate in use has expired: clients of the mesh reject it.
	Expired bool
	// ListenersKnown means that Listeners is known. After a restart of the control plane it is false until Envoy
	// reconnects.
	ListenersKnown bool
	// Listeners are the addresses of the inbound listeners that Envoy has accepted.
	Listeners Addresses
	// OutboundsKnown means that Outbounds is known.
	OutboundsKnown bool
	// Outbounds are the addresses of the listeners for the application's own traffic that Envoy has accepted.
	Outbounds Addresses
	// NotServing are the addresses of inbounds whose application cannot take traffic: its ServiceProbe has failed, or
	// the agent has not reported yet.
	NotServing Addresses
}

// Serves reports whether the application behind an inbound of d can take traffic, according to its ServiceProbe.
func (o Observation) Serves(d *Dataplane, in *Inbound) bool {
	return !d.Probed(in) || !o.NotServing.Has(d.InboundAddress(in))
}

// Accepts reports whether Envoy has accepted the listener of an inbound of d, or this is unknown.
func (o Observation) Accepts(d *Dataplane, in *Inbound) bool {
	return !o.ListenersKnown || o.Listeners.Has(d.ListenerAddress(in))
}

// AcceptsOutbound reports whether Envoy has accepted the listener at an address of OutboundListeners, or this is
// unknown.
func (o Observation) AcceptsOutbound(at netip.AddrPort) bool {
	return !o.OutboundsKnown || o.Outbounds.Has(at)
}

// Addresses is a set of addresses that can be compared by ==: sorted, and joined by commas.
type Addresses string

// MakeAddresses returns the set of the addresses in list.
func MakeAddresses(list []netip.AddrPort) Addresses {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.AddrPort.Compare)
	var texts []string
	for _, at := range slices.Compact(list) {
		texts = append(texts, at.String())
	}
	return Addresses(strings.Join(texts, ","))
}

// Has reports whether the set contains an address.
func (a Addresses) Has(at netip.AddrPort) bool {
	want := at.String()
	for text := range strings.SplitSeq(string(a), ",") {
		if text == want {
			return true
		}
	}
	return false
}

// Texts returns the addresses of the set, sorted.
func (a Addresses) Texts() []string {
	if a == "" {
		return nil
	}
	return strings.Split(string(a), ",")
}
