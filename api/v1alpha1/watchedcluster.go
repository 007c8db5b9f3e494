package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WatchedCluster is a cluster whose nodes sonde-watchdog watches. While most of their leases are not renewed, although its API server answers, the
// dependants of the object, which act on nodes that fall silent, are scaled down.
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
	// KubeconfigSecretName is the Secret of this namespace whose key kubeconfig says how to reach the API server of the cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	KubeconfigSecretName string `json:"kubeconfigSecretName,omitempty"`
	// Local says that it is the cluster that has this object.
	Local bool `json:"local,omitempty"`
	// Paused says that nothing is scaled, in either direction. The cluster is watched nevertheless.
	Paused bool `json:"paused,omitempty"`
	// Dependants are scaled, in this namespace.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(d, self.exists_one(e, e.ref == d.ref))",message="each dependant may be given once"
	Dependants []WatchedDependant `json:"dependants"`
	// +optional
	Settings WatchSettings `json:"settings,omitzero"`
}

// WatchedDependant is what is scaled.
type WatchedDependant struct {
	Ref DependantRef `json:"ref"`
	// Optional says that it need not exist.
	Optional bool `json:"optional,omitempty"`
	// ScaleUp and ScaleDown say in which order. They are independent of each other.
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
	// Level orders dependants: lower ones come first, those of one level at once.
	// +kubebuilder:validation:Minimum=0
	Level int32 `json:"level"`
	// InitialDelay is waited before, if there is something to scale. Default 0s.
	InitialDelay *metav1.Duration `json:"initialDelay,omitempty"`
	// Timeout of scaling, without the delay. Default 30s.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// WatchSettings say how a cluster is watched. Their names are those of Gardener's Dependency Watchdog, as far as it has them.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nodeLeaseRecoveryFraction) || self.nodeLeaseRecoveryFraction <= (has(self.nodeLeaseFailureFraction) ? self.nodeLeaseFailureFraction : 0.6)",message="nodeLeaseRecoveryFraction must be at most nodeLeaseFailureFraction"
type WatchSettings struct {
	// ProbeInterval is the time between the end of a probe and the next one. Default 10s.
	ProbeInterval *metav1.Duration `json:"probeInterval,omitempty"`
	// InitialDelay is waited before the first probe. Default 30s.
	InitialDelay *metav1.Duration `json:"initialDelay,omitempty"`
	// ProbeTimeout is that of a whole probe. Default 30s.
	ProbeTimeout *metav1.Duration `json:"probeTimeout,omitempty"`
	// BackoffJitterFactor is the share of the interval that is added to it at most, at random. Default 0.2.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	BackoffJitterFactor *float64 `json:"backoffJitterFactor,omitempty"`
	// BackOffDurationForThrottledRequests is waited after an answer 429 that does not say how long. Default 10s.
	BackOffDurationForThrottledRequests *metav1.Duration `json:"backOffDurationForThrottledRequests,omitempty"`
	// KCMNodeMonitorGraceDuration is --node-monitor-grace-period of the cluster's controller-manager. Default 40s.
	KCMNodeMonitorGraceDuration *metav1.Duration `json:"kcmNodeMonitorGraceDuration,omitempty"`
	// LeaseExpiryFraction of that duration is how long a lease is not renewed when it counts as expired. Default 0.75.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:ExclusiveMinimum=true
	// +kubebuilder:validation:Maximum=1
	LeaseExpiryFraction *float64 `json:"leaseExpiryFraction,omitempty"`
	// NodeLeaseFailureFraction of the leases is how many have to be expired for the nodes to be lost. Default 0.6.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:ExclusiveMinimum=true
	// +kubebuilder:validation:Maximum=1
	NodeLeaseFailureFraction *float64 `json:"nodeLeaseFailureFraction,omitempty"`
	// NodeLeaseRecoveryFraction is the fraction below which they have to be for as long as a lease takes to expire, and three probes in a row, for the nodes
	// to be seen again. Default two thirds of nodeLeaseFailureFraction.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:ExclusiveMinimum=true
	// +kubebuilder:validation:Maximum=1
	NodeLeaseRecoveryFraction *float64 `json:"nodeLeaseRecoveryFraction,omitempty"`
}

// WatchedClusterStatus is what the leader of sonde-watchdog has seen and done. The next one goes on from there.
type WatchedClusterStatus struct {
	// Epoch of the leader that has written it. One with a lower epoch writes nothing any more.
	Epoch int64 `json:"epoch,omitempty"`
	// Verdict about all nodes: seen, lost or unknown. Cause is why it is not seen, Since when it began.
	Verdict string       `json:"verdict,omitempty"`
	Cause   string       `json:"cause,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
	// LostSince is there until probes have seen the nodes for long enough, also while the verdict is unknown.
	LostSince *metav1.Time `json:"lostSince,omitempty"`
	// Zones that are not seen, at most 32.
	Zones []WatchedZone `json:"zones,omitempty"`
	// Counts of the nodes, as the last probe that could read them has found them: those of all, and of each zone, at most 33. They are written with a
	// verdict, and else at most once a minute.
	Counts []NodeCount `json:"counts,omitempty"`
	// Steps are the dependants that are scaled down, or on their way.
	Steps []ScaleStep `json:"steps,omitempty"`
	// Conditions of the object. Accepted says whether it is used as it is written.
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
	// Zone is empty for those of all.
	Zone string `json:"zone,omitempty"`
	// Nodes that are counted; Silent ones do not renew their leases, and of Unheard ones it is not known yet.
	Nodes   int32 `json:"nodes"`
	Silent  int32 `json:"silent"`
	Unheard int32 `json:"unheard"`
}

// ScaleStep is what was done to a dependant, or what is about to be.
type ScaleStep struct {
	Ref DependantRef `json:"ref"`
	// State is Lowering, Lowered, Raising, or Kept if its replicas were set by another client meanwhile.
	State string `json:"state"`
	// Replicas that it had before.
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
