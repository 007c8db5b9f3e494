package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"

	"github.com/sonde-mesh/sonde/test/must"
)

// runAt creates a pod without a sidecar, which has had an address for an hour.
func runAt(t *testing.T, client kubernetes.Interface, namespace, name, address string, hostNetwork bool) {
	t.Helper()
	pods := client.CoreV1().Pods(namespace)
	pod, err := pods.Create(t.Context(), podOf(namespace, name, func(p *corev1.Pod) {
		p.Spec.NodeName = "worker-1"
		p.Spec.Containers[0].Ports, p.Spec.HostNetwork = nil, hostNetwork
	}), metav1.CreateOptions{})
	if err == nil {
		started := metav1.NewTime(time.Now().Add(-time.Hour))
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
		_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckStrict has a pod's agent report senders of plain text: the control plane finds their owners by address in
// the API server.
func TestCheckStrict(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "strict", nil)
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	runAt(t, client, "strict", "curl", "10.1.9.1", false)
	runAt(t, client, "strict", "exporter", "10.9.9.9", true)

	m := newGuardedPod(t, client, "strict")
	own, err := client.CoreV1().Pods("strict").Get(t.Context(), "guarded", metav1.GetOptions{})
	if err == nil { // pods of other tests have its previous address
		own.Status.PodIP, own.Status.PodIPs = "10.1.9.7", []corev1.PodIP{{IP: "10.1.9.7"}}
		_, err = client.CoreV1().Pods("strict").UpdateStatus(t.Context(), own, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	m.join(p)
	stream, err := agentv1.NewAgentServiceClient(m.dial(p)).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hello := m.hello(false)
	hello.GetHello().Features = append(hello.GetHello().GetFeatures(), agentv1.FeaturePlaintext)
	said := &agentv1.PlaintextInbound{Port: 8080, Requests: true}
	for _, from := range []string{"10.1.9.1", "10.9.9.9", "192.0.2.1", "10.1.9.7"} { // the last is the pod's own address
		said.Sources = append(said.Sources, &agentv1.PlaintextSource{
			Address: from, Tally: &agentv1.PlaintextTally{Count: 3, First: durationpb.New(time.Minute), Last: durationpb.New(time.Second)},
		})
	}
	report := &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Plaintext{Plaintext: &agentv1.Plaintext{Inbounds: []*agentv1.PlaintextInbound{said}}}}
	for _, message := range []*agentv1.AgentMessage{hello, report} {
		if err := stream.Send(message); err != nil {
			t.Fatal(err)
		}
	}
	admin, ctx := p.adminClient(t, client)
	want := []string{
		"10.1.9.1 is pod strict/curl of node worker-1", "10.1.9.7 is dataplane guarded.strict", "10.9.9.9 is node worker-1", "192.0.2.1 is unknown",
	}
	must.Poll(t, "the owners of the sources", func(context.Context) error {
		found, err := admin.CheckStrict(ctx, &adminv1.CheckStrictRequest{Mesh: "default"})
		if err != nil {
			return err
		}
		var got []string
		for _, port := range found.GetMeshes()[0].GetPorts() {
			for _, s := range port.GetSources() {
				got = append(got, s.GetAddress()+" is "+owner(s))
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("sources (-want +got):\n%s", diff)
		}
		return nil
	})
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

// owner returns the owner of a source's address.
func owner(s *adminv1.StrictSource) string {
	switch {
	case s.GetDataplane() != "":
		return "dataplane " + s.GetDataplane()
	case s.GetPod() != "":
		return "pod " + s.GetPod() + " of node " + s.GetNode()
	case s.GetNode() != "":
		return "node " + s.GetNode()
	}
	return "unknown"
}
