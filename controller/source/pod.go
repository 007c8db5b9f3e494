package source

import (
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Pod is what is kept of a pod with our sidecar.
type Pod struct {
	UID                  types.UID
	Mesh, ServiceAccount string
	Node                 string
	// Owner is the controller of the pod, such as a ReplicaSet. It is empty for a pod without one.
	Owner Owner
	// Address is the first address of the pod, which the kubelet probes. It is "" until the pod has one.
	Address string
	// Ports are the declared TCP ports of its containers. Excluded ones are not redirected to Envoy.
	Ports, Excluded []uint32
	// ServerFirst are ports of protocols in which the server sends first.
	ServerFirst []uint32
	// Reachable are the services that the pod may see; all if it is nil.
	Reachable []string
	// LBHealthPort is the port of its agent for load balancers, 0 for none.
	LBHealthPort uint32
	// Healthy says that the kubelet has said last that it is ready, Marked that it is not Ready nevertheless, see readiness.
	Healthy, Marked bool
	// WholeRestart is how far a restart of all its containers at once is.
	WholeRestart WholeRestart
	// Terminating says that it has a deletionTimestamp.
	Terminating bool
	// Drain is why an administrator drains it, nil if none does.
	Drain *string
	// PerPort are its listeners for probes, nil in unified mode.
	PerPort *PerPort
	// Created is when the pod was made.
	Created time.Time
	// Sidecars are its native sidecars.
	Sidecars []string
	// Restarts is the restart count of all its containers together.
	Restarts int32
	// Ended says that all its containers have ended for good. Its address may be another pod's by now.
	Ended bool
	// Warnings are those of its injection, one per line.
	Warnings string
	// Problem says what of it has no effect, since it is beyond the bounds, and Beyond that it has no place in its namespace's share: it has no Dataplane.
	Problem string
	Beyond  bool
}

// Owner is what makes a pod.
type Owner struct {
	APIVersion, Kind, Name string
	UID                    types.UID
}

// readPod returns what is kept of a pod, and false for one without our sidecar: pods of a Kuma that still runs have the same label.
func readPod(p *corev1.Pod) (Pod, bool) {
	if !podspec.IsInjected(&p.Spec) {
		return Pod{}, false
	}
	var wrong problems
	r := Pod{
		UID:            p.UID,
		Mesh:           intern(p.Labels[mesh.LabelMesh]),
		ServiceAccount: intern(p.Spec.ServiceAccountName),
		Node:           intern(p.Spec.NodeName),
		Address:        strings.Clone(p.Status.PodIP),
		Ports:          atMost(&wrong, "spec.containers[*].ports", declaredPorts(&p.Spec), maxPodPorts),
		Excluded:       excludedPorts(p.Annotations, &wrong),
		ServerFirst:    portsOf(p.Annotations, mesh.AnnotationServerFirstPorts, &wrong),
		Reachable:      reachable(p.Annotations, &wrong),
		Created:        p.CreationTimestamp.Time,
		Ended:          podspec.Ended(p),
		Warnings:       cut.Marked(p.Annotations[mesh.AnnotationInjectionWarnings], maxWarnings),
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; podspec.IsNativeSidecar(c) {
			r.Sidecars = append(r.Sidecars, intern(c.Name))
		}
	}
	if r.PerPort = readPerPort(&p.Spec); r.PerPort != nil {
		r.Excluded = append(r.Excluded, r.PerPort.ports()...)
	}
	if c := podspec.Container(&p.Spec, mesh.ContainerSidecar); c != nil {
		if r.LBHealthPort = podspec.PortArgument[uint32](c, mesh.ArgLBHealthPort); r.LBHealthPort != 0 {
			r.Excluded = append(r.Excluded, r.LBHealthPort)
		}
		if metrics := podspec.PortArgument[uint32](c, mesh.ArgMetricsAddress); metrics != 0 {
			r.Excluded = append(r.Excluded, metrics)
		}
	}
	r.Problem = wrong.String()
	r.Terminating, r.Drain = p.DeletionTimestamp != nil, drainAnnotation(p)
	r.Owner = OwnerOf(p)
	r.Healthy, r.Marked = readiness(p)
	r.WholeRestart = wholeRestartOf(p, r.Healthy)
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range statuses {
			r.Restarts += statuses[i].RestartCount
		}
	}
	return r, true
}

// OwnerOf returns the controller of a pod, the zero value if it has none.
func OwnerOf(p *corev1.Pod) Owner {
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return Owner{APIVersion: intern(o.APIVersion), Kind: intern(o.Kind), Name: intern(o.Name), UID: types.UID(intern(string(o.UID)))}
		}
	}
	return Owner{}
}

// FieldPath returns the path of a container, as the kubelet's events have it.
func (p *Pod) FieldPath(container string) string {
	if slices.Contains(p.Sidecars, container) {
		return "spec.initContainers{" + container + "}"
	}
	return "spec.containers{" + container + "}"
}

// declaredPorts returns the TCP ports of all containers but the sidecar's, sorted.
func declaredPorts(spec *corev1.PodSpec) []uint32 {
	var list []uint32
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if containers[i].Name == mesh.ContainerSidecar {
				continue
			}
			for _, p := range containers[i].Ports {
				if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
					list = append(list, uint32(p.ContainerPort))
				}
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// excludedPorts returns the ports that are not redirected: those that the user excludes, and the agent's own.
func excludedPorts(annotations map[string]string, wrong *problems) []uint32 {
	all := portsOf(annotations, mesh.AnnotationExcludeInboundPorts, wrong)
	if on, err := mesh.ParseSwitch(annotations[mesh.AnnotationVirtualProbes]); err == nil && !on {
		return all
	}
	return append(all, portsOf(annotations, mesh.AnnotationVirtualProbesPort, wrong)...)
}

// portsOf returns the ports that an annotation lists. The webhook has refused anything else in it.
func portsOf(annotations map[string]string, name string, wrong *problems) []uint32 {
	ports, _ := mesh.ParsePorts[uint32](annotations[name])
	return atMost(wrong, annotationField(name), ports, maxListedPorts)
}

// reachable returns the services that an annotation limits the pod to, nil if there is none; "*" stands for all.
func reachable(annotations map[string]string, wrong *problems) []string {
	text, limited := annotations[mesh.AnnotationReachableServices]
	if !limited {
		return nil
	}
	names, all := []string{}, 0
	for word := range strings.SplitSeq(text, ",") {
		switch word = strings.TrimSpace(word); word {
		case "":
		case "*":
			return nil
		default:
			if all++; all <= maxReachable {
				names = append(names, strings.Clone(word))
			}
		}
	}
	if all > maxReachable {
		wrong.add("%s: has %d services, and only the first %d count", annotationField(mesh.AnnotationReachableServices), all, maxReachable)
	}
	return names
}

// intern returns s, the same for all pods that have it.
func intern(s string) string { return unique.Make(s).Value() }
