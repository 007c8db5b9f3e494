package check

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestCNIPlugin(t *testing.T) {
	with := func(name string, status corev1.ConditionStatus, message string) corev1.Node {
		n := node(name, "v1.37.2", "6.8.0", "amd64")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: mesh.ConditionCNIReady, Status: status, Message: message}}
		return n
	}
	after := func(name, others string) corev1.Node {
		n := with(name, corev1.ConditionTrue, others)
		n.Status.Conditions[1].Reason = mesh.ReasonPluginsAfter
		return n
	}
	const lost = "/etc/cni/net.d/05-x.conf: the first configuration is for a single plugin"
	tests{
		"not installed": {facts{nodes: is([]corev1.Node{node("a", "v1.37.2", "6.8.0", "amd64")})}, "[ok]   CNI plugin: not installed: kuma-init redirects connections\n"},
		"everywhere":    {facts{nodes: is([]corev1.Node{with("a", corev1.ConditionTrue, ""), with("b", corev1.ConditionTrue, "")})}, "[ok]   CNI plugin: 2 nodes with the plugin\n"},
		"before others": {facts{nodes: is([]corev1.Node{with("a", corev1.ConditionTrue, ""), after("b", "istio-cni"), after("c", "istio-cni")})}, `
[warn] CNI plugin: other CNI plugins run after sonde-cni, and may change the network of a pod after its redirection
       istio-cni: b, c
       do: if one redirects connections, too, keep each pod in one mesh only
`},
		"not everywhere": {facts{nodes: is([]corev1.Node{with("a", corev1.ConditionTrue, ""), with("b", corev1.ConditionFalse, lost), node("c", "v1.37.2", "6.8.0", "amd64")})}, `
[fail] CNI plugin: container runtimes do not call the plugin: on these nodes, pods without kuma-init start no container after their sidecar
       /etc/cni/net.d/05-x.conf: the first configuration is for a single plugin: b
       do: fix the errors below; the daemons of sonde-cni on these nodes retry by themselves
[fail] CNI plugin: no daemon of sonde-cni has installed the plugin: on these nodes, pods without kuma-init start no container after their sidecar
       no condition cni.sonde.dev/Ready: c
       do: find out why the DaemonSet sonde-cni has no running pod there
`},
	}.run(t, cniPlugin)
}
