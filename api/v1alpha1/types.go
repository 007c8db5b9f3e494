package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// GroupVersion of the objects.
var GroupVersion = schema.GroupVersion{Group: mesh.Group, Version: mesh.Version}

// AddToScheme registers the objects with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Mesh{}, &MeshList{}, &Dataplane{}, &DataplaneList{}, &RestartGrant{}, &RestartGrantList{},
		&RestartBudget{}, &RestartBudgetList{}, &WatchedCluster{}, &WatchedClusterList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// ConditionAccepted says whether the control plane uses the current spec of an object.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted    = "Accepted"
	ReasonInvalid     = "Invalid"
	ReasonUnknownMesh = "UnknownMesh"
)

// Status of an object.
type Status struct {
	// Conditions of the object. Accepted says whether the control plane uses its current spec.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Mesh is a set of proxies and services that trust one certificate authority. Its name is a DNS label.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=sonde
// +kubebuilder:printcolumn:name="mTLS",type=string,JSONPath=`.spec.mtls.enabledBackend`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Mesh struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec   mesh.MeshSpec `json:"spec"`
	Status Status        `json:"status,omitzero"`
}

// MeshList is a list of Meshes.
//
// +kubebuilder:object:root=true
type MeshList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Mesh `json:"items"`
}

// Dataplane is one proxy outside Kubernetes, for example on a virtual machine. Pods have no Dataplane objects: sondectl
// get dataplanes shows theirs. Its mesh is its label kuma.io/mesh, default "default".
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=sonde,shortName=dp
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.networking.address`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Dataplane struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   mesh.DataplaneSpec `json:"spec"`
	Status Status             `json:"status,omitzero"`
}

// DataplaneList is a list of Dataplanes.
//
// +kubebuilder:object:root=true
type DataplaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Dataplane `json:"items"`
}
