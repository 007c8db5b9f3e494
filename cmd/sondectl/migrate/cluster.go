// Package migrate has sondectl migrate plan and status: in which mode the probes of workloads are, what another mode would change,
// and what is wrong today. It reads objects from files, and asks no server.
package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

const kumaGroup = "kuma.io"

// Object is one object of the input.
type Object struct {
	// APIVersion and Kind of the object.
	APIVersion, Kind string
	// JSON is the object.
	JSON []byte
	// Pod is the JSON of the pod template, or of the Pod itself; nil for other kinds.
	Pod []byte
}

// Cluster is what is known of a cluster. The zero value is empty.
type Cluster struct {
	namespaces map[string]*webhook.Namespace
	// objects are the pods' controllers, by what their pods and each other name as owners.
	objects    map[key]*controller
	pods       []*corev1.Pod
	seen       map[key]bool // the pods
	dataplanes []Dataplane
}

// key names an object that has pods.
type key struct{ namespace, kind, name string }

// controller is an object with a pod template.
type controller struct {
	key
	owner    *metav1.OwnerReference // nil if there is none
	template *corev1.Pod
}

// Len returns how many objects are in the cluster that plan or status is about.
func (c *Cluster) Len() int { return len(c.objects) + len(c.pods) + len(c.dataplanes) }

// Add adds an object. One of a kind that does not matter is ignored. The error says what of the object cannot be read.
func (c *Cluster) Add(o Object) error {
	if c.objects == nil {
		c.objects, c.seen, c.namespaces = map[key]*controller{}, map[key]bool{}, map[string]*webhook.Namespace{}
	}
	switch {
	case o.APIVersion == "v1" && o.Kind == "Namespace":
		return c.addNamespace(o.JSON)
	case o.APIVersion == "v1" && o.Kind == "Pod":
		return c.addPod(o.Pod)
	case o.Pod != nil:
		return c.addController(o)
	case o.Kind == string(mesh.KindDataplane):
		return c.addDataplane(o)
	}
	return nil
}

var errTwice = errors.New("there is another one with this name")

func (c *Cluster) addPod(body []byte) error {
	pod, err := decodePod(body)
	if err != nil {
		return err
	}
	k := key{pod.Namespace, "Pod", pod.Name}
	if c.seen[k] {
		return errTwice
	}
	c.seen[k] = true
	c.pods = append(c.pods, pod)
	return nil
}

func (c *Cluster) addController(o Object) error {
	var document struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := kjson.Unmarshal(o.JSON, &document); err != nil {
		return mesh.ExplainJSON("", o.JSON, &document)
	}
	template, err := decodePod(o.Pod)
	if err != nil {
		return err
	}
	k := key{document.Metadata.Namespace, o.Kind, document.Metadata.Name}
	if c.objects[k] != nil {
		return errTwice
	}
	c.objects[k] = &controller{key: k, owner: metav1.GetControllerOf(&document.Metadata), template: template}
	return nil
}

func decodePod(body []byte) (*corev1.Pod, error) {
	pod, err := webhook.DecodePod(body)
	if err != nil {
		return nil, err
	}
	if len(pod.Spec.Containers) == 0 {
		return nil, errors.New("spec.containers: there is none")
	}
	return pod, nil
}

// workload is an object that makes pods, with its pods.
type workload struct {
	key
	// template is what the manifest says, as far as it is known: that of the object, else one of its pods, restored.
	template *corev1.Pod
	// fromPod is the pod that template comes from, "" for the object itself.
	fromPod string
	pods    []*corev1.Pod
}

// workloads returns the objects that no other one in the input makes, and the pods that nothing makes, sorted. Pods that have ended,
// or will be gone soon, are left out: they say nothing about those to come.
func (c *Cluster) workloads() []*workload {
	byKey := map[key]*workload{}
	get := func(k key) *workload {
		if byKey[k] == nil {
			byKey[k] = &workload{key: k}
		}
		return byKey[k]
	}
	for k, o := range c.objects {
		if root := c.root(k, o.owner, nil); root == k {
			get(k).template = o.template
		}
	}
	for _, pod := range c.pods {
		if pod.DeletionTimestamp != nil || podspec.Ended(pod) {
			continue
		}
		w := get(c.root(key{pod.Namespace, "Pod", pod.Name}, metav1.GetControllerOf(pod), pod))
		w.pods = append(w.pods, pod)
	}
	all := make([]*workload, 0, len(byKey))
	for _, w := range byKey {
		if w.template == nil {
			w.template, _, _ = restore(w.pods[0], sidecarOf(w.pods[0])) // ProbesNotKnown reports the error
			w.fromPod = w.pods[0].Name
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b *workload) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	return all
}

// root follows the owners of an object to the last that the input names. The ReplicaSet of a pod need not be in the input for its Deployment to be
// found.
func (c *Cluster) root(k key, owner *metav1.OwnerReference, pod *corev1.Pod) key {
	for range 8 { // more is a circle
		if owner == nil || owner.Kind == "Node" { // a static pod's
			return k
		}
		k = key{k.namespace, owner.Kind, owner.Name}
		o := c.objects[k]
		if o == nil {
			break
		}
		owner = o.owner
	}
	if pod == nil || k.kind != "ReplicaSet" || c.objects[k] != nil {
		return k
	}
	if name, ok := podspec.DeploymentOf(k.name, pod); ok {
		return key{k.namespace, "Deployment", name}
	}
	return k
}

// Dataplane is a written Dataplane, with the deprecated fields for probes.
type Dataplane struct {
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
	Group     string   `json:"group,omitempty"` // "" for the form of files
	Fields    []string `json:"fields"`
	Text      string   `json:"text"`
	Effective bool     `json:"effective"` // in the mode that the plan is for

	mode      string // that its label asks for
	modeField string // the label, "" if there is none
}

// addDataplane keeps a Dataplane with deprecated fields, unless a pod owns it: then it is Kuma's work.
func (c *Cluster) addDataplane(o Object) error {
	type probes struct {
		Probes    json.RawMessage `json:"probes"`
		TCPProbes json.RawMessage `json:"tcpProbes"`
	}
	var document struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Name     string            `json:"name"`
		Labels   map[string]string `json:"labels"`
		Spec     probes            `json:"spec"`
		probes
	}
	if err := kjson.Unmarshal(o.JSON, &document); err != nil {
		return mesh.ExplainJSON("", o.JSON, &document)
	}
	d := Dataplane{Namespace: document.Metadata.Namespace, Name: cmp.Or(document.Metadata.Name, document.Name)}
	for _, labels := range []struct {
		field  string
		values map[string]string
	}{{"labels", document.Labels}, {"metadata.labels", document.Metadata.Labels}} {
		if value, ok := labels.values[mesh.AnnotationVirtualProbesMode]; ok {
			d.mode, d.modeField = value, fmt.Sprintf("%s[%q]", labels.field, mesh.AnnotationVirtualProbesMode)
		}
	}
	d.Group, _, _ = strings.Cut(o.APIVersion, "/")
	for _, f := range []struct {
		name string
		in   [2]json.RawMessage
	}{
		{"spec.probes", [2]json.RawMessage{document.Spec.Probes, document.Probes}},
		{"spec.tcpProbes", [2]json.RawMessage{document.Spec.TCPProbes, document.TCPProbes}},
	} {
		if given(f.in[0]) || given(f.in[1]) {
			d.Fields = append(d.Fields, f.name)
		}
	}
	byPod := slices.ContainsFunc(document.Metadata.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Kind == "Pod" })
	if len(d.Fields) > 0 && !byPod {
		c.dataplanes = append(c.dataplanes, d)
	}
	return nil
}

func given(value json.RawMessage) bool { return len(value) > 0 && string(value) != "null" }
