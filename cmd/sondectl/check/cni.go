package check

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// cniPlugin reports nodes on which the CNI plugin does not redirect connections. If no node has its condition, the
// plugin is not installed.
var cniPlugin = check{"CNI plugin", (*facts).needsNodes, func(f *facts, l *lines) {
	missing, lost, after, good := map[string][]string{}, map[string][]string{}, map[string][]string{}, 0
	for _, n := range linuxNodes(f) {
		at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == mesh.ConditionCNIReady })
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
		l.ok("not installed: kuma-init redirects connections")
		return
	}
	const effect = ": on these nodes, pods without kuma-init start no container after their sidecar"
	l.failOf(nodesBy(lost), "container runtimes do not call the plugin"+effect, "fix the errors below; the daemons of sonde-cni on these nodes retry by themselves")
	l.failOf(nodesBy(missing), "no daemon of sonde-cni has installed the plugin"+effect, "find out why the DaemonSet sonde-cni has no running pod there")
	l.warnOf(nodesBy(after), "other CNI plugins run after sonde-cni, and may change the network of a pod after its redirection",
		"if one redirects connections, too, keep each pod in one mesh only")
	l.ok(printer.Plural(good, "node") + " with the plugin")
}}
