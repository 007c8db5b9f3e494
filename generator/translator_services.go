package generator

import (
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// serviceResources are those of one service, encoded once for all proxies that see it.
type serviceResources struct {
	users     int // shared sets
	cluster   *resource.Resource
	endpoints *resource.Resource
	route     *resource.Resource   // nil for TCP
	listeners []*resource.Resource // of the virtual addresses, for redirected proxies
}

// touch says what of a service may differ beyond its cluster, endpoints and route.
type touch struct {
	protocol  bool // so that outbound listeners of proxies' own differ
	listeners bool
}

// touches are by mesh and service.
type touches map[string]map[string]touch

func (t touches) add(id mesh.ID, what touch) {
	meshName, name := mesh.SplitID(id)
	if t[meshName] == nil {
		t[meshName] = map[string]touch{}
	}
	known := t[meshName][name]
	t[meshName][name] = touch{protocol: known.protocol || what.protocol, listeners: known.listeners || what.listeners}
}

// encodeChanged encodes what the change names, as far as an attached proxy sees it. A service that has gone is left to
// the proxies that no longer see it.
func (t *Translator) encodeChanged(c meshview.Change, errs *[]error) touches {
	touched := touches{}
	for _, id := range c.Services {
		m, s := c.After.Service(id)
		if r := t.services[id]; r != nil && s != nil {
			_, before := c.Before.Service(id)
			listeners := t.encodeService(r, m, s, errs)
			touched.add(id, touch{protocol: before == nil || before.Protocol != s.Protocol, listeners: listeners})
		}
	}
	for _, id := range c.Endpoints {
		_, s := c.After.Service(id)
		if r := t.services[id]; r != nil && s != nil {
			t.encodeEndpoints(r, s, errs)
			touched.add(id, touch{})
		}
	}
	return touched
}

// encodeService encodes all but the endpoints, and says whether a listener differs.
func (t *Translator) encodeService(r *serviceResources, m *meshview.Mesh, s *meshview.Service, errs *[]error) bool {
	whose := "service " + s.ID()
	before := r.cluster
	r.cluster = t.encodeOver(before, s.Name, OutboundCluster(m, s), whose, errs)
	if r.cluster != before && mutualTLS(m) {
		r.cluster.Peers = s.Identities
	}
	if route := OutboundRoute(s); route != nil {
		r.route = t.encodeOver(r.route, s.Name, route, whose, errs)
	} else {
		r.route = nil
	}
	old := map[string]*resource.Resource{}
	for _, l := range r.listeners {
		old[l.Name] = l
	}
	differ := len(s.Addresses) != len(r.listeners)
	r.listeners = nil
	for _, at := range s.Addresses {
		name := OutboundListenerName(at)
		l := t.encodeOver(old[name], name, ServiceListener(s, at), whose, errs)
		differ = differ || l != old[name]
		if l != nil {
			r.listeners = append(r.listeners, l)
		}
	}
	return differ
}

func (t *Translator) encodeEndpoints(r *serviceResources, s *meshview.Service, errs *[]error) {
	r.endpoints = t.encodeOver(r.endpoints, s.Name, LoadAssignment(s), "service "+s.ID(), errs)
}

// acquire returns the resources of a service for one more shared set. They are none for a service that the view lacks,
// which no Builder lets a proxy see.
func (t *Translator) acquire(m *meshview.Mesh, id mesh.ID, s *meshview.Service, errs *[]error) *serviceResources {
	r := t.services[id]
	if r == nil {
		r = &serviceResources{}
		t.services[id] = r
		if s != nil {
			t.encodeService(r, m, s, errs)
			t.encodeEndpoints(r, s, errs)
		}
	}
	r.users++
	return r
}

func (t *Translator) release(id mesh.ID) {
	r := t.services[id]
	if r.users--; r.users == 0 {
		delete(t.services, id)
	}
}

// common are all but the listeners.
func (r *serviceResources) common() []*resource.Resource {
	var there []*resource.Resource
	for _, one := range []*resource.Resource{r.cluster, r.endpoints, r.route} {
		if one != nil {
			there = append(there, one)
		}
	}
	return there
}
