package restarts

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// podAgents has agents of pods of the mesh default. A nil function does nothing.
type podAgents struct {
	said func() map[watch.Key]agentv1.ReportedLiveness
	tell func(pod watch.Key)
	old  []mesh.ID
	// state and agent are those returned for web-0 of the namespaces shop and data.
	state *adminv1.AgentState
	agent *adminv1.Agent
}

func (p podAgents) PodLiveness() map[mesh.ID]agentv1.ReportedLiveness {
	all := map[mesh.ID]agentv1.ReportedLiveness{"default/written": {Report: asking("app")}}
	if p.said != nil {
		for pod, said := range p.said() {
			all[proxyOf(pod)] = said
		}
	}
	return all
}

func (p podAgents) Lacking(string) []mesh.ID { return p.old }

func (p podAgents) WakeRestarts(proxy mesh.ID) {
	if p.tell != nil {
		pod, _ := podOf(proxy)
		p.tell(pod)
	}
}

func (p podAgents) States() map[mesh.ID]*adminv1.AgentState {
	return map[mesh.ID]*adminv1.AgentState{"default/web-0.shop": p.state, "default/web-0.data": p.state}
}

func (p podAgents) Agents() map[mesh.ID]*adminv1.Agent {
	return map[mesh.ID]*adminv1.Agent{"default/web-0.shop": p.agent, "default/web-0.data": p.agent}
}

func proxyOf(pod watch.Key) mesh.ID {
	return mesh.MakeID(mesh.DefaultMesh, mesh.ObjectDataplane(pod.Namespace, pod.Name))
}

// The agent of a Dataplane that a user has written has no pod: it gets no decisions, and its report is ignored.
func TestWrittenDataplane(t *testing.T) {
	r := newTestRestarts(t, Options{Agents: func() Agents { return podAgents{} }, Proxy: proxyOf})
	r.policies = map[watch.Key]*agentv1.Restarts{}
	if r.Of("default/web-1.shop") == nil {
		t.Error("Of() of a pod = nil")
	}
	if got := r.Of("default/written"); got != nil {
		t.Errorf("Of() of a written Dataplane = %v, want nil", got)
	}
	if diff := cmp.Diff(map[watch.Key]agentv1.ReportedLiveness{}, r.liveness()); diff != "" {
		t.Errorf("liveness (-want +got):\n%s", diff)
	}
}

// The agent of an unknown pod is not woken.
func TestTell(t *testing.T) {
	var told []watch.Key
	known := watch.Key{Namespace: "shop", Name: "web-1"}
	r := newTestRestarts(t, Options{
		Agents: func() Agents { return podAgents{tell: func(pod watch.Key) { told = append(told, pod) }} },
		Proxy: func(pod watch.Key) mesh.ID {
			if pod != known {
				return ""
			}
			return proxyOf(pod)
		},
	})
	r.tell(known)
	r.tell(watch.Key{Namespace: "shop", Name: "gone"})
	if diff := cmp.Diff([]watch.Key{known}, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
