// Package v1alpha1 has the objects of group sonde.dev on Kubernetes. They use the specs of api/mesh, so that no
// conversion is needed.
//
// +kubebuilder:object:generate=true
// +groupName=sonde.dev
package v1alpha1
