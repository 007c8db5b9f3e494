package webhook

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// CNI selects the pods whose connections the nodes' CNI plugin redirects instead of kuma-init.
type CNI string

// Values of CNI.
const (
	// CNIOff is for an installation without the plugin.
	CNIOff CNI = "off"
	// CNINamespaces selects pods in namespaces with mesh.LabelCNI: enabled.
	CNINamespaces CNI = "namespaces"
	// CNIAll selects all pods, except in namespaces with mesh.LabelCNI: disabled.
	CNIAll CNI = "all"
)

// chooseCNI decides whether the plugin redirects the pod's connections. Pods without a native sidecar keep kuma-init:
// only the startup probe of a native sidecar delays containers until the plugin is done. Injected pods keep their way
// of redirection.
func (in *injection) chooseCNI() error {
	if in.earlier != nil {
		_, in.cni = podspec.RedirectionText(&in.pod.Spec)
		return nil
	}
	in.cni = in.options.CNI == CNIAll
	if in.namespace != nil {
		asked, err := in.namespace.cni()
		switch {
		case err != nil:
			return err
		case asked == nil:
		case *asked && in.options.CNI == CNIOff:
			in.warn("namespace %s: %s is enabled, but this installation has no CNI plugin: %s redirects the connections of this pod",
				in.namespace.Name, mesh.LabelCNI, mesh.ContainerInit)
		default:
			in.cni = *asked
		}
	}
	in.cni = in.cni && in.form == Native
	return nil
}

// cni returns the namespace's setting for the plugin, nil if it has none.
func (ns *Namespace) cni() (*bool, error) {
	label, isLabel := ns.Labels[mesh.LabelCNI]
	value, isAnnotation := ns.Annotations[mesh.LabelCNI]
	field := annotationField(mesh.LabelCNI)
	switch {
	case isLabel && isAnnotation && label != value:
		return nil, fmt.Errorf("namespace %s: %w", ns.Name, contradiction(mesh.LabelCNI, value, label))
	case isLabel:
		field, value = labelField(mesh.LabelCNI), label
	case !isAnnotation:
		return nil, nil
	}
	asked, err := parseSwitch(value)
	if err != nil {
		return nil, &mesh.FieldError{Field: "namespace " + ns.Name + ": " + field, Value: value, Err: err}
	}
	return asked, nil
}

// redirection returns the options of redirection for the pod.
func (in *injection) redirection() mesh.Redirection {
	r := mesh.Redirection{
		OutboundOnly: in.gateway, ExcludeInboundPorts: in.excludedInbound(),
		ExcludeOutboundPorts: in.settings.excludeOutbound, MetricsPort: in.metricsPort, TCPProbes: in.tcpProbes(),
		Families: "dualstack",
	}
	if in.hasGuarded() {
		r.GuardedPort = in.port
	}
	return r
}

// encodeRedirection encodes the variable with the plugin's options for the pod.
func (in *injection) encodeRedirection() (err error) {
	if in.cni {
		r := in.redirection()
		in.encodedRedirection, err = r.Encode()
	}
	return err
}

// setRedirection replaces the variable of an earlier injection, since other webhooks may have added probes.
func (in *injection) setRedirection() {
	list, containers := in.sidecarList()
	at := podspec.Index(containers, mesh.ContainerSidecar)
	env := slices.IndexFunc(containers[at].Env, func(v corev1.EnvVar) bool { return v.Name == mesh.EnvRedirection })
	if containers[at].Env[env].Value != in.encodedRedirection {
		in.patch.add(fmt.Sprintf("%s/%d/env/%d/value", list, at, env), in.encodedRedirection)
	}
}
