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

// Kept is, by zone, how many tenths of the endpoints that node controllers have taken away stay in the mesh: AllKept in
// a frozen zone, fewer while it thaws. A zone without an entry is not frozen. Zone "" is for nodes without a zone.
type Kept map[string]int

// AllKept means that all tenths stay.
const AllKept = 10

const (
	// settleTime is how long an endpoint on a silent node stays unchanged while its zone is not frozen. Nodes become
	// Unknown one by one, and the zone can be judged only after all of them have.
	settleTime = 1500 * time.Millisecond
	// recheckEvery is how often Source checks whether agents of kept endpoints are connected.
	recheckEvery = 500 * time.Millisecond
)

// kept says why an endpoint that is not ready in its slice has another state in the mesh.
type kept struct {
	since time.Time // when the node controller took it away
	// settling says that the endpoint waits for a verdict, frozen that a verdict keeps it.
	settling, frozen bool
	// connected says that its agent has a session.
	connected bool
}

// Freeze replaces the frozen zones. It returns at once. An empty Kept means that no zone is frozen. With nil, no
// endpoint is kept, not even for settleTime.
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

// isUnknown reports whether a node has stopped reporting. A node with Ready False still reports.
func isUnknown(n *corev1.Node) bool {
	c := nodeCondition(n, string(corev1.NodeReady))
	return c != nil && c.Status == corev1.ConditionUnknown // without the condition, its kubelet has not started
}

// readiness returns whether the pod was ready by the kubelet's last report, and whether it is marked not Ready
// nevertheless: by the node controller, which writes only that condition.
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

// sameButReadiness reports whether two pods differ at most in readiness.
func (p *Pod) sameButReadiness(o *Pod) bool {
	same := *p
	same.Healthy, same.Marked, same.WholeRestart = o.Healthy, o.Marked, o.WholeRestart
	return reflect.DeepEqual(&same, o)
}

// tenth returns the tenth of its zone's endpoints to which a pod belongs: higher tenths thaw first. All replicas
// compute the same one.
func tenth(pod types.UID) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(pod))                 // never fails
	return int(h.Sum64() >> 32 * AllKept >> 32) // its low bits are badly distributed
}

// takenAway reports whether the node controller, not the kubelet, made an endpoint unready or ended it. For a pod
// without our sidecar, only the state of its node is known.
func takenAway(e *sliceEndpoint, n *Node, p *Pod) bool {
	switch {
	case e.ready || e.pod == "" || n == nil || n.Goes != "":
		return false
	case p == nil:
		return n.Unknown
	}
	return p.Healthy && (n.Unknown || p.Marked && !p.Terminating)
}

// node returns the node of an endpoint, nil if it is unknown.
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

// keep returns the state of an endpoint that the node controller may have taken away, and false if the state in its
// slice applies. p is nil for a pod without our sidecar.
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
	s.kept[ref] = k // recorded even if not kept, so that it settles only once
	return k, k.frozen || k.settling
}

// health returns the health of a kept endpoint: unchanged, or draining if nothing shows that the endpoint still
// answers.
func (k kept) health() *mesh.EndpointHealth {
	if k.settling || k.connected {
		return nil
	}
	return &mesh.EndpointHealth{Ready: new(bool), Serving: new(true)}
}

// stays reports whether a terminating pod is kept, because its kubelet cannot know yet that it should end.
func (s *Source) stays(p *Pod, n *Node) bool {
	return s.keeping != nil && n != nil && n.Goes == "" && n.Unknown && tenth(p.UID) < s.keeping[n.Zone]
}

// recheck derives kept endpoints again whose state has changed. Only the goroutine of derive may call it.
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

// servicesOfNodes adds to d the Services with an unready endpoint on one of its nodes. It iterates over all slices,
// since nodes seldom change.
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

// Members returns the nodes with pods of the mesh, by name. It leaves out nodes that are being removed, which are
// expected to become silent.
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

// Proxies returns the zone of each proxy that should be running, "" for one on a node without a zone. It leaves out
// pods that terminate, or whose node is being removed or was deleted.
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

// forgetKept drops endpoints that are in no slice.
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

// frozenMetrics counts the kept endpoints.
type frozenMetrics struct{ endpoints *prometheus.GaugeVec }

func newFrozenMetrics(r prometheus.Registerer) frozenMetrics {
	m := frozenMetrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sonde_frozen_endpoints",
		Help: "Pods in frozen zones whose endpoints are not ready in Kubernetes because their node is silent, by their state in the mesh: ready if their agent is connected, otherwise draining.",
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
