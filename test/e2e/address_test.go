//go:build e2e

package e2e

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestAddressUsedAgain completes a pod of the mesh, and gives its address to a pod outside of the mesh: that pod gets
// no mTLS, and no calls for the completed pod.
func TestAddressUsedAgain(t *testing.T) {
	t.Parallel()
	n, o := newNamespace(t, injected), newNamespace(t, outside)
	n.create(newPod("client", "node1"), newService("done"))
	o.create(newService("successor"))
	n.waitReady("client")
	address := ""
	// Pods of other tests may get the address first.
	for range 5 {
		done := newPod("done", "node2")
		done.Spec.RestartPolicy = corev1.RestartPolicyNever
		done.Spec.Containers[0].Args = []string{"--call=http://127.0.0.1:9901/"} // it ends at once, whatever the result
		n.create(done)
		n.waitPod("done", "ended", func(p *corev1.Pod) error {
			if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
				return errors.New(summary(p))
			}
			return nil
		})
		address = n.pod("done").Status.PodIP
		giveNext(t, "node2", address)
		o.create(newPod("successor", "node2"))
		o.waitReady("successor")
		if o.pod("successor").Status.PodIP == address {
			break
		}
		o.deletePod("successor")
		n.deletePod("done")
		address = ""
	}
	if address == "" {
		t.Fatal("no pod got the address of the completed pod")
	}
	client := n.app("client")
	a := client.waitCall("http://successor.%s/", o.name)
	if a.Instance != "successor" || a.Headers.Get("X-Forwarded-Client-Cert") != "" {
		t.Errorf("%+v answered, want the successor without mTLS", a)
	}
	if c := client.call("http://done.%s/", n.name); c.Status == 200 {
		t.Errorf("the Service of the completed pod answers: %+v", c)
	}
}

// giveNext makes the CNI plugin host-local assign this address of a node to the next pod: the plugin continues from
// its last assigned address.
func giveNext(t *testing.T, node, address string) {
	t.Helper()
	file := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), node, "var-lib-cni", "networks", "pods", "last_reserved_ip.0")
	last, err := netip.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(last.Prev().String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
