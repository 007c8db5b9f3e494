package source

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/meshview"
)

// listing returns a list of the numbers from 1 to n.
func listing(n int) string {
	var all []string
	for i := range n {
		all = append(all, strconv.Itoa(i+1))
	}
	return strings.Join(all, ",")
}

// declares adds that many ports to a pod.
func declares(n int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := range n {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: int32(20_000 + i)})
		}
	}
}

// hasPorts returns a Service, or a slice of it, with that many ports.
func hasPorts(name string, n int) *corev1.Service {
	var all []corev1.ServicePort
	for i := range n {
		all = append(all, port(fmt.Sprint("p", i), int32(i+1)))
	}
	return serviceOf(name, "10.96.0.1", all...)
}

func largeSlice(name, service string, ports, endpoints int, change func(*discoveryv1.Endpoint)) *discoveryv1.EndpointSlice {
	var all []discoveryv1.EndpointPort
	for i := range ports {
		all = append(all, at(fmt.Sprint("p", i), int32(i+1)))
	}
	var of []discoveryv1.Endpoint
	for i := range endpoints {
		e := endpoint(fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), fmt.Sprint("web-", i), fmt.Sprint("u-", i), isReady)
		change(&e)
		of = append(of, e)
	}
	return sliceOf(name, service, all, of...)
}

func asItIs(*discoveryv1.Endpoint) {}

// The part of an object beyond its bound has no effect, as its record says.
func TestBoundsOfOneObject(t *testing.T) {
	const most = maxPodPorts
	tests := map[string]struct {
		object  metav1.Object
		problem string
		bytes   int
	}{
		"a pod with the most ports":        {pod("a", "u", "10.0.0.1", declares(most-1)), "", 4 << 10},
		"a pod with more":                  {pod("a", "u", "10.0.0.1", declares(60_000-20_000)), "spec.containers[*].ports: has 40001, and only the first 500 count", 4 << 10},
		"a pod with the most excluded":     {pod("a", "u", "10.0.0.1", excludes(listing(1000))), "", 16 << 10},
		"a pod with more excluded":         {pod("a", "u", "10.0.0.1", excludes(listing(44_000))), `spec.initContainers[kuma-init].args[--exclude-inbound-ports]: has 44000, and only the first 1000 count`, 16 << 10},
		"a pod with many that speak first": {pod("a", "u", "10.0.0.1", annotated(mesh.AnnotationServerFirstPorts, listing(44_000))), `metadata.annotations["sonde.dev/server-first-ports"]: has 44000, and only the first 1000 count`, 16 << 10},
		"a pod that may reach very much":   {pod("a", "u", "10.0.0.1", annotated(mesh.AnnotationReachableServices, strings.Repeat("a,", 131_000))), "has 131000 services, and only the first 5000 count", 160 << 10},
		"a pod with long warnings":         {pod("a", "u", "10.0.0.1", annotated(mesh.AnnotationInjectionWarnings, strings.Repeat("a", 262_000))), "", 10 << 10},
		"a pod with another's probe table": {pod("a", "u", "10.0.0.1", func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Args = []string{mesh.ArgProbesMode + string(mesh.ProbesPerPort)}
			p.Spec.InitContainers[0].Env = []corev1.EnvVar{{Name: mesh.EnvProbeTable, Value: "[" + strings.Repeat(" ", mesh.MaxProbeTable) + "]"}}
		}), "", 1 << 10},
		"a Service with the most ports": {hasPorts("a", maxServicePorts), "", 64 << 10},
		"a Service with more":           {hasPorts("a", 30_000), "spec.ports: has 30000, and only the first 500 count", 64 << 10},
		"a slice with many ports":       {largeSlice("a", "a", 20_000, 1, asItIs), "ports: has 20000, and only the first 500 count", 64 << 10},
		"a slice with long names": {largeSlice("a", "a", 1, 1000, func(e *discoveryv1.Endpoint) {
			e.TargetRef.Name, e.TargetRef.UID = strings.Repeat("n", 1000), types.UID(strings.Repeat("u", 500))
		}), "", 150 << 10},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSource(t, newRecorder())
			s.add(t, tc.object)
			var problems []string
			for _, p := range s.Problems() {
				problems = append(problems, p.Text)
			}
			if got := strings.Join(problems, "; "); !strings.Contains(got, tc.problem) || (got == "") != (tc.problem == "") {
				t.Errorf("problems %q, want %q", got, tc.problem)
			}
			key := watch.Key{Namespace: "shop", Name: "a"}
			for _, kept := range []int{watch.Size(s.pods.Get(key)), watch.Size(s.services.Get(key)), watch.Size(s.slices.Get(key))} {
				if kept > tc.bytes {
					t.Errorf("%d bytes are kept, want at most %d", kept, tc.bytes)
				}
			}
		})
	}
}

// A pod has its declared inbounds, and a bounded number of others, which do not use up its share.
func TestInboundsAreBounded(t *testing.T) {
	r := newRecorder()
	s := newSynced(t, r, pod("a", "u", "10.0.0.1", declares(300)))
	declared := len(s.pods.Get(watch.Key{Namespace: "shop", Name: "a"}).Ports)
	for i := range 5 {
		all := largeSlice(fmt.Sprint("s-", i), "web", 1000, 1, func(e *discoveryv1.Endpoint) { e.TargetRef.Name, e.TargetRef.UID = "a", "u" })
		for j := range all.Ports {
			all.Ports[j].Port = new(int32(i*1000 + j + 1))
		}
		s.change(t, all)
	}
	if got := len(r.dataplane("a.shop").Spec.Networking.Inbound); got != declared+maxUndeclared {
		t.Errorf("%d inbounds, want %d", got, declared+maxUndeclared)
	}
}

// aged sets the creation time of an object.
func aged(second int) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Unix(int64(second), 0)) }
}

// The oldest pods of a namespace get a Dataplane. The others are no endpoints, so that they get no plaintext. Other
// namespaces are not affected, and a pod gets a Dataplane once there is room.
func TestPodsBeyondTheShare(t *testing.T) {
	r := newRecorder()
	s := newSource(t, r)
	share := watch.ShareOf(0)
	n := share / (bytesOfInbound * 401) // each of them takes a little more
	of := func(i int) *corev1.Pod {
		return pod(fmt.Sprintf("p-%03d", i), fmt.Sprint("u-", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), declares(400), aged(1000-i))
	}
	var endpoints []discoveryv1.Endpoint
	for i := range n + 2 {
		s.add(t, of(i))
		endpoints = append(endpoints, endpoint(fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), fmt.Sprintf("p-%03d", i), fmt.Sprint("u-", i), isReady))
	}
	other := pod("other", "u", "10.1.0.1")
	other.Namespace = "bank"
	s.add(t, other)
	s.add(t, serviceOf("web", "10.96.0.1", port("http", 80)))
	s.add(t, sliceOf("web", "web", ports1("http", 8080), endpoints...))
	s.sync()
	var beyond []string
	for _, p := range s.Problems() {
		if p.Kind != "Pod" || !p.TooMany || !strings.Contains(p.Text, "only the oldest pods of a namespace count, up to 32 MiB of memory") {
			t.Errorf("problem %+v", p)
		}
		beyond = append(beyond, p.Name)
	}
	if len(beyond) < 2 || beyond[0] != "p-000" || len(beyond) > 4 {
		t.Fatalf("%q are beyond the bound, want the youngest", beyond)
	}
	if got := len(r.service("web_shop_svc_80").Spec.Endpoints); got != n+2-len(beyond) {
		t.Errorf("%d endpoints, want %d", got, n+2-len(beyond))
	}
	for _, name := range []string{"p-000.shop", "other.bank", fmt.Sprintf("p-%03d.shop", n+1)} {
		if there := r.dataplane(name) != nil; there != (name != "p-000.shop") {
			t.Errorf("Dataplane %s: %t", name, there)
		}
	}
	s.remove(t, of(n+1))
	s.change(t, of(len(beyond)-1)) // as fill reads it
	if r.dataplane(fmt.Sprintf("p-%03d.shop", len(beyond)-1)) == nil {
		t.Error("another pod has room, but no Dataplane")
	}
}

// Even if one namespace has as many objects as possible, a replica uses at most half of its memory for them, and serves
// other namespaces.
func TestMemoryOfANamespace(t *testing.T) {
	const memory = 256 << 20
	tests := map[string]func(i int) []metav1.Object{
		"pods that reach very much": func(i int) []metav1.Object {
			return []metav1.Object{pod(fmt.Sprint("p-", i), fmt.Sprint("u-", i), "10.0.0.1", annotated(mesh.AnnotationReachableServices, strings.Repeat("some,", 52_000)), annotated(mesh.AnnotationInjectionWarnings, strings.Repeat("a", 9000)))}
		},
		"pods with many ports": func(i int) []metav1.Object {
			return []metav1.Object{pod(fmt.Sprint("p-", i), fmt.Sprint("u-", i), "10.0.0.1", declares(2000))}
		},
		"Services with many ports": func(i int) []metav1.Object { return []metav1.Object{hasPorts(fmt.Sprint("s-", i), 5000)} },
		"many endpoints at many ports": func(i int) []metav1.Object {
			name := fmt.Sprint("s-", i)
			return []metav1.Object{hasPorts(name, 300), largeSlice(name, name, 300, 50, asItIs), largeSlice(name+"-2", name, 500, 500, asItIs)}
		},
	}
	for name, objects := range tests {
		t.Run(name, func(t *testing.T) {
			builder := meshview.NewBuilder(meshview.Options{Sources: []string{"cluster"}})
			client, err := newClient()
			if err != nil {
				t.Fatal(err)
			}
			s := New(Options{Client: client, Builder: builder, Name: "cluster", Memory: memory})
			before := heap()
			for i := range 200 {
				for _, o := range objects(i) {
					s.add(t, o)
				}
			}
			other := pod("other", "u", "10.1.0.1")
			other.Namespace = "bank"
			s.add(t, other)
			s.sync()
			builder.Build()
			kept := heap() - before
			t.Logf("%d KiB", kept>>10)
			if kept > memory/2 {
				t.Errorf("one namespace uses %d KiB, want at most half of %d MiB", kept>>10, memory>>20)
			}
			if !slices.ContainsFunc(s.Problems(), func(p Problem) bool { return p.TooMany }) {
				t.Error("all counts: the test shows little")
			}
			if s.PodNamed(watch.Key{Namespace: "bank", Name: "other"}).Beyond {
				t.Error("the pod of another namespace does not count")
			}
			runtime.KeepAlive(builder)
		})
	}
}
