//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// meshYAML is a Mesh with mTLS in one mode.
const meshYAML = `
apiVersion: sonde.dev/v1alpha1
kind: Mesh
metadata: {name: %s}
spec:
  mtls:
    enabledBackend: ca
    backends: [{name: ca, type: builtin, mode: %s}]
`

// newMesh creates a Mesh in a mode, and a namespace whose pods are in it. Both have the same name.
func newMesh(t *testing.T, mode string) *namespace {
	t.Helper()
	n := newNamespace(t, map[string]string{"kuma.io/sidecar-injection": "enabled", "kuma.io/mesh": itself})
	n.create(fmt.Sprintf(meshYAML, n.name, mode))
	client, err := newClient(func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	mapping, err := cluster.mapper.RESTMapping(meshKind)
	if err != nil {
		t.Fatal(err)
	}
	// Pods that are created before the control plane has read their Mesh are rejected.
	n.wait("its Mesh to be Accepted", func() error {
		u, err := client.Resource(mapping.Resource).Get(t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Accepted" && c["status"] == "True" {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("its conditions are %v", conditions))
	})
	return n
}

var meshKind = schema.GroupKind{Group: "sonde.dev", Kind: "Mesh"}

// TestStrict has a mesh that accepts no plaintext.
func TestStrict(t *testing.T) {
	t.Parallel()
	n, o := newMesh(t, "STRICT"), newNamespace(t, outside)
	n.create(fmt.Sprintf(seedPod, tcpOpen), strings.ReplaceAll(seedService, "name: other", "name: second"), newPod("client", "node1"))
	o.create(newPod("stranger", "node1"))
	n.waitReady("busybox", "client")
	o.waitReady("stranger")
	stranger, client := o.app("stranger"), n.app("client")
	address := n.host("busybox")

	t.Run("a plain request is refused", func(t *testing.T) { n.checkRefused(t, stranger, address) })
	t.Run("the virtual port serves only declared probes", func(t *testing.T) {
		for path, want := range map[string]int{
			"/6851/healthz": http.StatusOK, "/grpc/6852/liveness": http.StatusOK, "/tcp/6853": http.StatusOK,
			"/6851/": http.StatusNotFound, "/6851/slow": http.StatusNotFound, "/grpc/6852/other": http.StatusNotFound, "/grpc/6852": http.StatusNotFound,
			"/tcp/6851": http.StatusNotFound, "/tcp/22": http.StatusNotFound, "/9901/": http.StatusNotFound, "/": http.StatusNotFound,
		} {
			if c := stranger.call("http://%s:9000%s", address, path); c.Status != want {
				t.Errorf("%s: %+v, want status %d", path, c, want)
			}
		}
	})
	t.Run("ports of the per-port mode serve only probes", func(t *testing.T) {
		n.create(strings.Replace(fmt.Sprintf(seedPod, tcpOpen), "name: busybox\n  labels: {run: busybox, app: busybox}",
			"name: ported\n  labels: {app: ported, sonde.dev/virtual-probes-mode: per-port}", 1))
		n.waitReady("ported")
		at := n.host("ported")
		for path, want := range map[string]int{
			"/6851/healthz": http.StatusOK, "/6851/healthz/": http.StatusNotFound, "/6851/": http.StatusNotFound, "/healthz": http.StatusNotFound,
			"/grpc/6852/liveness": http.StatusNotFound, "/tcp/6853": http.StatusNotFound,
		} {
			if c := stranger.call("http://%s:9000%s", at, path); c.Status != want {
				t.Errorf("%s: %+v, want status %d", path, c, want)
			}
		}
		for _, port := range []int{9001, 9002, 6851, 6852, 6853} { // the ports of the TCP and gRPC probes, and the application's
			c := stranger.call("http://%s:%d/", at, port)
			if echoed := strings.Contains(c.Error, "malformed"); c.Error == "" || echoed {
				t.Errorf("port %d answered a stranger: %+v", port, c)
			}
		}
	})
	t.Run("a client of the mesh is served", func(t *testing.T) {
		a := client.waitCall("http://busybox.%s:6851/", n.name)
		peer := a.Headers.Get("X-Forwarded-Client-Cert")
		if want := fmt.Sprintf("URI=spiffe://%s.sonde.internal/ns/%s/sa/default", n.name, n.name); !strings.Contains(peer, want) {
			t.Errorf("the application sees the peer %q, want %s", peer, want)
		}
	})
	t.Run("a pod calls its own Service", func(t *testing.T) {
		own := newPod("own", "node2")
		n.create(own, newService("own"))
		n.waitReady("own")
		app := n.app("own") // its /etc/hosts has the short name
		if a := app.waitCall("http://own.%s/", n.name); a.Instance != "own" {
			t.Errorf("%q answered", a.Instance)
		}
		if c := app.call("http://%s:%d/", n.host("own"), portHTTP); c.Status != http.StatusOK {
			t.Errorf("by its own address: %+v", c)
		}
	})
}

// checkRefused fails the test if the seed's pod serves a client outside of the mesh, on any of its ports or by its
// Service.
func (n *namespace) checkRefused(t *testing.T, stranger app, address string) {
	t.Helper()
	for _, url := range []string{"http://%s:6851/", "http://%s:6851/healthz"} {
		if c := stranger.call(url, address); c.Error == "" {
			t.Errorf("%s answered a stranger: %+v", fmt.Sprintf(url, address), c)
		}
	}
	for kind, port := range map[string]int{"grpc": 6852, "tcp": 6853} {
		if r := stranger.startLoad(kind, fmt.Sprintf("%s:%d", address, port)).stop(); r.Failed < r.Calls {
			t.Errorf("port %d answered a stranger: %v", port, r)
		}
	}
	n.wait("the Service to have an endpoint that hangs up", func() error {
		c := stranger.call("http://busybox.%s:6851/", n.name)
		if c.Error == "" {
			t.Fatalf("the Service answered a stranger: %+v", c)
		}
		if !strings.Contains(c.Error, "EOF") && !strings.Contains(c.Error, "reset by peer") { // kube-proxy does not know the endpoint yet
			return errors.New(c.Error)
		}
		return nil
	})
}

const statefulSet = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: http, port: 8080, appProtocol: http}, {name: tcp, port: 8082}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata:
      labels: {app: db}
      annotations: {traffic.kuma.io/exclude-inbound-ports: "9800"}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: db}}}
      containers:
      - name: app
        image: docker.io/sonde-test/app:1
        args: [--name=$(POD_NAME), "--http=:8080", "--tcp=:8082", "--control=:9800"]
        env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

// TestStatefulSet has members that call each other by the names of pods, in a mesh that accepts no
// plaintext.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	n := newMesh(t, "STRICT")
	n.create(statefulSet)
	n.waitReady("db-0", "db-1")
	if a, b := n.pod("db-0").Spec.NodeName, n.pod("db-1").Spec.NodeName; a == b {
		t.Errorf("both run on %s", a)
	}
	for from, to := range map[string]string{"db-0": "db-1", "db-1": "db-0"} {
		a := n.app(from).waitCall("http://%s.db.%s.svc.cluster.local:8080/", to, n.name)
		if want := fmt.Sprintf("URI=spiffe://%s.sonde.internal/ns/%s/sa/default", n.name, n.name); a.Instance != to ||
			!strings.Contains(a.Headers.Get("X-Forwarded-Client-Cert"), want) {
			t.Errorf("%s calls %s: %+v answered, which should see the peer %s", from, to, a, want)
		}
		l := n.app(from).startLoad("tcp", to+".db:8082")
		if r := l.stop(); r.Failed > 0 {
			t.Errorf("%s calls %s by TCP: %v", from, to, r)
		}
	}
	// A new member with the same name has another address.
	n.deletePod("db-0")
	n.waitReady("db-0")
	if a := n.app("db-1").waitCall("http://db-0.db.%s.svc.cluster.local:8080/", n.name); a.Instance != "db-0" {
		t.Errorf("%q answered", a.Instance)
	}
}
