//go:build e2e

package e2e

import (
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestPodMetrics scrapes pods of a mesh that accepts no plaintext from a pod without a sidecar, as Prometheus
// would.
func TestPodMetrics(t *testing.T) {
	t.Parallel()
	n, o := newMesh(t, "STRICT"), newNamespace(t, outside)
	annotated := func(name string, annotations map[string]string) *corev1.Pod {
		p := newPod(name, "node2")
		maps.Copy(p.Annotations, annotations)
		return p
	}
	perPort := annotated("ported", nil)
	perPort.Labels[mesh.AnnotationVirtualProbesMode] = string(mesh.ProbesPerPort)
	own := map[string]string{mesh.AnnotationPrometheusScrape: "true", mesh.AnnotationPrometheusPort: "8080"}
	n.create(annotated("web", nil), perPort, annotated("other", map[string]string{mesh.AnnotationMetricsPort: "9100"}), annotated("none", map[string]string{mesh.AnnotationMetricsPort: "0"}))
	if err := lacks(strings.Join(n.create(annotated("own", own)), "\n"), mesh.AnnotationPrometheusScrape, "5670"); err != nil {
		t.Errorf("the warnings about a pod with annotations of its own: %v", err)
	}
	n.create(newService("web"))
	o.create(newPod("prometheus", "node1"))
	n.waitReady("web", "ported", "other", "none", "own")
	o.waitReady("prometheus")
	prometheus := o.app("prometheus")

	for pod, port := range map[string]string{"web": "5670", "ported": "5670", "other": "9100", "own": "5670"} {
		p := n.pod(pod)
		if got := p.Annotations[mesh.AnnotationMetricsPort]; got != port {
			t.Errorf("%s has its metrics at port %q, want %s", pod, got, port)
		}
		for _, ip := range p.Status.PodIPs {
			prometheus.scrape(pod, net.JoinHostPort(ip.IP, port))
		}
		for key, want := range map[string]string{mesh.AnnotationPrometheusScrape: "true", mesh.AnnotationPrometheusPort: port, mesh.AnnotationPrometheusPath: "/metrics"} {
			if pod == "own" {
				want = own[key]
			}
			if got := p.Annotations[key]; got != want {
				t.Errorf("%s has %s: %q, want %q", pod, key, got, want)
			}
		}
	}
	for _, at := range []string{n.host("web") + ":8080", n.host("none") + ":5670", n.host("web") + ":9902"} {
		if c := prometheus.call("http://%s/metrics", at); c.Error == "" {
			t.Errorf("%s answers: %+v", at, c)
		}
	}
	n.app("other").waitCall("http://web.%s/", n.name)
	n.wait("what the application is asked to be counted", func() error {
		c := prometheus.call("http://%s:5670/metrics", n.host("web"))
		return lacks(c.Body, `envoy_http_conn_manager_prefix="inbound_8080"`, "\nenvoy_listener_ssl_handshake")
	})
	taken := annotated("taken", nil)
	taken.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 5670}}
	if _, err := n.tryCreate(taken); err == nil {
		t.Error("a pod whose container has port 5670 is made")
	} else if err := lacks(err.Error(), "containers[app].ports", mesh.AnnotationMetricsPort, "5670"); err != nil {
		t.Error(err)
	}
}

// scrape checks that a pod's metrics, and no other page, are at an address.
func (a app) scrape(pod, at string) {
	a.t.Helper()
	c := a.call("http://%s/metrics", at)
	if err := lacks(c.Body, "\nenvoy_server_live", "\nenvoy_control_plane_connected_state", "\nsonde_dpagent_session_connected 1\n", "\nsonde_dpagent_envoy_scrape_success 1\n"); c.Status != http.StatusOK || err != nil {
		a.t.Errorf("%s at %s: status %d %s, %v", pod, at, c.Status, c.Error, err)
	}
	for _, path := range []string{"/", "/livez", "/readyz", "/stats/prometheus", "/metrics/"} {
		if c := a.call("http://%s%s", at, path); c.Status != http.StatusNotFound {
			a.t.Errorf("%s at %s%s: %+v, want 404", pod, at, path, c)
		}
	}
}
