package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
)

// A pod that does not use the cluster's DNS has the address of the control plane's Service in its hosts file.
func TestPodWithoutClusterDNS(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "cp-"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "grpc", Port: 5678}}},
	}
	service, err := client.CoreV1().Services(systemNamespace).Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host := service.Name + "." + systemNamespace + ".svc"
	startInjection(t, client, func(o *controlplane.Options) { o.Kubernetes.Injection.ControlPlane = host + ":5678" })
	namespace(t, client, "own-dns", map[string]string{mesh.LabelInjection: "enabled"})

	const containers = "containers: [{name: app, image: app}]"
	pod, err := createSpec(t, client, "own-dns", "dnsPolicy: None\ndnsConfig: {nameservers: [1.1.1.1]}\n"+containers, nil)
	if err != nil {
		t.Fatal(err)
	}
	aliases := pod.Spec.HostAliases
	if !hasSidecar(pod) || len(aliases) != len(service.Spec.ClusterIPs) || aliases[0].IP != service.Spec.ClusterIP || aliases[0].Hostnames[0] != host {
		t.Errorf("hostAliases %v, want %s at %v", aliases, host, service.Spec.ClusterIPs)
	}
	if pod, err = createSpec(t, client, "own-dns", containers, nil); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.HostAliases != nil {
		t.Errorf("a pod that asks the DNS of the cluster has hostAliases %v", pod.Spec.HostAliases)
	}
}
