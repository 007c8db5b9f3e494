//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// seedPod is the pod of the document from which the project was created, with an application that can change. %s is a
// --tcp for the port of the startup probe, or another argument.
const seedPod = `
apiVersion: v1
kind: Pod
metadata:
  name: busybox
  labels: {run: busybox, app: busybox}
  annotations:
    traffic.kuma.io/exclude-inbound-ports: "9800"
spec:
  nodeName: node2
  containers:
  - name: busybox
    image: docker.io/sonde-test/app:1
    args: [--name=busybox, "--http=:6851", "--grpc=:6852", --grpc-service=liveness, "--control=:9800", "%s"]
    resources: {}
    readinessProbe:
      httpGet: {path: /healthz, port: 6851}
      initialDelaySeconds: 3
      periodSeconds: 3
    livenessProbe:
      grpc: {port: 6852, service: liveness}
      initialDelaySeconds: 3
      periodSeconds: 3
    startupProbe:
      tcpSocket: {port: 6853}
      initialDelaySeconds: 3
      periodSeconds: 3
`

// seedService selects the pod and another pod, which is always ready.
const seedService = `
apiVersion: v1
kind: Service
metadata: {name: busybox}
spec:
  selector: {app: busybox}
  ports: [{name: http, port: 6851, appProtocol: http}]
---
apiVersion: v1
kind: Pod
metadata:
  name: other
  labels: {app: busybox}
spec:
  nodeName: node2
  containers:
  - name: app
    image: docker.io/sonde-test/app:1
    args: [--name=other, "--http=:6851"]
`

// tcpOpen opens the port of the startup probe.
const tcpOpen = "--tcp=:6853"

// TestSeedInjected checks the seed's pod as the API server returns it.
func TestSeedInjected(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	if warnings := n.create(fmt.Sprintf(seedPod, tcpOpen)); len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	p := n.pod("busybox")
	for key, want := range map[string]string{
		"kuma.io/virtual-probes":                "enabled",
		"kuma.io/virtual-probes-port":           "9000",
		"traffic.kuma.io/exclude-inbound-ports": "9800",
	} {
		if got := p.Annotations[key]; got != want {
			t.Errorf("annotation %s: %q, want %q", key, got, want)
		}
	}
	if got := p.Labels["kuma.io/mesh"]; got != "default" {
		t.Errorf("label kuma.io/mesh: %q", got)
	}
	setup, sidecar, user := container(p, "kuma-init"), container(p, "kuma-sidecar"), container(p, "busybox")
	if setup == nil || sidecar == nil || user == nil {
		t.Fatalf("containers are missing: %+v", p.Spec)
	}
	if at := slices.Index(setup.Args, "--exclude-inbound-ports"); at < 0 || setup.Args[at+1] != "9000,9800" {
		t.Errorf("arguments of kuma-init: %q", setup.Args)
	}
	if want := []string{"/usr/bin/sonde-dp", "install", "transparent-proxy"}; !slices.Equal(setup.Command, want) {
		t.Errorf("command of kuma-init: %q", setup.Command)
	}
	checkSeedProbes(t, sidecar, user)
}

// checkSeedProbes compares the rewritten probes with the document, and with the sidecar's table of them.
func checkSeedProbes(t *testing.T, sidecar, user *corev1.Container) {
	t.Helper()
	env := map[string]corev1.EnvVar{}
	for _, v := range sidecar.Env {
		env[v.Name] = v
	}
	for _, name := range []string{"INSTANCE_IP", "POD_NAME", "POD_NAMESPACE"} {
		if env[name].ValueFrom == nil || env[name].ValueFrom.FieldRef == nil {
			t.Errorf("variable %s of kuma-sidecar: %+v", name, env[name])
		}
	}
	table, _, err := mesh.ParseProbeTable(env["KUMA_DATAPLANE_PROBES"].Value)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		probe *corev1.Probe
		path  string
		kind  mesh.ProbeType
	}{
		{user.StartupProbe, "/tcp/6853", mesh.ProbeStartup},
		{user.LivenessProbe, "/grpc/6852/liveness", mesh.ProbeLiveness},
		{user.ReadinessProbe, "/6851/healthz", mesh.ProbeReadiness},
	} {
		at := slices.IndexFunc(table, func(e mesh.Probe) bool { return e.Type == want.kind })
		if at < 0 {
			t.Errorf("the table has no %s probe: %+v", want.kind, table)
			continue
		}
		// The timeout is a second longer than the user's.
		rewritten := corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: want.path, Port: intstr.FromInt32(9000), Scheme: corev1.URISchemeHTTP,
				HTTPHeaders: []corev1.HTTPHeader{{Name: "Sonde-Probe", Value: table[at].ID}},
			}},
			InitialDelaySeconds: 3, TimeoutSeconds: 2, PeriodSeconds: 3, SuccessThreshold: 1, FailureThreshold: 3,
		}
		if d := cmp.Diff(&rewritten, want.probe); d != "" {
			t.Errorf("%s probe (-want +got):\n%s", want.kind, d)
		}
	}
}

// TestSeedLives breaks the seed's pod, in both modes of probes and without a mesh, and all three must behave the
// same.
func TestSeedLives(t *testing.T) {
	t.Parallel()
	sameLife(t, (*namespace).breakSeed, inPerPort)
}

// patientSeedPod is the seed's pod with long timeouts, so that its probes fail only by the application's response.
// With the default timeout of 1 s, they also fail on a busy machine, with or without a mesh, and the histories
// differ.
func patientSeedPod(arg string) string {
	return fmt.Sprintf(strings.ReplaceAll(seedPod, "periodSeconds: 3\n", "periodSeconds: 3\n      timeoutSeconds: 30\n"), arg)
}

// breakSeed returns the history of the seed's pod.
func (n *namespace) breakSeed() history {
	n.t.Helper()
	stop := n.watchHistory("busybox", "busybox")
	n.create(patientSeedPod(tcpOpen), seedService, newPod("client", "node1"))
	n.waitReady("busybox", "other", "client")
	busybox, client := n.app("busybox"), n.app("client")
	n.waitInstances(client, "busybox", "other")

	// On a busy machine, the pod may have restarted before, or restart again: the histories then differ, and cause
	// another attempt.
	before := status(n.pod("busybox"), "busybox").RestartCount
	busybox.waitPut("/grpc", url.Values{"service": {"liveness"}, "status": {"NOT_SERVING"}})
	n.waitPod("busybox", "restarted by gRPC NOT_SERVING", func(p *corev1.Pod) error {
		if c := status(p, "busybox").RestartCount; c <= before {
			return fmt.Errorf("%d restarts, as before", c)
		}
		return isReady(p)
	})
	n.waitEndpointReady("busybox", true)
	n.waitInstances(client, "busybox", "other")

	busybox.waitPut("/http", url.Values{"status": {"500"}})
	n.waitPod("busybox", "not Ready by HTTP 500", isNotReady)
	n.waitEndpointReady("busybox", false)
	n.waitInstances(client, "other")
	busybox.waitPut("/http", url.Values{"status": {"200"}})
	n.waitReady("busybox")
	n.waitEndpointReady("busybox", true)
	n.waitInstances(client, "busybox", "other")

	for _, s := range statuses(n.pod("busybox")) {
		if s.Name != "busybox" && s.RestartCount > 0 {
			n.t.Errorf("container %s was restarted, too", s.Name)
		}
	}
	return stop()
}

// countEvents returns how often an event occurred: another message, such as about a timeout on a busy machine, is
// another event.
func (n *namespace) countEvents(reason, word string) (count int32) {
	n.t.Helper()
	events, err := n.events(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range events {
		if events[i].Reason == reason && strings.Contains(events[i].Message, word) {
			count += events[i].Count
		}
	}
	return count
}

// waitInstances waits until exactly these pods respond to calls of the Service.
func (n *namespace) waitInstances(client app, want ...string) {
	n.t.Helper()
	n.wait("answers of "+strings.Join(want, ", "), func() error { return client.instances(want...) })
}

// instances returns nil if exactly these pods respond to some calls of the Service.
func (a app) instances(want ...string) error {
	a.t.Helper()
	const calls = 12
	var seen []string
	for range calls {
		c, err := a.tryCall("http://busybox:6851/")
		if err != nil {
			return err
		}
		if c.Status != http.StatusOK {
			return fmt.Errorf("a call got %+v", c)
		}
		seen = append(seen, c.answer(a.t).Instance)
	}
	slices.Sort(seen)
	if seen = slices.Compact(seen); !slices.Equal(seen, want) {
		return fmt.Errorf("%d calls were answered by %v", calls, seen)
	}
	return nil
}

// waitEndpointReady waits until the EndpointSlices show a pod as ready, or not ready.
func (n *namespace) waitEndpointReady(pod string, ready bool) {
	n.t.Helper()
	n.wait(fmt.Sprintf("endpoint %s: ready %t", pod, ready), func() error {
		slices, err := cluster.client.DiscoveryV1().EndpointSlices(n.name).List(n.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var found []discoveryv1.Endpoint
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				if e.TargetRef != nil && e.TargetRef.Name == pod {
					found = append(found, e)
				}
			}
		}
		for _, e := range found {
			if *e.Conditions.Ready != ready {
				return fmt.Errorf("it is %+v", e.Conditions)
			}
		}
		if len(found) == 0 {
			return errors.New("not found")
		}
		return nil
	})
}

// TestSeedNeverStarts keeps the port of the startup probe closed, in a mesh and without one.
func TestSeedNeverStarts(t *testing.T) {
	t.Parallel()
	sameLife(t, func(n *namespace) history {
		stop := n.watchHistory("busybox", "busybox")
		n.create(patientSeedPod("--grace=0s"))
		n.waitPod("busybox", "restarted twice", func(p *corev1.Pod) error {
			if c := status(p, "busybox").RestartCount; c < 2 {
				return fmt.Errorf("%d restarts", c)
			}
			return nil
		})
		return stop()
	})
}
