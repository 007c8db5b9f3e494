package watch

import (
	"context"
	"slices"
	"sync"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// askEvery is how often agents are asked whether they hang, for all viewers.
const askEvery = 15 * time.Second

// hangs keeps the agents that did not answer the last ping.
type hangs struct {
	// ask returns the proxies whose agents do not answer in time, and the replicas that do not.
	ask func(context.Context) (unresponsive map[mesh.ID]bool, missing []string)

	// stopping ends when agents must not be asked any longer.
	stopping context.Context //nolint:containedctx // of the server
	running  sync.WaitGroup

	mu    sync.Mutex
	asked time.Time // zero before the first time
	// sessions are the sessions of the agents that hang, by their beginning.
	sessions map[mesh.ID]time.Time
	missing  []string
}

// mark sets which agents hang in a list of proxies. It asks agents now and then. It waits for the answers if it has
// no recent ones, and returns for how long.
func (h *hangs) mark(ctx context.Context, l list) (waited time.Duration) {
	h.mu.Lock()
	age := time.Since(h.asked)
	if age >= askEvery {
		h.asked = time.Now()
	}
	h.mu.Unlock()
	if age >= askEvery && h.stopping.Err() == nil {
		began := sessionsOf(l)
		if age < 2*askEvery {
			h.running.Go(func() { h.answer(h.stopping, began) }) // it has a limit of its own
		} else {
			asked := time.Now()
			h.answer(ctx, began)
			waited = time.Since(asked)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range l.entries {
		p := e.(*adminv1.Proxy) //nolint:forcetypeassert // as ListProxies returns it
		agent := p.GetAgent()
		began, hangs := h.sessions[mesh.MakeID(p.GetMesh(), p.GetName())]
		if agent != nil && hangs && began.Equal(agent.GetConnectedSince().AsTime()) {
			agent.Unresponsive = true
		}
	}
	tail := l.rest.(*adminv1.ListProxiesResponse).GetTail() //nolint:forcetypeassert // as above
	for _, name := range h.missing {
		if !slices.Contains(tail.GetMissingReplicas(), name) {
			tail.MissingReplicas = append(tail.MissingReplicas, name)
		}
	}
	slices.Sort(tail.GetMissingReplicas())
	return waited
}

// answer asks agents, and keeps the sessions of those that hang.
func (h *hangs) answer(ctx context.Context, began map[mesh.ID]time.Time) {
	unresponsive, missing := h.ask(ctx)
	sessions := map[mesh.ID]time.Time{}
	for id := range unresponsive {
		sessions[id] = began[id]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions, h.missing = sessions, missing
}

// sessionsOf returns when the sessions of the agents in a list began.
func sessionsOf(l list) map[mesh.ID]time.Time {
	all := map[mesh.ID]time.Time{}
	for _, e := range l.entries {
		p := e.(*adminv1.Proxy) //nolint:forcetypeassert // as ListProxies returns it
		all[mesh.MakeID(p.GetMesh(), p.GetName())] = p.GetAgent().GetConnectedSince().AsTime()
	}
	return all
}
