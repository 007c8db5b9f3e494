package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// restore returns a copy of a pod without the mesh's containers and annotations, with its original probes and hooks.
// rewritten has their fields. They have port numbers instead of names, since meshes do not keep the names. If the
// sidecar's record of the originals is unreadable, it returns an error and the pod's own probes.
func restore(pod *corev1.Pod, s *sidecar) (original *corev1.Pod, rewritten map[string]bool, err error) {
	original, rewritten = pod.DeepCopy(), map[string]bool{}
	if len(s.meshes) == 0 {
		return original, rewritten, nil
	}
	requests := withoutMesh(original, s.mode)
	var table map[string]corev1.ProbeHandler
	switch {
	case s.mode.ofSonde():
		table, err = sondeTable(pod, requests)
	case s.mode == Istio:
		table, err = istioTable(pod, requests)
	}
	for _, r := range requests {
		handler, ok := table[r.Field]
		// Kuma does not rewrite hooks.
		if get := httpGetOf(r); s.mode.ofKuma() && r.Probe != nil && get != nil && get.Port.IntVal == s.port {
			handler, ok = kumaOriginal(*get, s.mode)
		}
		if !ok {
			continue
		}
		rewritten[r.Field] = true
		if r.Probe != nil {
			r.Probe.ProbeHandler = handler
		} else {
			*r.Hook = corev1.LifecycleHandler{HTTPGet: handler.HTTPGet, TCPSocket: handler.TCPSocket}
		}
	}
	return original, rewritten, err
}

// notRewritten returns the probes and hooks of a pod that are not in rewritten.
func notRewritten(u webhook.Unread, rewritten map[string]bool) webhook.Unread {
	left := maps.Clone(u)
	maps.DeleteFunc(left, func(field string, _ json.RawMessage) bool { return rewritten[field] })
	return left
}

// withoutMesh removes what Sonde and other meshes added to a pod: containers, volumes and annotations. It returns the
// pod's probes and hooks.
func withoutMesh(pod *corev1.Pod, mode Mode) []webhook.Request {
	foreigners := podspec.Foreigners(pod)
	ofMesh := func(c corev1.Container) bool {
		return isMeshContainer(c.Name) ||
			slices.ContainsFunc(foreigners, func(f podspec.Foreign) bool { return slices.Contains(f.Containers, c.Name) })
	}
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, ofMesh)
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, ofMesh)
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return strings.HasPrefix(v.Name, "sonde-")
	})
	maps.DeleteFunc(pod.Annotations, func(key, _ string) bool {
		return slices.Contains(injected, key) || mode.ofKuma() && slices.Contains(injectedByKuma, key) ||
			slices.ContainsFunc(foreigners, func(f podspec.Foreign) bool { return slices.Contains(f.Annotations, key) })
	})
	return webhook.Requests(pod)
}

// isMeshContainer reports whether a container belongs to Sonde, Kuma or Istio.
func isMeshContainer(name string) bool {
	switch name {
	case mesh.ContainerSidecar, mesh.ContainerInit, "kuma-validation", istioSidecar, istioInit, "istio-validation":
		return true
	}
	return false
}

// injectedByKuma are annotations that Kuma writes into each pod, and that Sonde keeps or writes with the same value.
var injectedByKuma = []string{
	mesh.AnnotationVirtualProbes, mesh.AnnotationVirtualProbesPort, mesh.AnnotationProbeProxyPort,
}

// injected are annotations that injectors write, so that they are not a user's setting. It omits annotations that only
// users write, such as traffic.kuma.io/exclude-inbound-ports.
var injected = []string{
	mesh.AnnotationVirtualProbesMode, mesh.AnnotationInjectionWarnings, mesh.AnnotationControlPlaneCA, kumaProxyConfig,
	mesh.Prefix + "sidecar-injected", mesh.Prefix + "sidecar-uid", mesh.Prefix + "envoy-admin-port",
	mesh.Prefix + "transparent-proxying", mesh.Prefix + "transparent-proxying-ebpf",
	mesh.Prefix + "transparent-proxying-inbound-port", mesh.Prefix + "transparent-proxying-inbound-v6-port",
	mesh.Prefix + "transparent-proxying-outbound-port", mesh.Prefix + "transparent-proxying-ip-family-mode",
	mesh.Prefix + "builtin-dns", mesh.Prefix + "builtin-dns-port",
	mesh.Prefix + "builtin-dns-logging", istioRevision, "sidecar.istio.io/status", istioInterception,
}

func httpGetOf(r webhook.Request) *corev1.HTTPGetAction {
	if r.Probe != nil {
		return r.Probe.HTTPGet
	}
	return r.Hook.HTTPGet
}

// sondeTable returns the originals of requests that Sonde has rewritten. It restores timeouts, which are longer in the
// pod, and thresholds of guarded probes.
func sondeTable(pod *corev1.Pod, requests []webhook.Request) (map[string]corev1.ProbeHandler, error) {
	// The pod's labels may disable injection now, although it was injected by another control plane or through its
	// namespace.
	pod = pod.DeepCopy()
	delete(pod.Labels, mesh.LabelOwnInjection)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, mesh.LabelOwnInjection, "enabled")
	decisions, _, err := webhook.Explain(pod, webhook.Options{})
	if err != nil {
		return nil, err
	}
	table := map[string]corev1.ProbeHandler{}
	for _, r := range requests {
		d, ok := decisionFor(r.Container, r.Type, decisions)
		if !ok || d.Probe == nil || !asks(r, *d.Probe) {
			continue
		}
		table[r.Field] = webhook.HandlerOf(*d.Probe)
		if r.Probe != nil {
			r.Probe.TimeoutSeconds = d.Probe.TimeoutSeconds
			if d.Probe.Guarded {
				r.Probe.FailureThreshold = d.Probe.FailureThreshold
			}
		}
	}
	return table, nil
}

// decisionFor returns the decision about a probe or hook. decisions may contain containers of other meshes, which are
// applications to Sonde.
func decisionFor(container string, kind mesh.ProbeType, decisions []webhook.Decision) (webhook.Decision, bool) {
	i := slices.IndexFunc(decisions, func(d webhook.Decision) bool { return d.Container == container && d.Type == kind })
	if i < 0 {
		return webhook.Decision{}, false
	}
	return decisions[i], true
}

// asks reports whether a request has been rewritten for an entry of the probe table.
func asks(r webhook.Request, p mesh.Probe) bool {
	if p.VirtualPort != 0 {
		return r.Port == p.VirtualPort
	}
	get := httpGetOf(r)
	headers := []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: p.ID}}
	return get != nil && get.Path == p.VirtualPath() && slices.Equal(get.HTTPHeaders, headers)
}

// istioTable returns the originals from the environment of istio-proxy, by the path that the kubelet requests instead.
// Source: istio pkg/kube/inject/app_probe.go, DumpAppProbers.
func istioTable(pod *corev1.Pod, requests []webhook.Request) (map[string]corev1.ProbeHandler, error) {
	var byPath map[string]corev1.ProbeHandler
	for _, v := range podspec.Container(&pod.Spec, istioSidecar).Env {
		if v.Name != istioProbers {
			continue
		}
		if err := json.Unmarshal([]byte(v.Value), &byPath); err != nil {
			return nil, mesh.ExplainJSON(fmt.Sprintf("containers[%s].env[%s]", istioSidecar, istioProbers), []byte(v.Value), &byPath)
		}
	}
	table := map[string]corev1.ProbeHandler{}
	for _, r := range requests {
		if get := httpGetOf(r); get != nil {
			if handler, ok := byPath[get.Path]; ok {
				table[r.Field] = handler
			}
		}
	}
	return table, nil
}

// kumaOriginal returns the original of a probe that Kuma has rewritten; false if Kuma has not rewritten it.
// Source: kuma pkg/plugins/runtime/k8s/probes/{probe,probe_converter,headers}.go at 2.9.
func kumaOriginal(get corev1.HTTPGetAction, mode Mode) (corev1.ProbeHandler, bool) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(get.Path, "/"), "/")
	if port := portOf(first); port != 0 {
		get.Path, get.Port = "/"+rest, intstr.FromInt32(port)
		if mode == KumaProxy {
			readKumaHeaders(&get)
		}
		return corev1.ProbeHandler{HTTPGet: &get}, true
	}
	port := portOf(rest)
	switch {
	case mode != KumaProxy || port == 0:
		return corev1.ProbeHandler{}, false
	case first == "tcp":
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, true
	case first == "grpc":
		grpc := &corev1.GRPCAction{Port: port}
		for _, h := range get.HTTPHeaders {
			if h.Name == kumaProbeHeader+"GRPC-Service" {
				grpc.Service = &h.Value
			}
		}
		return corev1.ProbeHandler{GRPC: grpc}, true
	}
	return corev1.ProbeHandler{}, false
}

const kumaProbeHeader = "X-Kuma-Probes-"

// readKumaHeaders applies the headers for Kuma's probe proxy to the original probe.
func readKumaHeaders(get *corev1.HTTPGetAction) {
	var kept []corev1.HTTPHeader
	for _, h := range get.HTTPHeaders {
		switch name, ofKuma := strings.CutPrefix(h.Name, kumaProbeHeader); {
		case !ofKuma:
			kept = append(kept, h)
		case name == "Host":
			kept = append(kept, corev1.HTTPHeader{Name: "Host", Value: h.Value})
		case name == "Scheme":
			get.Scheme = corev1.URIScheme(h.Value)
		}
	}
	get.HTTPHeaders = kept
}
