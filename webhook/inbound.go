package webhook

import (
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// redirectReadinessFlag is kuma-init's flag to redirect only the sidecar's readiness probe of all incoming connections.
const redirectReadinessFlag = "--redirect-readiness"

// chooseGateway decides whether incoming connections of the pod are redirected. An injected pod keeps its redirection.
func (in *injection) chooseGateway() {
	asked := in.settings.gateway
	in.gateway = asked != nil && *asked
	if in.earlier == nil {
		return
	}
	if in.gateway = podspec.IsGateway(&in.pod.Spec); asked != nil && *asked != in.gateway {
		by := mesh.ContainerInit
		if _, cni := podspec.RedirectionText(&in.pod.Spec); cni {
			by = "the CNI plugin"
		}
		in.warn("%s: %q: has no effect, since %s already has %s%t: recreate the pod",
			annotationField(mesh.AnnotationGateway), in.pod.Annotations[mesh.AnnotationGateway], by,
			mesh.ArgRedirectInbound, !in.gateway)
	}
}

// inboundArgs returns kuma-init's arguments for incoming connections.
func (in *injection) inboundArgs() []string {
	if in.gateway {
		return []string{mesh.ArgRedirectInbound + "false", redirectReadinessFlag}
	}
	return []string{mesh.ArgRedirectInbound + "true"}
}

// meshMode returns the mode of the pod's mesh, "" if unknown.
func (in *injection) meshMode() mesh.MTLSMode {
	if in.options.mode == nil {
		return ""
	}
	return in.options.mode(in.mesh)
}

// warnPlaintext warns of ports that accept plaintext although the mesh is STRICT.
func (in *injection) warnPlaintext() {
	ports := in.settings.excludeInbound
	if in.meshMode() != mesh.ModeStrict || !in.gateway && len(ports) == 0 {
		return
	}
	key, value, what := mesh.AnnotationExcludeInboundPorts, joinPorts(ports), "connections to these ports"
	if in.gateway {
		key, what = mesh.AnnotationGateway, "incoming connections of this pod"
		value = in.pod.Annotations[key]
	}
	in.warn("%s: %q: %s are not redirected, so any client may use plaintext, although mesh %q is STRICT",
		annotationField(key), value, what, in.mesh)
}
