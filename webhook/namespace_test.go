package webhook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/webhook"
)

// The administrator of a namespace says which meshes its pods and Dataplanes may join.
func TestMeshesOfANamespace(t *testing.T) {
	const pod = `{"metadata":{"labels":{%s}},"spec":{"containers":[{"name":"app"}]}}`
	const dataplane = `{"metadata":{"name":"vm","labels":{%s}},"spec":{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"web"}}]}}}`
	const unreadable = `namespace shop: metadata.annotations["sonde.dev/meshes"]: `
	tests := map[string]struct {
		allowed, labels, want string
	}{
		"named and allowed":       {"blue", `"kuma.io/mesh":"blue"`, ""},
		"named and not":           {"default, shop", `"kuma.io/mesh":"blue"`, `kuma.io/mesh: "blue": must be default or shop: the annotation sonde.dev/meshes of namespace shop`},
		"the default and allowed": {"default", ``, ""},
		"the default and not":     {"blue", ``, `kuma.io/mesh: "default": must be blue`},
		"empty":                   {"", ``, unreadable + "must be names of meshes"},
		"no mesh's name":          {"Blue", ``, unreadable + `"Blue": must be names of meshes`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := enabled()
			c.annotations = map[string]string{"sonde.dev/meshes": tc.allowed}
			s := newServer(t, c.options())
			for what, got := range map[string]string{
				"pod":       message(review(t, s, webhook.PathInject, podReview("shop", fmt.Appendf(nil, pod, tc.labels)))),
				"Dataplane": message(review(t, s, webhook.PathValidate, objectReview("Dataplane", "CREATE", fmt.Sprintf(dataplane, tc.labels), "null"))),
			} {
				if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
					t.Errorf("%s: %q, want %q", what, got, tc.want)
				}
			}
		})
	}
}

// A port that Envoy does not see is plaintext, which nobody expects of a STRICT mesh.
func TestExcludedPortsOfAStrictMesh(t *testing.T) {
	const want = `metadata.annotations["traffic.kuma.io/exclude-inbound-ports"]: "9800,9801": connections to these ports are not redirected, so that any client may make them in plaintext, although mesh "default" is STRICT`
	tests := map[string]struct {
		strict, ports string
		want          bool
	}{
		"strict":         {"default", "9800, 9801", true},
		"another strict": {"blue", "9800,9801", false},
		"none excluded":  {"default", "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := enabled()
			c.strict = tc.strict
			r := review(t, newServer(t, c.options()), webhook.PathInject, podReview("shop", fmt.Appendf(nil,
				`{"metadata":{"annotations":{"traffic.kuma.io/exclude-inbound-ports":%q}},"spec":{"containers":[{"name":"app"}]}}`, tc.ports)))
			if !r.Allowed || slices.Contains(r.Warnings, want) != tc.want {
				t.Errorf("allowed %t, warnings %q, want %t that the ports are in plaintext", r.Allowed, r.Warnings, tc.want)
			}
			if recorded := strings.Contains(string(r.Patch), "although mesh"); recorded != tc.want {
				t.Errorf("recorded in an annotation: %t", recorded)
			}
		})
	}
}
