package source

import (
	"hash/fnv"
	"maps"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// Kept is by zone how many tenths of the endpoints that node controllers have taken away are kept: AllKept in a zone that is frozen, fewer
// while it thaws. Zones without are not frozen. "" is that of nodes without a zone.
type Kept map[string]int

// AllKept of the tenths are kept.
const AllKept = 10

const (
	// settleTime is how long an endpoint on a node that is not seen is left as it was before it is taken away, unless its zone is frozen by
	// then: nodes become Unknown one after the other, and all of them have to be judged.
	settleTime = 1500 * time.Millisecond
	// recheckEvery is how often it is looked whether agents of kept endpoints are connected.
	recheckEvery = 500 * time.Millisecond
)

// kept is why an endpoint that its slice has as unready is something else.
type kept struct {
	since time.Time // when it was taken away
	// settling is that it waits for a judgement, frozen that it is kept by one.
	settling, frozen bool
	// connected is that its agent has a session.
	connected bool
}

// Freeze replaces what is kept; nil is nothing, not even for settleTime. An empty Kept is that no zone is frozen. It does not wait.
func (s *Source) Freeze(k Kept) {
	k = maps.Clone(k)
	s.mark(func(d *dirty) {
		before := s.frozen
		s.frozen = k
		for _, key := range s.nodes.Keys() {
			if n := s.nodes.Get(key); n != nil && ((before == nil) != (k == nil) || before[n.Zone] != k[n.Zone]) {
				d.nodes[key.Name] = struct{}{}
			}
		}
	})
}

// isUnknown reports whether a node's own word is not heard any more. False is such a word.
func isUnknown(n *corev1.Node) bool {
	c := nodeCondition(n, string(corev1.NodeReady))
	return c != nil && c.Status == corev1.ConditionUnknown // without it its kubelet has not begun
}

// readiness returns what the kubelet has said last of a pod, and whether it is not Ready nevertheless: then the node controller has marked it,
// which writes that condition alone.
func readiness(p *corev1.Pod) (healthy, marked bool) {
	holds := func(t corev1.PodConditionType) bool {
		for i := range p.Status.Conditions {
			if c := &p.Status.Conditions[i]; c.Type == t {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}
	healthy = holds(corev1.ContainersReady)
	for _, gate := range p.Spec.ReadinessGates {
		healthy = healthy && holds(gate.ConditionType)
	}
	return healthy, healthy && !holds(corev1.PodReady)
}

// sameButReadiness reports whether nothing else of a pod differs.
func (p *Pod) sameButReadiness(o *Pod) bool {
	same := *p
	same.Healthy, same.Marked, same.WholeRestart = o.Healthy, o.Marked, o.WholeRestart
	return reflect.DeepEqual(&same, o)
}

// tenth returns which of the tenths of its zone a pod is of: those with a higher one thaw first. All replicas have the same.
func tenth(pod types.UID) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(pod))                 // it cannot fail
	return int(h.Sum64() >> 32 * AllKept >> 32) // its low bits are poor
}

// takenAway reports whether it is the node controller by which an endpoint is not ready, or has ended, and not the kubelet. Of a pod without our
// sidecar nothing is known but its node.
func takenAway(e *sliceEndpoint, n *Node, p *Pod) bool {
	switch {
	case e.ready || e.pod == "" || n == nil || n.Goes != "":
		return false
	case p == nil:
		return n.Unknown
	}
	return p.Healthy && (n.Unknown || p.Marked && !p.Terminating)
}

// node returns the node of an endpoint, nil if it is not known.
func (s *Source) node(e *sliceEndpoint, p *Pod) *Node {
	name := e.node
	if p != nil {
		name = p.Node
	}
	if name == "" {
		return nil
	}
	return s.nodes.Get(watch.Key{Name: name})
}

// keep returns what is kept of an endpoint that may have been taken away, and false for one that is as its slice says. p is nil for a pod without our
// sidecar.
func (s *Source) keep(namespace string, e *sliceEndpoint, p *Pod) (kept, bool) {
	ref, n := e.ref(namespace), s.node(e, p)
	if s.keeping == nil || !takenAway(e, n, p) {
		delete(s.kept, ref)
		return kept{}, false
	}
	now := time.Now()
	k, known := s.kept[ref]
	if !known {
		k.since = now
	}
	k.frozen = tenth(e.pod) < s.keeping[n.Zone]
	k.settling = !k.frozen && p != nil && !p.Terminating && now.Sub(k.since) < settleTime
	k.connected = p != nil && s.o.Connected(p.id(ref.key))
	s.kept[ref] = k // also if it is not kept: it does not settle twice
	return k, k.frozen || k.settling
}

// health returns that of an endpoint that is kept: as it was, or as of one that drains if nothing says that it answers.
func (k kept) health() *mesh.EndpointHealth {
	if k.settling || k.connected {
		return nil
	}
	return &mesh.EndpointHealth{Ready: new(bool), Serving: new(true)}
}

// stays reports whether a pod that terminates is kept nevertheless: its kubelet does not know that it is to end.
func (s *Source) stays(p *Pod, n *Node) bool {
	return s.keeping != nil && n != nil && n.Goes == "" && n.Unknown && tenth(p.UID) < s.keeping[n.Zone]
}

// recheck has what is kept derived again of which something is different by now. It is for the goroutine of derive.
func (s *Source) recheck() {
	var changed []podRef
	now := time.Now()
	for ref, k := range s.kept {
		settled := k.settling && now.Sub(k.since) >= settleTime
		p := s.pods.Get(ref.key)
		if settled || k.frozen && p != nil && p.UID == ref.uid && s.o.Connected(p.id(ref.key)) != k.connected {
			changed = append(changed, ref)
		}
	}
	if len(changed) > 0 {
		s.mark(func(d *dirty) {
			for _, ref := range changed {
				d.refs[ref] = struct{}{}
			}
		})
	}
}

// servicesOfNodes adds to d the Services with an unready endpoint on one of its nodes. It looks at all slices, since nodes seldom change.
func (s *Source) servicesOfNodes(d *dirty) {
	if len(d.nodes) == 0 {
		return
	}
	for _, key := range s.slices.Keys() {
		part := s.slices.Get(key)
		if part == nil {
			continue
		}
		for i := range part.endpoints {
			e := &part.endpoints[i]
			if _, changed := d.nodes[e.node]; changed && !e.ready {
				d.services[watch.Key{Namespace: key.Namespace, Name: part.service}] = struct{}{}
				break
			}
		}
	}
}

// id returns the proxy of a pod.
func (p *Pod) id(key watch.Key) mesh.ID {
	return mesh.MakeID(p.Mesh, mesh.ObjectDataplane(key.Namespace, key.Name))
}

// Members returns the nodes with pods of the mesh, by name. Those that go are none: they are expected to fall silent.
func (s *Source) Members() map[string]Node {
	all := map[string]Node{}
	for _, key := range s.pods.Keys() {
		p := s.pods.Get(key)
		if p == nil || p.Ended || p.Node == "" {
			continue
		}
		if _, known := all[p.Node]; known {
			continue
		}
		if n := s.nodes.Get(watch.Key{Name: p.Node}); n != nil && n.Goes == "" {
			all[p.Node] = *n
		}
	}
	return all
}

// Proxies returns the zone of the node of each proxy that is to run, "" for one without. Pods that end, or whose node goes or is no more, have none.
func (s *Source) Proxies() map[mesh.ID]string {
	all := map[mesh.ID]string{}
	for _, key := range s.pods.Keys() {
		p := s.pods.Get(key)
		if p == nil || p.Ended || p.Terminating || p.Address == "" {
			continue
		}
		if n := s.nodes.Get(watch.Key{Name: p.Node}); n != nil && n.Goes == "" {
			all[p.id(key)] = n.Zone
		}
	}
	return all
}

// forgetKept drops what no slice names any more.
func (s *Source) forgetKept() {
	var ready, draining int
	for ref, k := range s.kept {
		switch {
		case !s.index.names(ref):
			delete(s.kept, ref)
		case k.frozen && k.connected:
			ready++
		case k.frozen:
			draining++
		}
	}
	s.frozenMetrics.set(ready, draining)
}

// frozenMetrics counts the endpoints that are kept.
type frozenMetrics struct{ endpoints *prometheus.GaugeVec }

func newFrozenMetrics(r prometheus.Registerer) frozenMetrics {
	m := frozenMetrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sonde_frozen_endpoints",
		Help: "Pods in frozen zones whose endpoints Kubernetes has as not ready since their node is not seen, by what they count as: ready, since their agent is connected, or draining.",
	}, []string{"state"})}
	m.set(0, 0)
	if r != nil {
		r.MustRegister(m.endpoints)
	}
	return m
}

func (m frozenMetrics) set(ready, draining int) {
	m.endpoints.WithLabelValues("ready").Set(float64(ready))
	m.endpoints.WithLabelValues("draining").Set(float64(draining))
}
