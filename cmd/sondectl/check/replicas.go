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

// controlPlane says whether a replica answers. Without that, the checks that need its answer have no lines.
var controlPlane = check{name: "control plane", say: func(f *facts, l *lines) {
	switch err := f.admin.err; {
	case err == nil:
		l.ok("a replica answers")
	case exit.Code(err) != exit.Unreachable:
		l.unread(err)
	default:
		l.fail(err.Error(), f.mend(fmt.Sprintf("kubectl -n %s logs deployment/%s", f.namespace, serviceName))+
			"; agents, the webhook and health are not checked further")
	}
}}

// replicas says whether all replicas are Ready, on different nodes, and hear each other.
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
	case f.deployment.err != nil && !apierrors.IsNotFound(f.deployment.err): // others than the chart may have made the pods
		l.unread(f.deployment.err)
	case f.deployment.err == nil && f.deployment.is.Spec.Replicas != nil:
		desired = max(there, int(*f.deployment.is.Spec.Replicas))
	}
	switch ready := there - len(notReady); {
	case ready < desired:
		l.fail(fmt.Sprintf("%d of %d Ready", ready, desired),
			f.mend(fmt.Sprintf("kubectl -n %s describe deployment,pods says why", f.namespace)), sorted(notReady)...)
	case desired == 1:
		l.warn("there is one alone: while it is away, pods that are to be injected cannot be made",
			"helm upgrade with --set replicas=2")
	case len(nodes) == 1:
		l.warn(fmt.Sprintf("all %d are on one node, and lost with it", ready),
			"have a second node that they may run on, and delete one of the pods")
	}
	if missing := f.admin.is.missing; len(missing) > 0 {
		l.fail("not heard by another replica: "+strings.Join(missing, ", ")+": what it knows of proxies the other does not",
			"have NetworkPolicies let the replicas reach each other at port 5682")
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

// lost returns the replicas on nodes that the API server has lost, each with the reason.
func (f *facts) lost() (notes []string) {
	for i := range f.plane.Replicas {
		if pod := &f.plane.Replicas[i]; cluster.Lost(pod) {
			notes = append(notes, pod.Name+": "+cluster.NotReady(pod, f.node(pod.Spec.NodeName)))
		}
	}
	return sorted(notes)
}

// mend returns the advice about replicas. Advice that asks their nodes does not help while these are lost.
func (f *facts) mend(otherwise string) string {
	if len(f.lost()) == 0 {
		return otherwise
	}
	return "bring the nodes back (kubectl get nodes). Kubernetes makes their replicas on other nodes after 5 minutes, if there are any"
}

// health says which health checks of a replica fail.
var health = check{"health", (*facts).needsAnswer, func(f *facts, l *lines) {
	levels := map[adminv1.HealthCheck_Status]Level{adminv1.HealthCheck_FAILED: Fail, adminv1.HealthCheck_WARNING: Warn}
	for _, c := range f.admin.is.health {
		if level := levels[c.GetStatus()]; level != "" {
			l.add(level, c.GetGroup()+"/"+c.GetName()+": "+c.GetReason(), "docs/guides/health.md explains each check")
		}
	}
	l.ok(printer.Plural(len(f.admin.is.health), "check") + " of the control plane pass")
}}

// sorted returns values in order, each once.
func sorted(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }
