package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WatchedCluster is a cluster whose nodes sonde-watchdog watches. While most node leases are not renewed although its
// API server answers, the dependants of the object, which act on silent nodes, are scaled down.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=sonde
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.verdict`
// +kubebuilder:printcolumn:name="Cause",type=string,JSONPath=`.status.cause`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.since`
// +kubebuilder:printcolumn:name="Paused",type=boolean,JSONPath=`.spec.paused`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
type WatchedCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WatchedClusterSpec   `json:"spec"`
	Status WatchedClusterStatus `json:"status,omitzero"`
}

// WatchedClusterSpec says which cluster is watched, and what is scaled.
//
// +kubebuilder:validation:XValidation:rule="has(self.kubeconfigSecretName) != (has(self.local) && self.local)",message="exactly one of kubeconfigSecretName and local: true must be given"
type WatchedClusterSpec struct {
	// KubeconfigSecretName is a Secret in this namespace whose key kubeconfig is the kubeconfig of the cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	KubeconfigSecretName string `json:"kubeconfigSecretName,omitempty"`
	// Local means the cluster that has this object.
	Local bool `json:"local,omitempty"`
	// Paused means that nothing is scaled, in either direction. The cluster is still watched.
	Paused bool `json:"paused,omitempty"`
	// Dependants to scale, in this namespace.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(d, self.exists_one(e, e.ref == d.ref))",message="each dependant may be given once"
	Dependants []WatchedDependant `json:"dependants"`
	// +optional
	Settings WatchSettings `json:"settings,omitzero"`
}

// WatchedDependant is an object to scale.
type WatchedDependant struct {
	Ref DependantRef `json:"ref"`
	// Optional means that it need not exist.
	Optional bool `json:"optional,omitempty"`
	// ScaleUp and ScaleDown set the order. They are independent of each other.
	ScaleUp   *ScaleInfo `json:"scaleUp"`
	ScaleDown *ScaleInfo `json:"scaleDown"`
}

// DependantRef names an object that has a scale subresource.
type DependantRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ScaleInfo says when a dependant is scaled.
type ScaleInfo struct {
	// Level orders dependants: lower ones come first, equal ones together.
	// +kubebuilder:validation:Minimum=0
	Level int32 `json:"level"`
	// InitialDelay before scaling, if there is something to scale. Default 0s.
	InitialDelay *metav1.Duration `json:"initialDelay,omitempty"`
	// Timeout of scaling, without the delay. Default 30s.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// WatchSettings say how a cluster is watched. Their names match Gardener's Dependency Watchdog where it has them.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nodeLeaseRecoveryFraction) || self.nodeLeaseRecoveryFraction <= (has(self.nodeLeaseFailureFraction) ? self.nodeLeaseFailureFraction : 0.6)",message="nodeLeaseRecoveryFraction must be at most nodeLeaseFailureFraction"
type WatchSettings struct {
	// ProbeInterval is the time between the end of a probe and the next one. Default 10s.
	ProbeInterval *metav1.Duration `json:"probeInterval,omitempty"`
	// InitialDelay before the first probe. Default 30s.
	InitialDelay *metav1.Duration `json:"initialDelay,omitempty"`
	// ProbeTimeout of a whole probe. Default 30s.
	ProbeTimeout *metav1.Duration `json:"probeTimeout,omitempty"`
	// BackoffJitterFactor is the largest share of the interval that is added to it at random. Default 0.2.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	BackoffJitterFactor *float64 `json:"backoffJitterFactor,omitempty"`
	// BackOffDurationForThrottledRequests is the delay after a 429 response without Retry-After. Default 10s.
	BackOffDurationForThrottledRequests *metav1.Duration `json:"backOffDurationForThrottledRequests,omitempty"`
	// KCMNodeMonitorGraceDuration is --node-monitor-grace-period of the cluster's controller-manager. Default 40s.
	KCMNodeMonitorGraceDuration *metav1.Duration `json:"kcmNodeMonitorGraceDuration,omitempty"`
	// LeaseExpiryFraction of that duration without a renewal makes a lease expired. Default 0.75.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:ExclusiveMinimum=true
	// +kubebuilder:validation:Maximum=1
	LeaseExpiryFraction *float64 `json:"leaseExpiryFraction,omitempty"`
	// NodeLeaseFailureFraction of expired leases makes the nodes lost. Default 0.6.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:ExclusiveMinimum=true
	// +kubebuilder:validation:Maximum=1
	NodeLeaseFailureFraction *float64 `json:"nodeLeaseFailureFraction,omitempty"`
	// NodeLeaseRecoveryFraction is a fraction of expired leases. Once fewer have expired for as long as a lease takes to
	// expire, and in three probes in a row, the nodes count as seen again. Default two thirds of nodeLeaseFailureFraction.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:ExclusiveMinimum=true
	// +kubebuilder:validation:Maximum=1
	NodeLeaseRecoveryFraction *float64 `json:"nodeLeaseRecoveryFraction,omitempty"`
}

// WatchedClusterStatus is what the leader of sonde-watchdog has seen and done. The next leader continues from it.
type WatchedClusterStatus struct {
	// Epoch of the leader that wrote it. Leaders with a lower epoch must not write.
	Epoch int64 `json:"epoch,omitempty"`
	// Verdict about all nodes: seen, lost or unknown. Cause is why it is not seen, Since when it began.
	Verdict string       `json:"verdict,omitempty"`
	Cause   string       `json:"cause,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
	// LostSince is set until probes have seen the nodes for long enough, even while the verdict is unknown.
	LostSince *metav1.Time `json:"lostSince,omitempty"`
	// Zones that are not seen, at most 32.
	Zones []WatchedZone `json:"zones,omitempty"`
	// Counts of the nodes at the last successful probe: of all nodes and of each zone, at most 33. They are written
	// with a verdict, and otherwise at most once a minute.
	Counts []NodeCount `json:"counts,omitempty"`
	// Steps are the dependants that are scaled down, or on their way.
	Steps []ScaleStep `json:"steps,omitempty"`
	// Conditions of the object. Accepted says whether its current spec is used.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WatchedZone is a zone with nodes that are not seen.
type WatchedZone struct {
	Name      string       `json:"name"`
	Verdict   string       `json:"verdict"`
	Cause     string       `json:"cause,omitempty"`
	LostSince *metav1.Time `json:"lostSince,omitempty"`
}

// NodeCount counts nodes.
type NodeCount struct {
	// Zone is empty for all nodes.
	Zone string `json:"zone,omitempty"`
	// Nodes counts all nodes, Silent those that do not renew their leases, Unheard those not judged yet.
	Nodes   int32 `json:"nodes"`
	Silent  int32 `json:"silent"`
	Unheard int32 `json:"unheard"`
}

// ScaleStep is a past or imminent action on a dependant.
type ScaleStep struct {
	Ref DependantRef `json:"ref"`
	// State is Lowering, Lowered, Raising, or Kept if another client has set its replicas meanwhile.
	State string `json:"state"`
	// Replicas before scaling.
	Replicas int32 `json:"replicas"`
	// Since is when the state began.
	Since metav1.Time `json:"since"`
}

// WatchedClusterList is a list of WatchedClusters.
//
// +kubebuilder:object:root=true
type WatchedClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WatchedCluster `json:"items"`
}
