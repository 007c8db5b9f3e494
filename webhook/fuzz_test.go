package webhook_test

import (
	"encoding/json"
	"net/http"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/sonde-mesh/sonde/webhook"
)

// FuzzReview posts arbitrary bytes, like an attacker: the server returns an admission response, or an HTTP error, and
// neither is much larger than the request.
func FuzzReview(f *testing.F) {
	f.Add(podReview("shop", seedPod(f)))
	f.Add(podReview("shop", []byte(`{"metadata":{"annotations":{"traffic.kuma.io/exclude-inbound-ports":"1,2"}},"spec":{"containers":[{"name":"a"},{"name":"a","ports":[{"containerPort":9000}]}]}}`)))
	f.Add(podReview("shop", []byte(`{"metadata":{"annotations":{"sonde.dev/guarded-liveness":"enabled","apps.kruise.io/container-probe-context":"[{\"name\":\"a\",\"livenessProbe\":{\"httpGet\":{\"port\":80}}}]"}},"spec":{"containers":[{"name":"a"}]}}`)))
	f.Add(podReview("other", []byte(`{"spec":{"initContainers":[{"name":"kuma-sidecar","env":[{}]}],"containers":[null,{}]}}`)))
	f.Add(objectReview("Mesh", "CREATE", `{"metadata":{"name":"blue"},"spec":{"mtls":{"enabledBackend":"a","backends":[{"name":"a","type":"builtin"}]}}}`, "null"))
	f.Add(objectReview("Dataplane", "UPDATE", `{"metadata":{"name":"a"},"spec":{"networking":{"inbound":[[],{"x":1},null]}}}`, `{}`))
	f.Add(objectReview("Mesh", "DELETE", "null", `{"metadata":{"name":"blue"}}`))
	f.Add([]byte(`[[[[{"a":"\\u0000\xff`))
	c := enabled()
	c.annotations = map[string]string{"sonde.dev/meshes": "default,blue"}
	c.strict = "default"
	f.Fuzz(func(t *testing.T, body []byte) {
		s := newServer(t, c.options())
		for _, path := range []string{webhook.PathInject, webhook.PathValidate} {
			w := post(t, s, path, body)
			if limit := 8*len(body) + 64<<10; w.Body.Len() > limit {
				t.Errorf("%s: %d bytes are answered with %d, want at most %d", path, len(body), w.Body.Len(), limit)
			}
			switch w.Code {
			case http.StatusOK:
				var answer admissionv1.AdmissionReview
				if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Response == nil || answer.Response.UID == "" {
					t.Errorf("%s: answer %s: %v", path, w.Body, err)
				} else if patch := answer.Response.Patch; patch != nil && !json.Valid(patch) {
					t.Errorf("%s: patch %s", path, patch)
				}
			case http.StatusBadRequest, http.StatusServiceUnavailable: // an unknown namespace may be created later
			default:
				t.Errorf("%s: %d: %s", path, w.Code, w.Body)
			}
		}
	})
}
