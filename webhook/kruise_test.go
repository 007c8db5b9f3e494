package webhook_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// stripLikeKruise changes a pod like OpenKruise's webhook: it moves liveness probes of containers into the annotation,
// and overwrites it. It ignores init containers.
// Source: openkruise/kruise pkg/webhook/pod/mutating/enhancedlivenessprobe_handler.go.
func stripLikeKruise(pod *corev1.Pod) {
	type probe struct {
		Name          string       `json:"name"`
		LivenessProbe corev1.Probe `json:"livenessProbe"`
	}
	var probes []probe
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.LivenessProbe != nil {
			probes = append(probes, probe{c.Name, *c.LivenessProbe})
			c.LivenessProbe = nil
		}
	}
	if len(probes) == 0 {
		return
	}
	text, err := json.Marshal(probes)
	if err != nil {
		panic(err)
	}
	pod.Annotations[mesh.AnnotationProbeContext] = string(text)
}

// TestKruiseCases has the cases of OpenKruise's handler: a pod with these containers gets this annotation. OpenKruise
// removes the probes; Sonde keeps them, and they call the agent. The result is the same if OpenKruise's webhook has
// changed the pod before.
func TestKruiseCases(t *testing.T) {
	const (
		times     = "initialDelaySeconds: 3000, timeoutSeconds: 5, periodSeconds: 100, successThreshold: 1, failureThreshold: 3"
		timesJSON = `"initialDelaySeconds":3000,"timeoutSeconds":5,"periodSeconds":100,"successThreshold":1,"failureThreshold":3`
		get       = "{httpGet: {path: /health, port: 7001, scheme: HTTP}, " + times + "}"
		getJSON   = `{"httpGet":{"path":"/health","port":7001,"scheme":"HTTP"},` + timesJSON + "}"
		run       = "{exec: {command: [/home/admin/liveness.sh]}, " + times + "}"
		runJSON   = `{"exec":{"command":["/home/admin/liveness.sh"]},` + timesJSON + "}"
		tcp       = "{tcpSocket: {port: 7001}, " + times + "}"
		tcpJSON   = `{"tcpSocket":{"port":7001},` + timesJSON + "}"
	)
	tests := map[string]struct{ containers, want string }{
		"one container":               {"{name: c1, livenessProbe: " + get + "}", `[{"name":"c1","livenessProbe":` + getJSON + "}]"},
		"two kinds of probes":         {"{name: c1, livenessProbe: " + get + "}, {name: c2, livenessProbe: " + run + "}", `[{"name":"c1","livenessProbe":` + getJSON + `},{"name":"c2","livenessProbe":` + runJSON + "}]"},
		"beside one without":          {"{name: c1, livenessProbe: " + get + "}, {name: c2, livenessProbe: " + run + "}, {name: c3}", `[{"name":"c1","livenessProbe":` + getJSON + `},{"name":"c2","livenessProbe":` + runJSON + "}]"},
		"HTTP and TCP, the same port": {"{name: c1, livenessProbe: " + get + "}, {name: c2, livenessProbe: " + tcp + "}", `[{"name":"c1","livenessProbe":` + getJSON + `},{"name":"c2","livenessProbe":` + tcpJSON + "}]"},
		"none":                        {"{name: c1}", ""},
	}
	for name, tc := range tests {
		for asks, annotation := range map[string]string{
			"true": `"true"`, "false": `"false"`, "nothing": "",
		} {
			t.Run(name+"/"+asks, func(t *testing.T) {
				annotations := ""
				if annotation != "" {
					annotations = "apps.kruise.io/using-enhanced-liveness: " + annotation
				}
				pod := parse("metadata: {annotations: {" + annotations + "}}\nspec: {containers: [" + tc.containers + "]}")
				injected, _ := inject(t, pod, webhook.Options{})
				want := tc.want
				if asks != "true" {
					want = ""
				}
				if diff := cmp.Diff(want, injected.Annotations[mesh.AnnotationProbeContext]); diff != "" {
					t.Errorf("the annotation (-want +got):\n%s", diff)
				}
				for i, c := range injected.Spec.Containers {
					if (c.LivenessProbe == nil) != (pod.Spec.Containers[i].LivenessProbe == nil) {
						t.Errorf("the probe of %s has come or gone", c.Name)
					}
				}
				if asks != "true" {
					return
				}
				stripLikeKruise(pod)
				after, _ := inject(t, pod, webhook.Options{})
				if diff := cmp.Diff(injected, after); diff != "" {
					t.Errorf("after OpenKruise's webhook the pod is another (-without +with):\n%s", diff)
				}
			})
		}
	}
}
