package webhook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/webhook"
)

// An administrator's annotation on a namespace limits the meshes of its pods and Dataplanes.
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

// A gateway accepts any client, which is unexpected in a STRICT mesh.
func TestGatewayOfAStrictMesh(t *testing.T) {
	const want = `metadata.annotations["kuma.io/gateway"]: "enabled": incoming connections of this pod are not redirected, so any client may use plaintext, although mesh "default" is STRICT`
	for strict, wants := range map[string]bool{"default": true, "blue": false} {
		c := enabled()
		c.strict = strict
		r := review(t, newServer(t, c.options()), webhook.PathInject, podReview("shop",
			[]byte(`{"metadata":{"annotations":{"kuma.io/gateway":"enabled"}},"spec":{"containers":[{"name":"app"}]}}`)))
		if !r.Allowed || slices.Contains(r.Warnings, want) != wants {
			t.Errorf("strict %s: allowed %t, warnings %q, want %t that the pod takes plaintext", strict, r.Allowed, r.Warnings, wants)
		}
	}
}

// An excluded port accepts plaintext, which is unexpected in a STRICT mesh.
func TestExcludedPortsOfAStrictMesh(t *testing.T) {
	const want = `metadata.annotations["traffic.kuma.io/exclude-inbound-ports"]: "9800,9801": connections to these ports are not redirected, so any client may use plaintext, although mesh "default" is STRICT`
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
