package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// maxConditionReason bounds a condition's reason, in bytes, since it may have any text.
const maxConditionReason = 64

// DefaultTaints are the keys of autoscalers' taints: https://kubernetes.io/docs/reference/labels-annotations-taints/
// and Karpenter's.
func DefaultTaints() []string {
	return []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"}
}

// DefaultConditions are the conditions of KEP-5683 that announce the end of a node's pods. It excludes maintenance,
// which may be days ahead, or leave the pods alone.
func DefaultConditions() []string {
	return []string{
		string(corev1.NodeGracefulNodeShutdownInProgress), string(corev1.NodeDrainInProgress), string(corev1.NodeDrained),
	}
}

// Node is the record of a node. It ignores unschedulable: clusters are cordoned as a whole before an upgrade.
type Node struct {
	// Goes is why the node is being removed, "" if it stays.
	Goes string
	// Drain is why an administrator drains it, or nil.
	Drain *string
	// Zone is the value of its zone label, or "".
	Zone string
	// Unknown says that its kubelet is disconnected.
	Unknown bool
}

func (o Drains) readNode(n *corev1.Node) (Node, bool) {
	return Node{
		Goes: o.goes(n), Drain: annotation(n.Annotations, mesh.AnnotationDrain),
		Zone: intern(n.Labels[corev1.LabelTopologyZone]), Unknown: isUnknown(n),
	}, true
}

// goes returns why a node is being removed, "" if it stays.
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

// nodeCondition returns the condition of that type, or nil.
func nodeCondition(n *corev1.Node, kind string) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; string(c.Type) == kind {
			return c
		}
	}
	return nil
}

// conditionText describes a condition without its message, which may have a changing count, so that it stays equal.
func conditionText(c *corev1.NodeCondition) string {
	if c.Reason == "" {
		return "condition " + string(c.Type)
	}
	return fmt.Sprintf("condition %s, reason %q", c.Type, cut.Marked(c.Reason, maxConditionReason))
}
