package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

// Bounds of one object, many times what is usual. What is beyond has no effect.
const (
	// maxPodPorts are the ports of a pod that have an inbound: each costs its Envoy, and this process, up to three filter chains.
	maxPodPorts = 500
	// maxUndeclared are the ports of a pod that have an inbound since a Service uses them: they are not in its share.
	maxUndeclared = 64
	// maxListedPorts are those that an annotation of a pod may list.
	maxListedPorts = 1000
	// maxServicePorts are the TCP ports of a Service, each of which is a service of the mesh, and those of an EndpointSlice.
	maxServicePorts = 500
	// maxWarnings are the bytes of a pod's warnings of its injection: an event has 1,024.
	maxWarnings = 8 << 10
	// maxReachable are the services that a pod may be limited to: more than an Envoy has memory for.
	maxReachable = mesh.MaxReachableServices
	// A UID and the name of a pod have fewer: an EndpointSlice may have any text in their place.
	maxUID, maxPodName = 64, 253
)

// What is made of a port of a pod, of a port of a Service and of an endpoint takes about so many bytes, in the view and as Envoy's resources, as
// docs/benchmarks.md measures it.
const (
	bytesOfInbound  = 3 << 10
	bytesOfService  = 5 << 10
	bytesOfEndpoint = 270
	// What keeping any object, any slice and any endpoint that is a pod takes beside its record: keys, maps and indexes.
	perObject, perSlice, perPod = 512, 1 << 10, 400
	// A slice is charged for so many endpoints more, so that not each of a rollout changes what it takes.
	endpointStep = 16
)

// beyondShare is the problem of an object that does not count.
func beyondShare(what string, share int) string {
	return fmt.Sprintf(podcause.NotCounted+"only the oldest %s of a namespace do, as many as %d MiB of memory are enough for", what, share>>20)
}

// problems gathers what of an object has no effect.
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

// Shares of the kinds that a tenant writes.
func podShare(bytes int) watch.Share[Pod] {
	problem := beyondShare("pods", bytes)
	return watch.Share[Pod]{
		Bytes: bytes,
		Takes: func(p *Pod) int {
			n := watch.Size(p) + perObject
			if !p.Ended { // it has a Dataplane
				n += bytesOfInbound * len(p.Ports)
			}
			return roundUp(n, perObject) // an address and a node that come later change nothing
		},
		Beyond: func(p *Pod) Pod {
			return Pod{
				UID: p.UID, Mesh: p.Mesh, ServiceAccount: p.ServiceAccount, Node: p.Node, Created: p.Created, Ended: p.Ended, Terminating: p.Terminating,
				Beyond: true, Problem: problem,
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

// Problem is what of an object has no effect, since it is beyond the bounds.
type Problem struct {
	// Kind, APIVersion and the key identify the object.
	Kind, APIVersion string
	watch.Key

	UID  types.UID
	Text string
	// TooMany says that its namespace has too many, and not that it is too large.
	TooMany bool
}

// Problems returns the objects that are beyond the bounds, sorted.
func (s *Source) Problems() []Problem {
	var all []Problem
	s.eachProblem(func(p Problem) { all = append(all, p) })
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
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
}

// beyondMetric counts Problems, and says how near to them namespaces are.
type beyondMetric struct{ *Source }

var beyondBounds = prometheus.NewDesc("sonde_objects_beyond_bounds",
	"Pods, Services and EndpointSlices that do not count as they are written, by kind and reason: object (part of it has no effect, since it is too large), or namespace (it does not count, since its namespace has too many).",
	[]string{"kind", "reason"}, nil)

var shareUsed = prometheus.NewDesc("sonde_namespace_share_used",
	"Largest part of its share of memory that a namespace uses for pods, Services or EndpointSlices, from 0 to 1, by kind. What comes at 1 does not count.",
	[]string{"kind"}, nil)

// Describe implements prometheus.Collector.
func (m beyondMetric) Describe(to chan<- *prometheus.Desc) { to <- beyondBounds; to <- shareUsed }

// Collect implements prometheus.Collector.
func (m beyondMetric) Collect(to chan<- prometheus.Metric) {
	n := map[[2]string]int{}
	for _, kind := range []string{"Pod", "Service", "EndpointSlice"} {
		n[[2]string{kind, "object"}], n[[2]string{kind, "namespace"}] = 0, 0
	}
	m.eachProblem(func(p Problem) {
		reason := "object"
		if p.TooMany {
			reason = "namespace"
		}
		n[[2]string{p.Kind, reason}]++
	})
	for kind, used := range map[string]float64{"Pod": m.pods.Used(), "Service": m.services.Used(), "EndpointSlice": m.slices.Used()} {
		to <- prometheus.MustNewConstMetric(shareUsed, prometheus.GaugeValue, used, kind)
	}
	for labels, count := range maps.All(n) {
		to <- prometheus.MustNewConstMetric(beyondBounds, prometheus.GaugeValue, float64(count), labels[0], labels[1])
	}
}

// noteProblem logs what of an object has no effect, once.
func (s *Source) noteProblem(kind string, key watch.Key, before, now string) {
	if now != "" && now != before {
		s.o.Logger.Warn("object is beyond the bounds", "kind", kind, "namespace", key.Namespace, "name", key.Name, "err", now)
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
