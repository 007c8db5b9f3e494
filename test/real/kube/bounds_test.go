package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/cgrouptest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// chartMemory is the chart's memory limit for a replica of the control plane.
const chartMemory = 512 << 20

// greedy is a namespace whose users create as many objects as the API server accepts.
type greedy struct {
	client *kubernetes.Clientset
	name   string
}

// newGreedy returns a greedy namespace whose client has no rate limit.
func newGreedy(t *testing.T, name string) *greedy {
	t.Helper()
	config := rest.CopyConfig(cluster.Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	must.Do(t, err)
	namespace(t, client, name, nil)
	return &greedy{client, name}
}

// pod creates a pod that lists very many services, or declares very many ports.
func (g *greedy) pod(ctx context.Context, i int) error {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%03d", i), Labels: map[string]string{mesh.LabelMesh: mesh.DefaultMesh}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app", Image: "app"}},
			Volumes:    []corev1.Volume{{Name: mesh.VolumeIdentity, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	if i%2 == 0 {
		p.Annotations = map[string]string{mesh.AnnotationReachableServices: strings.Repeat("a,", 130_000)}
	} else {
		for port := range 2000 {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: int32(20_000 + port)})
		}
	}
	made, err := g.client.CoreV1().Pods(g.name).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.9.%d.%d", i/250, i%250+1)}
	made.Status.PodIPs = []corev1.PodIP{{IP: made.Status.PodIP}}
	_, err = g.client.CoreV1().Pods(g.name).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// service creates a Service with very many ports, and EndpointSlices with as many endpoints for
// each.
func (g *greedy) service(ctx context.Context, i int) error {
	ports := 200
	if i%2 == 0 {
		ports = 10_000
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%03d", i)}}
	var at []discoveryv1.EndpointPort
	for j := range ports {
		name, number := fmt.Sprint("p", j), int32(j+1)
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: number})
		at = append(at, discoveryv1.EndpointPort{Name: &name, Port: &number})
	}
	if _, err := g.client.CoreV1().Services(g.name).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, endpoints := range []int{50, 100, 1000} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: fmt.Sprint(s.Name, "-", endpoints), Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: at,
		}
		for j := range endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.8.%d.%d", j/250, j%250+1)}})
		}
		if _, err := g.client.DiscoveryV1().EndpointSlices(g.name).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// dataplane creates a Dataplane with the maximum number of outbounds, each to another service.
func (g *greedy) dataplane(ctx context.Context, i int) error {
	_, err := cluster.Do(ctx, http.MethodPost, sondePath(g.name, "dataplanes"), "application/json", manyOutbounds(i, mesh.MaxOutbounds))
	return err
}

// manyOutbounds returns a Dataplane with n outbounds.
func manyOutbounds(i, n int) string {
	var outbounds []string
	for j := range n {
		outbounds = append(outbounds, fmt.Sprintf(`{"port":%d,"tags":{"kuma.io/service":"s-%d-%d"}}`, 10_000+j, i, j))
	}
	return fmt.Sprintf(`{"apiVersion":"sonde.dev/v1alpha1","kind":"Dataplane","metadata":{"name":"vm-%03d"},"spec":{"networking":{"address":"10.7.0.%d","outbound":[%s]}}}`,
		i, i+1, strings.Join(outbounds, ","))
}

// A Dataplane that exceeds the bounds, and that an earlier release accepted, is still served unchanged; its status
// reports it as invalid.
func TestDataplaneOfAnEarlierRelease(t *testing.T) {
	deleteMeshes(t)
	namespace(t, newClient(t), "early-dataplanes", nil)
	text := manyOutbounds(0, mesh.MaxOutbounds+1)
	earlierDefinition(t, "dataplanes.sonde.dev", func(ctx context.Context, query string) error {
		_, err := cluster.Do(ctx, http.MethodPost, sondePath("early-dataplanes", "dataplanes")+query, "application/json", text)
		return err
	}, func(version map[string]any) error {
		unstructured.RemoveNestedField(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "networking", "properties", "outbound", "maxItems")
		return nil
	})
	namespace(t, newClient(t), systemNamespace, nil)
	_, view := follow(t)
	accepted(t, sondePath("early-dataplanes", "dataplanes")+"/vm-000", "False", "Invalid", `is in use, but exceeds the limits for new objects: networking.outbound: \"5001 items\": must have at most 5000 items`)
	must.Poll(t, "the Dataplane to be served", func(context.Context) error {
		d := view.View().Dataplane(mesh.MakeID(mesh.DefaultMesh, "vm-000.early-dataplanes"))
		if d == nil || len(d.Spec.Networking.Outbound) != mesh.MaxOutbounds+1 {
			return errors.New("the view does not have it unchanged")
		}
		return nil
	})
}

// A namespace with as many objects as the API server accepts cannot exhaust the chart's memory limit of a replica,
// neither while users write the objects nor at a start. Other namespaces are not affected.
func TestGreedyNamespace(t *testing.T) {
	program, err := harness.BuildInto(t.Context(), t.TempDir(), "cmd/sonde-cp")
	must.Do(t, err)
	limited := cgrouptest.NewMemory(t, chartMemory)
	program = limited.Program(t, program)
	deleteMeshes(t)
	g := newGreedy(t, "greedy")
	namespace(t, g.client, "modest", nil)
	p := startProcess(t, program, "a")
	for what, of := range map[string]struct {
		n    int
		make func(context.Context, int) error
	}{"pods": {100, g.pod}, "Services": {20, g.service}, "Dataplanes": {20, g.dataplane}} {
		group, ctx := errgroup.WithContext(t.Context())
		group.SetLimit(4)
		for i := range of.n {
			group.Go(func() error { return of.make(ctx, i) })
		}
		if err := group.Wait(); err != nil {
			t.Fatalf("write %s: %v", what, err)
		}
	}
	served := func(name string) {
		t.Helper()
		apply(t, "modest", "dataplanes", fmt.Sprintf("{apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: %s}, spec: {networking: {address: 10.6.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: modest}}]}}}", name))
		accepted(t, sondePath("modest", "dataplanes")+"/"+name, "True", "Accepted", "")
		must.Poll(t, "the problems of ignored objects", func(ctx context.Context) error {
			metrics, err := p.get(ctx, "/metrics")
			if err != nil {
				return err
			}
			for _, kind := range []string{"Pod", "Service", "EndpointSlice"} {
				if strings.Contains(metrics, fmt.Sprintf("sonde_objects_beyond_bounds{kind=%q,reason=\"namespace\"} 0\n", kind)) {
					return errors.New("each " + kind + " counts")
				}
			}
			return p.ready(ctx)
		})
	}
	served("first")
	accepted(t, sondePath("greedy", "dataplanes")+"/vm-019", "False", "Invalid", "does not count: only the oldest objects of a namespace count")
	must.Poll(t, "the event", func(ctx context.Context) error {
		events, err := g.client.EventsV1().Events("greedy").List(ctx, metav1.ListOptions{FieldSelector: "reason=BeyondBounds"})
		if err == nil && len(events.Items) == 0 {
			return errors.New("no event yet")
		}
		return err
	})
	youngest, err := g.client.CoreV1().Pods("greedy").Get(t.Context(), "p-099", metav1.GetOptions{})
	must.Do(t, err)
	m := machineOf(t, g.client, youngest)
	conn := m.dial(p.plane)
	must.Poll(t, "why the youngest pod cannot join", func(ctx context.Context) error {
		if err := m.joinOver(ctx, conn); err == nil || !strings.Contains(err.Error(), "its pod does not count: only the oldest pods of a namespace do") {
			return fmt.Errorf("Join() = %w", err)
		}
		return nil
	})
	p.stop()
	p = startProcess(t, program, "b")
	served("second")
	p.stop()
	t.Logf("at most %d MiB were used", limited.Peak(t)>>20)
	if n := limited.Killed(t); n > 0 {
		t.Errorf("%d processes were killed for lack of memory", n)
	}
}
