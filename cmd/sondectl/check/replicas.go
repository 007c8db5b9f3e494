package check

import (
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// controlPlane says whether a replica answers. Without that, the checks that need its answer have no lines.
func controlPlane(f *facts) []Line {
	const name = "control plane"
	switch {
	case f.admin.err == nil:
		return []Line{{Name: name, Level: OK, Text: "a replica answers"}}
	case exit.Code(f.admin.err) != exit.Unreachable:
		return []Line{unread(name, f.admin.err)}
	}
	return []Line{{
		Name: name, Level: Fail, Text: f.admin.err.Error(), Do: fmt.Sprintf("kubectl -n %s logs deployment/%s; agents, the webhook and health are not checked further", f.namespace, serviceName),
	}}
}

// replicas says whether all replicas are Ready, on different nodes, and hear each other.
func replicas(f *facts) []Line {
	const name = "replicas"
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
		if why := cluster.NotReady(pod); why != "" {
			notReady = append(notReady, pod.Name+": "+why)
		}
	}
	var lines []Line
	desired := there
	switch {
	case f.deployment.err != nil && !apierrors.IsNotFound(f.deployment.err): // others than the chart may have made the pods
		lines = append(lines, unread(name, f.deployment.err))
	case f.deployment.err == nil && f.deployment.is.Spec.Replicas != nil:
		desired = max(there, int(*f.deployment.is.Spec.Replicas))
	}
	switch ready := there - len(notReady); {
	case ready < desired:
		lines = append(lines, Line{
			Name: name, Level: Fail, Text: fmt.Sprintf("%d of %d Ready", ready, desired), Notes: sorted(notReady),
			Do: fmt.Sprintf("kubectl -n %s describe deployment,pods says why", f.namespace),
		})
	case desired == 1:
		lines = append(lines, Line{
			Name: name, Level: Warn, Text: "there is one alone: while it is away, pods that are to be injected cannot be made", Do: "helm upgrade with --set replicas=2",
		})
	case len(nodes) == 1:
		lines = append(lines, Line{
			Name: name, Level: Warn, Text: fmt.Sprintf("all %d are on one node, and lost with it", ready), Do: "have a second node that they may run on, and delete one of the pods",
		})
	}
	lines = append(lines, peers(name, f)...)
	if len(lines) > 0 {
		return lines
	}
	return []Line{{Name: name, Level: OK, Text: fmt.Sprintf("%d Ready, on %s", desired, printer.Plural(len(nodes), "node"))}}
}

// peers says which replicas are not heard by the one that was asked.
func peers(name string, f *facts) []Line {
	if missing := f.admin.is.missing; len(missing) > 0 {
		return []Line{{
			Name: name, Level: Fail, Text: "not heard by another replica: " + strings.Join(missing, ", ") + ": what it knows of proxies the other does not",
			Do: "have NetworkPolicies let the replicas reach each other at port 5682",
		}}
	}
	return nil
}

// health says which health checks of a replica fail.
func health(f *facts) []Line {
	const name = "health"
	if f.admin.err != nil {
		return nil // controlPlane says it
	}
	var lines []Line
	for _, c := range f.admin.is.health {
		level := map[adminv1.HealthCheck_Status]Level{adminv1.HealthCheck_FAILED: Fail, adminv1.HealthCheck_WARNING: Warn}[c.GetStatus()]
		if level != "" {
			lines = append(lines, Line{Name: name, Level: level, Text: c.GetGroup() + "/" + c.GetName() + ": " + c.GetReason(), Do: "docs/guides/health.md explains each check"})
		}
	}
	if len(lines) > 0 {
		return lines
	}
	return []Line{{Name: name, Level: OK, Text: printer.Plural(len(f.admin.is.health), "check") + " of the control plane pass"}}
}

func sorted(values []string) []string { return slices.Sorted(slices.Values(values)) }
