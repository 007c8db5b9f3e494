package check

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// kubeletFault is a kubelet bug that makes pods with a native sidecar get stuck.
type kubeletFault struct {
	issue int // number in kubernetes/kubernetes
	what  string
	// versions with the fault: for each branch, from the first faulty version up to the fixed one.
	versions []affected
}

type affected struct{ from, fixed *version.Version }

// Source: the release notes of Kubernetes.
var kubeletFaults = []kubeletFault{
	{137146, "after the kubelet restarts, it does not restart containers of pods that were already running", affectedBetween("1.35.0", "1.35.4")},
	{
		132826, "with restartPolicy Never, the containers never start if the sidecar restarts before it is ready and another container has a startup probe",
		affectedBetween("1.29.0", "1.33.6", "1.34.0", "1.34.2"),
	},
	{127213, "if the container runtime fails once to start an init container, the pod stays in Init forever", affectedBetween("1.29.0", "1.29.9", "1.30.0", "1.30.5", "1.31.0", "1.31.1")},
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

// faultyKubelets reports kubelets with known faults.
func faultyKubelets(l *lines, nodes []corev1.Node) {
	for i := range kubeletFaults {
		f, by := &kubeletFaults[i], map[string][]string{}
		for i := range nodes {
			kubelet := nodes[i].Status.NodeInfo.KubeletVersion
			if is, err := version.ParseGeneric(kubelet); err == nil && f.has(is) {
				by[kubelet] = append(by[kubelet], nodes[i].Name)
			}
		}
		l.warnOf(nodesBy(by), fmt.Sprintf("injected pods may get stuck on these nodes: %s (kubernetes#%d)", f.what, f.issue),
			"upgrade these nodes to the latest patch release, unless your provider has backported the fix; "+
				"delete stuck pods. Sidecars that are ordinary containers, "+
				"with config.runtime.kubernetes.injector.sidecarForm=container, are not affected")
	}
}
