package restartbudget

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Input is the current state, as the leader knows it. It must be complete: missing pods are treated as deleted,
// together with their grants, except in a leader's first minute.
type Input struct {
	// Settings must be valid.
	Settings Settings
	// Unread is why the input may be outdated, so that nothing is granted; "" if it is current.
	Unread string
	// Frozen is why most nodes or proxies may be disconnected, so that nothing is granted; "" if they are connected.
	Frozen string
	// Workloads that have guarded containers. The workload of a pod does not change.
	Workloads map[WorkloadID]*Workload
	// Guarded is the number of guarded containers, without pods that have Native.
	Guarded int
	// Requests of containers that fail now. A caller drops requests that the agent withdraws or does not repeat.
	Requests []Request
}

// WorkloadID identifies the top owner of a pod; for a pod without an owner the pod itself, with Kind Pod.
type WorkloadID struct{ Kind, Namespace, Name string }

// String returns Kind/namespace/name.
func (w WorkloadID) String() string { return w.Kind + "/" + w.Namespace + "/" + w.Name }

// ParseWorkloadID is the reverse of WorkloadID.String. It returns false for other texts.
func ParseWorkloadID(text string) (WorkloadID, bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return WorkloadID{}, false
	}
	return WorkloadID{parts[0], parts[1], parts[2]}, true
}

// Workload is the top owner of pods.
type Workload struct {
	// Replicas is the desired number of pods. Required: pods that are missing count as unavailable.
	Replicas int
	// Pods by UID, including unguarded ones, but not those in phase Succeeded or Failed.
	Pods map[string]*Pod
	// Budgets are the RestartBudgets that select its pods.
	Budgets []Budget
	// Disruption has the specs of the PodDisruptionBudgets that select its pods.
	Disruption []Limit
}

// Pod of a workload.
type Pod struct {
	Name, Node string
	// Template is a hash of the pod's template, which changes in a rollout.
	Template string
	// Ready is the condition Ready.
	Ready bool
	// Terminating pods have a deletionTimestamp.
	Terminating bool
	// Suspended says that the pod is annotated sonde.dev/liveness: suspended, Native that the value is native.
	Suspended, Native bool
	// Reported is when its agent last reported the results of its probes, zero if unknown.
	Reported time.Time
	// Containers are the guarded ones.
	Containers []Container
}

// Container is a guarded container.
type Container struct {
	Name string
	// Image is the image in the pod's spec.
	Image string
	// Patience is how long the probe must fail after a restart before the restart counts as unhelpful: a starting
	// container fails at first, which the kubelet's failureThreshold allows.
	Patience time.Duration
	// Restarts is its restart count.
	Restarts int
	// Passed is the restart count at which its liveness probe last passed, 0 if it has not passed since the first
	// restart.
	Passed int
}

// ContainerKey identifies a container by its pod's UID and its name.
type ContainerKey struct{ PodUID, Name string }

// Request of a container whose liveness probe fails. Agents repeat it.
type Request struct {
	ContainerKey

	Workload WorkloadID
	// Restarts is the restart count of the failing container.
	Restarts int
	// Since is when the current failure began. The oldest request is served first.
	Since time.Time
}

// candidate is a request with its workload, pod and container; unknown ones are nil.
type candidate struct {
	Request

	workload  *Workload
	pod       *Pod
	container *Container
}

func (p *Pod) find(container string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == container {
			return &p.Containers[i]
		}
	}
	return nil
}

// find returns the pod and its workload; the pod is nil if it was deleted.
func (in *Input) find(workload WorkloadID, podUID string) (*Workload, *Pod) {
	w := in.Workloads[workload]
	if w == nil {
		return nil, nil
	}
	return w, w.Pods[podUID]
}

// candidates returns the requests, oldest first.
func (in *Input) candidates() []candidate {
	all := make([]candidate, len(in.Requests))
	for i, request := range in.Requests {
		c := candidate{Request: request}
		if c.workload, c.pod = in.find(request.Workload, request.PodUID); c.pod != nil {
			c.container = c.pod.find(request.Name)
		}
		all[i] = c
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if order := a.Since.Compare(b.Since); order != 0 {
			return order
		}
		return cmp.Or(
			compareWorkloads(a.Workload, b.Workload), cmp.Compare(a.podName(), b.podName()),
			compareContainers(a.ContainerKey, b.ContainerKey), cmp.Compare(a.Restarts, b.Restarts),
		)
	})
	return all
}

func (c *candidate) podName() string {
	if c.pod == nil {
		return ""
	}
	return c.pod.Name
}

// known reports whether the container exists.
func (c *candidate) known() bool { return c.container != nil }

// current reports whether the container exists and has not restarted since the request.
func (c *candidate) current() bool { return c.known() && c.container.Restarts == c.Restarts }

func compareWorkloads(a, b WorkloadID) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

func compareContainers(a, b ContainerKey) int {
	return cmp.Or(cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Name, b.Name))
}
