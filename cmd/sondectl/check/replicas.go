package check

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// controlPlane checks that a replica answers. Otherwise, the checks that need its answer add no lines.
var controlPlane = check{name: "control plane", say: func(f *facts, l *lines) {
	switch err := f.admin.err; {
	case err == nil:
		l.ok("a replica answers")
	case exit.Code(err) != exit.Unreachable:
		l.unread(err)
	default:
		l.fail(err.Error(), f.mend(fmt.Sprintf("kubectl -n %s logs deployment/%s", f.namespace, serviceName))+
			"; agents, the webhook and health are not checked")
	}
}}

// replicas checks that all replicas are Ready, on different nodes, and connected to each other.
var replicas = check{name: "replicas", say: func(f *facts, l *lines) {
	var notReady []string
	nodes := map[string]bool{}
	there := 0
	for i := range f.plane.Replicas {
		pod := &f.plane.Replicas[i]
		if ended(pod) {
			continue
		}
		there++
		nodes[pod.Spec.NodeName] = true
		if why := cluster.NotReady(pod, f.node(pod.Spec.NodeName)); why != "" {
			notReady = append(notReady, pod.Name+": "+why)
		}
	}
	desired := there
	switch {
	case f.deployment.err != nil && !apierrors.IsNotFound(f.deployment.err): // the pods may not be of the chart
		l.unread(f.deployment.err)
	case f.deployment.err == nil && f.deployment.is.Spec.Replicas != nil:
		desired = max(there, int(*f.deployment.is.Spec.Replicas))
	}
	switch ready := there - len(notReady); {
	case ready < desired:
		l.fail(fmt.Sprintf("%d of %d Ready", ready, desired),
			f.mend(fmt.Sprintf("see kubectl -n %s describe deployment,pods", f.namespace)), sorted(notReady)...)
	case desired == 1:
		l.warn("only one replica: while it does not run, pods that need injection cannot be created",
			"helm upgrade with --set replicas=2")
	case len(nodes) == 1:
		l.warn(fmt.Sprintf("all %d replicas run on one node, and fail with it", ready),
			"provide a second node for them, and delete one of the pods")
	}
	if missing := f.admin.is.missing; len(missing) > 0 {
		l.fail("disconnected from another replica: "+strings.Join(missing, ", ")+": the other replica lacks their reports about proxies",
			"allow the replicas to reach each other at port 5682 in NetworkPolicies")
	}
	l.ok(fmt.Sprintf("%d Ready, on %s", desired, printer.Plural(len(nodes), "node")))
}}

// node returns a node, nil for an unknown one.
func (f *facts) node(name string) *corev1.Node {
	if i := slices.IndexFunc(f.nodes.is, func(n corev1.Node) bool { return n.Name == name }); i >= 0 {
		return &f.nodes.is[i]
	}
	return nil
}

// lost returns the replicas on lost nodes, each with the reason.
func (f *facts) lost() (notes []string) {
	for i := range f.plane.Replicas {
		if pod := &f.plane.Replicas[i]; cluster.Lost(pod) {
			notes = append(notes, pod.Name+": "+cluster.NotReady(pod, f.node(pod.Spec.NodeName)))
		}
	}
	return sorted(notes)
}

// mend returns advice, or advice about lost nodes if there are any: kubectl cannot read anything from a lost node.
func (f *facts) mend(otherwise string) string {
	if len(f.lost()) == 0 {
		return otherwise
	}
	return "repair the nodes (see kubectl get nodes). After 5 minutes, Kubernetes recreates their replicas on other nodes, if there are any"
}

// health reports failing health checks of a replica.
var health = check{"health", (*facts).needsAnswer, func(f *facts, l *lines) {
	levels := map[adminv1.HealthCheck_Status]Level{adminv1.HealthCheck_FAILED: Fail, adminv1.HealthCheck_WARNING: Warn}
	for _, c := range f.admin.is.health {
		if level := levels[c.GetStatus()]; level != "" {
			l.add(level, c.GetGroup()+"/"+c.GetName()+": "+c.GetReason(), "see docs/guides/health.md")
		}
	}
	l.ok(printer.Plural(len(f.admin.is.health), "check") + " of the control plane pass")
}}

// sorted returns values in order, each once.
func sorted(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }
