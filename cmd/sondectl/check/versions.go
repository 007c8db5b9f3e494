package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Oldest versions that Sonde supports.
var (
	// oldestKubernetes is the first version with native sidecars by default and matchConditions in webhooks.
	oldestKubernetes = version.MustParseGeneric("1.29")
	// policies is the first version with ValidatingAdmissionPolicy, which limits some rights of the control plane to one
	// field each. On older versions, the chart does not grant these rights.
	policies = version.MustParseGeneric("1.30")
	// oldestKernel has PIDFD_NONBLOCK, with which the agent watches Envoy. NAT in nftables of family inet needs only 5.2.
	oldestKernel = version.MustParseGeneric("5.10")
)

// apiServer checks that the API server is new enough.
var apiServer = check{name: "API server", say: func(f *facts, l *lines) {
	is, err := version.ParseGeneric(f.server)
	switch {
	case err != nil:
		l.warn(fmt.Sprintf("%q is not a version of Kubernetes", f.server),
			"make sure that it supports the features of Kubernetes 1.29")
	case is.LessThan(oldestKubernetes):
		l.fail(f.server+" is older than Kubernetes 1.29, which Sonde needs", "upgrade the cluster")
	case is.LessThan(policies):
		l.warn(f.server+" has no ValidatingAdmissionPolicies: "+
			"the control plane cannot make controllers recreate pods after an outage, and does not write pod conditions",
			"upgrade the cluster to Kubernetes 1.30, or accept these limits")
	}
	l.ok(f.server)
}}

// kubelets checks that the kubelets are new enough, and that Sonde has an image for their architecture.
var kubelets = check{"kubelets", (*facts).needsNodes, func(f *facts, l *lines) {
	old, foreign, versions := map[string][]string{}, map[string][]string{}, map[string]bool{}
	for _, n := range linuxNodes(f) {
		info := n.Status.NodeInfo
		versions[info.KubeletVersion] = true
		if is, err := version.ParseGeneric(info.KubeletVersion); err != nil || is.LessThan(oldestKubernetes) {
			old[info.KubeletVersion] = append(old[info.KubeletVersion], n.Name)
		}
		if info.Architecture != "" && info.Architecture != "amd64" {
			foreign[info.Architecture] = append(foreign[info.Architecture], n.Name)
		}
	}
	l.failOf(nodesBy(old), "older than Kubernetes 1.29, the first version with native sidecars: injected pods would not start there",
		"upgrade these nodes, or install with --set config.runtime.kubernetes.injector.sidecarForm=container")
	l.warnOf(nodesBy(foreign), "Sonde has no image for some nodes: injected pods would not start there",
		"keep injected pods away from these nodes, with a nodeSelector kubernetes.io/arch: amd64")
	faultyKubelets(l, linuxNodes(f))
	l.ok(printer.Plural(len(linuxNodes(f)), "node") + few(slices.Sorted(maps.Keys(versions))))
}}

// kernels checks by their versions that the kernels have the features that the sidecar needs.
var kernels = check{"kernels", (*facts).needsNodes, func(f *facts, l *lines) {
	old, versions := map[string][]string{}, map[string]bool{}
	for _, n := range linuxNodes(f) {
		is := n.Status.NodeInfo.KernelVersion
		versions[is] = true
		if v, err := version.ParseGeneric(is); err != nil || v.LessThan(oldestKernel) {
			old[is] = append(old[is], n.Name)
		}
	}
	l.failOf(nodesBy(old),
		"older than Linux 5.10, which the agent needs to watch Envoy: injected pods would not start there",
		"upgrade the kernel of these nodes, or keep injected pods away from them")
	l.ok(printer.Plural(len(linuxNodes(f)), "node") + few(slices.Sorted(maps.Keys(versions))))
}}

// linuxNodes returns the Linux nodes whose kubelets have reported their versions.
func linuxNodes(f *facts) []corev1.Node {
	return slices.DeleteFunc(slices.Clone(f.nodes.is), func(n corev1.Node) bool {
		return n.Status.NodeInfo.KubeletVersion == "" || n.Status.NodeInfo.OperatingSystem == string(corev1.Windows)
	})
}

// nodesBy returns a note with the nodes for each key.
func nodesBy(nodes map[string][]string) []string {
	var notes []string
	for _, is := range slices.Sorted(maps.Keys(nodes)) {
		notes = append(notes, fmt.Sprintf("%s: %s", is, printer.FirstFew(slices.Sorted(slices.Values(nodes[is])), ", ")))
	}
	return notes
}

// few returns values to append to a line, "" without any.
func few(values []string) string {
	values = slices.DeleteFunc(values, func(v string) bool { return v == "" })
	if len(values) == 0 {
		return ""
	}
	return ", " + strings.TrimSpace(printer.FirstFew(values, ", "))
}
