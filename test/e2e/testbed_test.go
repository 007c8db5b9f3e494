//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodePorts calls a NodePort of each node from each node, with the endpoint on either. If the endpoint is on the
// caller's node and the port is on the other, the node that translates the packets must also translate the responses.
func TestNodePorts(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, outside)
	for _, node := range cluster.nodes[:2] {
		n.create(newPod(node, node), newService(node, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeNodePort, s.Spec.Ports[:1]
			s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		}))
	}
	n.waitReady(cluster.nodes[:2]...)
	for _, endpoint := range cluster.nodes[:2] {
		service, err := cluster.client.CoreV1().Services(n.name).Get(t.Context(), endpoint, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		port := strconv.Itoa(int(service.Spec.Ports[0].NodePort))
		for _, node := range cluster.nodes[:2] {
			for _, address := range nodeAddresses(t, node) {
				url := "http://" + net.JoinHostPort(address, port)
				for caller := range 2 {
					wait(t, fmt.Sprintf("an answer of %s on %s for node %d", url, endpoint, caller+1), func() error {
						return callFrom(t, caller+1, url)
					})
				}
			}
		}
	}
}

// nodeAddresses returns the addresses of a node.
func nodeAddresses(t *testing.T, name string) (addresses []string) {
	t.Helper()
	node, err := cluster.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			addresses = append(addresses, a.Address)
		}
	}
	return addresses
}

// appProgram returns the application's program, which make has built into the directory of the
// tests' program.
func appProgram(t *testing.T) string {
	t.Helper()
	tests, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(tests), "app")
}

// callFrom calls the application from the network of a node.
func callFrom(t *testing.T, node int, url string) error {
	t.Helper()
	return tryTestbed(t.Context(), "exec", strconv.Itoa(node), appProgram(t), "--call="+url)
}
