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
	// ProbeRefusedByMTLS is an httpGet or grpc probe that is sent to the sidecar as plaintext, which a STRICT one refuses.
	ProbeRefusedByMTLS Code = "probe-refused-by-mtls"
	// HTTPSAlwaysFails is an HTTPS probe that Kuma sends to a listener without TLS.
	HTTPSAlwaysFails Code = "https-virtual-probe-always-fails"
	// HookNotRewritten is an httpGet hook that is sent to the sidecar as plaintext, which a STRICT one refuses.
	HookNotRewritten Code = "hook-not-rewritten"
	// PortRoundMTLS is a port at which something in the pod answers without mTLS.
	PortRoundMTLS Code = "port-round-mtls"
	// AmbiguousAnnotations are annotations that contradict each other, or that two meshes read differently.
	AmbiguousAnnotations Code = "ambiguous-annotations"
	// AnnotationNotRead is an annotation or label of Istio's or Kuma's that Sonde does not read.
	AnnotationNotRead Code = "annotation-not-read"
	// ProbesNotKnown is a pod whose sidecar has no readable record of the probes that were rewritten.
	ProbesNotKnown Code = "probes-not-known"
	// TwoMeshes is a workload into which two meshes put a sidecar, or have put one.
	TwoMeshes Code = "two-meshes"
)

// Finding is something that is wrong today, or will be.
type Finding struct {
	Code Code `json:"code"`
	// Field of the pod that it is about, such as containers[web].livenessProbe; "" for the whole pod.
	Field string `json:"field,omitempty"`
	Text  string `json:"text"`
	// When says which pods have it, "" if it is not about one.
	When When `json:"when,omitempty"`
}

// When says which pods have a finding.
type When string

// Pods that have a finding: those that run, new ones, or both.
const (
	Now        When = "now"
	Then       When = "then"
	NowAndThen When = "now-and-then"
)

// findingsOf returns what is wrong with the probes and ports of a pod that runs, or will.
func findingsOf(pod *corev1.Pod, s *sidecar) (all []Finding) {
	if len(s.meshes) > 1 {
		all = append(all, Finding{Code: TwoMeshes, Text: fmt.Sprintf(
			"pod %s: %s each have a sidecar in it: let one mesh inject it, and make it anew", pod.Name, strings.Join(s.meshes, " and "))})
	}
	if s.mode == None {
		return all
	}
	original, rewritten, err := restore(pod, s)
	if err != nil {
		return append(all, Finding{Code: ProbesNotKnown, Text: fmt.Sprintf("pod %s: it cannot be read which probes were rewritten: %v", pod.Name, err)})
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
			"port %d: Kuma's application probe proxy answers any caller without mTLS, and asks any port and path of the pod for it", s.port)})
	}
	return all
}

// requestFinding returns what is wrong with what the kubelet asks today.
func requestFinding(r webhook.Request, s *sidecar, rewritten bool) (Finding, bool) {
	get := httpGetOf(r)
	if rewritten {
		https := s.mode == KumaVirtual && get != nil && get.Scheme == corev1.URISchemeHTTPS
		return Finding{
			Code: HTTPSAlwaysFails, Field: r.Field, Text: "Kuma leaves the scheme HTTPS, and its listener for virtual probes speaks plaintext",
		}, https
	}
	if r.Port == 0 || r.Host != "" || !s.captures(r.Port) {
		return Finding{}, false
	}
	if r.Port == s.lbPort {
		return Finding{Code: ProbeCannotFail, Field: r.Field, Text: fmt.Sprintf(
			"the agent accepts each connection to port %d, that for load balancers, so it succeeds even if nothing else listens", r.Port)}, r.Probe != nil && r.Protocol == mesh.ProtocolTCP
	}
	strict := fmt.Sprintf("not rewritten: where mTLS is STRICT, which a pod does not say, the sidecar refuses the kubelet at port %d", r.Port)
	switch {
	case r.Hook != nil && get != nil:
		return Finding{Code: HookNotRewritten, Field: r.Field, Text: strict}, true
	case r.Hook != nil:
		return Finding{}, false // the kubelet does not run tcpSocket hooks
	case r.Protocol == mesh.ProtocolTCP:
		return Finding{Code: ProbeCannotFail, Field: r.Field, Text: fmt.Sprintf(
			"not rewritten: the sidecar accepts each connection to port %d in the application's place, so it succeeds even if nothing listens", r.Port)}, true
	}
	return Finding{Code: ProbeRefusedByMTLS, Field: r.Field, Text: strict}, true
}

// portFindings returns the ports that containers declare, or that probes and hooks ask, and that the sidecar does not get.
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
			"port %d %s: a client that connects to it reaches the application without mTLS", port, why)})
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

// replacements are labels and annotations of other meshes that Sonde does not read, and what takes their place.
var replacements = map[string]string{
	istioRewrite:      mesh.AnnotationVirtualProbes + ": disabled takes the place of \"false\"; Sonde rewrites all others",
	istioStatusPort:   mesh.AnnotationVirtualProbesPort + " takes its place",
	istioExclude:      mesh.AnnotationExcludeInboundPorts + " takes its place",
	istioInclude:      "Sonde redirects all ports but those in " + mesh.AnnotationExcludeInboundPorts,
	istioInterception: "Sonde always redirects",
	istioInject:       mesh.LabelOwnInjection + " takes its place",
	"traffic.sidecar.istio.io/excludeOutboundPorts": mesh.AnnotationExcludeOutboundPorts + " takes its place",
	"proxy.istio.io/config":                         "Sonde has no such annotation; its sidecar starts before the containers anyway",
	"sidecar.istio.io/proxyCPU":                     mesh.AnnotationSidecarCPU + " takes its place",
	"sidecar.istio.io/proxyCPULimit":                mesh.AnnotationSidecarCPULimit + " takes its place",
	"sidecar.istio.io/proxyMemory":                  mesh.AnnotationSidecarMemory + " takes its place",
	"sidecar.istio.io/proxyMemoryLimit":             mesh.AnnotationSidecarMemoryLimit + " takes its place",
	mesh.Prefix + "sidecar-proxy-concurrency":       "Envoy has a worker thread for each CPU of its limit, " + mesh.AnnotationSidecarCPULimit,
	kumaGateway: "Sonde has no gateways: it redirects incoming connections of this pod, too",
}

const istioInject = "sidecar.istio.io/inject"

// annotationFindings returns annotations and labels of a template that Sonde does not read, or that contradict each other.
// modes are those of the pods that run.
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
			text = "nothing takes its place"
		}
		all = append(all, Finding{Code: AnnotationNotRead, Text: fmt.Sprintf("%s: Sonde does not read it: %s", key, text)})
	}
	return append(all, contradictions(template, modes)...)
}

// saysNothing reports whether Sonde does anyway what a label or annotation of Istio's asks for: leave the pod to Sonde, or rewrite probes.
func saysNothing(key, value string) bool {
	on, err := strconv.ParseBool(value)
	return err == nil && (key == istioInject && !on || key == istioRewrite && on)
}

// contradictions returns settings for Kuma's probe proxy that Kuma and Sonde read differently.
func contradictions(template *corev1.Pod, modes map[Mode]int) (all []Finding) {
	add := func(format string, args ...any) {
		all = append(all, Finding{Code: AmbiguousAnnotations, Text: fmt.Sprintf(format, args...)})
	}
	proxy, asked := template.Annotations[mesh.AnnotationProbeProxyPort], template.Annotations[mesh.AnnotationVirtualProbesPort]
	if _, switched := template.Annotations[mesh.AnnotationVirtualProbes]; proxy == "0" && !switched && modes[KumaVirtual] > 0 {
		add("%s: 0: Kuma still rewrites httpGet probes for its listener of virtual probes, Sonde leaves all: remove it", mesh.AnnotationProbeProxyPort)
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

// namespaceFindings returns what Kuma reads of a workload's namespace and Sonde does not.
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
		"namespace %s: the annotation %s: %s: Sonde does not read it: the label of that name takes its place", ns.Name, mesh.LabelMesh, name)}}
}
