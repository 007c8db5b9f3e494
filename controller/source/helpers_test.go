package source

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Builder that keeps its input.
type recorder struct {
	objects map[mesh.Key]mesh.Object
	calls   []mesh.Key // of Set and Delete
	synced  int
}

func newRecorder() *recorder { return &recorder{objects: map[mesh.Key]mesh.Object{}} }

func (r *recorder) Set(_ string, o mesh.Object) {
	r.objects[o.Key()] = o
	r.calls = append(r.calls, o.Key())
}

func (r *recorder) Delete(_ string, k mesh.Key) {
	delete(r.objects, k)
	r.calls = append(r.calls, k)
}

func (r *recorder) Synced(string) { r.synced++ }

// dataplane returns a Dataplane of the mesh default.
func (r *recorder) dataplane(name string) *mesh.Dataplane {
	d, _ := r.objects[mesh.Key{Kind: mesh.KindDataplane, Mesh: mesh.DefaultMesh, Name: name}].(*mesh.Dataplane)
	return d
}

// service returns a Service of the mesh default.
func (r *recorder) service(name string) *mesh.Service {
	s, _ := r.objects[mesh.Key{Kind: mesh.KindService, Mesh: mesh.DefaultMesh, Name: name}].(*mesh.Service)
	return s
}

// newClient returns a client without an API server.
var newClient = sync.OnceValues(func() (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(&rest.Config{Host: "https://192.0.2.1"})
})

// newSource returns a Source that tests feed through its stores, without an API server.
func newSource(t testing.TB, b Builder) *Source {
	t.Helper()
	client, err := newClient()
	if err != nil {
		t.Fatal(err)
	}
	drains := Drains{Taints: []string{"shop.example/going"}, Conditions: []string{"shop.example/Reclaimed"}, MinServing: 1}
	return New(Options{Client: client, Builder: b, Name: "cluster", Drains: drains})
}

// newSynced returns a Source whose cluster has these objects.
func newSynced(t testing.TB, b Builder, objects ...metav1.Object) *Source {
	t.Helper()
	s := newSource(t, b)
	for _, o := range objects {
		s.add(t, o)
	}
	s.sync()
	return s
}

// sync marks all stores as synced.
func (s *Source) sync() {
	for range 5 { // kinds
		s.kindSynced()
	}
	s.derive()
}

func (s *Source) add(t testing.TB, o metav1.Object) {
	t.Helper()
	var err error
	switch o := o.(type) {
	case *corev1.Pod:
		err = s.pods.Add(o)
	case *corev1.Service:
		err = s.services.Add(o)
	case *discoveryv1.EndpointSlice:
		err = s.slices.Add(o)
	case *corev1.Namespace:
		err = s.namespaces.Add(o)
	case *corev1.Node:
		err = s.nodes.Add(o)
	case *lifecyclev1alpha1.EvictionRequest:
		err = s.evictions.Add(o)
	default:
		t.Fatalf("add a %T", o)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (s *Source) remove(t testing.TB, o metav1.Object) {
	t.Helper()
	var err error
	switch o := o.(type) {
	case *corev1.Pod:
		err = s.pods.Delete(o)
	case *corev1.Service:
		err = s.services.Delete(o)
	case *discoveryv1.EndpointSlice:
		err = s.slices.Delete(o)
	case *corev1.Namespace:
		err = s.namespaces.Delete(o)
	case *corev1.Node:
		err = s.nodes.Delete(o)
	case *lifecyclev1alpha1.EvictionRequest:
		err = s.evictions.Delete(o)
	default:
		t.Fatalf("remove a %T", o)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// change adds objects and derives the view.
func (s *Source) change(t testing.TB, objects ...metav1.Object) {
	t.Helper()
	for _, o := range objects {
		s.add(t, o)
	}
	s.derive()
}

// pod returns an injected pod of namespace shop and of the mesh default, with one container that has a TCP port 8080.
func pod(name, uid, address string, options ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(uid), Labels: map[string]string{mesh.LabelMesh: mesh.DefaultMesh},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "web",
			InitContainers:     []corev1.Container{{Name: mesh.ContainerSidecar, Ports: []corev1.ContainerPort{{ContainerPort: mesh.PortMetrics}}}},
			Containers:         []corev1.Container{{Name: "app", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}},
			Volumes:            []corev1.Volume{{Name: mesh.VolumeIdentity}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		annotations := map[string]string{key: value}
		maps.Copy(annotations, p.Annotations)
		p.Annotations = annotations
	}
}

func inMesh(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{mesh.LabelMesh: name} }
}

func onNode(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }

func forLoadBalancers(p *corev1.Pod) {
	p.Spec.InitContainers[0].Args = []string{"run", mesh.ArgLBHealthPort + "9800"}
}

// node returns a node with taints.
func node(name string, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	return n
}

// conditioned returns node a, which is Ready, with one more condition.
func conditioned(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) *corev1.Node {
	n := node("a")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: kind, Status: status, Reason: reason}}
	return n
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// restarting sets the condition by which the kubelet restarts all containers of a pod at once.
func restarting(status corev1.ConditionStatus, others func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		others(p)
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: status})
	}
}

func withoutSidecar(p *corev1.Pod) { p.Spec.Volumes = nil }

// gateway changes a pod as the webhook does for mesh.AnnotationGateway.
func gateway(p *corev1.Pod) {
	p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: mesh.ContainerInit, Args: []string{mesh.ArgRedirectInbound + "false"}})
}

// excludes changes a pod as the webhook does for mesh.AnnotationExcludeInboundPorts and the agent's ports.
func excludes(ports string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = append(slices.Clone(p.Spec.InitContainers),
			corev1.Container{Name: mesh.ContainerInit, Args: []string{mesh.ArgRedirectInbound + "true", mesh.ArgExcludeInbound, ports}})
	}
}

// serviceOf returns a Service of namespace shop with a cluster IP.
func serviceOf(name, clusterIP string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: ports,
		},
	}
}

func port(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(number)}
}

// sliceOf returns an IPv4 EndpointSlice of namespace shop.
func sliceOf(name, service string, ports []discoveryv1.EndpointPort, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: ports, Endpoints: endpoints,
	}
}

func at(name string, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: new(corev1.ProtocolTCP)}
}

func ports1(name string, number int32) []discoveryv1.EndpointPort {
	return []discoveryv1.EndpointPort{at(name, number)}
}

// Conditions of endpoints.
var (
	isReady     = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
	isNotReady  = discoveryv1.EndpointConditions{Ready: new(bool), Serving: new(bool), Terminating: new(bool)}
	isDraining  = discoveryv1.EndpointConditions{Ready: new(bool), Serving: new(true), Terminating: new(true)}
	isEnding    = discoveryv1.EndpointConditions{Ready: new(bool), Serving: new(bool), Terminating: new(true)}
	isPublished = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(bool), Terminating: new(true)} // publishNotReadyAddresses
)

// endpoint returns an endpoint of a pod; without a UID if uid is "".
func endpoint(address, podName, uid string, conditions discoveryv1.EndpointConditions) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: conditions}
	if uid != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: podName, UID: types.UID(uid)}
	}
	return e
}
