package restarts

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// snapshot is a replica's state of guarded pods, whether it leads or not.
type snapshot struct {
	pods     []namedPod // sorted by namespace and name
	liveness map[watch.Key]agentv1.ReportedLiveness
	in       restartbudget.Input
	grants   map[watch.Key]*grant
	newest   map[restartbudget.ContainerKey]*grant
	state    *restartbudget.State
}

// namedPod is a guarded pod and its name.
type namedPod struct {
	watch.Key
	*pod
}

// snapshot returns the current state. The error is a gRPC status.
func (r *Restarts) snapshot() (*snapshot, error) {
	if err := r.missing(); err != nil {
		return nil, status.Errorf(codes.Unavailable,
			"the control plane has not read all objects that decide about restarts yet: %v", err)
	}
	s := &snapshot{liveness: r.liveness(), grants: r.allGrants(), newest: map[restartbudget.ContainerKey]*grant{}}
	s.in, _ = r.cluster.input(s.liveness)
	s.state = restartbudget.Restore(time.Now(), grantsOf(s.grants))
	for _, g := range s.grants {
		if before := s.newest[g.ID.ContainerKey]; before == nil || before.ID.Before(g.ID) {
			s.newest[g.ID.ContainerKey] = g
		}
	}
	for _, key := range r.cluster.pods.Keys() {
		if p := r.cluster.pods.Get(key); p.guarded() {
			s.pods = append(s.pods, namedPod{key, p})
		}
	}
	slices.SortFunc(s.pods, func(a, b namedPod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return s, nil
}

// waits reports whether the pod's workload gets no more grants, because restarts with the pod's template did not help.
func (s *snapshot) waits(p namedPod) bool { return s.state.Waits(p.workload, p.Template) }

// failing returns the failure of a container with its start, nil if its last check has not failed.
func (s *snapshot) failing(p namedPod, container string) (*agentv1.HeldLiveness, *timestamppb.Timestamp) {
	said := s.liveness[p.Key]
	for _, h := range said.Report.GetHeld() {
		if h.GetContainer() == container {
			return h, timestamppb.New(said.Since(h))
		}
	}
	return nil, nil
}

// restart returns nil for a container that neither fails nor restarts.
func (s *snapshot) restart(p namedPod, container string, d decided) *adminv1.Restart {
	failing, since := s.failing(p, container)
	key := restartbudget.ContainerKey{PodUID: p.uid, Name: container}
	m := &adminv1.Restart{
		Namespace: p.Namespace, Pod: p.Name, Container: container, Workload: p.workload.String(),
		Failure: failing.GetReason(), Decision: d.of[key],
	}
	g := s.newest[key]
	switch {
	case g != nil && g.Outcome == restartbudget.Open && !g.DryRun:
		m.State, m.Since = adminv1.Restart_GRANTED, timestamppb.New(g.Granted)
		m.Why = "a restart is granted, and the kubelet receives the failure"
	case failing != nil && failing.GetGrant() == "":
		m.State, m.Since, m.Why = adminv1.Restart_WAITING, since, d.why(m.GetDecision())
		if m.GetDecision().GetReason() == string(restartbudget.ReasonUnhelpful) {
			m.State = adminv1.Restart_UNHELPFUL
		}
	case g != nil && g.Ended.IsZero() && !g.Spent.IsZero():
		m.State, m.Since, m.Why = adminv1.Restart_RESTARTING, timestamppb.New(g.Spent), restartingText(p, g)
	case failing != nil: // by a grant that the watch no longer has
		m.State, m.Since, m.Why = adminv1.Restart_GRANTED, since, "the kubelet receives the failure"
	default:
		return nil
	}
	return m
}

func restartingText(p namedPod, g *grant) string {
	if g.Judged.IsZero() {
		return "the container has restarted, and its liveness probe has not been checked since"
	}
	if !p.Ready {
		return "the container has restarted, and its pod is not Ready yet"
	}
	return "the container has restarted"
}

// container returns the state of a container of a pod.
func (s *snapshot) container(p namedPod, c restartbudget.Container, d decided) *adminv1.GuardedContainer {
	m := &adminv1.GuardedContainer{
		Name: c.Name, Restarts: uint32(c.Restarts), Check: adminv1.GuardedContainer_UNKNOWN,
		Restart: s.restart(p, c.Name, d),
	}
	switch failing, since := s.failing(p, c.Name); {
	case failing != nil:
		m.Check, m.Since, m.Failure = adminv1.GuardedContainer_FAILS, since, failing.GetReason()
	case slices.Contains(s.liveness[p.Key].Report.GetPassing(), c.Name):
		m.Check = adminv1.GuardedContainer_PASSES
	}
	return m
}

// workload returns the state of a pod's workload.
func (s *snapshot) workload(p namedPod) *adminv1.RestartWorkload {
	m := &adminv1.RestartWorkload{Name: p.workload.String(), Unhelpful: s.waits(p)}
	w := s.in.Workloads[p.workload]
	if w == nil { // the pod is newer
		return m
	}
	restarting := map[string]bool{}
	for _, g := range s.grants {
		if g.Workload != p.workload {
			continue
		}
		shown := grantMessage(g, hasPod(s.in, &g.Grant))
		if m.Grants = append(m.Grants, shown); shown.GetInProgress() {
			m.InProgress++
			restarting[g.ID.PodUID] = true
		}
	}
	slices.SortFunc(m.GetGrants(), compareShown)
	is := w.Standing(p.workload, restarting)
	m.Replicas, m.Available = uint32(is.Replicas), uint32(is.Available)
	m.MaxUnavailable, m.Source = uint32(is.MaxUnavailable), is.Source
	return m
}

// compareShown orders grants in progress first, then newest first.
func compareShown(a, b *adminv1.RestartGrant) int {
	switch {
	case a.GetInProgress() && !b.GetInProgress():
		return -1
	case b.GetInProgress() && !a.GetInProgress():
		return 1
	}
	return cmp.Or(
		b.GetGranted().AsTime().Compare(a.GetGranted().AsTime()), cmp.Compare(a.GetPod(), b.GetPod()),
		cmp.Compare(a.GetContainer(), b.GetContainer()), cmp.Compare(b.GetRestarts(), a.GetRestarts()),
	)
}

// grantMessage returns a grant for the admin API. there says that its pod exists, so that the grant counts against the
// workload's budget until it has ended.
func grantMessage(g *grant, there bool) *adminv1.RestartGrant {
	at := func(t time.Time) *timestamppb.Timestamp {
		if t.IsZero() {
			return nil
		}
		return timestamppb.New(t)
	}
	return &adminv1.RestartGrant{
		Pod: g.pod.Name, Container: g.ID.Name, Restarts: uint32(g.ID.Restarts), DryRun: g.DryRun, Outcome: string(g.Outcome),
		InProgress: there && g.Ended.IsZero(),
		Granted:    at(g.Granted), Spent: at(g.Spent), Ended: at(g.Ended), Judged: at(g.Judged),
	}
}
