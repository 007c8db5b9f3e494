package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// InjectJSON is Inject for a pod or a pod template as a JSON document. It applies the changes of Inject to the
// document, which keeps unknown fields and the text of unchanged values.
func InjectJSON(document []byte, o Options) ([]byte, []string, error) {
	if err := o.complete(); err != nil {
		return nil, nil, err
	}
	// No API server has checked the fields that injection does not read.
	if _, err := DecodePod(document); err != nil {
		return nil, nil, err
	}
	d, err := readPod(document)
	if err != nil {
		return nil, nil, err
	}
	in, err := d.inject(nil, &o)
	if err != nil {
		return nil, in.warnings, err
	}
	if len(in.patch) == 0 {
		return document, in.warnings, nil
	}
	patched, err := in.patch.apply(document)
	return patched, in.warnings, err
}

// DecodePod decodes a pod or a pod template from JSON. Like the API server, it is case-sensitive.
func DecodePod(document []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := kjson.Unmarshal(document, pod); err != nil {
		return nil, mesh.ExplainJSON("", document, pod)
	}
	return pod, nil
}

// podDocument has the fields of a pod that injection reads; decoding skips the others, which are most of a pod. Any
// user of the API server may have written the pod, so parseQuantity reads its quantities.
type podDocument struct {
	Metadata *struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		InitContainers []containerDocument `json:"initContainers"`
		Containers     []containerDocument `json:"containers"`
		Volumes        []struct {
			Name string `json:"name"`
		} `json:"volumes"`
		RestartPolicy                 corev1.RestartPolicy       `json:"restartPolicy"`
		TerminationGracePeriodSeconds *int64                     `json:"terminationGracePeriodSeconds"`
		NodeSelector                  map[string]string          `json:"nodeSelector"`
		HostNetwork                   bool                       `json:"hostNetwork"`
		DNSPolicy                     corev1.DNSPolicy           `json:"dnsPolicy"`
		HostAliases                   []corev1.HostAlias         `json:"hostAliases"`
		SecurityContext               *corev1.PodSecurityContext `json:"securityContext"`
		OS                            *corev1.PodOS              `json:"os"`
		Resources                     *resourcesDocument         `json:"resources"`
	} `json:"spec"`
}

type containerDocument struct {
	Name            string                         `json:"name"`
	Image           string                         `json:"image"`
	Command         []string                       `json:"command"`
	Args            []string                       `json:"args"`
	Env             json.RawMessage                `json:"env"` // only read for kuma-sidecar
	Ports           []corev1.ContainerPort         `json:"ports"`
	RestartPolicy   *corev1.ContainerRestartPolicy `json:"restartPolicy"`
	StartupProbe    *exact[corev1.Probe]           `json:"startupProbe"`
	LivenessProbe   *exact[corev1.Probe]           `json:"livenessProbe"`
	ReadinessProbe  *exact[corev1.Probe]           `json:"readinessProbe"`
	Lifecycle       *lifecycleDocument             `json:"lifecycle"`
	SecurityContext *corev1.SecurityContext        `json:"securityContext"`
	Resources       resourcesDocument              `json:"resources"`
	VolumeMounts    []struct{}                     `json:"volumeMounts"` // only their number matters
}

// resourcesDocument has the fields of corev1.ResourceRequirements that injection reads.
type resourcesDocument struct {
	Limits   *resourceListDocument `json:"limits"`
	Requests *resourceListDocument `json:"requests"`
}

// resourceListDocument has quantities as text: decoding a malicious one as a number may never end (parseQuantity).
type resourceListDocument struct {
	CPU    json.RawMessage `json:"cpu"`
	Memory json.RawMessage `json:"memory"`
}

// inject is the function inject for a partly decoded pod. The patch is for the whole document.
func (d *podDocument) inject(ns *Namespace, o *Options) (*injection, error) {
	pod, unknown, err := d.pod()
	if err != nil {
		return &injection{}, err
	}
	in, err := inject(pod, unknown, ns, o)
	if d.Metadata == nil && len(in.patch) > 0 {
		in.patch = append(patch{{Op: "add", Path: "/metadata", Value: struct{}{}}}, in.patch...)
	}
	return in, err
}

// readPod reads a pod or a pod template from JSON.
func readPod(document []byte) (*podDocument, error) {
	var d podDocument
	if err := kjson.Unmarshal(document, &d); err != nil {
		return nil, mesh.ExplainJSON("", document, &d)
	}
	return &d, nil
}

func (d *podDocument) pod() (*corev1.Pod, unknownFields, error) {
	pod, unknown := &corev1.Pod{}, unknownFields{}
	if d.Metadata != nil {
		pod.Labels, pod.Annotations = d.Metadata.Labels, d.Metadata.Annotations
	}
	s := &d.Spec
	pod.Spec.Volumes = make([]corev1.Volume, 0, len(s.Volumes))
	for _, v := range s.Volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v.Name})
	}
	pod.Spec.RestartPolicy = s.RestartPolicy
	pod.Spec.TerminationGracePeriodSeconds = s.TerminationGracePeriodSeconds
	pod.Spec.NodeSelector = s.NodeSelector
	pod.Spec.HostNetwork = s.HostNetwork
	pod.Spec.DNSPolicy = s.DNSPolicy
	pod.Spec.HostAliases = s.HostAliases
	pod.Spec.SecurityContext = s.SecurityContext
	pod.Spec.OS = s.OS
	if s.Resources != nil {
		pod.Spec.Resources = new(s.Resources.requirements())
	}
	var errInit, err error
	pod.Spec.InitContainers, errInit = containersOf(s.InitContainers, unknown)
	pod.Spec.Containers, err = containersOf(s.Containers, unknown)
	return pod, unknown, errors.Join(errInit, err)
}

func containersOf(documents []containerDocument, unknown unknownFields) (containers []corev1.Container, err error) {
	containers = make([]corev1.Container, 0, len(documents))
	for i := range documents {
		d := &documents[i]
		c := corev1.Container{
			Name: d.Name, Image: d.Image, Command: d.Command, Args: d.Args, Ports: d.Ports, RestartPolicy: d.RestartPolicy,
			StartupProbe: d.StartupProbe.open(unknown), LivenessProbe: d.LivenessProbe.open(unknown),
			ReadinessProbe: d.ReadinessProbe.open(unknown), Lifecycle: d.Lifecycle.open(unknown),
			SecurityContext: d.SecurityContext, Resources: d.Resources.requirements(),
			VolumeMounts: make([]corev1.VolumeMount, len(d.VolumeMounts)),
		}
		if d.Name == mesh.ContainerSidecar && len(d.Env) > 0 {
			if err := kjson.Unmarshal(d.Env, &c.Env); err != nil {
				return nil, mesh.ExplainJSON(fmt.Sprintf("containers[%s].env", d.Name), d.Env, &c.Env)
			}
		}
		containers = append(containers, c)
	}
	return containers, nil
}

func (d *resourcesDocument) requirements() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Limits: d.Limits.list(), Requests: d.Requests.list()}
}

// list returns nil only if the document has no list. It omits invalid quantities: the API server rejects such a pod.
func (d *resourceListDocument) list() corev1.ResourceList {
	if d == nil {
		return nil
	}
	list := corev1.ResourceList{}
	add := func(name corev1.ResourceName, text json.RawMessage) {
		if q, err := parseQuantity(strings.Trim(string(text), `"`)); err == nil { // a number is also a quantity
			list[name] = q
		}
	}
	add(corev1.ResourceCPU, d.CPU)
	add(corev1.ResourceMemory, d.Memory)
	return list
}
