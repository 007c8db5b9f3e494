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

// Drains has the options of drains.
type Drains struct {
	// Taints are keys of taints, of any effect, that say that a node goes, beside DefaultTaints.
	Taints []string
	// Conditions are types of conditions that say it while they are True, beside DefaultConditions.
	Conditions []string
	// MinServing is how many proxies of a Service with a port for load balancers must be left that may get traffic; else all serve on whose
	// pod and node are still there.
	MinServing int
	// IgnoreNodes says at the start that nodes that go are no reason to drain; Source.IgnoreNodes changes it.
	IgnoreNodes bool
}

func drainAnnotation(p *corev1.Pod) *string { return annotation(p.Annotations, mesh.AnnotationDrain) }

// annotation returns the value of an annotation, nil if there is none.
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
		if before != nil || wasGone || now.Goes != "" || now.Drain != nil || now.Unknown { // a new node has no pods that it could drain
			d.nodes[key.Name] = struct{}{}
		}
	})
}

// IgnoreNodes says whether nodes that go are no reason to drain. An administrator's drain always is one.
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

// missNodes records the nodes of pods that were gone before the start: a control plane that is restarted says what it said before.
func (s *Source) missNodes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.pods.Keys() {
		if p := s.pods.Get(key); p != nil && p.Node != "" && s.nodes.Get(watch.Key{Name: p.Node}) == nil {
			s.goneNodes[p.Node] = struct{}{}
		}
	}
}

// podsOfNodes adds to d the pods of its nodes. It looks at all pods, since nodes seldom go.
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
		if drain := s.drainOf(s.pods.Get(key)); drain != nil {
			s.drains[key] = drain
		} else {
			delete(s.drains, key)
		}
	}
}

// drainOf returns why a pod should get no new traffic, nil for nothing, and for one that has ended: it has no proxy any more.
func (s *Source) drainOf(p *Pod) *mesh.Drain {
	if p == nil || p.Ended {
		return nil
	}
	n := s.nodes.Get(watch.Key{Name: p.Node})
	d := mesh.Drain{Terminating: p.Terminating && !s.stays(p, n)}
	s.mu.Lock()
	_, gone := s.goneNodes[p.Node]
	ignored := s.ignoreNodes
	s.mu.Unlock()
	switch {
	case ignored:
	case gone:
		d.Node = "node " + p.Node + " is no more"
	case n != nil && n.Goes != "":
		d.Node = "node " + p.Node + ": " + n.Goes
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

// serving are the pods of a Service that serve on although something wants them to drain.
type serving map[watch.Key]struct{}

// hold decides for the Services of d which of their pods serve on, and adds to d what that changes.
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
			with := *drain // the view may have the old one
			with.ServesOn = s.servesOn(pod)
			s.drains[pod] = &with
		}
	}
	if len(d.pods) > 0 { // else none of them has another drain
		s.metrics.set(s.drains)
	}
}

// servingOf returns which pods of a Service serve on: if too few would be left, all that are ready and are still there.
func (s *Source) servingOf(service watch.Key) serving {
	left, drained := serving{}, serving(nil) // a pod of two families is in two slices
	for _, name := range s.index.slicesOf(service) {
		part := s.slices.Get(name)
		if part == nil {
			continue
		}
		for i := range part.endpoints {
			e := &part.endpoints[i]
			p := s.pods.Get(e.ref(service.Namespace).key)
			if p == nil || p.UID != e.pod || p.Ended || p.LBHealthPort == 0 || !e.ready || p.away(e) || p.Terminating || s.nodeIsGone(p) {
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

// tellHeld tells of pods that serve on from now on.
func (s *Source) tellHeld(service watch.Key, before, now serving) {
	began := podNames(slices.DeleteFunc(sorted(now), func(pod watch.Key) bool {
		_, did := before[pod]
		return did
	}))
	record := s.services.Get(service)
	if len(began) == 0 || record == nil {
		return
	}
	s.o.Logger.Warn("drain held back: a service would have too few other endpoints", "namespace", service.Namespace, "service", service.Name,
		"pods", began, "minServing", s.o.Drains.MinServing)
	s.o.Held(service, record.uid, began)
}

// TellDrains has Options.Held called with all pods that serve on now, and Options.Drained with all that get no new traffic: a caller that did not listen
// before learns what it has missed. It does not wait for that.
func (s *Source) TellDrains() { s.mark(func(d *dirty) { d.held = true }) }

func (s *Source) tellAllHeld() {
	for _, service := range sorted(s.held) {
		if record := s.services.Get(service); record != nil {
			s.o.Held(service, record.uid, podNames(sorted(s.held[service])))
		}
	}
}

// drained is what was told of a pod that gets no new traffic.
type drained struct {
	uid types.UID
	why string
}

// tellDrained tells of the pods of d that get no new traffic for another reason than before, or of all if there is a new listener. That a pod is deleted
// its own object says.
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

// servesOn says why a pod serves on, empty if it does not.
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

// forgetNodes drops the nodes that are no more and have no pods. It looks at all pods, and only if some have changed. It needs mu.
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
		Help: "Proxies that should get no new traffic, by reason: terminating, node or administrator; and those of the last two that serve on, as served_on.",
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
	for reason, n := range map[string]int{"terminating": terminating, "node": node, "administrator": administrator, "served_on": servedOn} {
		m.proxies.WithLabelValues(reason).Set(float64(n))
	}
}
