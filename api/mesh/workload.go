package mesh

import "strings"

// Workload returns the workload that the proxy's certificate identifies outside Kubernetes: the label kuma.io/workload,
// else the tag of that name, else the kuma.io/service, of the gateway or the first inbound that has it; "" without any.
// It is never the name of the replica.
func (d *Dataplane) Workload() string {
	if w := d.Labels[LabelWorkload]; w != "" {
		return w
	}
	for _, tag := range []string{LabelWorkload, TagService} {
		if g := d.Spec.Networking.Gateway; g != nil && g.Tags[tag] != "" {
			return g.Tags[tag]
		}
		for _, in := range d.Spec.Networking.Inbound {
			if in.Tags[tag] != "" {
				return in.Tags[tag]
			}
		}
	}
	return ""
}

// SPIFFEPath returns the path of the URI SAN of the proxy's certificate: from its Identity, else its workload. Without
// either the path is DataplanePath, since the proxy's name could equal the name of a workload.
func (d *Dataplane) SPIFFEPath() string {
	if d.Identity.Path != "" {
		return d.Identity.Path
	}
	if w := d.Workload(); w != "" {
		return WorkloadPath(w)
	}
	return DataplanePath(d.Name)
}

// workloadPrefix begins the SPIFFE path of a workload outside Kubernetes.
const workloadPrefix = "/workload/"

// WorkloadPath returns the SPIFFE path of a workload outside Kubernetes.
func WorkloadPath(workload string) string { return workloadPrefix + workload }

// DataplanePath returns the SPIFFE path of a Dataplane without a workload.
func DataplanePath(name string) string { return "/dataplane/" + name }

// WorkloadText returns a SPIFFE path for messages: the name of a workload, and any other path whole.
func WorkloadText(path string) string {
	if workload, ok := WorkloadOf(path); ok {
		return workload
	}
	return path
}

// WorkloadOf is the reverse of WorkloadPath. It returns false for any other path.
func WorkloadOf(path string) (string, bool) {
	workload, ok := strings.CutPrefix(path, workloadPrefix)
	return workload, ok && workload != "" && !strings.Contains(workload, "/")
}

// SPIFFEID returns the URI SAN of the proxy's certificate.
func (d *Dataplane) SPIFFEID(trustDomainSuffix string) string {
	return "spiffe://" + TrustDomain(d.Mesh, trustDomainSuffix) + d.SPIFFEPath()
}
