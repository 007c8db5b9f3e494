package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

// Bounds of one object, many times the usual sizes. The rest of a larger object has no effect.
const (
	// maxPodPorts bounds the inbounds of a pod: each costs its Envoy, and this process, up to three filter chains.
	maxPodPorts = 500
	// maxUndeclared bounds the inbounds for undeclared ports that a Service uses, which the pod's share does not include.
	maxUndeclared = 64
	// maxListedPorts bounds the ports in an annotation of a pod.
	maxListedPorts = 1000
	// maxServicePorts bounds the TCP ports of a Service, each of which is a service of the mesh, and the ports of an
	// EndpointSlice.
	maxServicePorts = 500
	// maxWarnings bounds a pod's injection warnings in bytes: an event may have 1,024.
	maxWarnings = 8 << 10
	// maxReachable bounds the services that a pod may be limited to: more than an Envoy has memory for.
	maxReachable = mesh.MaxReachableServices
	// UIDs and pod names are shorter, but an EndpointSlice may have any text there.
	maxUID, maxPodName = 64, 253
)

// Estimated memory in bytes of a pod's port, a Service's port and an endpoint, in the view and as Envoy's resources,
// from the measurements in docs/benchmarks.md.
const (
	bytesOfInbound  = 3 << 10
	bytesOfService  = 5 << 10
	bytesOfEndpoint = 270
	// Memory of any object, slice and pod endpoint beside its record: keys, maps and indexes.
	perObject, perSlice, perPod = 512, 1 << 10, 400
	// A slice's endpoints are rounded up to a multiple of endpointStep, so that its cost seldom changes in a rollout.
	endpointStep = 16
)

// beyondShare returns the problem of an object that does not count.
func beyondShare(what string, share int) string {
	return fmt.Sprintf(podcause.NotCounted+"only the oldest %s of a namespace count, up to %d MiB of memory",
		what, share>>20)
}

// problems collects the parts of an object that have no effect.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

func (p *problems) String() string { return strings.Join(*p, "; ") }

// atMost returns the first items of a list.
func atMost[T any](p *problems, field string, list []T, most int) []T {
	if len(list) <= most {
		return list
	}
	p.add("%s: has %d, and only the first %d count", field, len(list), most)
	return slices.Clone(list[:most])
}

func annotationField(name string) string { return fmt.Sprintf("metadata.annotations[%q]", name) }

// Shares of the kinds that tenants write.
func podShare(bytes int) watch.Share[Pod] {
	problem := beyondShare("pods", bytes)
	return watch.Share[Pod]{
		Bytes: bytes,
		Takes: func(p *Pod) int {
			n := watch.Size(p) + perObject
			if !p.Ended { // it has a Dataplane
				n += bytesOfInbound * len(p.Ports)
			}
			return roundUp(n, perObject) // rounded, so that a later address and node do not change it
		},
		Beyond: func(p *Pod) Pod {
			return Pod{
				UID: p.UID, Mesh: p.Mesh, ServiceAccount: p.ServiceAccount, Node: p.Node, Created: p.Created, Ended: p.Ended,
				Terminating: p.Terminating, Beyond: true, Problem: problem,
			}
		},
	}
}

func serviceShare(bytes int) watch.Share[service] {
	problem := beyondShare("Services", bytes)
	return watch.Share[service]{
		Bytes: bytes,
		Takes: func(s *service) int { return watch.Size(s) + perObject + bytesOfService*len(s.ports) },
		Beyond: func(s *service) service {
			return service{uid: s.uid, beyond: true, problem: problem}
		},
	}
}

func sliceShare(bytes int) watch.Share[slice] {
	problem := beyondShare("EndpointSlices", bytes)
	return watch.Share[slice]{
		Bytes: bytes,
		Takes: func(s *slice) int {
			endpoints := roundUp(len(s.endpoints), endpointStep)
			return roundUp(watch.Size(s), perSlice) + perSlice + endpoints*(perPod+bytesOfEndpoint*max(len(s.ports), 1))
		},
		Beyond: func(s *slice) slice {
			return slice{uid: s.uid, beyond: true, problem: problem}
		},
	}
}

func roundUp(n, step int) int { return (n + step - 1) / step * step }

// Problem is an object with parts that have no effect, since they exceed a bound.
type Problem struct {
	// Kind, APIVersion and the key identify the object.
	Kind, APIVersion string
	watch.Key

	UID  types.UID
	Text string
	// TooMany says that the namespace has too many objects, instead of that the object is too large.
	TooMany bool
}

// Problems returns the objects that exceed a bound, sorted.
func (s *Source) Problems() []Problem {
	var all []Problem
	s.eachProblem(func(p Problem) { all = append(all, p) })
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
		)
	})
	return all
}

func (s *Source) eachProblem(do func(Problem)) {
	add := func(kind, apiVersion string, key watch.Key, uid types.UID, text string, beyond bool) {
		if text != "" {
			do(Problem{kind, apiVersion, key, uid, text, beyond})
		}
	}
	for _, key := range s.pods.Keys() {
		if p := s.pods.Get(key); p != nil {
			add("Pod", "v1", key, p.UID, p.Problem, p.Beyond)
		}
	}
	for _, key := range s.services.Keys() {
		if r := s.services.Get(key); r != nil {
			add("Service", "v1", key, r.uid, r.problem, r.beyond)
		}
	}
	for _, key := range s.slices.Keys() {
		if r := s.slices.Get(key); r != nil {
			add("EndpointSlice", "discovery.k8s.io/v1", key, r.uid, r.problem, r.beyond)
		}
	}
	for _, key := range s.evictions.Keys() {
		if r := s.evictions.Get(key); r != nil {
			add(evictionKind, lifecyclev1alpha1.SchemeGroupVersion.String(), key, r.uid, r.problem, true)
		}
	}
}

// beyondMetric counts Problems, and measures how much of their shares namespaces use.
type beyondMetric struct{ *Source }

var beyondBounds = prometheus.NewDesc("sonde_objects_beyond_bounds",
	"Pods, Services, EndpointSlices and EvictionRequests without full effect, by kind and reason: object (part of it has no effect, since it is too large), or namespace (it does not count, since its namespace has too many).",
	[]string{"kind", "reason"}, nil)

var shareUsed = prometheus.NewDesc("sonde_namespace_share_used",
	"Largest part of its share of memory that a namespace uses for pods, Services, EndpointSlices or EvictionRequests, from 0 to 1, by kind. At 1, further objects do not count.",
	[]string{"kind"}, nil)

// Describe implements prometheus.Collector.
func (m beyondMetric) Describe(to chan<- *prometheus.Desc) { to <- beyondBounds; to <- shareUsed }

// Collect implements prometheus.Collector.
func (m beyondMetric) Collect(to chan<- prometheus.Metric) {
	n := map[[2]string]int{}
	for _, kind := range []string{"Pod", "Service", "EndpointSlice", evictionKind} {
		n[[2]string{kind, "object"}], n[[2]string{kind, "namespace"}] = 0, 0
	}
	m.eachProblem(func(p Problem) {
		reason := "object"
		if p.TooMany {
			reason = "namespace"
		}
		n[[2]string{p.Kind, reason}]++
	})
	for kind, used := range map[string]float64{
		"Pod": m.pods.Used(), "Service": m.services.Used(), "EndpointSlice": m.slices.Used(), evictionKind: m.evictions.Used(),
	} {
		to <- prometheus.MustNewConstMetric(shareUsed, prometheus.GaugeValue, used, kind)
	}
	for labels, count := range maps.All(n) {
		to <- prometheus.MustNewConstMetric(beyondBounds, prometheus.GaugeValue, float64(count), labels[0], labels[1])
	}
}

// noteProblem logs a new problem of an object.
func (s *Source) noteProblem(kind string, key watch.Key, before, now string) {
	if now != "" && now != before {
		s.o.Logger.Warn("object exceeds a bound, part or all of it has no effect",
			"kind", kind, "namespace", key.Namespace, "name", key.Name, "err", now)
	}
}

func (p *Pod) wrong() string {
	if p == nil {
		return ""
	}
	return p.Problem
}

func (s *service) wrong() string {
	if s == nil {
		return ""
	}
	return s.problem
}

func (s *slice) wrong() string {
	if s == nil {
		return ""
	}
	return s.problem
}
