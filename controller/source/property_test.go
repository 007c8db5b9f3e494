package source

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// randomCluster has the objects of a cluster, and its Source.
type randomCluster struct {
	rand    *rand.Rand
	objects map[string]metav1.Object // by kind and name
	// gone maps the UIDs of deleted pods with a sidecar to the pods.
	gone map[string]*corev1.Pod
	made int // UIDs
	// minServing and ignoreNodes are as in Drains.
	minServing  int
	ignoreNodes bool
}

func choose[T any](c *randomCluster, of ...T) T { return of[c.rand.IntN(len(of))] }

func (c *randomCluster) podName() string     { return fmt.Sprint("pod-", c.rand.IntN(4)) }
func (c *randomCluster) serviceName() string { return choose(c, "web", "api", "db") }
func (c *randomCluster) address() string     { return fmt.Sprint("10.0.0.", c.rand.IntN(4)) }

// uid returns one of the last UIDs, of an existing or a deleted pod.
func (c *randomCluster) uid() string { return fmt.Sprint("u-", max(0, c.made-c.rand.IntN(6))) }

// step makes one random change. There are so few names that objects often refer to each other.
func (c *randomCluster) step(t *testing.T, s *Source) {
	if c.rand.IntN(20) == 0 {
		c.ignoreNodes = !c.ignoreNodes
		s.IgnoreNodes(c.ignoreNodes)
	}
	var o metav1.Object
	switch c.rand.IntN(12) {
	case 10, 11:
		o = c.node()
	case 0, 1, 2:
		o = c.pod()
	case 3, 4:
		o = c.service()
	case 5:
		o = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{mesh.LabelMesh: choose(c, "", "prod")}}}
	default:
		o = c.slice()
	}
	key := fmt.Sprintf("%T %s", o, o.GetName())
	before := c.objects[key]
	if c.rand.IntN(4) == 0 {
		delete(c.objects, key)
		s.remove(t, o)
		o = nil
	} else {
		c.objects[key] = o
		s.add(t, o)
	}
	c.note(before, o)
}

// note records the deletion of pods with a sidecar.
func (c *randomCluster) note(before, now metav1.Object) {
	was, _ := before.(*corev1.Pod)
	is, _ := now.(*corev1.Pod)
	if was != nil && podspec.IsInjected(&was.Spec) {
		c.gone[string(was.UID)] = was
	}
	if is != nil && podspec.IsInjected(&is.Spec) {
		delete(c.gone, string(is.UID))
	}
}

func (c *randomCluster) pod() *corev1.Pod {
	name := c.podName()
	var uid string
	if old, ok := c.objects[fmt.Sprintf("%T %s", &corev1.Pod{}, name)]; ok && c.rand.IntN(3) > 0 {
		uid = string(old.GetUID())
	} else {
		c.made++
		uid = fmt.Sprint("u-", c.made)
	}
	options := []func(*corev1.Pod){}
	for _, o := range []func(*corev1.Pod){
		inMesh("prod"), inPhase(corev1.PodSucceeded), withoutSidecar, excludes("8080"),
		annotated(mesh.AnnotationServerFirstPorts, "9090"), c.onSomeNode, c.onSomeNode, c.onSomeNode, terminating, forLoadBalancers, forLoadBalancers,
		forLoadBalancers, annotated(mesh.AnnotationDrain, "by hand"), restarting("True", failed), restarting("False", failed), restarting("False", well),
	} {
		if c.rand.IntN(6) == 0 {
			options = append(options, o)
		}
	}
	return pod(name, uid, choose(c, "", c.address(), c.address(), c.address()), options...)
}

// onSomeNode assigns a pod to an existing node, as the scheduler does.
func (c *randomCluster) onSomeNode(p *corev1.Pod) {
	name := fmt.Sprint("n-", c.rand.IntN(2))
	if c.objects[fmt.Sprintf("%T %s", &corev1.Node{}, name)] != nil {
		p.Spec.NodeName = name
	}
}

func (c *randomCluster) node() *corev1.Node {
	n := node(fmt.Sprint("n-", c.rand.IntN(2)), choose(c, "", "ToBeDeletedByClusterAutoscaler", "shop.example/going", "other"))
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDrainInProgress, Status: choose(c, corev1.ConditionTrue, "False", "False")}}
	if c.rand.IntN(4) == 0 {
		n.Annotations = map[string]string{mesh.AnnotationDrain: choose(c, "", "kernel update")}
	}
	return n
}

func (c *randomCluster) service() *corev1.Service {
	s := serviceOf(c.serviceName(), choose(c, "10.96.0.1", "10.96.0.2", "None"), port("http", 80))
	if c.rand.IntN(2) == 0 {
		s.Spec.Ports = append(s.Spec.Ports, port("grpc", 90))
	}
	if c.rand.IntN(6) == 0 {
		s.Spec.Type = corev1.ServiceTypeExternalName
	}
	return s
}

func (c *randomCluster) slice() *discoveryv1.EndpointSlice {
	ports := [][]discoveryv1.EndpointPort{{at("http", 8080)}, {at("grpc", 9090)}, {at("http", 8080), at("grpc", 9090)}, {}}
	var endpoints []discoveryv1.Endpoint
	for range c.rand.IntN(4) {
		endpoints = append(endpoints, endpoint(c.address(), c.podName(), choose(c, "", c.uid(), c.uid()), choose(c, isReady, isNotReady, isDraining, isPublished)))
	}
	s := sliceOf(fmt.Sprint("slice-", c.rand.IntN(4)), choose(c, "", c.serviceName(), c.serviceName()), choose(c, ports...), endpoints...)
	if c.rand.IntN(4) == 0 {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

// fresh returns the result of a Source that reads everything at once. First it adds and deletes the deleted pods, since
// the Source could not know of them otherwise.
func (c *randomCluster) fresh(t *testing.T) map[mesh.Key]mesh.Object {
	r := newRecorder()
	s := newSource(t, r)
	s.o.Drains.MinServing = c.minServing
	s.IgnoreNodes(c.ignoreNodes)
	for _, uid := range slices.Sorted(maps.Keys(c.gone)) {
		s.add(t, c.gone[uid])
		s.remove(t, c.gone[uid])
	}
	for _, o := range c.objects {
		s.add(t, o)
	}
	s.sync()
	return r.objects
}

func TestIncrementalStateEqualsAFreshOne(t *testing.T) {
	for seed := range uint64(8) {
		c := &randomCluster{
			rand: rand.New(rand.NewPCG(seed, 5)), objects: map[string]metav1.Object{}, gone: map[string]*corev1.Pod{}, minServing: int(seed % 4),
		}
		r := newRecorder()
		s := newSynced(t, r)
		s.o.Drains.MinServing = c.minServing
		for step := range 80 {
			for range 1 + c.rand.IntN(3) {
				c.step(t, s)
			}
			s.derive()
			if diff := cmp.Diff(c.fresh(t), r.objects, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("seed %d, step %d (-fresh +incremental):\n%s", seed, step, diff)
			}
			for uid, p := range c.gone { // once forgotten, the pod is unknown to the Source
				if !s.index.names(podRef{p.UID, watch.Key{Namespace: p.Namespace, Name: p.Name}}) {
					delete(c.gone, uid)
				}
			}
		}
		checkForgets(t, s, c)
	}
}

// checkForgets checks that nothing remains of deleted objects.
func checkForgets(t *testing.T, s *Source, c *randomCluster) {
	t.Helper()
	for _, o := range c.objects {
		s.remove(t, o)
	}
	s.derive()
	if n := len(s.byUID) + len(s.gone) + len(s.passed) + len(s.proxy) + len(s.index.slices) + len(s.index.of) + len(s.index.naming) +
		len(s.drains) + len(s.held) + len(s.goneNodes); n != 0 {
		t.Errorf("the Source keeps %v, %v, %v, %v, %v, %v, %v, %v", s.byUID, s.gone, s.passed, s.proxy, s.index, s.drains, s.held, s.goneNodes)
	}
	r, _ := s.o.Builder.(*recorder)
	if len(r.objects) != 0 {
		t.Errorf("the Builder keeps %v", r.objects)
	}
}
