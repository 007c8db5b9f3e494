package webhook_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// applied applies a response's patch to a pod, with the API server's library.
func applied(t testing.TB, pod []byte, answer *admissionv1.AdmissionResponse) []byte {
	t.Helper()
	if !answer.Allowed {
		t.Fatalf("the pod is refused: %s", answer.Result.Message)
	}
	if answer.Patch == nil {
		return pod
	}
	if answer.PatchType == nil || *answer.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Errorf("patch type %v", answer.PatchType)
	}
	patch, err := jsonpatch.DecodePatch(answer.Patch)
	if err != nil {
		t.Fatalf("%s: %v", answer.Patch, err)
	}
	patched, err := patch.Apply(pod)
	if err != nil {
		t.Fatalf("%s: %v", answer.Patch, err)
	}
	return patched
}

// The first admission returns the same pod as Inject; a second one, after other webhooks, changes nothing.
func TestAdmissionIsInject(t *testing.T) {
	pods := readPods(t)
	pods["as the API server sends it"] = seedPod(t)
	for name, pod := range pods {
		for _, form := range forms() {
			t.Run(name+"/"+string(form), func(t *testing.T) {
				o := enabled().options()
				o.Injection.Sidecar = form
				patched := applied(t, pod, review(t, newServer(t, o), webhook.PathInject, podReview("shop", pod)))
				want, _, err := webhook.InjectJSON(pod, webhook.Options{Sidecar: form}.WithRandom(newRand()))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(asJSON(t, decode(t, want)), asJSON(t, decode(t, patched))); diff != "" {
					t.Errorf("the patched pod (-Inject +patched):\n%s", diff)
				}
				again := review(t, newServer(t, enabled().options()), webhook.PathInject, podReview("shop", patched))
				if again.Patch != nil || !again.Allowed {
					t.Errorf("the second admission has the patch %s, %v", again.Patch, again.Result)
				}
			})
		}
	}
}

// A patch contains only changes, so that fields unknown to this release remain.
func TestPatchIsMinimal(t *testing.T) {
	for _, op := range []string{`"path":"/metadata/annotations"`, `"path":"/metadata/labels"`, `"path":"/spec/volumes"`, `"path":"/spec/containers`, `"op":"replace"`} {
		pod := toJSON(t, `{metadata: {labels: {a: b}, annotations: {c: d/e}}, spec: {containers: [{name: app}], volumes: [{name: v}]}}`)
		answer := review(t, newServer(t, enabled().options()), webhook.PathInject, podReview("shop", pod))
		if strings.Contains(string(answer.Patch), op) {
			t.Errorf("the patch has %s: %s", op, answer.Patch)
		}
	}
	pod := toJSON(t, `{metadata: {labels: null, annotations: null}, spec: {initContainers: null, volumes: [], containers: [{name: app, livenessProbe: {exec: null, httpGet: {path: /, port: 80, future: 1}}}]}}`)
	patched := string(applied(t, pod, review(t, newServer(t, enabled().options()), webhook.PathInject, podReview("shop", pod))))
	for _, want := range []string{`"future":1`, `"kuma.io/mesh":"default"`, `"sonde-work"`, `"kuma-init"`, `"exec":null`} {
		if !strings.Contains(patched, want) {
			t.Errorf("the patched pod lacks %s: %s", want, patched)
		}
	}
}

func TestMeshOfAPod(t *testing.T) {
	const containers = `spec: {containers: [{name: app}]}`
	tests := map[string]struct {
		pod, namespace string
		want, message  string
	}{
		"none":                 {`{` + containers + `}`, "", "default", ""},
		"of the namespace":     {`{` + containers + `}`, "blue", "blue", ""},
		"label":                {`{metadata: {labels: {kuma.io/mesh: blue}}, ` + containers + `}`, "default", "blue", ""},
		"annotation":           {`{metadata: {annotations: {kuma.io/mesh: blue}}, ` + containers + `}`, "default", "blue", ""},
		"both":                 {`{metadata: {labels: {kuma.io/mesh: blue}, annotations: {kuma.io/mesh: blue}}, ` + containers + `}`, "", "blue", ""},
		"an empty label":       {`{metadata: {labels: {kuma.io/mesh: ""}}, ` + containers + `}`, "blue", "blue", ""},
		"contradiction":        {`{metadata: {labels: {kuma.io/mesh: blue}, annotations: {kuma.io/mesh: default}}, ` + containers + `}`, "", "", `metadata.annotations["kuma.io/mesh"]: "default": the label with the same name is "blue"`},
		"no name":              {`{metadata: {labels: {kuma.io/mesh: B_}}, ` + containers + `}`, "", "", `metadata.labels["kuma.io/mesh"]: "B_": must be the name of a mesh`},
		"no such mesh":         {`{metadata: {labels: {kuma.io/mesh: red}}, ` + containers + `}`, "", "", `kuma.io/mesh: "red": must be the name of an existing mesh: one of blue, default, shop`},
		"no such namespace's":  {`{` + containers + `}`, "red", "", `kuma.io/mesh: "red": must be the name of an existing mesh`},
		"the namespace is bad": {`{` + containers + `}`, "R", "", `namespace shop: metadata.labels["kuma.io/mesh"]: "R": must be the name of a mesh`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := enabled()
			if tc.namespace != "" {
				c.namespaces["shop"][mesh.LabelMesh] = tc.namespace
			}
			pod := toJSON(t, tc.pod)
			answer := review(t, newServer(t, c.options()), webhook.PathInject, podReview("shop", pod))
			if got := message(answer); !strings.Contains(got, tc.message) || (got == "") != (tc.message == "") {
				t.Fatalf("message %q, want %q", got, tc.message)
			}
			if tc.message != "" {
				if answer.Result.Code != 422 || answer.Result.Reason != "Invalid" {
					t.Errorf("status %+v", answer.Result)
				}
				return
			}
			patched := decode(t, applied(t, pod, answer))
			if label, flag := patched.Labels[mesh.LabelMesh], argument(t, sidecarOf(t, patched), "--mesh"); label != tc.want || flag != tc.want {
				t.Errorf("label %q, --mesh=%s, want %s", label, flag, tc.want)
			}
		})
	}
	none := enabled()
	none.meshes = nil
	if got := message(review(t, newServer(t, none.options()), webhook.PathInject, podReview("shop", toJSON(t, `{`+containers+`}`)))); !strings.Contains(got, "no meshes yet") {
		t.Errorf("without a mesh: %q", got)
	}
}

// A pod from "sondectl inject" already has a sidecar, and only gets the missing parts.
func TestInjectedByHand(t *testing.T) {
	injected, _, err := webhook.InjectJSON(toJSON(t, `{spec: {containers: [{name: app}]}}`), webhook.Options{Mesh: "blue"})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, enabled().options())
	older := strings.Replace(string(injected), `"labels":{"kuma.io/mesh":"blue"}`, `"labels":{}`, 1)
	patched := decode(t, applied(t, []byte(older), review(t, s, webhook.PathInject, podReview("shop", []byte(older)))))
	if patched.Labels[mesh.LabelMesh] != "blue" {
		t.Errorf("labels %v, want the sidecar's mesh", patched.Labels)
	}
	other := strings.Replace(string(injected), `"labels":{"kuma.io/mesh":"blue"}`, `"labels":{"kuma.io/mesh":"default"}`, 1)
	if got, want := message(review(t, s, webhook.PathInject, podReview("shop", []byte(other)))), `kuma.io/mesh: "default": kuma-sidecar already has --mesh=blue`; !strings.Contains(got, want) {
		t.Errorf("message %q, want %q", got, want)
	}
}

// A denial contains all errors.
func TestRefusedPod(t *testing.T) {
	pod := toJSON(t, `
metadata:
  labels: {kuma.io/mesh: B_}
  annotations: {kuma.io/virtual-probes: maybe, kuma.io/virtual-probes-port: "8080", traffic.kuma.io/exclude-inbound-ports: http, sonde.dev/server-first-ports: x}
spec: {containers: [{name: app, ports: [{containerPort: 8080}, {containerPort: 15006}]}, {name: app}]}`)
	answer := review(t, newServer(t, enabled().options()), webhook.PathInject, podReview("shop", pod))
	for _, want := range []string{
		"this pod cannot join the mesh: ", `metadata.labels["kuma.io/mesh"]: "B_"`, `metadata.annotations["kuma.io/virtual-probes"]: "maybe"`,
		`metadata.annotations["traffic.kuma.io/exclude-inbound-ports"]: "http"`, `metadata.annotations["sonde.dev/server-first-ports"]: "x"`,
		"containers[app]: two containers have this name", "containers[app].ports: port 15006 is reserved for redirection",
		`metadata.annotations["kuma.io/virtual-probes-port"]: port 8080 cannot be the virtual probes' port: containers[app].ports uses it`,
	} {
		if !strings.Contains(message(answer), want) {
			t.Errorf("message %q, want %q", message(answer), want)
		}
	}
	if answer.Result.Code != 422 || answer.Result.Reason != "Invalid" || answer.Patch != nil {
		t.Errorf("answer %+v", answer)
	}
}

func TestWarningsOfAnAdmission(t *testing.T) {
	tests := map[string]struct {
		labels  map[string]string
		pod     string
		want    []string
		patched bool
	}{
		"none": {nil, `{spec: {containers: [{name: app}]}}`, nil, true},
		"baseline": {map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}, `{spec: {containers: [{name: app}]}}`, []string{"namespace shop: pod-security.kubernetes.io/enforce is baseline: kuma-init needs the capability NET_ADMIN, so Pod Security rejects this pod: " +
			"a native sidecar does not need it if sonde.dev/cni is enabled"}, true},
		"restricted": {map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}, `{spec: {containers: [{name: app}]}}`, []string{"namespace shop: pod-security.kubernetes.io/enforce is restricted: kuma-init needs the capability NET_ADMIN, so Pod Security rejects this pod: " +
			"a native sidecar does not need it if sonde.dev/cni is enabled"}, true},
		"privileged": {map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}, `{spec: {containers: [{name: app}]}}`, nil, true},
		"the node's": {nil, `{spec: {hostNetwork: true, containers: [{name: app}]}}`, []string{"spec.hostNetwork: redirection would apply to the whole node: not injected"}, true},
		"Istio's": {nil, `{spec: {initContainers: [{name: istio-proxy, restartPolicy: Always}], containers: [{name: app}]}}`,
			[]string{"containers[istio-proxy]: it has a sidecar of Istio, which gets its connections: not injected"}, true},
		"Kuma's": {nil, `{metadata: {annotations: {kuma.io/sidecar-injected: "true"}}, spec: {containers: [{name: app}, {name: kuma-sidecar}]}}`,
			[]string{`metadata.annotations["kuma.io/sidecar-injected"]: it has a sidecar of Kuma, which gets its connections: not injected`}, true},
		"disabled": {nil, `{metadata: {labels: {kuma.io/sidecar-injection: disabled}}, spec: {containers: [{name: app}]}}`, nil, false},
		"a probe": {nil, `{spec: {containers: [{name: app, livenessProbe: {httpGet: {host: h, port: 1}}}]}}`,
			[]string{`containers[app].livenessProbe: it calls host "h", not the pod: not rewritten`}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := enabled()
			maps.Copy(c.namespaces["shop"], tc.labels)
			pod := toJSON(t, tc.pod)
			answer := review(t, newServer(t, c.options()), webhook.PathInject, podReview("shop", pod))
			if diff := cmp.Diff(tc.want, answer.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if (answer.Patch != nil) != tc.patched {
				t.Fatalf("patch %s", answer.Patch)
			}
			after := decode(t, applied(t, pod, answer))
			if recorded := after.Annotations[mesh.AnnotationInjectionWarnings]; tc.patched && recorded != strings.Join(tc.want, "\n") {
				t.Errorf("annotation %q", recorded)
			}
			alone := slices.ContainsFunc(tc.want, func(w string) bool { return strings.HasSuffix(w, ": not injected") })
			if before := decode(t, pod); alone && !cmp.Equal(before.Spec, after.Spec) {
				t.Errorf("a pod that is left alone was changed: %s", answer.Patch)
			}
		})
	}
}

func TestWarningsAreLimited(t *testing.T) {
	var containers []string
	for i := range 26 {
		containers = append(containers, fmt.Sprintf(`{name: c%d, livenessProbe: {httpGet: {host: %s, port: 1}}}`, i, strings.Repeat("ä", 1000)))
	}
	document := toJSON(t, `{spec: {containers: [`+strings.Join(containers, ", ")+`]}}`)
	s := newServer(t, enabled().options())
	answer := review(t, s, webhook.PathInject, podReview("shop", document))
	sum := 0
	for _, w := range answer.Warnings {
		if sum += len(w); len(w) > 256 || !utf8.ValidString(w) {
			t.Errorf("%d bytes: %q", len(w), w)
		}
	}
	if last := answer.Warnings[len(answer.Warnings)-1]; sum > 4096 || !strings.HasPrefix(last, "and 1") || !strings.HasSuffix(last, " more warnings") {
		t.Errorf("%d bytes of warnings, the last is %q", sum, last)
	}
	patched := applied(t, document, answer)
	recorded := decode(t, patched).Annotations[mesh.AnnotationInjectionWarnings]
	if len(recorded) > 33<<10 || !strings.HasSuffix(recorded, "\nmore warnings are not recorded") {
		t.Errorf("%d bytes are recorded, at the end %q", len(recorded), recorded[len(recorded)-100:])
	}
	if again := review(t, s, webhook.PathInject, podReview("shop", patched)); again.Patch != nil {
		t.Errorf("the second admission has the patch %s", again.Patch)
	}
}

// Only a creation changes a pod.
func TestOtherOperationsOnPods(t *testing.T) {
	body := string(podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`)))
	for _, change := range [][2]string{{`"CREATE"`, `"UPDATE"`}, {`"namespace"`, `"subResource":"ephemeralcontainers","namespace"`}, {`"CREATE"`, `"DELETE"`}} {
		answer := review(t, newServer(t, enabled().options()), webhook.PathInject, []byte(strings.Replace(body, change[0], change[1], 1)))
		if !answer.Allowed || answer.Patch != nil {
			t.Errorf("%s: %+v", change[1], answer)
		}
	}
}

// FuzzServer sends arbitrary bytes: the server always returns a valid response.
func FuzzServer(f *testing.F) {
	pods := readPods(f)
	for name := range pods {
		f.Add(true, podReview("shop", pods[name]))
	}
	f.Add(false, objectReview("Mesh", "CREATE", `{"metadata":{"name":"a"},"spec":{"mtls":{"backends":[{"name":5}]}}}`, "null"))
	f.Add(false, objectReview("Dataplane", "UPDATE", string(toJSON(f, `{metadata: {name: vm}, spec: `+goodDataplane+`}`)), "{}"))
	f.Add(false, objectReview("Mesh", "DELETE", "null", `{"metadata":{"name":"a"}}`))
	f.Add(true, []byte(`{"kind":"AdmissionReview"`))
	o := enabled().options()
	o.Namespace = func(_ context.Context, name string) (webhook.Namespace, error) {
		return webhook.Namespace{Name: name, Labels: map[string]string{"kuma.io/sidecar-injection": "enabled"}}, nil
	}
	s := newServer(f, o)
	f.Fuzz(func(t *testing.T, pod bool, body []byte) {
		path := webhook.PathValidate
		if pod {
			path = webhook.PathInject
		}
		switch w := post(t, s, path, body); w.Code {
		case 200, 400:
		default:
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
}
