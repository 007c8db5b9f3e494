package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// maxConditionReason is how many bytes of a condition's reason are passed on: any text may be there.
const maxConditionReason = 64

// DefaultTaints are the keys of the autoscalers: https://kubernetes.io/docs/reference/labels-annotations-taints/ and Karpenter's.
func DefaultTaints() []string {
	return []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"}
}

// DefaultConditions are those of KEP-5683 by which the pods of a node end. Maintenance may be days ahead, or leave them alone.
func DefaultConditions() []string {
	return []string{
		string(corev1.NodeGracefulNodeShutdownInProgress), string(corev1.NodeDrainInProgress), string(corev1.NodeDrained),
	}
}

// Node is what is kept of a node. That it is unschedulable is no reason to drain: whole clusters are cordoned before an upgrade.
type Node struct {
	// Goes says why it goes, empty if it stays.
	Goes string
	// Drain is why an administrator drains it, nil if none does.
	Drain *string
	// Zone is that of its label, "" if it has none.
	Zone string
	// Unknown says that its kubelet is not heard.
	Unknown bool
}

func (o Drains) readNode(n *corev1.Node) (Node, bool) {
	return Node{
		Goes: o.goes(n), Drain: annotation(n.Annotations, mesh.AnnotationDrain), Zone: intern(n.Labels[corev1.LabelTopologyZone]), Unknown: isUnknown(n),
	}, true
}

// goes returns why a node goes, "" if it stays.
func (o Drains) goes(n *corev1.Node) string {
	if n.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for i := range n.Spec.Taints {
		if key := n.Spec.Taints[i].Key; slices.Contains(DefaultTaints(), key) || slices.Contains(o.Taints, key) {
			return "taint " + key
		}
	}
	for _, kind := range append(DefaultConditions(), o.Conditions...) {
		if c := nodeCondition(n, kind); c != nil && c.Status == corev1.ConditionTrue {
			return conditionText(c)
		}
	}
	return ""
}

// nodeCondition returns a condition of a node, nil if it has none of that type.
func nodeCondition(n *corev1.Node, kind string) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; string(c.Type) == kind {
			return c
		}
	}
	return nil
}

// conditionText names a condition. Its message is left out: one that counts evicted pods would change the drain of each pod with every count.
func conditionText(c *corev1.NodeCondition) string {
	if c.Reason == "" {
		return "condition " + string(c.Type)
	}
	return fmt.Sprintf("condition %s, reason %q", c.Type, cut.Marked(c.Reason, maxConditionReason))
}
