package webhook_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/webhook"
)

const perPort = `sonde.dev/virtual-probes-mode: per-port`

func TestBadPortsOfPerPortMode(t *testing.T) {
	const twoProbes = "livenessProbe: {tcpSocket: {port: 80}}, readinessProbe: {grpc: {port: 81}}"
	inRange := func(ports string) string { return perPort + `, kuma.io/virtual-probes-port-range: "` + ports + `"` }
	const field = `metadata.annotations["kuma.io/virtual-probes-port-range"]: `
	tests := map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"backwards":           {podWith(inRange("9020-9000"), twoProbes), field + `"9020-9000": must be two ports from 1 to 65535`},
		"from 0":              {podWith(inRange("0-10"), twoProbes), field + `"0-10": must be two ports from 1 to 65535`},
		"no ports":            {podWith(inRange("abc"), twoProbes), field + `"abc": must be two ports from 1 to 65535`},
		"beyond the last":     {podWith(inRange("65000-65536"), twoProbes), `must be two ports from 1 to 65535`},
		"redirect port":       {podWith(inRange("15000-15010"), twoProbes), field + `"15000-15010": must not contain 15001, which is reserved for redirection`},
		"readiness port":      {podWith(inRange("15022-15030"), twoProbes), `must not contain 15022, which is reserved for the readiness of the sidecar`},
		"one port for two":    {podWith(inRange("9005-9005"), twoProbes), field + `"9005-9005": must have a free port for each probe: this pod needs 2, the range has 1`},
		"HTTP needs one, too": {podWith(inRange("9005-9006"), twoProbes+", startupProbe: {httpGet: {port: 80}}"), `this pod needs 3, the range has 2`},
		"taken": {
			podWith(inRange("9005-9008")+`, traffic.kuma.io/exclude-inbound-ports: "9006", kuma.io/virtual-probes-port: "9007"`, "ports: [{containerPort: 9005}], "+twoProbes),
			`this pod needs 2, the range has 1 (9005 is not: containers[app].ports has it; 9006 is not: traffic.kuma.io/exclude-inbound-ports has it; 9007 is not: it is the port for HTTP probes)`,
		},
		"mode":                {podWith(`sonde.dev/virtual-probes-mode: both`, ""), `metadata.annotations["sonde.dev/virtual-probes-mode"]: "both": must be unified or per-port`},
		"empty mode":          {podWith(`sonde.dev/virtual-probes-mode: ""`, ""), `must be unified or per-port`},
		"label":               {parse(`{metadata: {labels: {sonde.dev/virtual-probes-mode: x}}, spec: {containers: [{name: app}]}}`), `metadata.labels["sonde.dev/virtual-probes-mode"]: "x": must be unified or per-port`},
		"label, annotation":   {parse(`{metadata: {labels: {sonde.dev/virtual-probes-mode: unified}, annotations: {sonde.dev/virtual-probes-mode: per-port}}}`), `the label with the same name is "unified"`},
		"HTTP port is probed": {podWith(perPort+`, kuma.io/virtual-probes-port: "80"`, twoProbes), `port 80 cannot be the virtual probes' port: containers[app].livenessProbe has it`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := webhook.Inject(tc.pod, webhook.Options{}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Inject() = %v, want %s", err, tc.want)
			}
		})
	}
}

// The pod takes precedence over its namespace, and the namespace over the control plane.
func TestModeOfProbes(t *testing.T) {
	const key = mesh.AnnotationVirtualProbesMode
	per := map[string]string{key: "per-port"}
	tests := map[string]struct {
		pod       string
		namespace webhook.Namespace
		options   mesh.ProbesMode
		want      mesh.ProbesMode
	}{
		"nothing asked":                    {want: mesh.ProbesUnified},
		"by the control plane":             {options: mesh.ProbesPerPort, want: mesh.ProbesPerPort},
		"by a label of the namespace":      {namespace: webhook.Namespace{Labels: per}, want: mesh.ProbesPerPort},
		"by an annotation of it":           {namespace: webhook.Namespace{Annotations: per}, want: mesh.ProbesPerPort},
		"by the pod, against both":         {pod: key + ": unified", namespace: webhook.Namespace{Labels: per}, options: mesh.ProbesPerPort, want: mesh.ProbesUnified},
		"by the namespace, against it all": {namespace: webhook.Namespace{Labels: map[string]string{key: "unified"}}, options: mesh.ProbesPerPort, want: mesh.ProbesUnified},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podWith("kuma.io/sidecar-injection: enabled, "+tc.pod, "livenessProbe: {tcpSocket: {port: 80}}")
			tc.namespace.Name = "shop"
			injected, err := webhook.InjectIn(pod, &tc.namespace, webhook.Options{ProbesMode: tc.options})
			if err != nil {
				t.Fatal(err)
			}
			if got := injected.Annotations[key]; got != string(tc.want) {
				t.Errorf("the pod is recorded as %q, want %q", got, tc.want)
			}
			if isTCP := injected.Spec.Containers[0].LivenessProbe.TCPSocket != nil; isTCP != (tc.want == mesh.ProbesPerPort) {
				t.Errorf("the probe is rewritten to %+v", injected.Spec.Containers[0].LivenessProbe)
			}
		})
	}
	bad := &webhook.Namespace{Name: "shop", Labels: map[string]string{key: "x"}}
	if _, err := webhook.InjectIn(podWith("kuma.io/sidecar-injection: enabled", ""), bad, webhook.Options{}); err == nil || !strings.Contains(err.Error(), `namespace shop: metadata.labels["sonde.dev/virtual-probes-mode"]: "x"`) {
		t.Errorf("a namespace with a bad mode: %v", err)
	}
}

// An injected pod keeps its mode, even if the control plane's default changes.
func TestModeIsKept(t *testing.T) {
	pod, _ := inject(t, podWith(perPort, "livenessProbe: {tcpSocket: {port: 80}}"), webhook.Options{})
	pod.Annotations[mesh.AnnotationVirtualProbesMode] = "unified"
	if _, _, err := webhook.Inject(pod, webhook.Options{}); err == nil || !strings.Contains(err.Error(), "kuma-sidecar is already in mode per-port") {
		t.Errorf("Inject() = %v", err)
	}
	delete(pod.Annotations, mesh.AnnotationVirtualProbesMode)
	again, _ := inject(t, pod, webhook.Options{ProbesMode: mesh.ProbesUnified})
	if diff := cmp.Diff(pod.Spec, again.Spec); diff != "" {
		t.Errorf("the second injection changes the pod:\n%s", diff)
	}
}

// Probes of containers that another webhook adds get the next ports, which are added to the sidecar's arguments.
func TestLateContainersInPerPortMode(t *testing.T) {
	pod, _ := inject(t, parse("metadata: {annotations: {"+perPort+"}}\nspec: {containers: [{name: web, livenessProbe: {tcpSocket: {port: 80}}, readinessProbe: {grpc: {port: 81}}}]}"), webhook.Options{})
	pod.Spec.Containers = slices.Insert(pod.Spec.Containers, 0,
		late(t, "ports: [{containerPort: 9002}], startupProbe: {httpGet: {port: 70}}, livenessProbe: {tcpSocket: {port: 71}}, readinessProbe: {grpc: {port: 72}}"))
	again, _ := inject(t, pod, webhook.Options{})
	web, app := again.Spec.Containers[1], again.Spec.Containers[0]
	if first, second := web.LivenessProbe.TCPSocket.Port.IntVal, web.ReadinessProbe.GRPC.Port; first != 9000 || second != 9001 {
		t.Errorf("the first probes have moved to ports %d and %d", first, second)
	}
	got := []int32{app.StartupProbe.HTTPGet.Port.IntVal, app.LivenessProbe.TCPSocket.Port.IntVal, app.ReadinessProbe.GRPC.Port}
	if diff := cmp.Diff([]int32{9003, 9004, 9005}, got); diff != "" {
		t.Errorf("ports of the late probes (-want +got):\n%s", diff)
	}
	first := initOf(t, again)
	for flag, want := range map[string]string{"--exclude-inbound-ports": "9003,9005,9001", "--redirect-tcp-probes": "9004:71,9000:80"} {
		if got := argument(t, first, flag); got != want {
			t.Errorf("%s of kuma-init is %q, want %q", flag, got, want)
		}
	}
	if got := argument(t, sidecarOf(t, again), "--virtual-probes-port"); got != "9003" || again.Annotations[mesh.AnnotationVirtualProbesPort] != "9003" {
		t.Errorf("the port of HTTP probes is %q for the agent, %q on the pod", got, again.Annotations[mesh.AnnotationVirtualProbesPort])
	}
	again.Spec.Containers = append(again.Spec.Containers, parse("spec: {containers: [{name: third, ports: [{containerPort: 9005}]}]}").Spec.Containers[0])
	if _, _, err := webhook.Inject(again, webhook.Options{}); err == nil || !strings.Contains(err.Error(), "port 9005 of the readiness probe of app in kuma-sidecar is in use by containers[third].ports") {
		t.Errorf("a container that takes a port of a probe: %v", err)
	}
}

// Ports never conflict, never change with a second injection, and lead to the application's ports.
func TestRandomPodsInPerPortMode(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 6)) // deterministic
	pods, refused := slowtest.Rounds(500, 200), 0
	for range pods {
		pod := randomPod(random)
		o := webhook.Options{ProbesMode: mesh.ProbesPerPort, Sidecar: forms()[random.IntN(2)]}
		injected, _, err := webhook.Inject(pod, o)
		if err != nil && strings.Contains(err.Error(), mesh.AnnotationLBHealthPort) {
			continue // a container uses it
		}
		if err != nil {
			if refused++; !strings.Contains(err.Error(), "must have a free port for each probe") {
				t.Fatalf("Inject() = %v", err)
			}
			continue
		}
		again, _, err := webhook.Inject(injected, o)
		if err != nil {
			t.Fatalf("the second Inject() = %v", err)
		}
		if diff := cmp.Diff(injected, again); diff != "" {
			t.Fatalf("the second injection changes the pod:\n%s", diff)
		}
		checkPorts(t, pod, injected)
	}
	if refused == 0 || refused > pods/2 {
		t.Errorf("%d of %d pods are refused: the test shows little", refused, pods)
	}
}

// randomPod returns a pod with up to 20 probes, some of whose ports are in the range.
func randomPod(random *rand.Rand) *corev1.Pod {
	port := func() int32 {
		if random.IntN(4) == 0 {
			return 9000 + random.Int32N(21)
		}
		return 1000 + random.Int32N(2000)
	}
	probe := func() *corev1.Probe {
		switch random.IntN(4) {
		case 0:
			return nil
		case 1:
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/live", Port: intstr.FromInt32(port())}}}
		case 2:
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port())}}}
		default:
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port()}}}
		}
	}
	pod := &corev1.Pod{}
	for i := range 1 + random.IntN(8) {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i), StartupProbe: probe(), LivenessProbe: probe(), ReadinessProbe: probe()}
		for range random.IntN(3) {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: port()})
		}
		if i%3 == 2 {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	pod.Annotations = map[string]string{}
	if random.IntN(3) == 0 {
		pod.Annotations[mesh.AnnotationExcludeInboundPorts] = strconv.Itoa(9000 + random.IntN(21))
	}
	if random.IntN(3) == 0 {
		pod.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
	}
	if random.IntN(3) == 0 {
		pod.Annotations[mesh.AnnotationLBHealthPort] = strconv.Itoa(9000 + random.IntN(21))
	}
	return pod
}

// checkPorts compares the kubelet's requests to the injected pod, after redirection and Envoy, with the user's probes.
func checkPorts(t *testing.T, pod, injected *corev1.Pod) {
	t.Helper()
	table, _, err := mesh.ParseProbeTable(tableOf(t, injected))
	if err != nil {
		t.Fatal(err)
	}
	asked := map[int32]string{}
	if lb, err := strconv.Atoi(pod.Annotations[mesh.AnnotationLBHealthPort]); err == nil {
		asked[int32(lb)] = "load balancers"
	}
	for _, p := range table {
		port, use := checkTarget(t, p, pod, injected)
		if by, taken := asked[port]; taken && by != use {
			t.Errorf("port %d has two uses: %s, %s", port, by, use)
		}
		asked[port] = use
	}
	if len(asked) > 21 {
		t.Errorf("more ports than the range has: %v", slices.Sorted(maps.Keys(asked)))
	}
	for _, p := range table {
		if by, taken := asked[p.Port()]; taken && by != "load balancers" { // the kubelet may also call the agent
			t.Errorf("port %d is probed, and is the virtual port of %s", p.Port(), by)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range c.Ports {
			if by, taken := asked[p.ContainerPort]; taken {
				t.Errorf("port %d is declared by %s, and is the virtual port of %s", p.ContainerPort, c.Name, by)
			}
		}
	}
}

// checkTarget checks the target of a probe, and returns the kubelet's port and its purpose.
func checkTarget(t *testing.T, p mesh.Probe, pod, injected *corev1.Pod) (port int32, use string) {
	t.Helper()
	first := initOf(t, injected)
	was, is := probeOf(containerOf(t, pod, p.Container), p.Type), probeOf(containerOf(t, injected, p.Container), p.Type)
	virtual := strconv.Itoa(int(p.VirtualPort))
	switch {
	case p.HTTPGet != nil:
		return is.HTTPGet.Port.IntVal, "HTTP"
	case p.TCPSocket != nil:
		pair := virtual + ":" + was.TCPSocket.Port.String()
		redirected := strings.Split(argument(t, first, "--redirect-tcp-probes"), ",")
		if is.TCPSocket.Port.IntVal != p.VirtualPort || !slices.Contains(redirected, pair) {
			t.Errorf("%s asks port %s, and %v are redirected, not %s", p.ID, is.TCPSocket.Port.String(), redirected, pair)
		}
	default:
		excluded := strings.Split(argument(t, first, "--exclude-inbound-ports"), ",")
		if is.GRPC.Port != p.VirtualPort || was.GRPC.Port != p.GRPC.Port || !slices.Contains(excluded, virtual) {
			t.Errorf("%s asks port %d for %d, and %v reach Envoy's listeners", p.ID, is.GRPC.Port, p.GRPC.Port, excluded)
		}
	}
	return p.VirtualPort, p.ID
}
