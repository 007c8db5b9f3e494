package webhook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// objectReview returns the AdmissionReview for a Mesh, or for a Dataplane in namespace shop, in JSON.
func objectReview(kind, operation, object, old string) []byte {
	namespace := "shop"
	if kind == "Mesh" {
		namespace = ""
	}
	return fmt.Appendf(nil, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1",`+
		`"kind":{"group":"sonde.dev","version":"v1alpha1","kind":%q},"namespace":%q,"operation":%q,"object":%s,"oldObject":%s}}`,
		kind, namespace, operation, object, old)
}

const goodDataplane = `{networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web}}]}}`

func TestValidate(t *testing.T) {
	const backends = `[{name: ca, type: builtin}, {name: ca, type: vault, mode: MAYBE}]`
	tests := map[string]struct {
		kind, object string
		want         []string // parts of the message; none if the object is valid
		warnings     []string
	}{
		"mesh":             {"Mesh", `{metadata: {name: blue}, spec: {mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin, dpCert: {rotation: {expiration: 1d}}}]}}}`, nil, nil},
		"mesh without":     {"Mesh", `{metadata: {name: blue}}`, nil, nil},
		"name":             {"Mesh", `{metadata: {name: a.b}, spec: {}}`, []string{`metadata.name: "a.b": must be a DNS label`}, nil},
		"backend":          {"Mesh", `{metadata: {name: blue}, spec: {mtls: {enabledBackend: ca-2, backends: [{name: ca, type: builtin}]}}}`, []string{`spec.mtls.enabledBackend: "ca-2": must be the name of one of mtls.backends: ca`}, nil},
		"all at once":      {"Mesh", `{metadata: {name: blue}, spec: {mtls: {enabledBackend: x, backends: ` + backends + `}}}`, []string{"spec.mtls.enabledBackend", "spec.mtls.backends[1].name", "spec.mtls.backends[1].type", "spec.mtls.backends[1].mode"}, nil},
		"types":            {"Mesh", `{metadata: {name: blue}, spec: {mtls: {enabledBackend: 5, backends: {}}}}`, []string{`spec.mtls.enabledBackend: 5: must be a text: put it in quotes`, `spec.mtls.backends: {...}: must be a list`}, nil},
		"a duration":       {"Mesh", `{metadata: {name: blue}, spec: {mtls: {backends: [{name: ca, type: builtin, dpCert: {rotation: {expiration: soon}}}]}}}`, []string{`spec.mtls.backends[0].dpCert.rotation.expiration: "soon": must be a duration`}, nil},
		"no object":        {"Mesh", `{metadata: {name: blue}, spec: []}`, []string{`spec: [...]: must be an object`}, nil},
		"null":             {"Mesh", `{metadata: {name: blue}, spec: {mtls: null}}`, nil, nil},
		"mTLS is off":      {"Mesh", `{metadata: {name: blue}, spec: {mtls: {backends: [{name: ca, type: builtin}]}}}`, nil, []string{"spec.mtls.enabledBackend: is missing: mTLS is off, and all traffic is plain text, although backends say STRICT. To turn mTLS on, write the name of a backend: ca"}},
		"empty mtls":       {"Mesh", `{metadata: {name: blue}, spec: {mtls: {}}}`, nil, []string{"spec.mtls: has no backend: mTLS is off, and all traffic is plain text. Write one in backends and its name in enabledBackend, or leave mtls out"}},
		"dataplane":        {"Dataplane", `{metadata: {name: vm}, spec: ` + goodDataplane + `}`, nil, nil},
		"its mesh":         {"Dataplane", `{metadata: {name: vm, labels: {kuma.io/mesh: blue}}, spec: ` + goodDataplane + `}`, nil, nil},
		"another mesh":     {"Dataplane", `{metadata: {name: vm, labels: {kuma.io/mesh: red}}, spec: ` + goodDataplane + `}`, nil, []string{`kuma.io/mesh: "red": must be the name of an existing mesh: one of blue, default, shop`}},
		"no mesh":          {"Dataplane", `{metadata: {name: vm, labels: {kuma.io/mesh: R}}, spec: ` + goodDataplane + `}`, []string{`metadata.labels["kuma.io/mesh"]: "R": must be a DNS label`}, []string{`kuma.io/mesh: "R": must be the name of an existing mesh: one of blue, default, shop`}},
		"a pod's name":     {"Dataplane", `{metadata: {name: web-0}, spec: ` + goodDataplane + `}`, []string{`metadata.name: "web-0": must not be the name of a pod`}, nil},
		"a pod elsewhere":  {"Dataplane", `{metadata: {name: db-0}, spec: ` + goodDataplane + `}`, nil, nil},
		"a workload":       {"Dataplane", `{metadata: {name: vm, labels: {kuma.io/workload: /ns/shop/sa/web}}, spec: ` + goodDataplane + `}`, []string{`metadata.labels["kuma.io/workload"]: "/ns/shop/sa/web": must be 1 to 253 letters`}, nil},
		"another's":        {"Dataplane", `{metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 81, tags: {kuma.io/service: web_bank_svc_80}}, {port: 82, servicePort: 83, tags: {kuma.io/service: web_bank_svc}}]}}}`, []string{`spec.networking.inbound[0].tags["kuma.io/service"]: "web_bank_svc_80": must not be a service of another namespace: this Dataplane is in "shop"`, "spec.networking.inbound[1].tags"}, nil},
		"its own":          {"Dataplane", `{metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 81, tags: {kuma.io/service: web_shop_svc_80}}]}}}`, nil, nil},
		"deprecated":       {"Dataplane", `{metadata: {name: vm}, spec: {probes: {port: 9000}, tcpProbes: [{port: 80}], networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web}}]}}}`, nil, []string{"spec.probes: is deprecated and will be removed in Sonde 2.0: it only has an effect in the per-port mode (sonde.dev/virtual-probes-mode)", "spec.tcpProbes: is deprecated and will be removed in Sonde 2.0: it only has an effect in the per-port mode (sonde.dev/virtual-probes-mode)"}},
		"a header":         {"Dataplane", `{metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, serviceProbe: {httpGet: {httpHeaders: [{name: a, value: 5}]}}, tags: {kuma.io/service: web}}]}}}`, []string{`spec.networking.inbound[0].serviceProbe.httpGet.httpHeaders[0].value: must be a text`}, nil},
		"an empty one":     {"Dataplane", `{metadata: {name: vm}}`, []string{"spec.networking.address: is missing"}, nil},
		"unknown in a tag": {"Dataplane", `{metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web, a: [1]}}]}}}`, []string{`spec.networking.inbound[0].tags["a"]: [...]: must be a text`}, nil},
	}
	for name, tc := range tests {
		for _, operation := range []string{"CREATE", "UPDATE"} {
			t.Run(name+"/"+operation, func(t *testing.T) {
				c := enabled()
				c.pods = []string{"shop/web-0", "bank/db-0"}
				answer := review(t, newServer(t, c.options()), webhook.PathValidate, objectReview(tc.kind, operation, string(toJSON(t, tc.object)), "null"))
				got := message(answer)
				if (got == "") != (len(tc.want) == 0) {
					t.Errorf("message %q, want %q", got, tc.want)
				}
				for _, want := range tc.want {
					if !strings.Contains(got, want) {
						t.Errorf("message %q, want %q", got, want)
					}
				}
				if n := strings.Count(got, "; ") + 1; len(tc.want) > 0 && n != len(tc.want) {
					t.Errorf("%d violations in %q, want %d", n, got, len(tc.want))
				}
				if diff := cmp.Diff(tc.warnings, answer.Warnings); diff != "" {
					t.Errorf("warnings (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestDeletions(t *testing.T) {
	c := enabled()
	c.inUse = map[string]int{"blue": 3}
	s := newServer(t, c.options())
	object := func(name string) string { return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"mtls":5}}`, name) }
	tests := map[string]struct {
		kind, operation, object, old string
		want                         string
	}{
		"in use":           {"Mesh", "DELETE", "null", object("blue"), `mesh "blue" is in use: its number of pods and Dataplanes is 3: must be 0`},
		"not in use":       {"Mesh", "DELETE", "null", object("green"), ""},
		"a dataplane":      {"Dataplane", "DELETE", "null", object("blue"), ""},
		"on its way out":   {"Mesh", "UPDATE", `{"metadata":{"name":"blue","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"mtls":5}}`, "null", ""},
		"not yet":          {"Mesh", "UPDATE", object("blue"), "null", `spec.mtls: 5: must be an object`},
		"something unused": {"Mesh", "CONNECT", "null", "null", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := message(review(t, s, webhook.PathValidate, objectReview(tc.kind, tc.operation, tc.object, tc.old))); got != tc.want {
				t.Errorf("message %q, want %q", got, tc.want)
			}
		})
	}
	if w := post(t, s, webhook.PathValidate, objectReview("Mesh", "DELETE", "null", "null")); w.Code != 400 {
		t.Errorf("the deletion of nothing is answered %d: %s", w.Code, w.Body)
	}
}

// A user's Dataplane cannot have the identity of a pod, /ns/<namespace>/sa/<service account>.
func TestWrittenIdentity(t *testing.T) {
	for _, workload := range []string{"/ns/shop/sa/web", "ns/shop/sa/web", "../ns/shop/sa/web", ".."} {
		d := &mesh.Dataplane{Meta: mesh.Meta{Name: "vm", Labels: map[string]string{mesh.LabelWorkload: workload}}}
		d.Spec.Networking.Address = "10.0.0.1"
		d.SetDefaults()
		if err := d.Validate(); err == nil || !slices.Contains(strings.Split(err.Error(), ":"), `labels["kuma.io/workload"]`) {
			t.Errorf("%q: Validate() = %v, want a violation", workload, err)
		}
	}
}
