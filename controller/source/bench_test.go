package source

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/meshview"
)

// The size of the cluster of the benchmarks: 500 Services of 10 pods each, on 100 nodes.
const (
	benchPods     = 5000
	podsOfService = 10
	benchNodes    = 100
)

func benchSlice(service int, first discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for i := service * podsOfService; i < (service+1)*podsOfService; i++ {
		conditions := isReady
		if i == service*podsOfService {
			conditions = first
		}
		endpoints = append(endpoints, endpoint(benchAddress(i), benchName(i), fmt.Sprintf("%036d", i), conditions))
	}
	name := fmt.Sprint("web-", service)
	return sliceOf(name, name, webPorts, endpoints...)
}

func benchName(i int) string    { return fmt.Sprintf("web-%d-7d9c5b6f4-%05d", i/podsOfService, i) }
func benchAddress(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250+1) }

// fill puts the cluster into a new Source and Builder; without Services if services is false.
func fill(b *testing.B, services bool, options ...func(*corev1.Pod)) (*Source, *meshview.Builder) {
	builder := meshview.NewBuilder(meshview.Options{Sources: []string{"cluster"}})
	s := newSource(b, builder)
	for i := range benchNodes {
		s.add(b, node(fmt.Sprint("node-", i)))
	}
	for i := range benchPods {
		on := onNode(fmt.Sprint("node-", i%benchNodes))
		s.add(b, metav1.Object(pod(benchName(i), fmt.Sprintf("%036d", i), benchAddress(i), append(options, on)...)))
	}
	for i := range benchPods / podsOfService {
		if services {
			s.add(b, serviceOf(fmt.Sprint("web-", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250+1), port("http", 80)))
			s.add(b, benchSlice(i, isReady))
		}
	}
	s.sync()
	if _, ok := builder.Build(); !ok {
		b.Fatal("no view")
	}
	return s, builder
}

// BenchmarkPod measures the memory of a pod before its Envoy connects: its record, its Dataplane, and its entry in
// the view.
func BenchmarkPod(b *testing.B) {
	for range b.N {
		before := heap()
		s, builder := fill(b, false)
		b.ReportMetric(float64(heap()-before)/benchPods, "B/pod")
		runtime.KeepAlive(s)
		runtime.KeepAlive(builder)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkReadinessFlip measures a change of one endpoint, from the EndpointSlice to the next view.
func BenchmarkReadinessFlip(b *testing.B) {
	s, builder := fill(b, true)
	slices := []*discoveryv1.EndpointSlice{benchSlice(7, isNotReady), benchSlice(7, isReady)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.change(b, slices[i%2])
		if c, ok := builder.Build(); !ok || len(c.Proxies) != 0 || len(c.Endpoints) != 1 {
			b.Fatalf("change %v", c)
		}
	}
}

// BenchmarkNode measures a node that gets or loses a taint, from the Node to the next view. The node has 50 pods in 50
// Services.
func BenchmarkNode(b *testing.B) {
	s, builder := fill(b, true, forLoadBalancers)
	nodes := []*corev1.Node{node("node-7", "karpenter.sh/disrupted"), node("node-7")}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.change(b, nodes[i%2])
		if c, ok := builder.Build(); !ok || len(c.Proxies) != benchPods/benchNodes || len(c.Endpoints) != benchPods/benchNodes {
			b.Fatalf("change %v", c)
		}
	}
}

var _ Builder = (*meshview.Builder)(nil)
