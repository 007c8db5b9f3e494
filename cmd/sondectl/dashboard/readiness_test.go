package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/admin/lists"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	kubesource "github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/since"
)

// cluster is an API server that has lists of objects, by resource, and whose watches stay silent.
type cluster map[string][]any

// kinds are the types of lists.
var kinds = map[string]metav1.TypeMeta{
	"pods": {Kind: "PodList", APIVersion: "v1"}, "services": {Kind: "ServiceList", APIVersion: "v1"}, "nodes": {Kind: "NodeList", APIVersion: "v1"},
	"namespaces": {Kind: "NamespaceList", APIVersion: "v1"}, "endpointslices": {Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"},
}

// RoundTrip implements http.RoundTripper.
func (c cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}}
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch objects, known := c[resource]; {
	case !known, r.URL.Query().Get("sendInitialEvents") != "":
		answer.StatusCode, answer.Body = http.StatusNotFound, io.NopCloser(strings.NewReader("not found"))
	case r.URL.Query().Get("watch") != "":
		reader, writer := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) }) // it never fails
		answer.Body = reader
	default:
		body, err := json.Marshal(map[string]any{"kind": kinds[resource].Kind, "apiVersion": kinds[resource].APIVersion, "metadata": map[string]string{"resourceVersion": "1"}, "items": objects})
		if err != nil {
			return nil, err
		}
		answer.Body = io.NopCloser(bytes.NewReader(body))
	}
	return answer, nil
}

// addPod adds an injected pod of namespace shop, and unless change removes it, a Service with it alone.
func (c cluster) addPod(name string, ready bool, change func(*corev1.Pod)) {
	n := byte(len(c["pods"]) + 1)
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{mesh.LabelMesh: mesh.DefaultMesh}, ResourceVersion: "1",
		},
		Spec: corev1.PodSpec{
			NodeName: "seen", InitContainers: []corev1.Container{{Name: mesh.ContainerSidecar}}, Volumes: []corev1.Volume{{Name: mesh.VolumeIdentity}},
			Containers: []corev1.Container{{Name: "app", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: netip.AddrFrom4([4]byte{10, 0, 0, n}).String(), Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: status}, {Type: corev1.PodReady, Status: status},
		}},
	}
	change(pod)
	c["pods"] = append(c["pods"], pod)
	if pod.Labels["app"] == "none" {
		return
	}
	ip := netip.AddrFrom4([4]byte{10, 1, 0, n}).String()
	c["services"] = append(c["services"], &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "1"},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	})
	serving := ready && pod.Status.Conditions[1].Status == corev1.ConditionTrue
	ready = serving || pod.Labels["app"] == "published" // the Service has publishNotReadyAddresses
	c["endpointslices"] = append(c["endpointslices"], &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}, ResourceVersion: "1"},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{pod.Status.PodIP}, NodeName: &pod.Spec.NodeName, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: new(false)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: name, UID: pod.UID},
		}},
	})
}

// node returns a node of a zone.
func node(name, zone string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}, ResourceVersion: "1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

// controlPlane answers with what a control plane has read from a cluster.
type controlPlane struct {
	*fakeAPI
	lists lists.Answers
}

// read reads the cluster as the control plane does, with zone lost frozen.
func (c cluster) read(t *testing.T) *controlPlane {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: c, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	builder := meshview.NewBuilder(meshview.Options{Sources: []string{"cluster"}, ServicesChecked: true})
	from := kubesource.New(kubesource.Options{Client: client, Builder: builder, Name: "cluster", Connected: func(mesh.ID) bool { return true }})
	from.Freeze(kubesource.Kept{"lost": kubesource.AllKept})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- from.Run(ctx) }()
	time.Sleep(time.Minute) // in a bubble
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := from.Missing(); err != nil {
		t.Fatal(err)
	}
	change, _ := builder.Build()
	return &controlPlane{&fakeAPI{health: &adminv1.Health{}, restarts: &adminv1.ListRestartsResponse{}}, lists.Answers{
		View: func() *meshview.View { return change.After }, Problems: func() []*adminv1.Problem { return nil },
		Streams: func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) { return nil, nil },
		Missing: func() []string { return nil }, Agents: noAgents{}, Since: since.New(), CAExpires: func(string) time.Time { return time.Time{} },
		PodState: from.StateOf, ProbesOf: from.ProbesOf,
	}}
}

func (c *controlPlane) ListDataplanes(ctx context.Context, r *adminv1.ListDataplanesRequest, _ ...grpc.CallOption) (*adminv1.ListDataplanesResponse, error) {
	return c.lists.ListDataplanes(ctx, r)
}

func (c *controlPlane) ListServices(ctx context.Context, r *adminv1.ListServicesRequest, _ ...grpc.CallOption) (*adminv1.ListServicesResponse, error) {
	return c.lists.ListServices(ctx, r)
}

type agents interface{ lists.Agents }

// noAgents has no agent. Lists of Dataplanes and services ask for states alone.
type noAgents struct{ agents }

func (noAgents) States() map[mesh.ID]*adminv1.AgentState { return nil }

// TestReadinessOfPods has pods as Kubernetes has them, read by the control plane's own Source.
func TestReadinessOfPods(t *testing.T) {
	lost := func(p *corev1.Pod) { // the node controller has marked it
		p.Spec.NodeName, p.Status.Conditions[1].Status = "unseen", corev1.ConditionFalse
	}
	tests := map[string]struct {
		ready  bool
		change func(*corev1.Pod)
		want   State
		reason string
	}{
		"ready":    {true, func(*corev1.Pod) {}, Passing, podReady},
		"notready": {false, func(*corev1.Pod) {}, Failing, podNotReady},
		"frozen":   {true, lost, Unreported, mesh.FrozenReason},
		"restarting": {false, func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionTrue})
		}, Unreported, mesh.RestartingReason},
		"gateway": {true, func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: mesh.ContainerInit, Args: []string{mesh.ArgRedirectInbound + "false"}})
		}, Passing, podReady},
		"alone":     {true, func(p *corev1.Pod) { p.Labels["app"] = "none" }, Passing, podReady},
		"notalone":  {false, func(p *corev1.Pod) { p.Labels["app"] = "none" }, Failing, podNotReady},
		"published": {false, func(p *corev1.Pod) { p.Labels["app"] = "published" }, Failing, podNotReady},
		"drains":    {true, func(p *corev1.Pod) { p.Spec.NodeName = "going" }, Passing, podReady},
	}
	synctest.Test(t, func(t *testing.T) {
		going := node("going", "well", corev1.ConditionTrue)
		going.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
		c := cluster{"namespaces": {}, "nodes": {node("seen", "well", corev1.ConditionTrue), node("unseen", "lost", corev1.ConditionUnknown), going}}
		for name, tc := range tests {
			c.addPod(name, tc.ready, tc.change)
		}
		found := workloads(t, c.read(t))
		if len(found.Rows) != len(tests) {
			t.Fatalf("%d workloads, want %d", len(found.Rows), len(tests))
		}
		for _, row := range found.Rows {
			tc, got := tests[row.Name], row.Readiness.Findings[0]
			if got.State != tc.want || !strings.HasPrefix(got.Reason, tc.reason) {
				t.Errorf("%s: %s: %q, want %s: %q", row.Name, got.State, got.Reason, tc.want, tc.reason)
			}
		}
	})
}
