//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// checkStrict waits until the output of sondectl check strict for this namespace's mesh contains all wanted texts,
// and none of the unwanted ones.
func (n *namespace) checkStrict(what string, args []string, want, without []string) {
	n.t.Helper()
	system := &namespace{t: n.t, name: systemNamespace}
	n.wait("sondectl check strict "+what, func() error {
		text, err := system.sondectl(append([]string{"check", "strict", "--mesh=" + n.name}, args...)...)
		if err != nil {
			return err
		}
		for _, line := range want {
			if !strings.Contains(text, line) {
				return fmt.Errorf("it lacks %q:\n%s", line, text)
			}
		}
		for _, line := range without {
			if strings.Contains(text, line) {
				return fmt.Errorf("it says %q:\n%s", line, text)
			}
		}
		return nil
	})
}

// TestCheckStrict has a mesh whose mode is to become STRICT.
func TestCheckStrict(t *testing.T) {
	t.Parallel()
	n, o := newMesh(t, "PERMISSIVE"), newNamespace(t, outside)
	probed := newPod("web", "node1")
	probed.Spec.Containers[0].LivenessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(portHTTP)}}, PeriodSeconds: 1,
	}
	n.create(probed, newService("web"), newPod("client", "node2"))
	o.create(newPod("stranger", "node2"))
	n.waitReady("web", "client")
	o.waitReady("stranger")
	web := fmt.Sprintf("workload /ns/%s/sa/default, port %d", n.name, portHTTP)

	n.app("client").waitCall("http://web.%s/", n.name)
	n.checkStrict("after mTLS and probes", nil, []string{"[ok]   mesh " + n.name + ": no traffic that STRICT would reject", "as far as 2 of 2 proxies tell"}, []string{"[fail]", "[warn]"})

	o.app("stranger").waitCall("http://web.%s/", n.name) // kube-proxy may not know yet that web is ready: such a call does not reach its Envoy
	stranger := fmt.Sprintf("from %s, pod %s/stranger without a sidecar: 1 request", o.pod("stranger").Status.PodIP, o.name)
	n.checkStrict("after a request of a stranger", nil, []string{
		"[fail] mesh " + n.name + ": " + web, stranger, "do: inject the sidecar into the pods without one", fmt.Sprintf("(service web_%s_svc_80", n.name),
	}, []string{"probes of the kubelet"})

	if c := n.app("client").call("http://%s:%d/", n.host("web"), portHTTP); c.Status != http.StatusOK {
		t.Fatalf("the address of the pod does not serve: %+v", c)
	}
	native := newPod("native", "node1")
	native.Annotations["kuma.io/virtual-probes"] = "disabled"
	native.Spec.Containers[0].LivenessProbe = probed.Spec.Containers[0].LivenessProbe
	n.create(native, newService("native")) // without a service, its port would not be an inbound
	n.waitReady("native")
	sidecar := fmt.Sprintf("from %s, which has a sidecar: dataplane client.%s of mesh %s", n.pod("client").Status.PodIP, n.name, n.name)
	n.checkStrict("after a sidecar that is gone round, and a probe as it was written", nil, []string{sidecar, "probes of the kubelet come in plaintext"}, nil)

	// A deleted stranger is still reported: its calls block STRICT until they are older than --quiet.
	o.deletePod("stranger")
	n.deletePod("native")
	n.checkStrict("after all is mended", []string{"--quiet=1s"}, []string{"[warn] mesh " + n.name + ": " + web, "none for "}, []string{"[fail]"})
}
