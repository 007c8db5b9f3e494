// Package gardener reads Gardener's Cluster objects, one for each shoot of a seed, and decides whether to watch the
// shoot. It has only the needed parts of Gardener's types.
package gardener

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of Clusters.
var GroupVersion = schema.GroupVersion{Group: "extensions.gardener.cloud", Version: "v1alpha1"}

// Names of the kind.
const (
	Kind     = "Cluster"
	Resource = "clusters"
)

// Cluster is cluster-scoped. Its name is the namespace of the shoot's control plane. This type omits its cloud profile
// and seed.
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec ClusterSpec `json:"spec"`
}

// ClusterSpec has the shoot as raw JSON, so that an invalid shoot does not prevent reading other Clusters.
type ClusterSpec struct {
	Shoot runtime.RawExtension `json:"shoot"`
}

// ClusterList is a list of Clusters.
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Cluster `json:"items"`
}

// AddToScheme registers Clusters with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Cluster{}, &ClusterList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

func (c *Cluster) deepCopy() *Cluster {
	return &Cluster{TypeMeta: c.TypeMeta, ObjectMeta: *c.DeepCopy(), Spec: ClusterSpec{Shoot: *c.Spec.Shoot.DeepCopy()}}
}

// DeepCopyObject implements runtime.Object.
func (c *Cluster) DeepCopyObject() runtime.Object { return c.deepCopy() }

// DeepCopyObject implements runtime.Object.
func (l *ClusterList) DeepCopyObject() runtime.Object {
	list := &ClusterList{TypeMeta: l.TypeMeta, ListMeta: *l.DeepCopy()}
	for i := range l.Items {
		list.Items = append(list.Items, *l.Items[i].deepCopy())
	}
	return list
}
