package restarts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/restartbudget"
)

const (
	// heldMemory is how long a released container is still treated as held, since the status of its pod may arrive
	// late.
	heldMemory = time.Minute
	// maxUnheldNodes bounds the nodes with a name in metrics and answers. Further nodes count as otherNodes.
	maxUnheldNodes = 100
	otherNodes     = "other"
	// maxSuspects bounds the restarts that wait for a request to the API server.
	maxSuspects = 256
)

// unheld finds restarts without a grant of containers whose failures are held. The kubelet of such a container counts
// answers that it should discard.
type unheld struct {
	*Restarts

	// last returns the last grant of a container that the leader knows. Its watch may lack it.
	last     func(restartbudget.ContainerKey) (restartbudget.Grant, bool)
	hold     mesh.LivenessHold // how failures are held
	held     map[restartbudget.ContainerKey]*heldContainer
	suspects chan suspect

	mu    sync.Mutex
	nodes map[string]*UnheldNode
}

// UnheldNode is a node with restarts that unheld has found.
type UnheldNode struct {
	Name     string
	Restarts int
	Last     time.Time
	// Pod and Container of the latest restart.
	Pod       watch.Key
	Container string
}

// heldContainer is a container whose failures are held back.
type heldContainer struct {
	pod watch.Key
	// The restart counts when the failures began to be held.
	restarts, sidecarRestarts int
	// session of the agent, zero if the agent holds failures also without a session.
	session time.Time
	seen    time.Time
}

// ending is how the previous instance of a restarted container ended.
type ending struct {
	began            time.Time // by the clock of the node; zero without a previous instance
	exitCode, signal int32
	reason           string
}

func endingOf(t *corev1.ContainerStateTerminated) ending {
	if t == nil {
		return ending{}
	}
	return ending{t.StartedAt.Time, t.ExitCode, t.Signal, intern(t.Reason)}
}

// Exit codes of containers.
const (
	exitKilled     = 128 + 9
	exitTerminated = 128 + 15
	exitUnknown    = 255 // the runtime lost the container, as after a reboot of its node
)

// bySignal reports whether the container was ended by a signal that the kubelet sends. A program that handles SIGTERM
// has an exit code of its own.
func (e ending) bySignal() bool {
	return e.reason == "Error" && (e.signal == 9 || e.signal == 15 || e.exitCode == exitKilled ||
		e.exitCode == exitTerminated)
}

// mayBeKilled reports whether the kubelet may have killed the container because of its liveness probe.
func (e ending) mayBeKilled() bool {
	return e.reason != "OOMKilled" && e.exitCode != exitUnknown
}

// suspect is a restart that may have happened without a grant.
type suspect struct {
	restartbudget.ContainerKey

	pod  watch.Key
	node string
	last ending
}

func newUnheld(r *Restarts, last func(restartbudget.ContainerKey) (restartbudget.Grant, bool)) *unheld {
	return &unheld{
		Restarts: r, last: last, held: map[restartbudget.ContainerKey]*heldContainer{},
		suspects: make(chan suspect, maxSuspects), nodes: map[string]*UnheldNode{},
	}
}

// look finds restarts of containers that were held before, and updates the set of held containers.
func (u *unheld) look(ctx context.Context, now time.Time, liveness map[watch.Key]agentv1.ReportedLiveness) {
	u.beginAnew(u.Hold())
	settings, sessions := *u.settings.Load(), u.newSessions()
	for id, h := range u.held {
		p := u.cluster.pods.Get(h.pod)
		i := p.index(id)
		switch {
		case i < 0 || p.Terminating || p.mode(settings) == agentv1.Restarts_NATIVE || h.session != sessions.of(h.pod):
			delete(u.held, id)
		case p.Containers[i].Restarts > h.restarts:
			delete(u.held, id)
			u.restarted(ctx, id, h, p, p.instances[i].last)
		case now.Sub(h.seen) > heldMemory:
			delete(u.held, id)
		}
	}
	for pod, said := range liveness {
		if p := u.cluster.pods.Get(pod); p != nil {
			u.take(now, pod, p, said.Report.GetHeld(), sessions)
		}
	}
}

// take updates the set of held containers from an agent's report.
func (u *unheld) take(now time.Time, key watch.Key, p *pod, failing []*agentv1.HeldLiveness, sessions *sessions) {
	for _, m := range failing {
		id := restartbudget.ContainerKey{PodUID: p.uid, Name: m.GetContainer()}
		i := p.index(id)
		switch h := u.held[id]; {
		case i < 0:
		case m.GetTold() || m.GetGrant() != "":
			delete(u.held, id)
		case h != nil:
			h.seen = now
		case p.instances[i].started:
			u.held[id] = &heldContainer{key, p.Containers[i].Restarts, p.sidecarRestarts, sessions.of(key), now}
		}
	}
}

// beginAnew removes the found nodes if the way to hold failures has changed.
func (u *unheld) beginAnew(hold mesh.LivenessHold) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.hold != hold {
		u.hold = hold
		clear(u.nodes)
	}
}

// index returns the index of a guarded container of the pod, -1 if it is not one.
func (p *pod) index(id restartbudget.ContainerKey) int {
	if p == nil || p.ended || p.uid != id.PodUID {
		return -1
	}
	return slices.IndexFunc(p.Containers, func(c restartbudget.Container) bool { return c.Name == id.Name })
}

// sessions finds the sessions of agents. Without a session, some agents pass failures on to the kubelet.
type sessions struct {
	*Restarts

	agents map[mesh.ID]*adminv1.Agent // nil before they are needed
}

func (r *Restarts) newSessions() *sessions { return &sessions{Restarts: r} }

// of returns the start of the agent's session, zero for a pod whose agent holds failures even without a session.
func (s *sessions) of(pod watch.Key) time.Time {
	s.mu.Lock()
	away := s.policies[pod].GetWhenAway().GetPolicy()
	s.mu.Unlock()
	if away == agentv1.WhenAway_HOLD {
		return time.Time{}
	}
	if s.agents == nil {
		s.agents = s.o.Agents().Agents()
	}
	return s.agents[s.o.Proxy(pod)].GetConnectedSince().AsTime() // 1970 without a session
}

// restarted checks whether a restart had a grant. It ignores restarts with a grant, whatever its outcome, restarts
// without a known end, and restarts together with the sidecar: then the kubelet counts broken connections as failures,
// or a reboot of the node has restarted all containers.
func (u *unheld) restarted(ctx context.Context, id restartbudget.ContainerKey, h *heldContainer, p *pod, last ending) {
	if p.sidecarRestarts != h.sidecarRestarts || !last.mayBeKilled() || !p.restartedAll.Before(last.began) ||
		u.wasGranted(h, id) {
		return
	}
	select {
	case u.suspects <- suspect{id, h.pod, p.Node, last}:
	default:
		u.o.Logger.WarnContext(ctx, "too many restarts at once, skipping the check of one",
			"namespace", h.pod.Namespace, "pod", h.pod.Name, "container", id.Name)
	}
}

// wasGranted reports whether the container got a grant while it was held.
func (u *unheld) wasGranted(h *heldContainer, id restartbudget.ContainerKey) bool {
	if g, is := u.last(id); is && g.ID.Restarts >= h.restarts {
		return true
	}
	u.Restarts.mu.Lock()
	defer u.Restarts.mu.Unlock()
	for _, g := range u.granted[h.pod] {
		if g.ID.ContainerKey == id && g.ID.Restarts >= h.restarts {
			return true
		}
	}
	return false
}

// run finds the kubelet's reason for each suspect until ctx ends.
func (u *unheld) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-u.suspects:
			if why := u.kubeletReason(ctx, s); why != "" {
				u.tell(ctx, time.Now(), s, why)
			}
		}
	}
}

// tell counts a restart, adds its node to the next round, and records an event.
func (u *unheld) tell(ctx context.Context, now time.Time, s suspect, why string) {
	u.metrics.unheld.WithLabelValues(u.count(now, s)).Inc()
	u.wakeLead()
	u.o.Logger.WarnContext(ctx, "container restarted without a grant while its failure was held back",
		"node", s.node, "namespace", s.pod.Namespace, "pod", s.pod.Name, "container", s.Name, "why", why)
	e := aboutContainer(s.pod, s.ContainerKey)
	e.Reason, e.Action = podcause.RestartUnheld, actionRestart
	e.Note = fmt.Sprintf("container %s has restarted without a grant while its failure was held back: %s. The kubelet of node %s counts answers that it should discard: sondectl check --installed says what to do", s.Name, why, s.node)
	u.o.Record(e)
}

// count adds a restart to its node, and returns the node's name for metrics.
func (u *unheld) count(now time.Time, s suspect) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	name := s.node
	if u.nodes[name] == nil && len(u.nodes) >= maxUnheldNodes {
		name = otherNodes
	}
	n := u.nodes[name]
	if n == nil {
		n = &UnheldNode{Name: name}
		u.nodes[name] = n
	}
	n.Restarts++
	n.Last, n.Pod, n.Container = now, s.pod, s.Name
	return name
}

// all returns the nodes, sorted by name.
func (u *unheld) all() []UnheldNode {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []UnheldNode
	for _, n := range u.nodes {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b UnheldNode) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
