package migrate

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// Code names a kind of finding, for scripts. Codes do not change.
type Code string

// Codes of findings.
const (
	// ProbeCannotFail is a tcpSocket probe that the sidecar accepts in the application's place.
	ProbeCannotFail Code = "probe-cannot-fail"
	// ProbeRefusedByMTLS is an httpGet or grpc probe that the kubelet sends to the sidecar in plaintext, which mode STRICT
	// rejects.
	ProbeRefusedByMTLS Code = "probe-refused-by-mtls"
	// HTTPSAlwaysFails is an HTTPS probe that Kuma sends to a listener without TLS.
	HTTPSAlwaysFails Code = "https-virtual-probe-always-fails"
	// HookNotRewritten is an httpGet hook that the kubelet sends to the sidecar in plaintext, which mode STRICT rejects.
	HookNotRewritten Code = "hook-not-rewritten"
	// PortRoundMTLS is a port of the pod that answers without mTLS.
	PortRoundMTLS Code = "port-round-mtls"
	// AmbiguousAnnotations are annotations that contradict each other, or that two meshes interpret differently.
	AmbiguousAnnotations Code = "ambiguous-annotations"
	// AnnotationNotRead is an annotation or label of Istio or Kuma that Sonde does not read.
	AnnotationNotRead Code = "annotation-not-read"
	// ProbesNotKnown is a pod whose sidecar has no readable record of the original probes.
	ProbesNotKnown Code = "probes-not-known"
	// TwoMeshes is a workload that two meshes inject or have injected.
	TwoMeshes Code = "two-meshes"
)

// Finding is an existing or future problem.
type Finding struct {
	Code Code `json:"code"`
	// Field of the pod, such as containers[web].livenessProbe; "" for the whole pod.
	Field string `json:"field,omitempty"`
	Text  string `json:"text"`
	// When says which pods have the finding, "" for a finding that is not about pods.
	When When `json:"when,omitempty"`
}

// When says which pods have a finding.
type When string

// Pods that have a finding: running pods, new pods, or both.
const (
	Now        When = "now"
	Then       When = "then"
	NowAndThen When = "now-and-then"
)

// findingsOf returns problems of the probes and ports of a running or new pod.
func findingsOf(pod *corev1.Pod, s *sidecar) (all []Finding) {
	if len(s.meshes) > 1 {
		all = append(all, Finding{Code: TwoMeshes, Text: fmt.Sprintf(
			"pod %s: %s each have a sidecar in it: let only one mesh inject it, and recreate it", pod.Name, strings.Join(s.meshes, " and "))})
	}
	if s.mode == None {
		return all
	}
	original, rewritten, err := restore(pod, s)
	if err != nil {
		return append(all, Finding{Code: ProbesNotKnown, Text: fmt.Sprintf("pod %s: cannot read which probes were rewritten: %v", pod.Name, err)})
	}
	asked := pod.DeepCopy()
	for _, r := range withoutMesh(asked, s.mode) {
		if f, wrong := requestFinding(r, s, rewritten[r.Field]); wrong {
			all = append(all, f)
		}
	}
	all = append(all, portFindings(original, s)...)
	if s.mode == KumaProxy {
		all = append(all, Finding{Code: PortRoundMTLS, Text: fmt.Sprintf(
			"port %d: Kuma's application probe proxy accepts any caller without mTLS, and forwards requests to any port and path of the pod", s.port)})
	}
	return all
}

// requestFinding returns the problem of a request of the kubelet.
func requestFinding(r webhook.Request, s *sidecar, rewritten bool) (Finding, bool) {
	get := httpGetOf(r)
	if rewritten {
		https := s.mode == KumaVirtual && get != nil && get.Scheme == corev1.URISchemeHTTPS
		return Finding{
			Code: HTTPSAlwaysFails, Field: r.Field, Text: "Kuma keeps the scheme HTTPS, but its listener for virtual probes speaks plaintext",
		}, https
	}
	if r.Port == 0 || r.Host != "" || !s.captures(r.Port) {
		return Finding{}, false
	}
	if r.Port == s.lbPort {
		return Finding{Code: ProbeCannotFail, Field: r.Field, Text: fmt.Sprintf(
			"the agent accepts all connections to port %d for load balancers, so the probe succeeds even if nothing else listens", r.Port)}, r.Probe != nil && r.Protocol == mesh.ProtocolTCP
	}
	strict := fmt.Sprintf("not rewritten: if mTLS is STRICT, which the pod does not show, the sidecar rejects the kubelet at port %d", r.Port)
	switch {
	case r.Hook != nil && get != nil:
		return Finding{Code: HookNotRewritten, Field: r.Field, Text: strict}, true
	case r.Hook != nil:
		return Finding{}, false // kubelets do not run tcpSocket hooks
	case r.Protocol == mesh.ProtocolTCP:
		return Finding{Code: ProbeCannotFail, Field: r.Field, Text: fmt.Sprintf(
			"not rewritten: the sidecar accepts all connections to port %d, so the probe succeeds even if the application does not listen", r.Port)}, true
	}
	return Finding{Code: ProbeRefusedByMTLS, Field: r.Field, Text: strict}, true
}

// portFindings reports ports, declared by containers or used by probes and hooks, whose connections are not redirected
// to the sidecar.
func portFindings(original *corev1.Pod, s *sidecar) (all []Finding) {
	if !s.redirected {
		return nil
	}
	seen := map[int32]bool{}
	check := func(port int32, field string) {
		if port == 0 || seen[port] || s.captures(port) {
			return
		}
		seen[port] = true
		why := "is not in " + istioInclude
		if by := s.excluded[port]; by != "" {
			why = "is excluded by " + by
		}
		all = append(all, Finding{Code: PortRoundMTLS, Field: field, Text: fmt.Sprintf(
			"port %d %s: clients reach the application there without mTLS", port, why)})
	}
	for _, containers := range [][]corev1.Container{original.Spec.InitContainers, original.Spec.Containers} {
		for _, c := range containers {
			for _, p := range c.Ports {
				if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
					check(p.ContainerPort, "containers["+c.Name+"].ports")
				}
			}
		}
	}
	for _, r := range webhook.Requests(original) {
		if r.Host == "" {
			check(r.Port, r.Field)
		}
	}
	return all
}

// replacements maps labels and annotations of other meshes that Sonde does not read to a text about their replacement.
var replacements = map[string]string{
	istioRewrite:    mesh.AnnotationVirtualProbes + ": disabled replaces \"false\"; Sonde rewrites all other probes",
	istioStatusPort: mesh.AnnotationVirtualProbesPort + " replaces it",
	istioExclude:    mesh.AnnotationExcludeInboundPorts + " replaces it",
	istioInclude: "Sonde redirects all ports except those in " + mesh.AnnotationExcludeInboundPorts +
		", and no ports with " + mesh.AnnotationGateway + ": enabled",
	istioInterception: "Sonde always redirects",
	istioInject:       mesh.LabelOwnInjection + " replaces it",
	"traffic.sidecar.istio.io/excludeOutboundPorts": mesh.AnnotationExcludeOutboundPorts + " replaces it",
	"proxy.istio.io/config":                         "Sonde has no such annotation; its sidecar always starts before the containers",
	"sidecar.istio.io/proxyCPU":                     mesh.AnnotationSidecarCPU + " replaces it",
	"sidecar.istio.io/proxyCPULimit":                mesh.AnnotationSidecarCPULimit + " replaces it",
	"sidecar.istio.io/proxyMemory":                  mesh.AnnotationSidecarMemory + " replaces it",
	"sidecar.istio.io/proxyMemoryLimit":             mesh.AnnotationSidecarMemoryLimit + " replaces it",
	mesh.Prefix + "sidecar-proxy-concurrency":       "Envoy has one worker thread for each CPU of its limit, " + mesh.AnnotationSidecarCPULimit,
}

const istioInject = "sidecar.istio.io/inject"

// annotationFindings reports annotations and labels of a template that Sonde does not read, or that contradict each
// other. modes are the running pods' modes.
func annotationFindings(template *corev1.Pod, modes map[Mode]int) (all []Finding) {
	unread := map[string]bool{}
	for _, key := range webhook.UnknownAnnotations(&template.ObjectMeta) {
		unread[key] = true
	}
	for _, values := range []map[string]string{template.Labels, template.Annotations} {
		for key, value := range values {
			domain, _, _ := strings.Cut(key, "/")
			_, replaced := replacements[key]
			if !saysNothing(key, value) && (replaced || domain == "traffic.sidecar.istio.io" || domain == "sidecar.istio.io") {
				unread[key] = true
			}
		}
	}
	for _, key := range sortedKeys(unread) {
		text, ok := replacements[key]
		if !ok {
			text = "it has no replacement"
		}
		all = append(all, Finding{Code: AnnotationNotRead, Text: fmt.Sprintf("%s: Sonde does not read it: %s", key, text)})
	}
	return append(all, contradictions(template, modes)...)
}

// saysNothing reports whether an annotation or label of Istio makes no difference: it disables Istio's injection, or
// asks to rewrite probes, as Sonde does.
func saysNothing(key, value string) bool {
	on, err := strconv.ParseBool(value)
	return err == nil && (key == istioInject && !on || key == istioRewrite && on)
}

// contradictions reports settings of Kuma's probe proxy that Kuma and Sonde interpret differently.
func contradictions(template *corev1.Pod, modes map[Mode]int) (all []Finding) {
	add := func(format string, args ...any) {
		all = append(all, Finding{Code: AmbiguousAnnotations, Text: fmt.Sprintf(format, args...)})
	}
	proxy := template.Annotations[mesh.AnnotationProbeProxyPort]
	asked := template.Annotations[mesh.AnnotationVirtualProbesPort]
	_, switched := template.Annotations[mesh.AnnotationVirtualProbes]
	if proxy == "0" && !switched && modes[KumaVirtual] > 0 {
		add("%s: 0: Kuma still rewrites httpGet probes for its listener for virtual probes, Sonde rewrites no probe: remove it", mesh.AnnotationProbeProxyPort)
	}
	if portOf(proxy) != 0 {
		if value, ok := template.Annotations[mesh.AnnotationVirtualProbes]; ok && !enabled(value) {
			add("%s: %s, and %s: %s: Kuma rewrites probes then, Sonde does not", mesh.AnnotationProbeProxyPort, proxy, mesh.AnnotationVirtualProbes, value)
		}
		if asked != "" && asked != proxy {
			add("%s: %s, and %s: %s: Kuma takes the first, Sonde the second", mesh.AnnotationProbeProxyPort, proxy, mesh.AnnotationVirtualProbesPort, asked)
		}
	}
	return all
}

// namespaceFindings reports annotations of a workload's namespace that Kuma reads and Sonde does not.
// Source: kuma pkg/plugins/runtime/k8s/util/util.go, MeshOfByAnnotation (2.7).
func (c *Cluster) namespaceFindings(w *workload) []Finding {
	ns := c.namespaces[w.namespace]
	if ns == nil || w.template.Labels[mesh.LabelMesh] != "" || w.template.Annotations[mesh.LabelMesh] != "" {
		return nil
	}
	name := ns.Annotations[mesh.LabelMesh]
	if name == "" || name == ns.Labels[mesh.LabelMesh] {
		return nil
	}
	return []Finding{{Code: AnnotationNotRead, Text: fmt.Sprintf(
		"namespace %s: the annotation %s: %s: Sonde does not read it: use the label with that name", ns.Name, mesh.LabelMesh, name)}}
}
