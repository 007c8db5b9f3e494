// Package migrate implements sondectl migrate plan and status: they show the modes of workloads' probes, what another
// mode would change, and existing problems. It reads objects from files, without a server.
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
	// JSON is the encoded object.
	JSON []byte
	// Pod is the JSON of the pod template, or of the Pod itself; nil for other kinds.
	Pod []byte
}

// Cluster holds the objects of a cluster. The zero value is empty.
type Cluster struct {
	namespaces map[string]*webhook.Namespace
	// objects are the controllers of pods, by the key with which owner references name them.
	objects    map[key]*controller
	pods       []*corev1.Pod
	unread     map[*corev1.Pod]webhook.Unread // number of pods and templates
	seen       map[key]bool                   // the pods
	dataplanes []Dataplane
}

// key names an object with pods.
type key struct{ namespace, kind, name string }

// controller is an object with a pod template.
type controller struct {
	key
	owner    *metav1.OwnerReference // nil if the controller has no owner
	template *corev1.Pod
}

// Len returns the number of pods and pod templates in the cluster.
func (c *Cluster) Len() int { return len(c.objects) + len(c.pods) + len(c.dataplanes) }

// Add adds an object, and ignores irrelevant kinds. The error names the invalid part of the object.
func (c *Cluster) Add(o Object) error {
	if c.objects == nil {
		c.objects, c.seen, c.namespaces = map[key]*controller{}, map[key]bool{}, map[string]*webhook.Namespace{}
		c.unread = map[*corev1.Pod]webhook.Unread{}
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

var errTwice = errors.New("duplicate: another object has this name")

func (c *Cluster) addPod(body []byte) error {
	pod, err := c.decodePod(body)
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
	template, err := c.decodePod(o.Pod)
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

func (c *Cluster) decodePod(body []byte) (*corev1.Pod, error) {
	pod, err := webhook.DecodePod(body)
	if err != nil {
		return nil, err
	}
	if len(pod.Spec.Containers) == 0 {
		return nil, errors.New("spec.containers: must have at least one")
	}
	unread, err := webhook.ReadUnread(body)
	if err != nil {
		return nil, err
	}
	if len(unread) > 0 {
		c.unread[pod] = unread
	}
	return pod, nil
}

// workload is an object that creates pods, with its pods.
type workload struct {
	key
	// template is the pod template before injection: the object's, otherwise one restored from a pod.
	template *corev1.Pod
	unread   webhook.Unread // of template
	// fromPod is the pod from which template is restored, "" for the object's own.
	fromPod string
	pods    []*corev1.Pod
}

// workloads returns the top-level owners of pods, and pods without an owner, sorted. It omits pods that have ended or
// are being deleted, which say nothing about new pods.
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
			w := get(k)
			w.template, w.unread = o.template, c.unread[o.template]
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
			pod := w.pods[0]
			original, rewritten, _ := restore(pod, sidecarOf(pod)) // ProbesNotKnown reports the error
			w.template, w.unread, w.fromPod = original, notRewritten(c.unread[pod], rewritten), pod.Name
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b *workload) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	return all
}

// root follows the owners of an object to the top-level one. It finds the Deployment of a pod even if the ReplicaSet is
// not in the input.
func (c *Cluster) root(k key, owner *metav1.OwnerReference, pod *corev1.Pod) key {
	for range 8 { // more levels mean a cycle
		if owner == nil || owner.Kind == "Node" { // the owner of a static pod
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

// Dataplane is a user's Dataplane with deprecated fields for probes.
type Dataplane struct {
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
	Group     string   `json:"group,omitempty"` // "" for the format of files
	Fields    []string `json:"fields"`
	Text      string   `json:"text"`
	Effective bool     `json:"effective"` // in the plan's mode

	mode      string // requested by its label
	modeField string // the label, "" without one
}

// addDataplane keeps a Dataplane with deprecated fields, unless a pod owns it, since Kuma has generated that one.
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
	byPod := slices.ContainsFunc(document.Metadata.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Pod"
	})
	if len(d.Fields) > 0 && !byPod {
		c.dataplanes = append(c.dataplanes, d)
	}
	return nil
}

func given(value json.RawMessage) bool { return len(value) > 0 && string(value) != "null" }
