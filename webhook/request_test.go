package webhook_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

func TestRequests(t *testing.T) {
	pod := parse(`spec:
  initContainers:
  - {name: logs, restartPolicy: Always, startupProbe: {tcpSocket: {port: 2020, host: other}}}
  containers:
  - {name: kuma-sidecar, readinessProbe: {httpGet: {port: 1}}}
  - name: web
    ports: [{name: http, containerPort: 8080}]
    livenessProbe: {exec: {command: [x]}}
    readinessProbe: {httpGet: {port: nowhere}}
    lifecycle: {preStop: {httpGet: {port: http, path: /stop}}}`)
	got := webhook.Requests(pod)
	want := []webhook.Request{
		{Container: "logs", Type: mesh.ProbeStartup, Field: "containers[logs].startupProbe", Written: "tcpSocket other:2020", Host: "other", Port: 2020, Protocol: mesh.ProtocolTCP},
		{Container: "web", Type: mesh.ProbeLiveness, Field: "containers[web].livenessProbe", Written: "exec x"},
		{Container: "web", Type: mesh.ProbeReadiness, Field: "containers[web].readinessProbe", Written: "httpGet :nowhere", Protocol: mesh.ProtocolHTTP},
		{Container: "web", Type: mesh.ProbePreStop, Field: "containers[web].lifecycle.preStop", Written: "httpGet :http /stop", Port: 8080, Protocol: mesh.ProtocolHTTP},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(webhook.Request{}, "Probe", "Hook")); diff != "" {
		t.Errorf("Requests (-want +got):\n%s", diff)
	}
	web := pod.Spec.Containers[1]
	if got[1].Probe != web.LivenessProbe || got[3].Hook != web.Lifecycle.PreStop || got[3].Probe != nil {
		t.Error("Probe and Hook are not the pod's")
	}
}
