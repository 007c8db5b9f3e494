package webhook_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/webhook"
)

func TestProperties(t *testing.T) {
	for name, pod := range readPods(t) {
		for _, form := range forms() {
			t.Run(name+"/"+string(form), func(t *testing.T) {
				if !checkProperties(t, pod, form) {
					t.Error("the pod is refused")
				}
			})
		}
	}
}

// FuzzInject checks the properties for arbitrary documents, even if the API server would reject them. Its corpus are
// the pods of the golden files.
func FuzzInject(f *testing.F) {
	for _, pod := range readPods(f) {
		f.Add(pod, true) // TestProperties has the other form
	}
	f.Fuzz(func(t *testing.T, document []byte, native bool) {
		form := webhook.Container
		if native {
			form = webhook.Native
		}
		// Like the API server, without duplicate keys.
		var object map[string]any
		decoder := json.NewDecoder(bytes.NewReader(document))
		decoder.UseNumber()
		if decoder.Decode(&object) != nil {
			t.Skip()
		}
		text, err := json.Marshal(object)
		if err != nil {
			t.Skip()
		}
		checkProperties(t, text, form)
	})
}

// FuzzProbe checks the same properties for one pod with arbitrary values in the relevant fields.
func FuzzProbe(f *testing.F) {
	f.Add("app", "/healthz?x=1", "http", int32(80), int32(1), "Host", "web.example", "9800", "shop.v1.Orders", true)
	f.Add("app-liveness", "a b$(HOME)ä\n", "80", int32(9000), int32(0), "", "\x00", "", "a/b $$", false)
	f.Add("kuma-sidecar", "//h/%zz", "", int32(-1), int32(-7), "A", "b", "9000-9020", "", true)
	f.Fuzz(func(t *testing.T, name, path, portName string, port, timeout int32, header, value, list, service string, native bool) {
		probe := func(h corev1.ProbeHandler) *corev1.Probe {
			return &corev1.Probe{ProbeHandler: h, TimeoutSeconds: timeout}
		}
		get := &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(portName), HTTPHeaders: []corev1.HTTPHeader{{Name: header, Value: value}}}
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "a" + name, RestartPolicy: new(corev1.ContainerRestartPolicy(value))}},
			Containers: []corev1.Container{{
				Name: name, Ports: []corev1.ContainerPort{{Name: portName, ContainerPort: port}},
				StartupProbe:   probe(corev1.ProbeHandler{HTTPGet: get}),
				LivenessProbe:  probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port), Host: list}}),
				ReadinessProbe: probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: &service}}),
				Lifecycle:      &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: get.DeepCopy()}},
			}},
		}}
		pod.Annotations = map[string]string{
			header: value, mesh.AnnotationExcludeInboundPorts: list, mesh.AnnotationVirtualProbes: "enabled",
		}
		if port%2 == 0 {
			pod.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
		}
		text, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		form := webhook.Container
		if native {
			form = webhook.Native
		}
		checkProperties(t, text, form)
	})
}

// checkProperties injects a document in both modes and checks invariants of each pod. It returns false if the pod is
// rejected.
func checkProperties(t *testing.T, document []byte, form webhook.Form) bool {
	t.Helper()
	unified := checkMode(t, document, webhook.Options{Sidecar: form})
	return checkMode(t, document, webhook.Options{Sidecar: form, ProbesMode: mesh.ProbesPerPort}) && unified
}

func checkMode(t *testing.T, document []byte, o webhook.Options) bool {
	t.Helper()
	patched, warnings, err := webhook.InjectJSON(document, o.WithRandom(newRand()))
	if err != nil {
		return false
	}
	before, after := decode(t, document), decode(t, patched)
	if len(after.Spec.Containers)+len(after.Spec.InitContainers) == len(before.Spec.Containers)+len(before.Spec.InitContainers) {
		return true // the pod gets no sidecar, or has one
	}
	for _, warning := range warnings {
		if warning == "" || strings.ContainsRune(warning, '\n') {
			t.Errorf("warning %q", warning)
		}
	}
	checkTwice(t, patched)
	checkOnlyKnownChanges(t, before, after)
	return true
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkTwice checks that a second injection changes nothing, even with other options.
func checkTwice(t *testing.T, patched []byte) {
	t.Helper()
	for _, form := range forms() {
		again, _, err := webhook.InjectJSON(patched, webhook.Options{Sidecar: form, Mesh: "other", Image: "other", VirtualProbesPort: 9999})
		if err != nil || !bytes.Equal(again, patched) {
			t.Fatalf("the second injection changes the document: %v (-first +second):\n%s", err, cmp.Diff(string(patched), string(again)))
		}
	}
}

// checkOnlyKnownChanges reverts an injection and compares. It takes probes and hooks from the probe table, with numbers
// for named ports and with defaults.
func checkOnlyKnownChanges(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	table, unknown, err := mesh.ParseProbeTable(tableOf(t, after))
	if err != nil || len(unknown) > 0 {
		t.Fatalf("the agent refuses the probe table: %v, %q", err, unknown)
	}
	want, got := before.DeepCopy(), after.DeepCopy()
	if after.Annotations[mesh.AnnotationGuardedLiveness] == "enabled" {
		checkContext(t, want, after)
		delete(want.Annotations, mesh.AnnotationProbeContext)
		delete(got.Annotations, mesh.AnnotationProbeContext)
	}
	for _, annotation := range []string{
		"kubectl.kubernetes.io/default-container", mesh.AnnotationVirtualProbes, mesh.AnnotationVirtualProbesMode,
		mesh.AnnotationVirtualProbesPort, mesh.AnnotationInjectionWarnings, mesh.AnnotationGuardedLiveness, mesh.AnnotationGuardedExec,
		mesh.AnnotationMetricsPort, mesh.AnnotationPrometheusScrape, mesh.AnnotationPrometheusPort, mesh.AnnotationPrometheusPath,
	} {
		if _, ok := before.Annotations[annotation]; !ok {
			delete(got.Annotations, annotation)
		}
	}
	if before.Labels[mesh.LabelMesh] == "" {
		delete(got.Labels, mesh.LabelMesh)
		delete(want.Labels, mesh.LabelMesh)
	}
	got.Spec.InitContainers = slices.DeleteFunc(got.Spec.InitContainers, ours)
	got.Spec.Containers = slices.DeleteFunc(got.Spec.Containers, ours)
	got.Spec.Volumes = slices.DeleteFunc(got.Spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "sonde-") })
	want.Spec.Volumes = slices.DeleteFunc(want.Spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "sonde-") })
	if r := got.Spec.Resources; r != nil { // what the API server sets by default
		maps.DeleteFunc(r.Requests, func(name corev1.ResourceName, request resource.Quantity) bool {
			_, before := want.Spec.Resources.Requests[name]
			return !before && request.Equal(r.Limits[name])
		})
	}
	for _, p := range table {
		takeBack(t, containerOf(t, got, p.Container), containerOf(t, want, p.Container), p)
	}
	for _, m := range []*metav1.ObjectMeta{&got.ObjectMeta, &want.ObjectMeta} {
		if len(m.Annotations) == 0 {
			m.Annotations = nil
		}
		if len(m.Labels) == 0 {
			m.Labels = nil
		}
	}
	if diff := cmp.Diff(asJSON(t, want), asJSON(t, got)); diff != "" {
		t.Errorf("the injection cannot be taken back (-before +taken back):\n%s", diff)
	}
}

// contextOf returns the liveness probes in the annotation, by container.
func contextOf(t testing.TB, pod *corev1.Pod) map[string]*corev1.Probe {
	t.Helper()
	var list []struct {
		Name          string        `json:"name"`
		LivenessProbe *corev1.Probe `json:"livenessProbe"`
	}
	if text, ok := pod.Annotations[mesh.AnnotationProbeContext]; ok {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("%s: %s: %v", mesh.AnnotationProbeContext, text, err)
		}
	}
	probes := map[string]*corev1.Probe{}
	for _, entry := range list {
		probes[entry.Name] = entry.LivenessProbe
	}
	return probes
}

func containersOf(pod *corev1.Pod) (all []*corev1.Container) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			all = append(all, &containers[i])
		}
	}
	return all
}

// checkContext checks that the annotation of a guarded pod has exactly the liveness probes from before its injection.
// Containers without one get the probe that the annotation had for them.
func checkContext(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	had, want, got := contextOf(t, before), map[string]*corev1.Probe{}, contextOf(t, after)
	for _, c := range containersOf(before) {
		switch {
		case c.LivenessProbe == nil:
			c.LivenessProbe = had[c.Name].DeepCopy()
		case had[c.Name] != nil && got[c.Name] != nil: // it has two valid encodings
			got[c.Name] = c.LivenessProbe
		}
		if c.LivenessProbe != nil {
			want[c.Name] = c.LivenessProbe
		}
	}
	if diff := cmp.Diff(asJSON(t, want), asJSON(t, got)); diff != "" {
		t.Errorf("%s (-before +injected):\n%s", mesh.AnnotationProbeContext, diff)
	}
}

func ours(c corev1.Container) bool {
	return c.Name == mesh.ContainerInit || c.Name == mesh.ContainerSidecar
}

func containerOf(t *testing.T, pod *corev1.Pod, name string) *corev1.Container {
	t.Helper()
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == name {
				return &containers[i]
			}
		}
	}
	t.Fatalf("the probe table names container %q, which is not there", name)
	return nil
}

// takeBack writes the whole entry of the table into the injected handler, and only the numbers of named ports and the
// defaults into the original one. It checks the kubelet's request.
func takeBack(t *testing.T, injected, before *corev1.Container, p mesh.Probe) {
	t.Helper()
	if p.Type.IsHook() {
		got, want := hookOf(injected, p.Type), hookOf(before, p.Type)
		checkAsked(t, got.HTTPGet, p)
		got.HTTPGet = original(p).HTTPGet
		fill(t, want.HTTPGet, p)
		return
	}
	got, want := probeOf(injected, p.Type), probeOf(before, p.Type)
	switch {
	case p.VirtualPort == 0:
		checkAsked(t, got.HTTPGet, p)
	case p.TCPSocket != nil && got.TCPSocket.Port != intstr.FromInt32(p.VirtualPort), p.GRPC != nil && got.GRPC.Port != p.VirtualPort:
		t.Errorf("the kubelet asks %+v and not port %d", got.ProbeHandler, p.VirtualPort)
	}
	got.ProbeHandler = original(p)
	if p.Exec != nil {
		takeBackHelper(t, injected, before, p)
	}
	if got.TimeoutSeconds = p.TimeoutSeconds; want.TimeoutSeconds == 0 {
		want.TimeoutSeconds = 1
	}
	if p.Guarded {
		if got.FailureThreshold = p.FailureThreshold; want.FailureThreshold == 0 {
			want.FailureThreshold = 3
		}
	}
	switch {
	case want.HTTPGet != nil:
		fill(t, want.HTTPGet, p)
	case want.TCPSocket != nil:
		want.TCPSocket.Port = intstr.FromInt32(p.TCPSocket.Port)
	case want.GRPC != nil && want.GRPC.Service == nil:
		want.GRPC.Service = new("")
	}
}

// helperStart returns the action that starts the helper in a container, and whether that is its postStart hook.
func helperStart(t *testing.T, c *corev1.Container) (run *corev1.ExecAction, hooked bool) {
	t.Helper()
	isOurs := func(a *corev1.ExecAction) bool {
		return a != nil && len(a.Command) > 0 && a.Command[0] == "/.sonde/exec/sonde-exec"
	}
	hooked = c.Lifecycle != nil && c.Lifecycle.PostStart != nil && isOurs(c.Lifecycle.PostStart.Exec)
	if hooked {
		run = c.Lifecycle.PostStart.Exec
	} else {
		run = c.StartupProbe.Exec
	}
	if !isOurs(run) {
		t.Fatalf("nothing starts the helper: %+v", c)
	}
	return run, hooked
}

// takeBackHelper removes the helper of an exec probe from its container, and the starter unless it is the user's.
func takeBackHelper(t *testing.T, c, before *corev1.Container, p mesh.Probe) {
	t.Helper()
	if c.VolumeMounts = c.VolumeMounts[:len(c.VolumeMounts)-2]; len(c.VolumeMounts) == 0 {
		c.VolumeMounts = nil
	}
	run, hooked := helperStart(t, c)
	mode, start, err := execwire.Parse(run.Command[1:])
	if err != nil || mode != execwire.ModeStart || !slices.Equal(start.Command, p.Exec.Command) {
		t.Fatalf("Parse(%q) = %s, %+v, %v", run.Command, mode, start, err)
	}
	if ofOurProbe := !hooked && len(start.Then) == 0; start.Retried != ofOurProbe {
		t.Errorf("retried: %t, want %t: a hook that fails ends the container", start.Retried, ofOurProbe)
	}
	run.Command = start.Then
	switch {
	case len(start.Then) > 0:
	case !hooked:
		c.StartupProbe = nil
	default:
		if c.Lifecycle.PostStart = nil; before.Lifecycle == nil {
			c.Lifecycle = nil
		}
	}
}

func checkAsked(t *testing.T, get *corev1.HTTPGetAction, p mesh.Probe) {
	t.Helper()
	want := &corev1.HTTPGetAction{
		Path: p.VirtualPath(), Port: get.Port, HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: p.ID}},
	}
	if get.Scheme != "" {
		want.Scheme = corev1.URISchemeHTTP
	}
	if diff := cmp.Diff(want, get); diff != "" {
		t.Errorf("what the kubelet asks (-want +got):\n%s", diff)
	}
}

func fill(t *testing.T, get *corev1.HTTPGetAction, p mesh.Probe) {
	t.Helper()
	if get.Port = intstr.FromInt32(p.HTTPGet.Port); get.Path == "" {
		get.Path = "/"
	}
	if get.Scheme == "" {
		get.Scheme = corev1.URISchemeHTTP
	}
}

// original returns the handler that an entry of the table describes.
func original(p mesh.Probe) (h corev1.ProbeHandler) {
	switch {
	case p.HTTPGet != nil:
		h.HTTPGet = &corev1.HTTPGetAction{
			Path: p.HTTPGet.Path, Port: intstr.FromInt32(p.HTTPGet.Port), Scheme: corev1.URIScheme(p.HTTPGet.Scheme),
		}
		for _, header := range p.HTTPGet.HTTPHeaders {
			h.HTTPGet.HTTPHeaders = append(h.HTTPGet.HTTPHeaders, corev1.HTTPHeader{Name: header.Name, Value: header.Value})
		}
	case p.TCPSocket != nil:
		h.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromInt32(p.TCPSocket.Port)}
	case p.Exec != nil:
		h.Exec = &corev1.ExecAction{Command: p.Exec.Command}
	default:
		h.GRPC = &corev1.GRPCAction{Port: p.GRPC.Port, Service: &p.GRPC.Service}
	}
	return h
}

func probeOf(c *corev1.Container, kind mesh.ProbeType) *corev1.Probe {
	switch kind {
	case mesh.ProbeStartup:
		return c.StartupProbe
	case mesh.ProbeLiveness:
		return c.LivenessProbe
	default:
		return c.ReadinessProbe
	}
}

func hookOf(c *corev1.Container, kind mesh.ProbeType) *corev1.LifecycleHandler {
	if kind == mesh.ProbePostStart {
		return c.Lifecycle.PostStart
	}
	return c.Lifecycle.PreStop
}
