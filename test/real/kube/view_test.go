package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller"
	"github.com/sonde-mesh/sonde/controller/secrets"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/tokenreview"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/test/must"
)

// noAgents is a control plane's set of agents, and is empty.
type noAgents struct{}

func (noAgents) PodLiveness() map[mesh.ID]agentv1.ReportedLiveness { return nil }
func (noAgents) Lacking(string) []mesh.ID                          { return nil }
func (noAgents) WakeRestarts(mesh.ID)                              {}
func (noAgents) States() map[mesh.ID]*adminv1.AgentState           { return nil }
func (noAgents) Agents() map[mesh.ID]*adminv1.Agent                { return nil }
func (noAgents) Connected(mesh.ID) bool                            { return false }
func (noAgents) LastSeen(mesh.ID) (time.Time, bool)                { return time.Time{}, false }

// noPeers is a set of peers, and is empty.
type noPeers struct{}

func (noPeers) Follow(map[string]string) {}
func (noPeers) Stale() error             { return nil }
func (noPeers) Missing() []string        { return nil }
func (noPeers) Streaming(context.Context) (map[mesh.ID]bool, []string) {
	return map[mesh.ID]bool{}, nil
}
func (noPeers) ChangedFreeze() {}

// follow runs a controller, and returns it with its view.
func follow(t *testing.T) (*controller.Controller, *meshview.Builder) {
	t.Helper()
	b := meshview.NewBuilder(meshview.Options{Sources: controller.Sources(), ExplicitMeshes: true})
	c, err := controller.New(controller.Options{
		Config: cluster.Config, Namespace: systemNamespace, Replica: t.Name(), Secrets: secrets.New(newClient(t).CoreV1().Secrets(systemNamespace)), Builder: b, Recorded: func() map[string]*mesh.Mesh { return nil }, Webhooks: ".inject.sonde.dev", Peers: noPeers{}, Agents: func() controller.Agents { return noAgents{} }, Streams: func() []mesh.ID { return nil }, ServingCA: func() []byte { return []byte("of this test") }, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := detached(t)
	done := make(chan error, 2)
	go func() { done <- c.Run(ctx) }()
	go func() { done <- b.Run(ctx, func(meshview.Change) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return c, b
}

// injected creates a pod with our sidecar in mesh default, with an address.
func injected(t *testing.T, client kubernetes.Interface, namespace, name, address string) *corev1.Pod {
	t.Helper()
	p := podOf(namespace, name, labelled(mesh.LabelMesh, "default"))
	p.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}}
	p, err := client.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	if p, err = client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// remove deletes a pod at once, as a kubelet does at the end of its termination.
func remove(t *testing.T, client kubernetes.Interface, p *corev1.Pod) {
	t.Helper()
	if err := client.CoreV1().Pods(p.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
}

func TestViewFollowsTheCluster(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	namespace(t, client, "view", nil)
	_, b := follow(t)
	shows := func(what, want string) {
		t.Helper()
		must.Poll(t, what, func(context.Context) error {
			_, s := b.View().Service("default/web_view_svc_80")
			if s == nil {
				return errors.New("no service")
			}
			var endpoints []string
			for _, e := range s.Endpoints {
				endpoints = append(endpoints, fmt.Sprintf("%s %d %s", e.Address, e.Health, e.Proxy))
			}
			if got := strings.Join(endpoints, ", "); got != want || s.Protocol != mesh.ProtocolHTTP {
				return fmt.Errorf("%s, endpoints %s; want %s", s.Protocol, got, want)
			}
			return nil
		})
	}
	_, err := client.CoreV1().Services("view").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shows("a service without endpoints", "")
	web := injected(t, client, "view", "web", "10.1.0.1")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "view", Name: "web", UID: web.UID},
		}},
	}
	slices := client.DiscoveryV1().EndpointSlices("view")
	if slice, err = slices.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready := fmt.Sprintf("10.1.0.1:8080 %d web.view", meshview.Ready)
	shows("a ready endpoint", ready)
	evictions := client.LifecycleV1alpha1().EvictionRequests("view")
	_, err = evictions.Create(t.Context(), &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{
			Target:    lifecyclev1alpha1.EvictionRequestTarget{Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: "web", UID: web.UID}},
			Requester: "example.com/autoscaler", Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
		},
	}, metav1.CreateOptions{})
	must.Do(t, err)
	shows("an endpoint whose pod is to be evicted", fmt.Sprintf("10.1.0.1:8080 %d web.view", meshview.Draining))
	must.Do(t, evictions.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	shows("an endpoint whose eviction is no longer requested", ready)
	slice.Endpoints[0].Conditions.Ready = new(bool)
	if slice, err = slices.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	shows("an endpoint that is not ready", fmt.Sprintf("10.1.0.1:8080 %d web.view", meshview.NotReady))
	remove(t, client, web)
	shows("no endpoint of a pod that has gone", "")
	if err := slices.Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, p := b.View().Proxy("default/web.view"); p != nil {
		t.Errorf("a proxy is left: %v", p)
	}
}

// cache is the control plane's cache of pods.
type cache struct{ *source.Source }

func (c cache) Pod(uid string) (tokenreview.Pod, bool) {
	key, p := c.Source.Pod(types.UID(uid))
	if p == nil {
		return tokenreview.Pod{}, false
	}
	return tokenreview.Pod{Namespace: key.Namespace, Name: key.Name, UID: uid, ServiceAccount: p.ServiceAccount, Mesh: p.Mesh}, true
}

func TestTokens(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	namespace(t, client, "tokens", nil)
	c, _ := follow(t)
	a, err := tokenreview.New(tokenreview.Options{Reviews: client.AuthenticationV1().TokenReviews(), Pods: cache{c.Cluster}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	web := injected(t, client, "tokens", "web", "10.1.0.2")
	good := podToken(t, client, web, mesh.TokenAudience)
	var subject identity.Subject
	must.Poll(t, "the pod of a token", func(ctx context.Context) error {
		subject, err = a.Authenticate(ctx, good)
		return err
	})
	if subject.Dataplane != "web.tokens" || subject.Instance != string(web.UID) || subject.Path != "/ns/tokens/sa/default" {
		t.Errorf("subject %+v", subject)
	}
	if _, err := a.Authenticate(t.Context(), podToken(t, client, web, "other")); err == nil || errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("a token of another audience: %v", err)
	}
	remove(t, client, web)
	must.Poll(t, "the pod to be deleted", func(context.Context) error {
		if key, p := c.Cluster.Pod(web.UID); p != nil {
			return fmt.Errorf("%s is there", key)
		}
		return nil
	})
	if _, err := a.Authenticate(t.Context(), good); err == nil {
		t.Error("the token of a deleted pod is taken")
	}
	next := injected(t, client, "tokens", "web", "10.1.0.2")
	must.Poll(t, "the next pod of the name", func(context.Context) error {
		if _, p := c.Cluster.Pod(next.UID); p == nil {
			return errors.New("the pod is not read yet")
		}
		return nil
	})
	if s, err := a.Authenticate(t.Context(), good); err == nil {
		t.Errorf("the token of an earlier pod of the name authenticates %+v", s)
	}
}
