package check

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// cniPlugin reports nodes on which the CNI plugin does not redirect connections.
var cniPlugin = check{"CNI plugin", (*facts).needsNodes, func(f *facts, l *lines) {
	missing, lost, after, good := map[string][]string{}, map[string][]string{}, map[string][]string{}, 0
	for _, n := range linuxNodes(f) {
		at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == mesh.ConditionCNIReady
		})
		switch {
		case at < 0:
			missing["no condition "+mesh.ConditionCNIReady] = append(missing["no condition "+mesh.ConditionCNIReady], n.Name)
		case n.Status.Conditions[at].Status == corev1.ConditionTrue:
			good++
			if c := n.Status.Conditions[at]; c.Reason == mesh.ReasonPluginsAfter {
				after[c.Message] = append(after[c.Message], n.Name)
			}
		default:
			why := n.Status.Conditions[at].Message
			lost[why] = append(lost[why], n.Name)
		}
	}
	if good == 0 && len(lost) == 0 {
		onNoNode(f, l)
		return
	}
	const effect = ": on these nodes, pods without kuma-init start no container after their sidecar"
	l.failOf(nodesBy(lost), "container runtimes do not call the plugin"+effect, "fix the errors below; the daemons of sonde-cni on these nodes retry by themselves")
	l.failOf(nodesBy(missing), "no daemon of sonde-cni has installed the plugin"+effect, "find out why the DaemonSet sonde-cni has no running pod there")
	l.warnOf(nodesBy(after), "other CNI plugins run after sonde-cni, and may change the network of a pod after its redirection",
		"if one redirects connections, too, keep each pod in one mesh only")
	l.ok(printer.Plural(good, "node") + " with the plugin")
}}

// onNoNode reports pods that need the plugin, and daemons, although no node has the plugin's condition.
func onNoNode(f *facts, l *lines) {
	if f.pods.err != nil {
		l.unread(f.pods.err)
		return
	}
	var needing []string
	for i := range f.pods.is {
		pod := &f.pods.is[i]
		_, needs := podspec.RedirectionText(&pod.Spec)
		isDaemon := pod.Namespace == f.namespace && pod.Labels[labelName] == cniName
		if !ended(pod) && (needs || isDaemon) {
			needing = append(needing, workloadOf(pod))
		}
	}
	if v, err := version.ParseGeneric(f.server); err == nil && v.LessThan(policies) {
		l.warnOf(sorted(needing), "not checked: before Kubernetes 1.30, nodes have no condition "+mesh.ConditionCNIReady,
			"look at the metric sonde_cni_ready of the pods of "+cniName)
	} else {
		l.failOf(sorted(needing), "no node has the plugin: pods without kuma-init start no container after their sidecar",
			"find out why the DaemonSet "+cniName+" has not installed it, or set cni.enabled=false and recreate these pods")
	}
	l.ok("not installed: kuma-init redirects connections")
}

// cniName is the name of the plugin's DaemonSet, and of its pods' label.
const cniName = "sonde-cni"
