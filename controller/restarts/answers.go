package restarts

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// maxGrants is the maximum number of grants of a workload in one response.
const maxGrants = 100

// Answers answers requests of the admin API and of other replicas from Restarts. Errors are gRPC statuses. All fields
// are required.
type Answers struct {
	*Restarts
	// Replica is the name of this replica.
	Replica string
	Others  Others
}

// Others are the other replicas. *replicas.Peers implements it.
type Others interface {
	// Decisions returns the latest decisions of leading replicas, and the names of the replicas that did not answer.
	Decisions(context.Context, *peerv1.ListDecisionsRequest) (decided []*peerv1.ListDecisionsPart, missing []string)
	// Missing returns the names of disconnected replicas.
	Missing() []string
}

// Decisions returns the latest decisions of this replica, nil if it does not lead.
func (a *Answers) Decisions(of *peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart {
	return a.Round().message(a.Replica, of)
}

func (r *Round) message(replica string, of *peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart {
	if r == nil {
		return nil
	}
	b := r.Breaker
	m := &peerv1.ListDecisionsPart{Round: &adminv1.RestartRound{
		Replica: replica, Epoch: r.Epoch, At: timestamppb.New(r.At),
		Mode:        string(cmp.Or(r.Settings.Mode, restartbudget.Enforce)),
		BreakerOpen: b.Open, Failed: uint32(b.Held), Workloads: uint32(b.Workloads), Guarded: uint32(b.Guarded),
		BreakerNamespace: b.Alone.Name, BreakerNamespaceFailed: uint32(b.Alone.Held), Hold: string(r.Hold),
	}}
	for _, n := range r.Unheld {
		m.GetRound().Unheld = append(m.GetRound().GetUnheld(), &adminv1.UnheldNode{
			Name: n.Name, Restarts: uint32(n.Restarts), Last: timestamppb.New(n.Last), Namespace: n.Pod.Namespace,
			Pod: n.Pod.Name, Container: n.Container,
		})
	}
	for i := range r.Decisions {
		d := &r.Decisions[i]
		if namespace := of.GetNamespace(); namespace != "" && namespace != d.Request.Workload.Namespace {
			continue
		}
		if uid := of.GetPodUid(); uid != "" && uid != d.Request.PodUID {
			continue
		}
		m.Decisions = append(m.Decisions, &adminv1.RestartDecision{
			PodUid: d.Request.PodUID, Container: d.Request.Name,
			Verdict: string(d.Verdict), Reason: string(d.Reason), DryRun: d.DryRun,
			Count: uint32(d.Count), Limit: uint32(d.Limit), Source: d.Source, Text: d.String(), Needs: d.Needs(),
		})
	}
	return m
}

// decided has the leader's latest decisions.
type decided struct {
	round   *adminv1.RestartRound // nil if no leader has answered
	of      map[restartbudget.ContainerKey]*adminv1.RestartDecision
	missing []string
}

// decided asks all replicas for the leader's decisions. If two replicas claim to lead, the one with the higher epoch is
// used.
func (a *Answers) decided(ctx context.Context, of *peerv1.ListDecisionsRequest) decided {
	all, missing := a.Others.Decisions(ctx, of)
	all = append(all, a.Decisions(of))
	newest := slices.MaxFunc(all, func(a, b *peerv1.ListDecisionsPart) int {
		return cmp.Compare(a.GetRound().GetEpoch(), b.GetRound().GetEpoch())
	})
	missing = slices.Sorted(slices.Values(slices.Concat(missing, a.Others.Missing())))
	d := decided{newest.GetRound(), map[restartbudget.ContainerKey]*adminv1.RestartDecision{}, slices.Compact(missing)}
	for _, decision := range newest.GetDecisions() {
		d.of[restartbudget.ContainerKey{PodUID: decision.GetPodUid(), Name: decision.GetContainer()}] = decision
	}
	return d
}

// why describes the leader's decision on a failing container.
func (d *decided) why(decision *adminv1.RestartDecision) string {
	switch {
	case decision != nil:
		return decision.GetText()
	case d.round == nil:
		return "no leader of the control plane has answered"
	}
	return "the leader has not decided yet"
}

// ListRestarts implements adminv1.AdminServiceServer.
func (a *Answers) ListRestarts(
	ctx context.Context, r *adminv1.ListRestartsRequest,
) (*adminv1.ListRestartsResponse, error) {
	namespace := r.GetNamespace()
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	d := a.decided(ctx, &peerv1.ListDecisionsRequest{Namespace: namespace})
	response := &adminv1.ListRestartsResponse{Round: d.round, Tail: &adminv1.Tail{MissingReplicas: d.missing}}
	namespaces, unhelpful := map[string]bool{}, map[string]bool{}
	for _, p := range s.pods {
		namespaces[p.Namespace] = true
		if namespace != "" && p.Namespace != namespace {
			continue
		}
		response.Guarded += uint32(len(p.Containers))
		if s.waits(p) {
			unhelpful[p.workload.String()] = true
		}
		for i := range p.Containers {
			if m := s.restart(p, p.Containers[i].Name, d); m != nil {
				response.Restarts = append(response.Restarts, m)
			}
		}
	}
	if namespace != "" && !namespaces[namespace] {
		return nil, status.Errorf(codes.NotFound, "namespace %.100q has no guarded pod%s",
			namespace, mesh.DidYouMean(namespace, slices.Collect(maps.Keys(namespaces))))
	}
	total := len(response.GetRestarts())
	response.Restarts = response.GetRestarts()[:min(total, adminv1.MaxListed)]
	response.Tail.LeftOut = uint32(total - len(response.GetRestarts()))
	response.Unhelpful = slices.Sorted(maps.Keys(unhelpful))
	response.Unhelpful = response.GetUnhelpful()[:min(len(unhelpful), adminv1.MaxListed)]
	return response, nil
}

// ExplainRestart implements adminv1.AdminServiceServer.
func (a *Answers) ExplainRestart(
	ctx context.Context, r *adminv1.ExplainRestartRequest,
) (*adminv1.ExplainRestartResponse, error) {
	if r.GetPod() == "" {
		return nil, status.Error(codes.InvalidArgument, "pod: must not be empty")
	}
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	p, err := a.find(ctx, s, r.GetNamespace(), r.GetPod())
	if err != nil {
		return nil, err
	}
	d := a.decided(ctx, &peerv1.ListDecisionsRequest{PodUid: p.uid})
	state, agent := a.agent(p.Key)
	response := &adminv1.ExplainRestartResponse{
		Namespace: p.Namespace, Pod: p.Name, Node: p.Node, Ready: p.Ready, Agent: state, AgentVersion: agent.GetVersion(),
		AgentOutdated: agent != nil && !slices.Contains(agent.GetFeatures(), agentv1.FeatureRestartGrants),
		Workload:      s.workload(p), Round: d.round, MissingReplicas: d.missing,
	}
	if !response.GetAgentOutdated() && agent != nil {
		response.Hold = string(a.holdOf(agent))
	}
	for i := range p.Containers {
		response.Containers = append(response.Containers, s.container(p, p.Containers[i], d))
	}
	if w := response.GetWorkload(); len(w.GetGrants()) > maxGrants {
		w.LeftOut = uint32(len(w.GetGrants()) - maxGrants)
		w.Grants = w.GetGrants()[:maxGrants]
	}
	return response, nil
}

// holdOf returns how an agent holds failures. Agents of earlier releases support one way only.
func (r *Restarts) holdOf(agent *adminv1.Agent) mesh.LivenessHold {
	if slices.Contains(agent.GetFeatures(), agentv1.FeatureLivenessHold) {
		return r.Hold()
	}
	return mesh.HoldErrored
}

// find returns the guarded pod with this name.
func (a *Answers) find(ctx context.Context, s *snapshot, namespace, name string) (namedPod, error) {
	var found []namedPod
	var names, namespaces []string
	for _, p := range s.pods {
		if namespace != "" && p.Namespace != namespace {
			continue
		}
		names = append(names, p.Name)
		if p.Name == name {
			found, namespaces = append(found, p), append(namespaces, p.Namespace)
		}
	}
	switch len(found) {
	case 0:
		return namedPod{}, a.notGuarded(ctx, namespace, name, names)
	case 1:
		return found[0], nil
	}
	return namedPod{}, status.Errorf(codes.InvalidArgument, "pod %.100q is in the namespaces %s: name one",
		name, strings.Join(namespaces, ", "))
}
