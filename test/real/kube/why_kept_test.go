package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Reasons why a pod that has joined gets no traffic, or still gets traffic.
func TestWhyPodWithoutTraffic(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	namespace(t, client, "why", map[string]string{mesh.LabelInjection: "enabled"}) // like other tests in this namespace
	namespace(t, client, "why-held", nil)
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	startKubelet(t, client).run(t, systemNamespace, "sonde-cp-a", "sonde", p)
	user := administrator(t)

	t.Run("left out", func(t *testing.T) {
		user := &person{t, user.kubeconfig}
		pod := runs(t, client, "served", "10.8.0.1", nil)
		m := machineOf(t, client, pod)
		m.join(p)
		m.open(p, false)
		m.connect(p)
		user.why("served", "pod/served in namespace why is well: it is in mesh default, Ready since T, and no Service of namespace why selects it.\n")
		services, slices := client.CoreV1().Services("why"), client.DiscoveryV1().EndpointSlices("why")
		_, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "served"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		user.why("served", "pod/served in namespace why gets no traffic: no EndpointSlice of Service web contains it, although its labels match.\n")
		slice, err := slices.Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"10.8.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "why", Name: pod.Name, UID: pod.UID},
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		user.why("served", "pod/served in namespace why gets no traffic: EndpointSlice web-x of Service web says that it is not ready.\n")
		slice.Endpoints[0].Conditions.Ready = new(true)
		if _, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		user.why("served", "pod/served in namespace why is well: it is in mesh default, Ready since T, and gets traffic of Service web.\n")
	})
	t.Run("held", func(t *testing.T) {
		user := &person{t, user.kubeconfig}
		g := openGuarded(newGuardedPod(t, client, "why-held", func(pod *corev1.Pod) {
			pod.Annotations[mesh.AnnotationLiveness] = "suspended"
		}), p)
		pod, err := client.CoreV1().Pods("why-held").Get(t.Context(), "guarded", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		g.fails("")
		const why = "the liveness probe of container app fails, and it may not restart: the pod is annotated sonde.dev/liveness: suspended"
		told(t, client, pod, "RestartHeld", why)
		user.whyIn("why-held", "guarded", "pod/guarded in namespace why-held gets no new traffic since T: "+why)
		g.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: &agentv1.Liveness{}}})
		user.whyIn("why-held", "guarded", "pod/guarded in namespace why-held is well: ")
	})
	t.Run("frozen", func(t *testing.T) {
		user := &person{t, user.kubeconfig}
		z := newZones(t, client)
		z.agent(p, 1)
		z.shows(p, "ready", "ready", "ready", "ready")
		user.whyIn("freeze", "web-1", "pod/web-1 in namespace freeze is well: ")
		z.order(p, "far", false)
		z.tell(corev1.ConditionUnknown, []string{"node", "pod", "slice"}, 1, 2)
		user.whyIn("freeze", "web-1", `pod/web-1 in namespace freeze is not Ready: its containers were ready, but the API server has lost contact with node zone-node-1. One more finding is below.

NodeNotHeard
  condition Ready: False
  condition ContainersReady: True

Frozen: its node and most of its zone, or of the mesh, are not seen: the endpoint stays although Kubernetes removes it
`)
		z.tell(corev1.ConditionTrue, []string{"node", "pod", "slice"}, 1, 2)
		z.order(p, "far", true)
		user.whyIn("freeze", "web-1", "pod/web-1 in namespace freeze is well: ")
	})
}
