// Package v1alpha1 has the objects of group sonde.dev on Kubernetes. Their specs are those of api/mesh, so that nothing has to be
// converted.
//
// +kubebuilder:object:generate=true
// +groupName=sonde.dev
package v1alpha1
