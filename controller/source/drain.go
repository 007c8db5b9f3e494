package source

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Drains has the options for drains.
type Drains struct {
	// Taints are keys of taints, of any effect, that announce a node's removal, beside DefaultTaints.
	Taints []string
	// Conditions are types of conditions that announce it while they are True, beside DefaultConditions.
	Conditions []string
	// MinServing is the minimum number of proxies with traffic that a Service with a port for load balancers keeps. Below
	// it, all proxies whose pod and node still exist serve on.
	MinServing int
	// IgnoreNodes is the initial value of Source.IgnoreNodes.
	IgnoreNodes bool
}

func drainAnnotation(p *corev1.Pod) *string { return annotation(p.Annotations, mesh.AnnotationDrain) }

// annotation returns the value of an annotation, or nil.
func annotation(all map[string]string, name string) *string {
	value, there := all[name]
	if !there {
		return nil
	}
	value = cut.Text(value, mesh.MaxDrainReason)
	return &value
}

func (s *Source) nodeChanged(key watch.Key, before, now *Node) {
	s.mark(func(d *dirty) {
		_, wasGone := s.goneNodes[key.Name]
		if now == nil {
			s.goneNodes[key.Name] = struct{}{}
		} else {
			delete(s.goneNodes, key.Name)
		}
		if before != nil || wasGone || now.Goes != "" || now.Drain != nil || now.Unknown { // a new node has no pods to drain
			d.nodes[key.Name] = struct{}{}
		}
	})
}

// IgnoreNodes sets whether the removal of nodes causes no drains. An administrator's drain always does.
func (s *Source) IgnoreNodes(ignore bool) {
	s.mark(func(d *dirty) {
		s.ignoreNodes = ignore
		for _, key := range s.nodes.Keys() {
			d.nodes[key.Name] = struct{}{}
		}
		for name := range s.goneNodes {
			d.nodes[name] = struct{}{}
		}
	})
}

// missNodes records the pods' nodes that were deleted before the start, so that a restart does not change drains.
func (s *Source) missNodes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.pods.Keys() {
		if p := s.pods.Get(key); p != nil && p.Node != "" && s.nodes.Get(watch.Key{Name: p.Node}) == nil {
			s.goneNodes[p.Node] = struct{}{}
		}
	}
}

// podsOfNodes adds to d the pods of its nodes. It iterates over all pods, since nodes are seldom removed.
func (s *Source) podsOfNodes(d *dirty) {
	if len(d.nodes) > 0 {
		for _, key := range s.pods.Keys() {
			p := s.pods.Get(key)
			if p == nil {
				continue
			}
			if _, changed := d.nodes[p.Node]; changed {
				d.pods[key], d.refs[podRef{p.UID, key}] = struct{}{}, struct{}{}
			}
		}
	}
	for key := range d.pods {
		if drain := s.drainOf(key, s.pods.Get(key)); drain != nil {
			s.drains[key] = drain
		} else {
			delete(s.drains, key)
		}
	}
}

// drainOf returns why a pod should get no new traffic, or nil. An ended pod has no proxy to drain.
func (s *Source) drainOf(pod watch.Key, p *Pod) *mesh.Drain {
	if p == nil || p.Ended {
		return nil
	}
	n := s.nodes.Get(watch.Key{Name: p.Node})
	d := mesh.Drain{Terminating: p.Terminating && !s.stays(p, n)}
	s.mu.Lock()
	_, gone := s.goneNodes[p.Node]
	ignored, eviction := s.ignoreNodes, s.evictionOf(podRef{p.UID, pod})
	s.mu.Unlock()
	switch {
	case ignored:
	case gone:
		d.Node = "node " + p.Node + " is no more"
	case n != nil && n.Goes != "":
		d.Node = "node " + p.Node + ": " + n.Goes
	default:
		d.Node = eviction
	}
	switch {
	case p.Drain != nil:
		d.Administrator = mesh.DrainText("pod", *p.Drain)
	case n != nil && n.Drain != nil:
		d.Administrator = mesh.DrainText("node "+p.Node, *n.Drain)
	}
	if d == (mesh.Drain{}) {
		return nil
	}
	return &d
}

// serving are the pods of a Service that serve on although they should drain.
type serving map[watch.Key]struct{}

// hold decides for the Services of d which of their pods serve on, and adds the affected objects to d.
func (s *Source) hold(d *dirty) {
	affected := map[watch.Key]struct{}{}
	for _, key := range sorted(d.services) {
		before, now := s.held[key], s.servingOf(key)
		if maps.Equal(before, now) {
			continue
		}
		if now == nil {
			delete(s.held, key)
		} else {
			s.held[key] = now
		}
		for _, pods := range []serving{before, now} {
			for pod := range pods {
				affected[pod] = struct{}{}
			}
		}
		s.tellHeld(key, before, now)
	}
	if d.held {
		s.tellAllHeld()
	}
	for pod := range affected {
		d.pods[pod] = struct{}{}
		if p := s.pods.Get(pod); p != nil {
			s.index.servicesOfPod(podRef{p.UID, pod}, d)
		}
	}
	for pod := range d.pods {
		if drain := s.drains[pod]; drain.Wanted() {
			with := *drain // the view may use the old one
			with.ServesOn = s.servesOn(pod)
			s.drains[pod] = &with
		}
	}
	if len(d.pods) > 0 { // otherwise no drain has changed
		s.metrics.set(s.drains)
	}
}

// servingOf returns which pods of a Service serve on: if too few would be left, all ready ones that still exist.
func (s *Source) servingOf(service watch.Key) serving {
	left, drained := serving{}, serving(nil) // a dual-stack pod is in two slices
	for _, name := range s.index.slicesOf(service) {
		part := s.slices.Get(name)
		if part == nil {
			continue
		}
		for i := range part.endpoints {
			e := &part.endpoints[i]
			p := s.pods.Get(e.ref(service.Namespace).key)
			if p == nil || p.UID != e.pod || p.Ended || p.LBHealthPort == 0 || !e.ready || p.away(e) ||
				p.Terminating || s.nodeIsGone(p) {
				continue
			}
			key := e.ref(service.Namespace).key
			switch {
			case !s.drains[key].Wanted():
				left[key] = struct{}{}
			case drained == nil:
				drained = serving{key: {}}
			default:
				drained[key] = struct{}{}
			}
		}
	}
	if len(left) >= s.o.Drains.MinServing {
		return nil
	}
	return drained
}

func (s *Source) nodeIsGone(p *Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, gone := s.goneNodes[p.Node]
	return gone
}

// tellHeld reports the pods that begin to serve on.
func (s *Source) tellHeld(service watch.Key, before, now serving) {
	began := podNames(slices.DeleteFunc(sorted(now), func(pod watch.Key) bool {
		_, did := before[pod]
		return did
	}))
	record := s.services.Get(service)
	if len(began) == 0 || record == nil {
		return
	}
	s.o.Logger.Warn("holding back a drain, too few endpoints of a Service would be left",
		"namespace", service.Namespace, "service", service.Name,
		"pods", began, "minServing", s.o.Drains.MinServing)
	s.o.Held(service, record.uid, began)
}

// TellDrains repeats Options.Held for all pods that serve on, and Options.Drained for all that get no new traffic, for
// a caller that ignored earlier calls. It does not wait for them.
func (s *Source) TellDrains() { s.mark(func(d *dirty) { d.held = true }) }

func (s *Source) tellAllHeld() {
	for _, service := range sorted(s.held) {
		if record := s.services.Get(service); record != nil {
			s.o.Held(service, record.uid, podNames(sorted(s.held[service])))
		}
	}
}

// drained is the last report of a pod that gets no new traffic.
type drained struct {
	uid types.UID
	why string
}

// tellDrained reports the pods of d that get no new traffic for a new reason, or all of them after TellDrains. It does
// not report deletions, which the pod itself shows.
func (s *Source) tellDrained(d *dirty) {
	pods := maps.Keys(d.pods)
	if d.held {
		clear(s.drained)
		pods = maps.Keys(s.drains)
	}
	for pod := range pods {
		drain, p := s.drains[pod], s.pods.Get(pod)
		if p == nil || !drain.Wanted() || !drain.Applies() || drain.Terminating {
			delete(s.drained, pod)
			continue
		}
		if now := (drained{p.UID, drain.String()}); s.drained[pod] != now {
			s.drained[pod] = now
			s.o.Drained(pod, now.uid, now.why)
		}
	}
}

func podNames(pods []watch.Key) []string {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = pod.Name
	}
	return names
}

// servesOn returns why a pod serves on, "" if it does not.
func (s *Source) servesOn(pod watch.Key) string {
	p := s.pods.Get(pod)
	if p == nil {
		return ""
	}
	services := map[watch.Key]struct{}{}
	d := dirty{services: services}
	s.index.servicesOfPod(podRef{p.UID, pod}, &d)
	for _, service := range sorted(services) {
		if _, held := s.held[service][pod]; held {
			return fmt.Sprintf("Service %s would have fewer than %d proxies for load balancers", service, s.o.Drains.MinServing)
		}
	}
	return ""
}

// forgetNodes drops deleted nodes without pods. It iterates over all pods, but only after some have changed. The caller
// holds mu.
func (s *Source) forgetNodes(d *dirty) {
	if len(s.goneNodes) == 0 || len(d.pods) == 0 && len(d.nodes) == 0 {
		return
	}
	used := map[string]struct{}{}
	for _, key := range s.pods.Keys() {
		if p := s.pods.Get(key); p != nil {
			used[p.Node] = struct{}{}
		}
	}
	maps.DeleteFunc(s.goneNodes, func(name string, _ struct{}) bool {
		_, has := used[name]
		return !has
	})
}

// drainMetrics counts the proxies that drain.
type drainMetrics struct{ proxies *prometheus.GaugeVec }

func newDrainMetrics(r prometheus.Registerer) drainMetrics {
	m := drainMetrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sonde_drain_proxies",
		Help: "Proxies that should get no new traffic, by reason: terminating, node or administrator; served_on counts proxies with one of the last two reasons that keep serving.",
	}, []string{"reason"})}
	m.set(nil)
	if r != nil {
		r.MustRegister(m.proxies)
	}
	return m
}

func (m drainMetrics) set(drains map[watch.Key]*mesh.Drain) {
	var terminating, node, administrator, servedOn int
	count := func(n *int, applies bool) {
		if applies {
			*n++
		}
	}
	for _, d := range drains {
		count(&terminating, d.Terminating)
		count(&node, d.Node != "")
		count(&administrator, d.Administrator != "")
		count(&servedOn, d.Wanted() && !d.Applies())
	}
	for reason, n := range map[string]int{
		"terminating": terminating, "node": node, "administrator": administrator, "served_on": servedOn,
	} {
		m.proxies.WithLabelValues(reason).Set(float64(n))
	}
}
