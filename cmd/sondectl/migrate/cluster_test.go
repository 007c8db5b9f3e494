package migrate

import (
	"encoding/json"
	"testing"

	kjson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// FuzzPodSpec checks that plan and status never crash for arbitrary pods: a running one, one injected by Sonde, and a
// template.
func FuzzPodSpec(f *testing.F) {
	foreign := `{name: istio-proxy, readinessProbe: {httpGet: {port: 15021, path: /healthz/ready}}}`
	for _, seed := range []string{
		application,
		"spec: {containers: [{name: app, livenessProbe: {tcpSocket: {port: 8080}}}, " + foreign + "]}",
		"spec: {initContainers: [" + foreign + "], containers: [{name: app}, {name: kuma-sidecar, livenessProbe: {grpc: {port: 1}}}], volumes: [{name: sonde-identity}]}",
		"spec: {containers: [{name: app, startupProbe: {}}, {name: app, startupProbe: {exec: {}}}]}",
		"metadata: {annotations: {kuma.io/virtual-probes: disabled}}\nspec: {containers: [{name: kuma-validation, readinessProbe: {httpGet: {port: a}}}]}",
		`metadata: {annotations: {kuma.io/application-probe-proxy-port: "9001"}}` + "\nspec: {containers: [{name: kuma-sidecar}, {name: app, livenessProbe: {httpGet: {path: /tcp/80, port: 9001}}}]}",
	} {
		body, err := yaml.YAMLToJSON([]byte(seed))
		if err != nil {
			f.Fatal(err)
		}
		if _, err := clusterWith(body); err != nil {
			f.Fatalf("%s: %v", seed, err)
		}
		f.Add(body)
	}
	f.Fuzz(func(_ *testing.T, body []byte) {
		c, err := clusterWith(body)
		if err != nil {
			return // not a valid pod
		}
		modes := []mesh.ProbesMode{mesh.ProbesUnified, mesh.ProbesPerPort}
		for _, mode := range modes {
			if injected, _, err := webhook.Inject(c.pods[0], webhook.Options{ProbesMode: mode}); err == nil {
				injected.Name = string(mode)
				c.pods = append(c.pods, injected)
			}
		}
		for _, mode := range modes {
			c.Plan(webhook.Options{ProbesMode: mode})
			c.Status(webhook.Options{ProbesMode: mode})
		}
	})
}

// clusterWith returns a cluster with a pod and a Deployment whose content comes from a document.
func clusterWith(body []byte) (*Cluster, error) {
	var object map[string]any
	if err := kjson.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	if object == nil {
		object = map[string]any{}
	}
	meta, _ := object["metadata"].(map[string]any)
	c := &Cluster{}
	for kind, name := range map[string]string{"Pod": "bare", "Deployment": "web"} {
		object["metadata"] = map[string]any{"name": name, "labels": meta["labels"], "annotations": meta["annotations"]}
		pod, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		if err := c.Add(Object{APIVersion: "v1", Kind: kind, JSON: []byte(`{"metadata": {"name": "` + name + `"}}`), Pod: pod}); err != nil {
			return nil, err
		}
	}
	return c, nil
}
