//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// TestGateway has an ingress controller in a mesh that accepts no plaintext: it serves any client, and makes calls
// with the pod's identity.
func TestGateway(t *testing.T) {
	t.Parallel()
	n, o := newMesh(t, "STRICT"), newNamespace(t, outside)
	gateway := newPod("gateway", "node1")
	gateway.Annotations = map[string]string{mesh.AnnotationGateway: "enabled"}
	warnings := n.create(gateway, newService("gateway"), newPod("web", "node2"), newService("web"), newPod("client", "node2"))
	o.create(newPod("stranger", "node2"))
	n.waitReady("gateway", "web", "client")
	o.waitReady("stranger")

	if !strings.Contains(strings.Join(warnings, "\n"), mesh.AnnotationGateway) {
		t.Errorf("nothing warns that the pod takes plaintext: %q", warnings)
	}
	if spec := &n.pod("gateway").Spec; !podspec.IsGateway(spec) || spec.Containers[0].ReadinessProbe.HTTPGet.Port.IntValue() == portHTTP {
		t.Errorf("the pod is no gateway, or its probes do not ask the agent: %+v", spec)
	}
	t.Run("strangers reach only the gateway", func(t *testing.T) {
		stranger := o.app("stranger")
		answer := stranger.waitCall("http://%s:%d/", n.host("gateway"), portHTTP)
		if at, _, _ := net.SplitHostPort(answer.Remote); answer.Instance != "gateway" || at != o.pod("stranger").Status.PodIP {
			t.Errorf("%+v answers, want the gateway, which sees the stranger's address", answer)
		}
		if c := stranger.call("http://%s:%d/", n.host("web"), portHTTP); c.Status == http.StatusOK {
			t.Errorf("a pod that is no gateway answers %+v", c)
		}
	})
	t.Run("the gateway calls with its identity", func(t *testing.T) {
		peer := n.app("gateway").waitCall("http://web.%s/", n.name).Headers.Get("X-Forwarded-Client-Cert")
		if want := fmt.Sprintf("URI=spiffe://%s.sonde.internal/ns/%s/sa/default", n.name, n.name); !strings.Contains(peer, want) {
			t.Errorf("the application sees the peer %q, want %s", peer, want)
		}
	})
	t.Run("mesh clients call the gateway without mTLS", func(t *testing.T) {
		if a := n.app("client").waitCall("http://gateway.%s/", n.name); a.Instance != "gateway" || a.Headers.Get("X-Forwarded-Client-Cert") != "" {
			t.Errorf("%+v answers", a)
		}
	})
	t.Run("a failed probe removes the gateway's endpoint", func(*testing.T) {
		n.app("gateway").waitPut("/http", url.Values{"status": {"503"}})
		n.waitPod("gateway", "not to be Ready", isNotReady)
	})
}
