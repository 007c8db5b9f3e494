package generator

import (
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// serviceResources are the resources of one service, encoded once for all proxies that see it.
type serviceResources struct {
	sets      []*sharedSet // shared sets that contain these resources
	cluster   *resource.Resource
	endpoints *resource.Resource
	route     *resource.Resource   // nil for TCP
	listeners []*resource.Resource // listeners of meshview.Service.Listeners, for redirected proxies
	// local means that endpoints and listeners differ between nodes: nodes has them.
	local bool
	nodes map[string]*nodeResources
}

// changedService is a service whose resources were encoded again, and what else may differ besides its cluster,
// endpoints and route.
type changedService struct {
	id        mesh.ID
	resources *serviceResources
	own       bool // proxies' own outbound listeners may differ
	listeners bool
	flipped   bool     // Local has changed
	nodes     []string // nodes whose resources were encoded again
}

// encodeChanged encodes the services in the change that an attached proxy sees. A removed service is handled with the
// proxies, which no longer see it.
func (t *Translator) encodeChanged(c meshview.Change) []changedService {
	var changed []changedService
	for _, id := range c.Services {
		m, s := c.After.Service(id)
		if r := t.services[id]; r != nil && s != nil {
			_, before := c.Before.Service(id)
			flipped := r.local != s.Local
			listeners, nodes := t.encodeService(r, m, s)
			changed = append(changed, changedService{
				id: id, resources: r, listeners: listeners, nodes: nodes, flipped: flipped,
				own: before == nil || before.Protocol != s.Protocol || before.Affinity != s.Affinity || flipped,
			})
		}
	}
	for _, id := range c.Endpoints {
		_, s := c.After.Service(id)
		if r := t.services[id]; r != nil && s != nil {
			changed = append(changed, changedService{id: id, resources: r, nodes: t.encodeEndpoints(r, s)})
		}
	}
	return changed
}

// encodeService encodes everything but the endpoints. It reports whether a listener that is the same on all nodes
// differs, and returns the nodes whose resources were encoded.
func (t *Translator) encodeService(
	r *serviceResources, m *meshview.Mesh, s *meshview.Service,
) (differ bool, nodes []string) {
	whose := "service " + s.ID()
	before := r.cluster
	r.cluster = t.encodeOrKeep(before, s.Name, OutboundCluster(m, s), whose)
	if r.cluster != before && mutualTLS(m) {
		r.cluster = r.cluster.WithPeers(s.Identities)
	}
	if route := OutboundRoute(s); route != nil {
		r.route = t.encodeOrKeep(r.route, s.Name, route, whose)
	} else {
		r.route = nil
	}
	r.local = s.Local
	if s.Local {
		differ = len(r.listeners) > 0
		r.listeners = nil
		return differ, t.encodeNodes(r, s, true)
	}
	r.nodes = nil
	r.listeners, differ = t.encodeListeners(r.listeners, s)
	return differ, nil
}

// encodeListeners encodes the listeners of all addresses, and reports whether one differs from before.
func (t *Translator) encodeListeners(
	before []*resource.Resource, s *meshview.Service,
) (now []*resource.Resource, differ bool) {
	old := map[string]*resource.Resource{}
	for _, l := range before {
		old[l.Name] = l
	}
	addresses := s.Listeners()
	differ = len(addresses) != len(before)
	for _, at := range addresses {
		name := outboundListenerName(at)
		l := t.encodeOrKeep(old[name], name, ServiceListener(s, at), "service "+s.ID())
		differ = differ || l != old[name]
		if l != nil {
			now = append(now, l)
		}
	}
	return now, differ
}

// encodeEndpoints returns the nodes whose resources were encoded; none if the endpoints are the same on all nodes.
func (t *Translator) encodeEndpoints(r *serviceResources, s *meshview.Service) (nodes []string) {
	if s.Local {
		r.endpoints = nil
		return t.encodeNodes(r, s, false)
	}
	r.endpoints = t.encodeOrKeep(r.endpoints, s.Name, LoadAssignment(s), "service "+s.ID())
	return nil
}

// acquire returns the resources of a service for one more shared set. They are empty if s is nil, which never happens
// with a Builder's view.
func (t *Translator) acquire(m *meshview.Mesh, id mesh.ID, s *meshview.Service, set *sharedSet) *serviceResources {
	r := t.services[id]
	if r == nil {
		r = &serviceResources{}
		t.services[id] = r
		if s != nil {
			t.encodeService(r, m, s)
			t.encodeEndpoints(r, s)
		}
	}
	r.sets = append(r.sets, set)
	return r
}

func (t *Translator) release(id mesh.ID, set *sharedSet) {
	r := t.services[id]
	r.sets = slices.DeleteFunc(r.sets, func(s *sharedSet) bool { return s == set })
	if len(r.sets) == 0 {
		delete(t.services, id)
	}
}

// allButListeners returns the cluster, the endpoints and the route, if they are the same on all nodes.
func (r *serviceResources) allButListeners() []*resource.Resource {
	var there []*resource.Resource
	for _, one := range []*resource.Resource{r.cluster, r.endpoints, r.route} {
		if one != nil {
			there = append(there, one)
		}
	}
	return there
}
