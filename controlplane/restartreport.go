package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/peers"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// restartReport answers what sondectl asks about restarts. What the leader has decided it asks the other replicas for.
type restartReport struct {
	known interface {
		Report() (*restarts.Report, error)
		Look(ctx context.Context, namespace, name string) ([]restarts.Unguarded, error)
		Release(ctx context.Context, workload restartbudget.WorkloadID) (int, error)
	}
	// here has what this replica has decided, others what other replicas have, and which have not answered.
	here   func(peers.DecisionFilter) peers.Decisions
	others func(context.Context, peers.DecisionFilter) (decided []peers.Decisions, missing []string)
	// agent returns the state of the agent of a pod, and the agent if it has a session.
	agent func(pod watch.Key) (*adminv1.AgentState, *adminv1.Agent)
}

var _ admin.Restarts = (*restartReport)(nil)

func (c *cluster) restartReport() *restartReport {
	return &restartReport{known: c.controller.Restarts, here: c.decisions, others: c.cp.peers.Decisions, agent: c.agentOf}
}

func (c *cluster) agentOf(pod watch.Key) (*adminv1.AgentState, *adminv1.Agent) {
	p := c.controller.Cluster.PodNamed(pod)
	if p == nil {
		return nil, nil
	}
	id := mesh.MakeID(p.Mesh, pod.Name+"."+pod.Namespace)
	return c.cp.agents.States()[id], c.cp.agents.Agents()[id]
}

// report returns what is known here.
func (r *restartReport) report() (*restarts.Report, error) {
	report, err := r.known.Report()
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "the control plane has not read what decides about restarts yet: %v", err)
	}
	return report, nil
}

// decided is what the leader has decided last.
type decided struct {
	round   *adminv1.RestartRound // nil if no replica that leads has answered
	of      map[restartbudget.ContainerKey]*adminv1.RestartDecision
	missing []string
}

// decided asks all replicas. Of two that lead the one with the higher epoch does.
func (r *restartReport) decided(ctx context.Context, filter peers.DecisionFilter) decided {
	all, missing := r.others(ctx, filter)
	if here := r.here(filter); here.Round != nil {
		all = append(all, here)
	}
	d := decided{of: map[restartbudget.ContainerKey]*adminv1.RestartDecision{}, missing: missing}
	if len(all) == 0 {
		return d
	}
	newest := slices.MaxFunc(all, func(a, b peers.Decisions) int { return cmp.Compare(a.Round.GetEpoch(), b.Round.GetEpoch()) })
	d.round = newest.Round
	for _, decision := range newest.All {
		d.of[restartbudget.ContainerKey{PodUID: decision.GetPodUid(), Name: decision.GetContainer()}] = decision
	}
	return d
}

// List implements admin.Restarts.
func (r *restartReport) List(ctx context.Context, namespace string) (*adminv1.ListRestartsResponse, error) {
	report, err := r.report()
	if err != nil {
		return nil, err
	}
	d := r.decided(ctx, peers.DecisionFilter{Namespace: namespace})
	response := &adminv1.ListRestartsResponse{Round: d.round, Tail: &adminv1.Tail{MissingReplicas: d.missing}}
	namespaces, unhelpful := map[string]bool{}, map[string]bool{}
	for i := range report.Pods {
		pod := &report.Pods[i]
		namespaces[pod.Namespace] = true
		if namespace != "" && pod.Namespace != namespace {
			continue
		}
		response.Guarded += uint32(len(pod.Containers))
		if pod.Unhelpful {
			unhelpful[pod.Workload.String()] = true
		}
		for j := range pod.Containers {
			if m := d.restart(pod, &pod.Containers[j]); m != nil {
				response.Restarts = append(response.Restarts, m)
			}
		}
	}
	if namespace != "" && !namespaces[namespace] {
		return nil, status.Errorf(codes.NotFound, "namespace %.100q has no guarded pod%s", namespace, mesh.DidYouMean(namespace, slices.Collect(maps.Keys(namespaces))))
	}
	response.Unhelpful = slices.Sorted(maps.Keys(unhelpful))
	return response, nil
}

// restart returns nil for a container that neither fails nor restarts.
func (d *decided) restart(pod *restarts.Pod, c *restarts.Container) *adminv1.Restart {
	m := &adminv1.Restart{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name, Workload: pod.Workload.String(), Failure: failureOf(c)}
	m.Decision = d.of[restartbudget.ContainerKey{PodUID: pod.UID, Name: c.Name}]
	g := c.Grant
	switch {
	case g != nil && g.Outcome == restartbudget.Open && !g.DryRun:
		m.State, m.Since, m.Why = adminv1.Restart_GRANTED, timestamppb.New(g.Granted), "a restart is granted, and the kubelet is told that the check fails"
	case c.Failing != nil && c.Failing.Grant == "":
		m.State, m.Since, m.Why = adminv1.Restart_WAITING, timestamppb.New(c.Failing.Since), d.why(m.GetDecision())
		if m.GetDecision().GetReason() == string(restartbudget.ReasonUnhelpful) {
			m.State = adminv1.Restart_UNHELPFUL
		}
	case g != nil && g.Ended.IsZero() && !g.Spent.IsZero():
		m.State, m.Since, m.Why = adminv1.Restart_RESTARTING, timestamppb.New(g.Spent), restartingText(pod, g)
	case c.Failing != nil: // by a grant that the watch does not have any more
		m.State, m.Since, m.Why = adminv1.Restart_GRANTED, timestamppb.New(c.Failing.Since), "the kubelet is told that the check fails"
	default:
		return nil
	}
	return m
}

func failureOf(c *restarts.Container) string {
	if c.Failing == nil {
		return ""
	}
	return c.Failing.Reason
}

// why says what the leader has decided on a container that asks.
func (d *decided) why(decision *adminv1.RestartDecision) string {
	switch {
	case decision != nil:
		return decision.GetText()
	case d.round == nil:
		return "no leader of the control plane answers that decides on restarts"
	}
	return "the leader has not decided yet"
}

func restartingText(pod *restarts.Pod, g *restartbudget.Grant) string {
	if g.Judged.IsZero() {
		return "the container has restarted, and its liveness probe has not been checked since"
	}
	if !pod.Ready {
		return "the container has restarted, and its pod is not Ready yet"
	}
	return "the container has restarted"
}

// Explain implements admin.Restarts.
func (r *restartReport) Explain(ctx context.Context, namespace, name string) (*adminv1.ExplainRestartResponse, error) {
	report, err := r.report()
	if err != nil {
		return nil, err
	}
	pod, err := r.find(ctx, report, namespace, name)
	if err != nil {
		return nil, err
	}
	d := r.decided(ctx, peers.DecisionFilter{PodUID: pod.UID})
	state, agent := r.agent(pod.Key)
	response := &adminv1.ExplainRestartResponse{
		Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Node, Ready: pod.Ready, Agent: state, AgentVersion: agent.GetVersion(),
		AgentOutdated: agent != nil && !slices.Contains(agent.GetFeatures(), agentv1.FeatureRestartGrants),
		Workload:      workloadMessage(pod, report.Workloads[pod.Workload]), Round: d.round, MissingReplicas: d.missing,
	}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		m := &adminv1.GuardedContainer{Name: c.Name, Restarts: uint32(c.Restarts), Check: adminv1.GuardedContainer_UNKNOWN, Failure: failureOf(c), Restart: d.restart(pod, c)}
		switch {
		case c.Failing != nil:
			m.Check, m.Since = adminv1.GuardedContainer_FAILS, timestamppb.New(c.Failing.Since)
		case c.Passing:
			m.Check = adminv1.GuardedContainer_PASSES
		}
		response.Containers = append(response.Containers, m)
	}
	return response, nil
}

// find returns the guarded pod of that name.
func (r *restartReport) find(ctx context.Context, report *restarts.Report, namespace, name string) (*restarts.Pod, error) {
	var found []*restarts.Pod
	var names, namespaces []string
	for i := range report.Pods {
		pod := &report.Pods[i]
		if namespace != "" && pod.Namespace != namespace {
			continue
		}
		names = append(names, pod.Name)
		if pod.Name == name {
			found, namespaces = append(found, pod), append(namespaces, pod.Namespace)
		}
	}
	switch len(found) {
	case 0:
		return nil, r.notGuarded(ctx, namespace, name, names)
	case 1:
		return found[0], nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "pod %.100q is in the namespaces %s: name one", name, strings.Join(namespaces, ", "))
}

// notGuarded says why a pod is not guarded, or that there is none. names are those of guarded pods.
func (r *restartReport) notGuarded(ctx context.Context, namespace, name string, names []string) error {
	pods, err := r.known.Look(ctx, namespace, name)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	where := "in any namespace"
	if namespace != "" {
		where = fmt.Sprintf("in namespace %.100q", namespace)
	}
	if len(pods) == 0 {
		return status.Errorf(codes.NotFound, "pod %.100q not found %s%s", name, where, mesh.DidYouMean(name, names))
	}
	var all []string
	for _, p := range pods {
		all = append(all, fmt.Sprintf("pod %s/%s is not guarded: %s", p.Namespace, p.Name, p.Why))
	}
	return status.Error(codes.FailedPrecondition, strings.Join(all, "; "))
}

func workloadMessage(pod *restarts.Pod, w *restarts.Workload) *adminv1.RestartWorkload {
	m := &adminv1.RestartWorkload{Name: pod.Workload.String(), Unhelpful: pod.Unhelpful}
	if w == nil {
		return m
	}
	m.Replicas, m.Available, m.MaxUnavailable, m.Source = uint32(w.Replicas), uint32(w.Available), uint32(w.MaxUnavailable), w.Source
	for i := range w.Grants {
		g := &w.Grants[i]
		if g.InProgress {
			m.InProgress++
		}
		m.Grants = append(m.Grants, grantMessage(g))
	}
	return m
}
