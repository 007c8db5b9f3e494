package webhook_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// withContext returns a guarded pod with this annotation, and the containers app and web with only the given probes.
func withContext(text, app string) *corev1.Pod {
	pod := podWith(guarded, app)
	pod.Annotations[mesh.AnnotationProbeContext] = text
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "web"})
	return pod
}

func TestBadProbeContexts(t *testing.T) {
	const field = `metadata.annotations["apps.kruise.io/container-probe-context"]: `
	list := func(probe string) string { return `[{"name":"app","livenessProbe":` + probe + `}]` }
	tests := map[string]struct{ text, want string }{
		"empty":            {"", "must be JSON: unexpected end of JSON input"},
		"no JSON":          {"[{name: app}]", "must be JSON: invalid character"},
		"more behind":      {"[] []", "must be JSON: invalid character"},
		"no list":          {`{"name":"app"}`, `{...}: must be a list`},
		"no object":        {`["app"]`, `[0]: "app": must be an object`},
		"no name":          {`[{"livenessProbe":{}}]`, "[0].name: must be the name of a container"},
		"no probe":         {`[{"name":"app"}]`, "[0].livenessProbe: is missing"},
		"null":             {list("null"), "[0].livenessProbe: is missing"},
		"a list for it":    {list("[]"), `[0].livenessProbe: [...]: must be an object`},
		"quoted threshold": {list(`{"failureThreshold":"3"}`), `[0].livenessProbe.failureThreshold: "3": must be a whole number`},
		"half a port":      {list(`{"httpGet":{"port":1.5}}`), `[0].livenessProbe.httpGet.port: 1.5: must be a whole number or a text`},
		"unknown field":    {list(`{"failureTreshold":3}`), `unknown field "[0].livenessProbe.failureTreshold"`},
		"another case":     {list(`{"httpget":{}}`), `unknown field "[0].livenessProbe.httpget"`},
		"another probe":    {`[{"name":"app","readinessProbe":{}}]`, `unknown field "[0].readinessProbe"`},
		"twice in one":     {list(`{"periodSeconds":1,"periodSeconds":2}`), `duplicate field "[0].livenessProbe.periodSeconds"`},
		"twice":            {`[{"name":"app","livenessProbe":{}},{"name":"web","livenessProbe":{}},{"name":"app","livenessProbe":{}}]`, `[2].name: "app": must be unique, [0] is the same`},
		"no such one":      {`[{"name":"App","livenessProbe":{}},{"name":"app","livenessProbe":{}}]`, `the pod has no container "App"`},
		"ours":             {`[{"name":"kuma-sidecar","livenessProbe":{}}]`, `the pod has no container "kuma-sidecar"`},
		"a secret":         {list(`{"httpGet":{"port":1,"httpHeaders":[{"name":"A","value":["hidden"]}]}}`), "[0].livenessProbe.httpGet.httpHeaders[0].value: must be a text"},
		"long":             {"[" + strings.Repeat(" ", 256<<10) + "]", "has 262146 bytes: all annotations of a pod must have at most 262144"},
		"of many":          {"[" + strings.Repeat("{},", 50_000) + "{}]", "has too many objects and values"},
		"deep":             {strings.Repeat("[", 100_000), "has too many objects and values"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := webhook.Inject(withContext(tc.text, ""), webhook.Options{})
			if err == nil || !strings.Contains(err.Error(), field+tc.want) {
				t.Errorf("Inject() = %v, want %s", err, field+tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hidden") || len(err.Error()) > 1000) {
				t.Errorf("the error has %d bytes: %v", len(err.Error()), err)
			}
			pod := withContext(tc.text, "livenessProbe: {tcpSocket: {port: 80}}")
			delete(pod.Annotations, mesh.AnnotationGuardedLiveness)
			if injected, _ := inject(t, pod, webhook.Options{}); injected.Annotations[mesh.AnnotationProbeContext] != tc.text {
				t.Error("the annotation of a pod that is not guarded has changed")
			}
		})
	}
}

func TestProbeContext(t *testing.T) {
	const (
		tcp  = `{"tcpSocket":{"port":"http"},"periodSeconds":5}`
		app  = `[{"name":"app","livenessProbe":` + tcp + `}]`
		both = `[{"name":"app","livenessProbe":` + tcp + `},{"name":"web","livenessProbe":{"exec":{"command":["a"]}}}]`
		port = "ports: [{name: http, containerPort: 80}]"
	)
	tests := map[string]struct{ text, app, want string }{
		"a probe is only there": {app, port, app},
		"several":               {both, port, both},
		"in another order": {
			`[{"name":"web","livenessProbe":{"exec":{"command":["a"]}}},{"name":"app","livenessProbe":` + tcp + `}]`, port, both,
		},
		"written in another way": {" [ {\"livenessProbe\":" + tcp + ",\n\"name\":\"app\"} ] ", port, " [ {\"livenessProbe\":" + tcp + ",\n\"name\":\"app\"} ] "},
		"the container has it":   {app, port + ", livenessProbe: {tcpSocket: {port: http}, periodSeconds: 5}", app},
		"with defaults":          {app, port + ", livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 5, timeoutSeconds: 1, failureThreshold: 3}", app},
		"the container has another": {
			app, "livenessProbe: {tcpSocket: {port: 81}}", `[{"name":"app","livenessProbe":{"tcpSocket":{"port":81}}}]`,
		},
		"null": {"null", port, "null"},
		"none": {"[]", port, "[]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := withContext(tc.text, tc.app)
			injected, _ := inject(t, pod, webhook.Options{})
			if got := injected.Annotations[mesh.AnnotationProbeContext]; got != tc.want {
				t.Errorf("the annotation is\n%s, want\n%s", got, tc.want)
			}
			if isThere, want := injected.Spec.Containers[0].LivenessProbe != nil, strings.Contains(tc.want, "app"); isThere != want {
				t.Errorf("the container has a probe: %t, want %t", isThere, want)
			}
			again, _ := inject(t, injected, webhook.Options{})
			if diff := cmp.Diff(injected, again); diff != "" {
				t.Errorf("the second injection changes the pod:\n%s", diff)
			}
		})
	}
}

// TestGuardedPodsThatChangedSince injects a guarded pod twice, with a change between the two.
func TestGuardedPodsThatChangedSince(t *testing.T) {
	const (
		web = `{"name":"web","livenessProbe":{"httpGet":{"path":"/a","port":"http"},"failureThreshold":5}}`
		// Like the annotation built from the probe table.
		rebuilt = `{"name":"web","livenessProbe":{"httpGet":{"path":"/a","port":80,"scheme":"HTTP"},"timeoutSeconds":1,"failureThreshold":5}}`
		job     = `{"name":"job","livenessProbe":{"exec":{"command":["a"]}}}`
	)
	tests := map[string]struct {
		change  func(*corev1.Pod)
		context string
		guarded []string
	}{
		"nothing": {func(*corev1.Pod) {}, "[" + web + "," + job + "]", []string{"web"}},
		"defaults of the API server": {func(p *corev1.Pod) {
			for _, c := range containersOf(p) {
				if l := c.LivenessProbe; l != nil {
					l.PeriodSeconds, l.SuccessThreshold = 10, 1
					if l.HTTPGet == nil {
						l.TimeoutSeconds, l.FailureThreshold = 1, 3
					}
				}
			}
		}, "[" + web + "," + job + "]", []string{"web"}},
		"OpenKruise's webhook": {stripLikeKruise, "[" + rebuilt + "," + job + "]", []string{"web"}},
		"probes are taken away": {func(p *corev1.Pod) {
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].LivenessProbe = nil
			}
		}, "[" + web + "," + job + "]", []string{"web"}},
		"the annotation is taken away": {func(p *corev1.Pod) {
			delete(p.Annotations, mesh.AnnotationProbeContext)
		}, "[" + rebuilt + "," + job + "]", []string{"web"}},
		"the annotation says something else": {func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationProbeContext] = `[{"name":"web","livenessProbe":{"tcpSocket":{"port":1}}}]`
		}, "[" + rebuilt + "," + job + "]", []string{"web"}},
		"a container is gone": {func(p *corev1.Pod) {
			p.Spec.Containers = slices.DeleteFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "web" })
		}, "[" + job + "]", nil},
		"all are gone": {func(p *corev1.Pod) {
			p.Spec.Containers = append(slices.DeleteFunc(p.Spec.Containers, func(c corev1.Container) bool { return !ours(c) }), corev1.Container{Name: "other"})
		}, "[]", nil},
		"a container comes": {func(p *corev1.Pod) {
			p.Spec.Containers = slices.Insert(p.Spec.Containers, 0, late(t, "livenessProbe: {grpc: {port: 90, service: s}}"))
		}, `[{"name":"app","livenessProbe":{"grpc":{"port":90,"service":"s"}}},` + web + "," + job + "]", []string{"app", "web"}},
		"disabled": {func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationGuardedLiveness] = "disabled"
		}, "[" + web + "," + job + "]", nil},
	}
	for name, tc := range tests {
		for _, form := range forms() {
			t.Run(name+"/"+string(form), func(t *testing.T) {
				pod, _ := inject(t, parse("metadata: {annotations: {"+guarded+"}}\nspec: {containers: ["+
					"{name: web, ports: [{name: http, containerPort: 80}], livenessProbe: {httpGet: {path: /a, port: http}, failureThreshold: 5}},"+
					"{name: job, livenessProbe: {exec: {command: [a]}}}]}"), webhook.Options{Sidecar: form})
				tc.change(pod)
				again, _ := inject(t, pod, webhook.Options{})
				if diff := cmp.Diff(tc.context, again.Annotations[mesh.AnnotationProbeContext]); diff != "" {
					t.Errorf("the annotation (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.guarded, guardedProbes(t, again)); diff != "" {
					t.Errorf("guarded (-want +got):\n%s", diff)
				}
				third, _ := inject(t, again, webhook.Options{})
				if diff := cmp.Diff(again, third); diff != "" {
					t.Errorf("the third injection changes the pod:\n%s", diff)
				}
			})
		}
	}
}

// A pod injected by sondectl becomes guarded if its namespace asks for that.
func TestGuardedAfterItsInjection(t *testing.T) {
	pod, _ := inject(t, podWith("kuma.io/sidecar-injection: enabled", "livenessProbe: {tcpSocket: {port: 80}, timeoutSeconds: 2}"), webhook.Options{})
	ns := &webhook.Namespace{Name: "shop", Annotations: map[string]string{mesh.AnnotationGuardedLiveness: "enabled"}}
	injected, err := webhook.InjectIn(pod, ns, webhook.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"name":"app","livenessProbe":{"tcpSocket":{"port":80},"timeoutSeconds":2}}]`
	if got := injected.Annotations[mesh.AnnotationProbeContext]; got != want || len(guardedProbes(t, injected)) != 1 {
		t.Errorf("guarded are %q, and the annotation is %s", guardedProbes(t, injected), got)
	}
	containers := pod.Spec.Containers
	containers[0].LivenessProbe.TimeoutSeconds, containers[0].LivenessProbe.FailureThreshold = 600, 5
	if diff := cmp.Diff(containers, injected.Spec.Containers); diff != "" {
		t.Errorf("the containers have changed in more than the kubelet's numbers:\n%s", diff)
	}
}

// The annotations of a pod have a limit, which the API server checks after the webhook.
func TestSizeOfProbeContexts(t *testing.T) {
	withOther := func(size int) error {
		pod := podWith(guarded, "livenessProbe: {exec: {command: [a]}}")
		pod.Annotations["example.com/other"] = strings.Repeat("x", size)
		injected, _, err := webhook.Inject(pod, webhook.Options{})
		if err != nil {
			return err
		}
		size = 0
		for key, value := range injected.Annotations {
			size += len(key) + len(value)
		}
		if size > 256<<10 {
			t.Errorf("an injected pod has %d bytes of annotations", size)
		}
		return nil
	}
	least := 255 << 10 // the maximum that fits is more
	for most := 256 << 10; least+1 < most; {
		if middle := (least + most) / 2; withOther(middle) == nil {
			least = middle
		} else {
			most = middle
		}
	}
	if least == 255<<10 {
		t.Errorf("beside %d bytes of other annotations the pod is refused", least+1)
	}
	const want = `metadata.annotations["apps.kruise.io/container-probe-context"]: the pod's liveness probes take 59 bytes here, and its annotations would have 262145: must be at most 262144`
	if err := withOther(least + 1); err == nil || err.Error() != want {
		t.Errorf("Inject() of a pod with a byte too many = %v, want %s", err, want)
	}
	pod := podWith("", "livenessProbe: {exec: {command: [a]}}")
	pod.Annotations = map[string]string{"example.com/other": strings.Repeat("x", 256<<10)}
	inject(t, pod, webhook.Options{}) // the API server checks it
}

func FuzzProbeContext(f *testing.F) {
	f.Add(`[{"name":"app","livenessProbe":{"exec":{"command":["/bin/sh"]},"terminationGracePeriodSeconds":1}}]`)
	f.Add(`[{"name":"a","livenessProbe":{"httpGet":{"port":"http","httpHeaders":[{"name":"A","value":"<"}]}}},{"name":"b","livenessProbe":{"grpc":{"port":1}}}]`)
	f.Add(`[null,{},5]`)
	f.Fuzz(func(t *testing.T, text string) {
		first, err := webhook.AgainProbeContext(text)
		if err != nil {
			return
		}
		if !json.Valid([]byte(first)) {
			t.Fatalf("%q is written as %s", text, first)
		}
		if again, err := webhook.AgainProbeContext(first); len(first) <= 256<<10 && (err != nil || again != first) {
			t.Errorf("%s changes to %s: %v", first, again, err)
		}
		pod := withContext(fmt.Sprintf(`[{"name":"app","livenessProbe":%s}]`, text), "")
		document, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		checkProperties(t, document, webhook.Native)
	})
}
