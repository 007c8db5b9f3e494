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

// Pod is the record of a pod with our sidecar.
type Pod struct {
	UID                  types.UID
	Mesh, ServiceAccount string
	Node                 string
	// Owner is the controller of the pod, such as a ReplicaSet; zero without one.
	Owner Owner
	// Address is the first address of the pod, which the kubelet probes; "" before the pod has one.
	Address string
	// SecondAddress is its address of the other IP family, or "".
	SecondAddress string
	// Ports are the declared TCP ports of its containers, Excluded the ports that are not redirected to Envoy.
	Ports, Excluded []uint32
	// Gateway says that no incoming connection is redirected to Envoy.
	Gateway bool
	// ServerFirst are ports of protocols in which the server sends first.
	ServerFirst []uint32
	// Reachable are the services that the pod may call; nil means all.
	Reachable []string
	// LBHealthPort is the port of its agent for load balancers, or 0.
	LBHealthPort uint32
	// Healthy is the kubelet's last readiness. Marked says that the pod is not Ready nevertheless, see readiness.
	Healthy, Marked bool
	// WholeRestart is the state of a restart of all its containers at once.
	WholeRestart WholeRestart
	// Terminating says that it has a deletionTimestamp.
	Terminating bool
	// Drain is why an administrator drains it, or nil.
	Drain *string
	// PerPort are its listeners for probes, nil in unified mode.
	PerPort *PerPort
	// Created is the pod's creation time.
	Created time.Time
	// Sidecars are its native sidecars.
	Sidecars []string
	// Restarts is the sum of its containers' restart counts.
	Restarts int32
	// Ended says that all its containers have ended for good, so that another pod may have its address.
	Ended bool
	// Warnings of its injection, one per line.
	Warnings string
	// Unfailing are its probes that cannot fail.
	Unfailing []Unfailing
	// Probes are the texts about its probes.
	Probes probeSet
	// Problem is which part of the pod has no effect, because it exceeds a bound. Beyond says that the pod is beyond
	// its namespace's share, so that it has no Dataplane.
	Problem string
	Beyond  bool
}

// Owner is the controller of a pod.
type Owner struct {
	APIVersion, Kind, Name string
	UID                    types.UID
}

// readPod returns the record of a pod, and false without our sidecar: Kuma's own pods may have the same label.
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
		Excluded:       atMost(&wrong, excludedField, podspec.ExcludedInbound(&p.Spec), maxListedPorts),
		ServerFirst:    portsOf(p.Annotations, mesh.AnnotationServerFirstPorts, &wrong),
		Reachable:      reachable(p.Annotations, &wrong),
		Gateway:        podspec.IsGateway(&p.Spec),
		Created:        p.CreationTimestamp.Time,
		Ended:          podspec.Ended(p),
		Warnings:       cut.Marked(p.Annotations[mesh.AnnotationInjectionWarnings], maxWarnings),
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; podspec.IsNativeSidecar(c) {
			r.Sidecars = append(r.Sidecars, intern(c.Name))
		}
	}
	table, valid := probeTable(&p.Spec)
	if r.PerPort = readPerPort(&p.Spec, table); r.PerPort != nil {
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
	r.Unfailing = r.unfailing(p)
	if valid {
		r.Probes = probeSetOf(&p.Spec, table)
	}
	if ips := p.Status.PodIPs; len(ips) > 1 { // a pod has at most one address per family
		r.SecondAddress = strings.Clone(ips[1].IP)
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

// OwnerOf returns the controller of a pod, zero without one.
func OwnerOf(p *corev1.Pod) Owner {
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return Owner{
				APIVersion: intern(o.APIVersion), Kind: intern(o.Kind), Name: intern(o.Name), UID: types.UID(intern(string(o.UID))),
			}
		}
	}
	return Owner{}
}

// FieldPath returns the field path of a container, in the form of the kubelet's events.
func (p *Pod) FieldPath(container string) string {
	if slices.Contains(p.Sidecars, container) {
		return "spec.initContainers{" + container + "}"
	}
	return "spec.containers{" + container + "}"
}

// declaredPorts returns the declared TCP ports of all containers except the sidecar, sorted.
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

// excludedField is the field with the ports that are not redirected.
const excludedField = "spec.initContainers[" + mesh.ContainerInit + "].args[" + mesh.ArgExcludeInbound + "]"

// portsOf returns the ports in an annotation. The webhook rejects invalid values.
func portsOf(annotations map[string]string, name string, wrong *problems) []uint32 {
	ports, _ := mesh.ParsePorts[uint32](annotations[name])
	return atMost(wrong, annotationField(name), ports, maxListedPorts)
}

// reachable returns the services to which an annotation limits the pod, or nil; "*" means all.
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

// intern returns a string equal to s that all pods share.
func intern(s string) string { return unique.Make(s).Value() }
