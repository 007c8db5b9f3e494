package kube

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/test/must"
)

// zones has two zones with two nodes each, and a pod on each node: web-1 and web-2 in zone far, web-3 and web-4 in
// zone near. All are pods of Service web.
type zones struct {
	t      *testing.T
	client kubernetes.Interface
	pods   []*corev1.Pod
	slice  *discoveryv1.EndpointSlice
}

func newZones(t *testing.T, client kubernetes.Interface) *zones {
	t.Helper()
	z := &zones{t: t, client: client}
	namespace(t, client, "freeze", nil)
	z.slice = &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i := range 4 {
		name, zone := fmt.Sprintf("zone-node-%d", i+1), "far"
		if i > 1 {
			zone = "near"
		}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
		p := podOf("freeze", fmt.Sprintf("web-%d", i+1), labelled(mesh.LabelMesh, "default"))
		p.Spec.NodeName, p.Spec.Volumes = name, []corev1.Volume{{Name: mesh.VolumeIdentity}}
		p, err := client.CoreV1().Pods("freeze").Create(t.Context(), p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = client.CoreV1().Pods("freeze").Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		})
		address := fmt.Sprintf("10.2.0.%d", i+1)
		p.Status.PodIP, p.Status.PodIPs, p.Status.Phase = address, []corev1.PodIP{{IP: address}}, corev1.PodRunning
		z.pods = append(z.pods, p)
		z.slice.Endpoints = append(z.slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, NodeName: &name, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "freeze", Name: p.Name, UID: p.UID},
		})
	}
	_, err := client.CoreV1().Services("freeze").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	if err == nil {
		z.slice, err = client.DiscoveryV1().EndpointSlices("freeze").Create(t.Context(), z.slice, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.CoreV1().Services("freeze").Delete(context.Background(), "web", metav1.DeleteOptions{})
		_ = client.DiscoveryV1().EndpointSlices("freeze").Delete(context.Background(), "web-x", metav1.DeleteOptions{})
	})
	z.tell(corev1.ConditionTrue, []string{"node", "pod"}, 1, 2, 3, 4)
	return z
}

// tell writes what the controller-manager writes when nodes become Unknown or Ready, in the given order: the nodes'
// conditions, their pods' Ready conditions, and their endpoints.
func (z *zones) tell(ready corev1.ConditionStatus, order []string, numbers ...int) {
	z.t.Helper()
	podReady := ready
	if ready == corev1.ConditionUnknown {
		podReady = corev1.ConditionFalse
	}
	for _, what := range order {
		var err error
		switch what {
		case "node":
			for _, i := range numbers {
				var n *corev1.Node
				if n, err = z.client.CoreV1().Nodes().Get(z.t.Context(), fmt.Sprintf("zone-node-%d", i), metav1.GetOptions{}); err == nil {
					n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
					_, err = z.client.CoreV1().Nodes().UpdateStatus(z.t.Context(), n, metav1.UpdateOptions{})
				}
			}
		case "pod":
			for _, i := range numbers {
				p := z.pods[i-1]
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: podReady}}
				z.pods[i-1], err = z.client.CoreV1().Pods("freeze").UpdateStatus(z.t.Context(), p, metav1.UpdateOptions{})
			}
		case "slice":
			for _, i := range numbers {
				z.slice.Endpoints[i-1].Conditions.Ready = new(podReady == corev1.ConditionTrue)
			}
			z.slice, err = z.client.DiscoveryV1().EndpointSlices("freeze").Update(z.t.Context(), z.slice, metav1.UpdateOptions{})
		}
		if err != nil {
			z.t.Fatal(err)
		}
	}
}

// shows waits until sondectl get services at a replica would show these states of endpoints, in the order of the
// pods.
func (z *zones) shows(p *plane, want ...string) {
	z.t.Helper()
	api, ctx := p.adminClient(z.t, z.client)
	must.Poll(z.t, "the endpoints to be "+strings.Join(want, ", "), func(context.Context) error {
		r, err := api.ListServices(ctx, &adminv1.ListServicesRequest{Filter: &adminv1.Filter{Mesh: "default", Name: "web_freeze_svc_80"}})
		if err != nil || len(r.GetServices()) != 1 {
			return fmt.Errorf("%d services, %w", len(r.GetServices()), err)
		}
		var got []string
		for _, e := range r.GetServices()[0].GetEndpoints() {
			text := strings.ToLower(e.GetHealth().String())
			if strings.HasPrefix(e.GetReason(), "Frozen: ") {
				text += " frozen"
			}
			got = append(got, text)
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			return fmt.Errorf("they are %s", strings.Join(got, ", "))
		}
		return nil
	})
}

// order freezes or thaws a zone at a replica, which need not lead, and waits for the result.
func (z *zones) order(p *plane, zone string, thaw bool) *adminv1.FreezeZoneResponse {
	z.t.Helper()
	api, ctx := p.adminClient(z.t, z.client)
	var done *adminv1.FreezeZoneResponse
	must.Poll(z.t, "the order to be taken", func(context.Context) (err error) {
		done, err = api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{Zone: zone, Thaw: thaw})
		return err
	})
	return done
}

// agent opens a session for the agent of a pod.
func (z *zones) agent(p *plane, number int) {
	z.t.Helper()
	m := &machine{t: z.t, name: fmt.Sprintf("web-%d.freeze", number), process: rand.Text(), started: time.Now(), key: ca.NewKey(), roots: x509.NewCertPool()}
	m.roots.AppendCertsFromPEM(secret(z.t, z.client, "sonde-serving-ca.crt"))
	m.token = podToken(z.t, z.client, z.pods[number-1], mesh.TokenAudience)
	m.join(p)
	m.open(p, false)
}

// TestFreeze plays a controller-manager whose nodes become disconnected, with two replicas of the control plane, of
// which one ends.
func TestFreeze(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	planes := startReplicas(t, "a", "b")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	z := newZones(t, client)
	leads, follows := planes[0], planes[1]
	must.Poll(t, "a leader", func(ctx context.Context) error {
		name, err := holder(ctx, client)
		if err == nil && name != "a" && name != "b" {
			err = errors.New("none leads")
		}
		if name == "b" {
			leads, follows = planes[1], planes[0]
		}
		return err
	})
	z.agent(follows, 1)

	z.frozenByOrder(planes, follows)
	z.thawedByNextLeader(leads, follows)
	z.judged(follows)
}

// frozenByOrder freezes a zone at a follower, which forwards the order, and then disconnects the zone's nodes.
func (z *zones) frozenByOrder(planes []*plane, follows *plane) {
	z.t.Helper()
	if done := z.order(follows, "far", false); done.GetKeptPercent() != 100 || done.GetSince() == nil || done.GetDryRun() {
		z.t.Errorf("FreezeZone() = %v", done)
	}
	api, ctx := follows.adminClient(z.t, z.client)
	if _, err := api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{Zone: "fair"}); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), `did you mean "far"?`) {
		z.t.Errorf("FreezeZone(fair): %v", err)
	}
	z.tell(corev1.ConditionUnknown, []string{"node", "pod", "slice"}, 1, 2)
	for _, p := range planes {
		z.shows(p, "ready frozen", "draining frozen", "ready", "ready")
		p.reports(z.t, `sonde_frozen{cause="operator",zone="far"} 1`, `sonde_frozen_endpoints{state="ready"} 1`, `sonde_frozen_endpoints{state="draining"} 1`)
	}
	must.Poll(z.t, "an event", func(ctx context.Context) error {
		all, err := z.client.EventsV1().Events(systemNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range all.Items {
			if e := &all.Items[i]; e.Reason == "Frozen" && e.Regarding.Kind == "Lease" && strings.Contains(e.Note, "zone far is frozen by an operator") {
				return nil
			}
		}
		return fmt.Errorf("%d others", len(all.Items))
	})
}

// thawedByNextLeader ends the leader: the next leader keeps the zone frozen until it is thawed.
func (z *zones) thawedByNextLeader(leads, follows *plane) {
	z.t.Helper()
	leads.stop()
	z.shows(follows, "ready frozen", "draining frozen", "ready", "ready")
	if done := z.order(follows, "far", false); done.GetKeptPercent() != 100 {
		z.t.Errorf("FreezeZone() of the next leader = %v", done)
	}
	z.tell(corev1.ConditionTrue, []string{"node", "pod", "slice"}, 1, 2)
	z.order(follows, "far", true)
	z.shows(follows, "ready", "ready", "ready", "ready")
	await(z.t, 2*time.Minute, "the zone to be thawed", func(ctx context.Context) error { return follows.lacks(ctx, "sonde_frozen{") })
}

// judged disconnects a zone, and then one node, without an order: the control plane itself decides to freeze, in
// whichever order the watches deliver.
func (z *zones) judged(p *plane) {
	z.t.Helper()
	for _, order := range [][]string{{"slice", "pod", "node"}, {"node", "pod", "slice"}} {
		z.tell(corev1.ConditionUnknown, order, 1, 2)
		z.shows(p, "ready frozen", "draining frozen", "ready", "ready")
		p.reports(z.t, `sonde_frozen{cause="nodes",zone="far"} 1`)
		z.tell(corev1.ConditionTrue, order, 1, 2)
		z.shows(p, "ready", "ready", "ready", "ready")
	}
	await(z.t, 2*time.Minute, "the zone to be thawed", func(ctx context.Context) error { return p.lacks(ctx, "sonde_frozen{") })
	// One dead node freezes nothing.
	z.tell(corev1.ConditionUnknown, []string{"node", "pod", "slice"}, 3)
	z.shows(p, "ready", "ready", "not_ready", "ready")
	if err := p.lacks(z.t.Context(), "sonde_frozen{"); err != nil {
		z.t.Error(err)
	}
}

// reports waits until /metrics has these lines.
func (p *plane) reports(t *testing.T, lines ...string) {
	t.Helper()
	must.Poll(t, "metrics "+strings.Join(lines, ", "), func(ctx context.Context) error {
		text, err := p.get(ctx, "/metrics")
		for _, line := range lines {
			if err == nil && !strings.Contains("\n"+text, "\n"+line+"\n") {
				err = fmt.Errorf("no line %s", line)
			}
		}
		return err
	})
}

// lacks returns an error if /metrics has a series with this prefix.
func (p *plane) lacks(ctx context.Context, series string) error {
	text, err := p.get(ctx, "/metrics")
	if err == nil && strings.Contains("\n"+text, "\n"+series) {
		err = fmt.Errorf("there is %s", series)
	}
	return err
}

// await is poll with a longer timeout.
func await(t *testing.T, patience time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		<-time.After(200 * time.Millisecond)
	}
}
