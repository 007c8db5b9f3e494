package source

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// Listeners of pods, as the injector writes them.
func TestPerPort(t *testing.T) {
	const testdata = "../../testdata/inject/"
	tests := map[string]struct {
		file string
		want *PerPort
	}{
		"every probe": {"per-port/native.yaml", &PerPort{
			HTTP: &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{
				{InboundPort: 8080, InboundPath: "/started", Path: "/8080/started"},
				{InboundPort: 8443, InboundPath: "/alive", Path: "/8443/alive"},
				{InboundPort: 8080, InboundPath: "/", Path: "/8080/"},
				{InboundPort: 8080, InboundPath: "/begin", Path: "/8080/begin"},
				{InboundPort: 8443, InboundPath: "/end", Path: "/8443/end"},
			}},
			Own: []mesh.TCPProbe{
				{Port: 9002, InboundPort: 24224, Protocol: mesh.ProtocolTCP},
				{Port: 9004, InboundPort: 5432, Protocol: mesh.ProtocolTCP},
				{Port: 9005, InboundPort: 50051, Protocol: mesh.ProtocolGRPC},
				{Port: 9006, InboundPort: 50051, Protocol: mesh.ProtocolGRPC},
				{Port: 9007, InboundPort: 9091, Protocol: mesh.ProtocolTCP},
			},
		}},
		"the sidecar is an ordinary container": {"seed-per-port/container.yaml", &PerPort{
			HTTP: &mesh.Probes{Port: 19000, Endpoints: []mesh.ProbeEndpoint{{InboundPort: 6851, InboundPath: "/healthz", Path: "/6851/healthz"}}},
			Own: []mesh.TCPProbe{
				{Port: 9000, InboundPort: 6853, Protocol: mesh.ProtocolTCP},
				{Port: 9001, InboundPort: 6852, Protocol: mesh.ProtocolGRPC},
			},
		}},
		"with exec, which asks no port": {"guarded-per-port/native.yaml", &PerPort{
			HTTP: &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{InboundPort: 8080, InboundPath: "/alive", Path: "/8080/alive"}}},
			Own: []mesh.TCPProbe{
				{Port: 9001, InboundPort: 6379, Protocol: mesh.ProtocolTCP},
				{Port: 9002, InboundPort: 50051, Protocol: mesh.ProtocolGRPC},
				{Port: 9003, InboundPort: 50051, Protocol: mesh.ProtocolGRPC},
			},
		}},
		"unified": {"every-probe/native.yaml", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(testdata + tc.file)
			if err != nil {
				t.Fatal(err)
			}
			var p corev1.Pod
			if err := yaml.Unmarshal(text, &p); err != nil {
				t.Fatal(err)
			}
			// Annotations changed in a running pod have no effect.
			p.Annotations[mesh.AnnotationVirtualProbesMode] = "nonsense"
			r, ok := readPod(&p)
			if diff := cmp.Diff(tc.want, r.PerPort); diff != "" || !ok {
				t.Fatalf("readPod() = %t (-want +got):\n%s", ok, diff)
			}
			if tc.want == nil {
				return
			}
			for _, port := range tc.want.ports() {
				if r.redirects(port) {
					t.Errorf("port %d of a probe has an inbound", port)
				}
			}
		})
	}
}

// The Dataplane of a pod in per-port mode could have been written by a user, with the usual label.
func TestDataplaneInPerPortMode(t *testing.T) {
	p := &Pod{UID: "u-1", Mesh: "default", ServiceAccount: "web", Address: "10.0.0.1", PerPort: &PerPort{
		HTTP: &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{InboundPort: 8080, InboundPath: "/live", Path: "/8080/live"}}},
		Own:  []mesh.TCPProbe{{Port: 9001, InboundPort: 2379, Protocol: mesh.ProtocolGRPC}},
	}}
	d := dataplaneOf(watch.Key{Namespace: "shop", Name: "web"}, p, nil, nil)
	if err := d.Validate(); err != nil {
		t.Errorf("it is invalid: %v", err)
	}
	if got := d.Labels[mesh.AnnotationVirtualProbesMode]; got != "per-port" || d.ProbesMode != mesh.ProbesPerPort || !d.IsPod() {
		t.Errorf("label %q, mode %q, a pod: %t", got, d.ProbesMode, d.IsPod())
	}
	if diff := cmp.Diff(p.PerPort, &PerPort{d.Spec.Probes, d.Spec.TCPProbes}); diff != "" {
		t.Errorf("its probes (-pod +Dataplane):\n%s", diff)
	}
}

// Ports that the pod's agent rejects are not sent to Envoy.
func TestPerPortOfBadTable(t *testing.T) {
	spec := &corev1.PodSpec{Containers: []corev1.Container{{
		Name: mesh.ContainerSidecar, Args: []string{"run", mesh.ArgProbesMode + "per-port", mesh.ArgVirtualPort + "9000"},
	}}}
	read := func() *PerPort {
		table, _ := probeTable(spec)
		return readPerPort(spec, table)
	}
	for _, table := range []string{`{`, `[{"httpGet":{"port":0}}]`} {
		spec.Containers[0].Env = []corev1.EnvVar{{Name: mesh.EnvProbeTable, Value: table}}
		if r := read(); r != nil {
			t.Errorf("table %s: %+v", table, r)
		}
	}
	spec.Containers[0].Env = nil
	if r := read(); r != nil {
		t.Errorf("no table: %+v", r)
	}
}
