package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// cluster is the cluster's state for the server.
type cluster struct {
	namespaces  map[string]map[string]string // their labels
	annotations map[string]string            // of all namespaces
	meshes      []string
	strict      string
	inUse       map[string]int
	pods        []string            // namespace/name
	services    map[string][]string // their addresses, by namespace/name
	err         error               // error of all functions
}

func (c *cluster) options() webhook.ServerOptions {
	return webhook.ServerOptions{
		Injection: webhook.Options{}.WithRandom(newRand()),
		TLS:       &tls.Config{},
		Namespace: func(_ context.Context, name string) (webhook.Namespace, error) {
			labels, ok := c.namespaces[name]
			if !ok && c.err == nil {
				return webhook.Namespace{}, errors.New("not found")
			}
			return webhook.Namespace{Name: name, Labels: labels, Annotations: c.annotations}, c.err
		},
		Meshes: func(context.Context, string) ([]string, error) { return c.meshes, c.err },
		Mode: func(name string) mesh.MTLSMode {
			if name == c.strict {
				return mesh.ModeStrict
			}
			return mesh.ModePermissive
		},
		InUse: func(mesh string) (int, error) { return c.inUse[mesh], c.err },
		PodExists: func(namespace, name string) (bool, error) {
			return slices.Contains(c.pods, namespace+"/"+name), c.err
		},
		ServiceIPs: func(namespace, name string) ([]string, error) { return c.services[namespace+"/"+name], c.err },
		Log:        slog.New(slog.DiscardHandler),
	}
}

func enabled() *cluster {
	return &cluster{
		namespaces: map[string]map[string]string{"shop": {"kuma.io/sidecar-injection": "enabled"}},
		meshes:     []string{"default", "blue", "shop"},
	}
}

func newServer(t testing.TB, o webhook.ServerOptions) *webhook.Server {
	t.Helper()
	s, err := webhook.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// podReview returns the AdmissionReview for the creation of a pod in JSON.
func podReview(namespace string, pod []byte) []byte {
	return fmt.Appendf(nil, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1",`+
		`"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"requestKind":{"group":"","version":"v1","kind":"Pod"},`+
		`"name":"","namespace":%q,"operation":"CREATE","userInfo":{"username":"system:serviceaccount:kube-system:replicaset-controller","groups":["system:authenticated"]},`+
		`"object":%s,"oldObject":null,"dryRun":false,"options":{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}}}`, namespace, pod)
}

func toJSON(t testing.TB, text string) []byte {
	t.Helper()
	body, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return body
}

// post sends an AdmissionReview to a server without a network.
func post(t testing.TB, s *webhook.Server, path string, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// review posts an AdmissionReview and returns the admission response.
func review(t testing.TB, s *webhook.Server, path string, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	w := post(t, s, path, body)
	if w.Code != http.StatusOK {
		t.Fatalf("%s answers %d: %s", path, w.Code, w.Body)
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Response == nil || answer.Response.UID != "u-1" || answer.Kind != "AdmissionReview" || answer.APIVersion != "admission.k8s.io/v1" {
		t.Fatalf("answer %s", w.Body)
	}
	return answer.Response
}

// message returns the text of a denial, "" if the request is allowed.
func message(r *admissionv1.AdmissionResponse) string {
	if r.Allowed {
		return ""
	}
	return r.Result.Message
}

func TestRequestsThatAreNone(t *testing.T) {
	pod := []byte(`{"spec":{"containers":[{"name":"app"}]}}`)
	good := string(podReview("shop", pod))
	change := func(old, with string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the review", old)
		}
		return strings.Replace(good, old, with, 1)
	}
	tests := map[string]struct {
		path, body string
		want       int
		text       string
	}{
		"no JSON":        {webhook.PathInject, `{"`, http.StatusBadRequest, "unexpected end"},
		"nothing":        {webhook.PathInject, ``, http.StatusBadRequest, "unexpected end"},
		"a list":         {webhook.PathInject, `[]`, http.StatusBadRequest, `malformed request: [...]: must be an object`},
		"another kind":   {webhook.PathInject, change("AdmissionReview", "Pod"), http.StatusBadRequest, `kind: "Pod": must be AdmissionReview`},
		"v1beta1":        {webhook.PathInject, change("admission.k8s.io/v1", "admission.k8s.io/v1beta1"), http.StatusBadRequest, `apiVersion: "admission.k8s.io/v1beta1": must be admission.k8s.io/v1`},
		"no request":     {webhook.PathInject, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`, http.StatusBadRequest, "request: is missing"},
		"no uid":         {webhook.PathInject, change(`"uid":"u-1",`, ""), http.StatusBadRequest, "request.uid: is missing"},
		"no pod":         {webhook.PathInject, change(string(pod), "null"), http.StatusBadRequest, "request.object: is missing"},
		"a wrong type":   {webhook.PathInject, change(`"app"`, "5"), http.StatusBadRequest, `malformed request: request.object.spec.containers[0].name: 5: must be a text`},
		"of a service":   {webhook.PathInject, change(`"resource":"pods"`, `"resource":"services"`), http.StatusBadRequest, `request.resource: "services"`},
		"a pod":          {webhook.PathValidate, good, http.StatusBadRequest, `must be Mesh or Dataplane of sonde.dev/v1alpha1`},
		"another path":   {"/", good, http.StatusNotFound, ""},
		"another prefix": {"/inject/x", good, http.StatusNotFound, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := post(t, newServer(t, enabled().options()), tc.path, []byte(tc.body))
			if w.Code != tc.want || !strings.Contains(w.Body.String(), tc.text) {
				t.Errorf("%d: %s, want %d with %q", w.Code, w.Body, tc.want, tc.text)
			}
		})
	}
}

func TestRequestsAreLimited(t *testing.T) {
	tests := map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"method":    {func(r *http.Request) { r.Method = http.MethodGet }, http.StatusMethodNotAllowed},
		"type":      {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, http.StatusUnsupportedMediaType},
		"no type":   {func(r *http.Request) { r.Header.Del("Content-Type") }, http.StatusUnsupportedMediaType},
		"charset":   {func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=utf-8") }, http.StatusOK},
		"no length": {func(r *http.Request) { r.ContentLength = -1 }, http.StatusLengthRequired},
		"too long":  {func(r *http.Request) { r.ContentLength = 8<<20 + 1 }, http.StatusRequestEntityTooLarge},
		"cut":       {func(r *http.Request) { r.ContentLength++ }, http.StatusBadRequest},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhook.PathInject, bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			tc.change(r)
			w := httptest.NewRecorder()
			newServer(t, enabled().options()).Handler().ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("%d: %s, want %d", w.Code, w.Body, tc.want)
			}
		})
	}
}

// Unknown state makes the API server retry, and is not a denial.
func TestNotReady(t *testing.T) {
	c := enabled()
	mesh := `{"metadata":{"name":"blue"},"spec":{}}`
	pod := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
	tests := map[string]struct {
		path string
		body []byte
	}{
		"pod":       {webhook.PathInject, pod},
		"namespace": {webhook.PathInject, bytes.Replace(pod, []byte(`"shop"`), []byte(`"later"`), 1)},
		"delete":    {webhook.PathValidate, objectReview("Mesh", "DELETE", "null", mesh)},
		"dataplane": {webhook.PathValidate, objectReview("Dataplane", "CREATE", `{"metadata":{"name":"a"},"spec":{}}`, "null")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := c.options()
			if name != "namespace" {
				c.err = errors.New("not synced")
			}
			defer func() { c.err = nil }()
			w := post(t, newServer(t, o), tc.path, tc.body)
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%d %v: %s, want 503 with Retry-After", w.Code, w.Header(), w.Body)
			}
		})
	}
}

func TestServerMetrics(t *testing.T) {
	o := enabled().options()
	registry := prometheus.NewPedanticRegistry()
	o.Registerer = registry
	s := newServer(t, o)
	for _, pod := range []string{
		`{"spec":{"containers":[{"name":"app"}]}}`,
		`{"metadata":{"labels":{"kuma.io/sidecar-injection":"disabled"}},"spec":{"containers":[{"name":"app"}]}}`,
		`{"spec":{}}`, `{"spec":5}`,
	} {
		post(t, s, webhook.PathInject, podReview("shop", []byte(pod)))
	}
	post(t, s, webhook.PathInject, podReview("nowhere", []byte(`{}`)))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			words := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				words = append(words, l.GetValue())
			}
			got[strings.Join(words, " ")] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	want := map[string]float64{
		"sonde_webhook_request_duration_seconds inject":   5,
		"sonde_webhook_requests_total allowed inject":     1,
		"sonde_webhook_requests_total denied inject":      1,
		"sonde_webhook_requests_total failed inject":      0, // series without events also exist
		"sonde_webhook_requests_total malformed inject":   1,
		"sonde_webhook_requests_total patched inject":     1,
		"sonde_webhook_requests_total unavailable inject": 1,
	}
	for _, result := range []string{"allowed", "denied", "failed", "malformed", "patched", "unavailable"} {
		want["sonde_webhook_requests_total "+result+" validate"] = 0
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if _, err := webhook.NewServer(o); err == nil {
		t.Error("a second server registers the same metrics")
	}
}

func TestBadServerOptions(t *testing.T) {
	_, err := webhook.NewServer(webhook.ServerOptions{Injection: webhook.Options{Image: "a b", ControlPlaneNamespace: "A"}})
	for _, want := range []string{"Image", "ControlPlaneNamespace", "TLS: is missing", "Namespace: is missing", "Meshes: is missing", "Mode: is missing", "InUse: is missing", "PodExists: is missing", "ServiceIPs: is missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewServer() = %v, want %q", err, want)
		}
	}
}
