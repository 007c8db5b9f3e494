package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RestartGrant lets one container restart once because its guarded liveness probe fails. The control plane's leader
// creates it before it tells the agent, and deletes it an hour after its end. Its name contains the container, its
// restart count, and the number of the try, so that a container never has two for one restart.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=sonde
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod`
// +kubebuilder:printcolumn:name="Container",type=string,JSONPath=`.spec.container`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.spec.restarts`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.outcome`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RestartGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RestartGrantSpec   `json:"spec"`
	Status RestartGrantStatus `json:"status,omitzero"`
}

// RestartGrantSpec says which container may restart. It does not change.
type RestartGrantSpec struct {
	// Pod is the name of the pod, PodUID its UID.
	Pod    string `json:"pod"`
	PodUID string `json:"podUID"`
	// Container of the pod.
	Container string `json:"container"`
	// Restarts is the restart count of the container that may restart.
	Restarts int32 `json:"restarts"`
	// Try counts from 0: another try follows an unused one.
	Try int32 `json:"try"`
	// Workload is the owner of the pod, for whose budget the restart counts, as Kind/namespace/name.
	Workload string `json:"workload"`
	// Node of the pod.
	Node string `json:"node,omitempty"`
	// Template is a hash of the pod's template.
	Template string `json:"template,omitempty"`
	// Epoch of the leader.
	Epoch int64 `json:"epoch"`
	// DryRun means that the grant has no effect.
	DryRun bool `json:"dryRun,omitempty"`
	// Granted is when the grant was made.
	Granted metav1.MicroTime `json:"granted"`
}

// RestartGrantStatus is the outcome of a grant.
type RestartGrantStatus struct {
	// Outcome is empty until the container has restarted or the grant has ended: refunded, spent, helped, unhelpful or
	// released.
	Outcome string `json:"outcome,omitempty"`
	// Spent is when the restart was seen, Ended when the pod was ready again or the grant ended, Judged when its effect
	// was judged.
	Spent  *metav1.MicroTime `json:"spent,omitempty"`
	Ended  *metav1.MicroTime `json:"ended,omitempty"`
	Judged *metav1.MicroTime `json:"judged,omitempty"`
	// Epoch of a later leader that has taken over the grant. Agents get the greater one.
	Epoch int64 `json:"epoch,omitempty"`
}

// RestartGrantList is a list of RestartGrants.
//
// +kubebuilder:object:root=true
type RestartGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RestartGrant `json:"items"`
}
