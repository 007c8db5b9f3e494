package webhook

import (
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ownDNS reports whether a pod does not ask the DNS of the cluster, in which the names of Services are.
func ownDNS(policy corev1.DNSPolicy) bool {
	return policy == corev1.DNSDefault || policy == corev1.DNSNone
}

// controlPlaneHost returns the host of the control plane, "" if it is an address.
func (o *Options) controlPlaneHost() string {
	host, _, _ := net.SplitHostPort(o.ControlPlane) // Validate has checked it
	if net.ParseIP(host) != nil {
		return ""
	}
	return host
}

// controlPlaneIPs returns the addresses of the control plane's Service for a pod that does not find it by its name: none for other pods, and
// none where the control plane is no Service with addresses of its own.
func (s *Server) controlPlaneIPs(policy corev1.DNSPolicy) ([]string, error) {
	labels := strings.Split(s.injection.controlPlaneHost(), ".")
	if !ownDNS(policy) || len(labels) < 3 || labels[2] != "svc" {
		return nil, nil
	}
	ips, err := s.options.ServiceIPs(labels[1], labels[0])
	if err != nil {
		return nil, fmt.Errorf("%w: read the Service %s/%s: %w", errUnavailable, labels[1], labels[0], err)
	}
	return ips, nil
}

// nameControlPlane has a pod that does not ask the DNS of the cluster find the control plane in its hosts file, unless it has the name there
// already.
func (in *injection) nameControlPlane() {
	spec, host := &in.pod.Spec, in.options.controlPlaneHost()
	named := func(a corev1.HostAlias) bool { return slices.Contains(a.Hostnames, host) }
	if !ownDNS(spec.DNSPolicy) || host == "" || slices.ContainsFunc(spec.HostAliases, named) {
		return
	}
	if len(in.options.controlPlaneIPs) == 0 {
		in.warn("spec.dnsPolicy: %s: this pod starts only if its DNS servers know %s", spec.DNSPolicy, host)
		return
	}
	var aliases []corev1.HostAlias
	for _, ip := range in.options.controlPlaneIPs {
		aliases = append(aliases, corev1.HostAlias{IP: ip, Hostnames: []string{host}})
	}
	insert(&in.patch, "/spec/hostAliases", len(spec.HostAliases), "-", aliases...)
}
