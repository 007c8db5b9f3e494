package check

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// kubeletFault is a fault of kubelets by which pods with a native sidecar get stuck.
type kubeletFault struct {
	issue int // of kubernetes/kubernetes
	what  string
	// versions with the fault: from the first one up to the fixed one, for each branch.
	versions []affected
}

type affected struct{ from, fixed *version.Version }

// Source: the release notes of Kubernetes.
var kubeletFaults = []kubeletFault{
	{137146, "after a restart of the kubelet, a container that ends in a pod which it ran before is never started again", affectedBetween("1.35.0", "1.35.4")},
	{
		132826, "with restartPolicy Never the containers are never started if the sidecar is restarted before it is ready, and another container has a startup probe",
		affectedBetween("1.29.0", "1.33.6", "1.34.0", "1.34.2"),
	},
	{127213, "if the container runtime fails once while it starts an init container, the pod stays in Init for ever", affectedBetween("1.29.0", "1.29.9", "1.30.0", "1.30.5", "1.31.0", "1.31.1")},
}

// affectedBetween returns the versions between pairs of versions.
func affectedBetween(pairs ...string) (all []affected) {
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, affected{version.MustParseGeneric(pair[0]), version.MustParseGeneric(pair[1])})
	}
	return all
}

func (f *kubeletFault) has(is *version.Version) bool {
	return slices.ContainsFunc(f.versions, func(s affected) bool { return is.AtLeast(s.from) && is.LessThan(s.fixed) })
}

// faultyKubelets says which faults kubelets have.
func faultyKubelets(l *lines, nodes []corev1.Node) {
	for i := range kubeletFaults {
		f, by := &kubeletFaults[i], map[string][]string{}
		for i := range nodes {
			kubelet := nodes[i].Status.NodeInfo.KubeletVersion
			if is, err := version.ParseGeneric(kubelet); err == nil && f.has(is) {
				by[kubelet] = append(by[kubelet], nodes[i].Name)
			}
		}
		l.warnOf(nodesBy(by), fmt.Sprintf("injected pods may get stuck there: %s (kubernetes#%d)", f.what, f.issue),
			"upgrade these nodes to the last patch of their version, unless the provider has the fix; "+
				"delete a pod that is stuck. A sidecar that is an ordinary container, "+
				"with config.runtime.kubernetes.injector.sidecarForm=container, is not concerned")
	}
}
