package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const probedDataplane = `type: Dataplane
name: web-1
networking:
  address: 10.0.0.1
  inbound:
  - port: 8080
    servicePort: 18080
    tags: {kuma.io/service: web}
    serviceProbe: %s
`

func TestServiceProbeIsRead(t *testing.T) {
	tests := map[string]struct {
		text string
		want *mesh.ServiceProbe
	}{
		"null": {"", nil},
		"Kuma's": {"{interval: 10s, timeout: 0.5s, unhealthyThreshold: 3, healthyThreshold: 2, tcp: {}}", &mesh.ServiceProbe{
			TCP: &mesh.TCPServiceProbe{}, Interval: 10e9, Timeout: 5e8, UnhealthyThreshold: 3, HealthyThreshold: 2,
		}},
		"Kuma's, empty": {"{}", &mesh.ServiceProbe{TCP: &mesh.TCPServiceProbe{}, Interval: 1e9, Timeout: 2e9, UnhealthyThreshold: 1, HealthyThreshold: 1}},
		"Kubernetes'": {`{httpGet: {path: /healthz, httpHeaders: [{name: X, value: "1"}]}, periodSeconds: 2, failureThreshold: 1}`, &mesh.ServiceProbe{
			HTTPGet:       &mesh.HTTPGetProbe{Path: "/healthz", Port: 18080, Scheme: "HTTP", HTTPHeaders: []mesh.HTTPHeader{{Name: "X", Value: "1"}}},
			PeriodSeconds: 2, TimeoutSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1,
		}},
		"grpc": {"{grpc: {}}", &mesh.ServiceProbe{
			GRPC: &mesh.GRPCProbe{Port: 18080}, PeriodSeconds: 10, TimeoutSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1,
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			documents, problems := Decode("web.yaml", fmt.Appendf(nil, probedDataplane, tc.text))
			if len(documents) != 1 || len(problems) != 0 {
				t.Fatalf("%d documents, problems %v", len(documents), problems)
			}
			got := documents[0].Object.(*mesh.Dataplane).Spec.Networking.Inbound[0].ServiceProbe
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("serviceProbe (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceProbeIsRefused(t *testing.T) {
	const path = "networking.inbound[0].serviceProbe"
	tests := map[string]struct{ text, want string }{
		"a text":                 {"tcp", path + `: "tcp": must be a mapping of fields`},
		"a list":                 {"[]", path + `: [...]: must be a mapping`},
		"exec":                   {"{exec: {command: [true]}}", path + ".exec: must not be there: the agent runs no programs"},
		"initialDelaySeconds":    {"{httpGet: {}, initialDelaySeconds: 5}", path + ".initialDelaySeconds: must not be there: an inbound is not ready before its first success"},
		"grace period":           {"{httpGet: {}, terminationGracePeriodSeconds: 5}", path + ".terminationGracePeriodSeconds: must not be there"},
		"host":                   {"{httpGet: {host: example.com}}", path + ".httpGet.host: must not be there: the probe goes to the inbound's serviceAddress"},
		"http":                   {"{http: {path: /}}", path + ".http: must be httpGet"},
		"a port of tcp":          {"{tcp: {port: 80}}", path + ".tcp.port: must not be there"},
		"another field":          {"{unhealthy_threshold: 3, tcp: {}}", path + ".unhealthy_threshold: is an unknown field: write unhealthyThreshold"},
		"zero":                   {"{tcp: {}, unhealthyThreshold: 0}", path + `.unhealthyThreshold: 0: must be a whole number of at least 1`},
		"negative":               {"{grpc: {}, periodSeconds: -1}", path + `.periodSeconds: -1: must be a whole number`},
		"a fraction":             {"{grpc: {}, periodSeconds: 1.5}", path + `.periodSeconds: 1.5: must be a whole number`},
		"a duration for seconds": {"{grpc: {}, periodSeconds: 1s}", path + `.periodSeconds: "1s": must be a whole number`},
		"a number in quotes":     {`{grpc: {}, periodSeconds: "1"}`, path + `.periodSeconds: "1": must be a whole number of at least 1: write 1 without quotes`},
		"too large a number":     {"{grpc: {}, periodSeconds: 99999999999}", path + `.periodSeconds: 99999999999: must be from 1 to 3600`},
		"octal":                  {"{grpc: {}, periodSeconds: 010}", path + `.periodSeconds: 010: must be a whole number`},
		"seconds for a duration": {"{tcp: {}, interval: 5}", path + `.interval: 5: must be a duration`},
		"a named port":           {"{httpGet: {port: http}}", path + `.httpGet.port: "http": must be a whole number`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			documents, problems := Decode("web.yaml", fmt.Appendf(nil, probedDataplane, tc.text))
			if len(documents) != 0 || len(problems) == 0 || !strings.Contains(problems[0].Err.Error(), tc.want) {
				t.Errorf("%d documents, problems %v, want %s", len(documents), problems, tc.want)
			}
		})
	}
}

// TestBareHandler has "grpc:" with nothing below it, which is not a missing field.
func TestBareHandler(t *testing.T) {
	documents, problems := Decode("web.yaml", []byte("type: Dataplane\nname: web-1\nnetworking:\n  address: 10.0.0.1\n  inbound:\n  - port: 80\n"+
		"    tags: {kuma.io/service: web}\n    serviceProbe:\n      grpc:\n      periodSeconds: 1\n"))
	if len(problems) > 0 || len(documents) != 1 {
		t.Fatalf("%d documents, problems %v", len(documents), problems)
	}
	probe := documents[0].Object.(*mesh.Dataplane).Spec.Networking.Inbound[0].ServiceProbe //nolint:forcetypeassert // it is one
	if probe.GRPC == nil || probe.TCP != nil {
		t.Errorf("grpc: asks by %+v", probe)
	}
}
