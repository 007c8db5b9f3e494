package webhook

import (
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ownDNS reports whether a pod does not use the cluster's DNS, which has the names of Services.
func ownDNS(policy corev1.DNSPolicy) bool {
	return policy == corev1.DNSDefault || policy == corev1.DNSNone
}

// controlPlaneHost returns the host of the control plane, "" if it is an address.
func (o *Options) controlPlaneHost() string {
	host, _, _ := net.SplitHostPort(o.ControlPlane) // Validate has checked the address
	if net.ParseIP(host) != nil {
		return ""
	}
	return host
}

// controlPlaneIPs returns the addresses of the control plane's Service for a pod that cannot resolve its name. It
// returns none for other pods, or if the control plane is not a Service with its own addresses.
func (s *Server) controlPlaneIPs(policy corev1.DNSPolicy) ([]string, error) {
	labels := strings.Split(s.injection.controlPlaneHost(), ".")
	if !ownDNS(policy) || len(labels) < 3 || labels[2] != "svc" {
		return nil, nil
	}
	ips, err := s.options.ServiceIPs(labels[1], labels[0])
	if err != nil {
		return nil, fmt.Errorf("%w: read Service %s/%s: %w", errUnavailable, labels[1], labels[0], err)
	}
	return ips, nil
}

// nameControlPlane adds the control plane to the hosts file of a pod that does not use the cluster's DNS, unless the
// file already has the name.
func (in *injection) nameControlPlane() {
	spec, host := &in.pod.Spec, in.options.controlPlaneHost()
	named := func(a corev1.HostAlias) bool { return slices.Contains(a.Hostnames, host) }
	if !ownDNS(spec.DNSPolicy) || host == "" || slices.ContainsFunc(spec.HostAliases, named) {
		return
	}
	if len(in.options.controlPlaneIPs) == 0 {
		in.warn("spec.dnsPolicy: %s: this pod only starts if its DNS servers can resolve %s", spec.DNSPolicy, host)
		return
	}
	var aliases []corev1.HostAlias
	for _, ip := range in.options.controlPlaneIPs {
		aliases = append(aliases, corev1.HostAlias{IP: ip, Hostnames: []string{host}})
	}
	insert(&in.patch, "/spec/hostAliases", len(spec.HostAliases), "-", aliases...)
}
