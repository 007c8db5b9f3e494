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

// Versions that Sonde needs.
var (
	// oldestKubernetes has native sidecars by default, and matchConditions of webhooks.
	oldestKubernetes = version.MustParseGeneric("1.29")
	// policies of admission hold rights of the control plane to one field each. Before, the chart does not give these rights.
	policies = version.MustParseGeneric("1.30")
	// oldestKernel opens the process of Envoy without blocking (PIDFD_NONBLOCK). NAT in nftables of family inet is of 5.2.
	oldestKernel = version.MustParseGeneric("5.10")
)

// apiServer says whether the API server is new enough.
var apiServer = check{name: "API server", say: func(f *facts, l *lines) {
	is, err := version.ParseGeneric(f.server)
	switch {
	case err != nil:
		l.warn(fmt.Sprintf("its version %q is none of Kubernetes", f.server),
			"make sure that it has what Kubernetes 1.29 has")
	case is.LessThan(oldestKubernetes):
		l.fail(f.server+" is older than Kubernetes 1.29, which Sonde needs", "upgrade the cluster")
	case is.LessThan(policies):
		l.warn(f.server+" has no ValidatingAdmissionPolicies: "+
			"the control plane gets no right to have pods made again after an outage, and writes no condition of pods",
			"upgrade the cluster to Kubernetes 1.30, or do without")
	}
	l.ok(f.server)
}}

// kubelets says whether the kubelets are new enough, and of an architecture that there is an image for.
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
	l.failOf(nodesBy(old), "older than Kubernetes 1.29, which has native sidecars: an injected pod would not start there",
		"upgrade these nodes, or install with --set config.runtime.kubernetes.injector.sidecarForm=container")
	l.warnOf(nodesBy(foreign), "there is no image of Sonde for some nodes: an injected pod would not start there",
		"keep injected pods from these nodes, by a nodeSelector with kubernetes.io/arch: amd64")
	faultyKubelets(l, linuxNodes(f))
	l.ok(printer.Plural(len(linuxNodes(f)), "node") + few(slices.Sorted(maps.Keys(versions))))
}}

// kernels says whether the kernels of nodes have what the sidecar needs, as far as their version says it.
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
		"older than Linux 5.10, which the agent needs to follow its Envoy: an injected pod would not start there",
		"upgrade the kernel of these nodes, or keep injected pods from them")
	l.ok(printer.Plural(len(linuxNodes(f)), "node") + few(slices.Sorted(maps.Keys(versions))))
}}

// linuxNodes returns the nodes that injected pods may run on, and whose kubelets have said what they are.
func linuxNodes(f *facts) []corev1.Node {
	return slices.DeleteFunc(slices.Clone(f.nodes.is), func(n corev1.Node) bool {
		return n.Status.NodeInfo.KubeletVersion == "" || n.Status.NodeInfo.OperatingSystem == string(corev1.Windows)
	})
}

// nodesBy returns a note for each version.
func nodesBy(nodes map[string][]string) []string {
	var notes []string
	for _, is := range slices.Sorted(maps.Keys(nodes)) {
		notes = append(notes, fmt.Sprintf("%s: %s", is, printer.FirstFew(slices.Sorted(slices.Values(nodes[is])), ", ")))
	}
	return notes
}

// few returns values as the end of a text, "" if they say nothing.
func few(values []string) string {
	values = slices.DeleteFunc(values, func(v string) bool { return v == "" })
	if len(values) == 0 {
		return ""
	}
	return ", " + strings.TrimSpace(printer.FirstFew(values, ", "))
}
