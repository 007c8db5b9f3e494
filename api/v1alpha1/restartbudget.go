package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RestartBudget limits how many pods of a workload may restart at a time because their guarded liveness probes fail,
// and sets how failures are handled while the control plane is unreachable. Each workload with selected pods counts
// separately. If several budgets apply, the strictest holds.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=sonde
// +kubebuilder:printcolumn:name="Max unavailable",type=string,JSONPath=`.spec.maxUnavailable`
// +kubebuilder:printcolumn:name="Min available",type=string,JSONPath=`.spec.minAvailable`
// +kubebuilder:printcolumn:name="When away",type=string,JSONPath=`.spec.whenAway`
// +kubebuilder:printcolumn:name="Matched",type=integer,JSONPath=`.status.matched`
// +kubebuilder:printcolumn:name="In progress",type=integer,JSONPath=`.status.inProgress`
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.held`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RestartBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RestartBudgetSpec   `json:"spec"`
	Status RestartBudgetStatus `json:"status,omitzero"`
}

// RestartBudgetSpec is the desired state. It needs at least one of maxUnavailable, minAvailable, perMinute and
// whenAway.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.maxUnavailable) && has(self.minAvailable))",message="maxUnavailable and minAvailable: only one of them is allowed"
// +kubebuilder:validation:XValidation:rule="has(self.maxUnavailable) || has(self.minAvailable) || has(self.perMinute) || has(self.whenAway)",message="at least one of maxUnavailable, minAvailable, perMinute and whenAway is required"
// +kubebuilder:validation:XValidation:rule="has(self.nativeAfter) || !has(self.whenAway) || self.whenAway != 'native'",message="nativeAfter is required with whenAway native: a duration from 1m to 24h, such as 5m or 1h30m"
// +kubebuilder:validation:XValidation:rule="!has(self.nativeAfter) || has(self.whenAway) && self.whenAway == 'native'",message="nativeAfter is allowed only with whenAway native"
type RestartBudgetSpec struct {
	// Selector of pods in the budget's namespace. An empty one, {}, selects all. Only guarded pods count.
	// +required
	Selector *PodSelector `json:"selector"`
	// MaxUnavailable pods of a workload, as a number or a share of the desired pods such as "25%". A share is rounded
	// down, but more than 0 % allows at least one pod. With 0 nothing restarts.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^(100|[0-9]{1,2})%$')",message="must be a number of pods from 0 to 1000000, or a share from \"0%\" to \"100%\""
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// MinAvailable pods of a workload, as a number or a share of the desired pods such as "75%". A share is rounded up.
	// If no pod may then be unavailable, nothing restarts.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^(100|[0-9]{1,2})%$')",message="must be a number of pods from 0 to 1000000, or a share from \"0%\" to \"100%\""
	// +optional
	MinAvailable *intstr.IntOrString `json:"minAvailable,omitempty"`
	// PerMinute is the maximum number of restarts per minute granted to all selected pods. Default: no limit.
	// +kubebuilder:validation:Minimum=1
	// +optional
	PerMinute *int32 `json:"perMinute,omitempty"`
	// WhenAway is how failures are handled while the agent has no session with the control plane: hold (default) holds
	// them back, with slots pods restart in turn, and with native the kubelet decides after nativeAfter.
	// +optional
	WhenAway WhenAway `json:"whenAway,omitempty"`
	// NativeAfter is how long the session must have been lost with whenAway native, such as 5m; 1m to 24h. Each agent
	// adds up to half of it at random.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$') && self != '' && duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="must be a duration from 1m to 24h, such as 5m or 1h30m"
	// +optional
	NativeAfter string `json:"nativeAfter,omitempty"`
}

// PodSelector selects pods by their labels, like a LabelSelector of Kubernetes: all parts must match. It is bounded,
// since each replica of the control plane keeps it and compares it with pods.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0))",message="matchExpressions: operator must be In or NotIn, with values, or Exists or DoesNotExist, without"
// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 64",message="matchExpressions: at most 64 values are allowed in sum"
// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) ? self.matchLabels.map(k, size(k) + size(self.matchLabels[k])).sum() : 0) + (has(self.matchExpressions) ? self.matchExpressions.map(e, size(e.key) + (has(e.values) ? e.values.map(v, size(v)).sum() : 0)).sum() : 0) <= 4096",message="all keys and values may have 4096 bytes in sum"
type PodSelector struct {
	// MatchLabels are labels that pods must have.
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`
	// MatchExpressions are further requirements on labels.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	MatchExpressions []LabelExpression `json:"matchExpressions,omitempty"`
}

// LabelExpression says which values a label may have.
type LabelExpression struct {
	// Key of the label.
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`
	// Operator is In or NotIn, with values, or Exists or DoesNotExist, without.
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// Values of In and NotIn.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Values []LabelValue `json:"values,omitempty"`
}

// LabelValue is a value of a label.
//
// +kubebuilder:validation:MaxLength=63
type LabelValue string

// Bounds of a PodSelector, as in its validation. Keys and values are limited in bytes.
const (
	MaxSelectorLabels      = 16
	MaxSelectorExpressions = 16
	MaxSelectorValues      = 64
	MaxSelectorBytes       = 4096
)

// WhenAway is how failures are handled while the agent has no session with the control plane.
//
// +kubebuilder:validation:Enum=hold;slots;native
type WhenAway string

// Values of WhenAway.
const (
	WhenAwayHold   WhenAway = "hold"
	WhenAwaySlots  WhenAway = "slots"
	WhenAwayNative WhenAway = "native"
)

// RestartBudgetStatus is written by the control plane's leader.
type RestartBudgetStatus struct {
	// ObservedGeneration is the generation of the spec that the status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Matched is how many guarded pods the budget selects.
	Matched int32 `json:"matched"`
	// InProgress is how many restarts of these pods are in progress.
	InProgress int32 `json:"inProgress"`
	// Held is how many of their containers fail and wait for a restart.
	Held int32 `json:"held"`
	// Conditions of the budget. Accepted says whether the control plane uses its current spec.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of ConditionAccepted of an accepted RestartBudget, beside ReasonAccepted.
const (
	// ReasonNoPods: it selects no guarded pod.
	ReasonNoPods = "NoPods"
	// ReasonOverlapping: other budgets apply to the same workloads.
	ReasonOverlapping = "Overlapping"
)

// RestartBudgetList is a list of RestartBudgets.
//
// +kubebuilder:object:root=true
type RestartBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RestartBudget `json:"items"`
}
