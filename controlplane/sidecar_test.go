package controlplane_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/webhook"
)

// TestSidecarReadinessIsAnswered follows the readiness probe of an injected sidecar through Envoy's configuration to
// the agent. Port, path and the agent's endpoint must agree, or no injected pod becomes ready.
func TestSidecarReadinessIsAnswered(t *testing.T) {
	pod, _, err := webhook.Inject(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}, webhook.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var probe *corev1.HTTPGetAction
	for _, c := range pod.Spec.InitContainers {
		if c.Name == mesh.ContainerSidecar {
			probe = c.ReadinessProbe.HTTPGet
		}
	}
	if probe == nil {
		t.Fatal("the sidecar has no readiness probe")
	}

	d := &mesh.Dataplane{Meta: mesh.Meta{Name: "app"}, Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
		Address: "10.0.0.1", TransparentProxying: &mesh.TransparentProxying{},
	}}}
	d.SetDefaults()
	found := 0
	for _, l := range generator.InboundListeners(&meshview.Mesh{Spec: mesh.ImpliedMesh(mesh.DefaultMesh)}, &meshview.Proxy{Dataplane: d}, mesh.DefaultTrustDomain, true) {
		for _, c := range l.GetFilterChains() {
			if int32(c.GetFilterChainMatch().GetDestinationPort().GetValue()) != probe.Port.IntVal {
				continue
			}
			var manager hcmv3.HttpConnectionManager
			if err := c.GetFilters()[0].GetTypedConfig().UnmarshalTo(&manager); err != nil {
				t.Fatal(err)
			}
			route := manager.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()[0]
			if got := route.GetMatch().GetPath(); got != probe.Path {
				t.Errorf("%s forwards %q, the kubelet asks %q", l.GetName(), got, probe.Path)
			}
			found++
		}
	}
	if found == 0 {
		t.Errorf("no listener answers at port %d", probe.Port.IntVal)
	}

	answer := httptest.NewRecorder()
	health.Handler(health.New(health.Options{}), http.NotFoundHandler()).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, probe.Path, http.NoBody))
	if answer.Code != http.StatusOK {
		t.Errorf("a ready agent answers %s with %d", probe.Path, answer.Code)
	}
}
