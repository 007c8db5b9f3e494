package restartbudget

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Input is what the leader knows now. It must be complete: a pod that is missing is gone, and with it its grants, but for the first minute of a leader.
type Input struct {
	// Settings must be valid.
	Settings Settings
	// Unread says why something of this may be as it was earlier, so that nothing is granted; "" if all is as it is now.
	Unread string
	// Frozen says why most of what is to be counted may not be seen, so that nothing is granted; "" if it is seen.
	Frozen string
	// Workloads that have guarded containers. The workload of a pod does not change.
	Workloads map[WorkloadID]*Workload
	// Guarded is the number of all guarded containers, but those of Native pods.
	Guarded int
	// Requests of the containers that ask now. A caller drops one which its agent has taken back, or does not repeat.
	Requests []Request
}

// WorkloadID names the top owner of a pod, or a pod without owner, whose Kind is Pod.
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
	// Replicas that are desired. Required: what is missing is unavailable.
	Replicas int
	// Pods by UID: all of them, also unguarded ones, but none in phase Succeeded or Failed.
	Pods map[string]*Pod
	// Budgets are the RestartBudgets that select its pods.
	Budgets []Budget
	// Disruption are the specs of the PodDisruptionBudgets that select its pods.
	Disruption []Limit
}

// Pod of a workload.
type Pod struct {
	Name, Node string
	// Template is a hash of the template of the pod, which differs after a rollout.
	Template string
	// Ready is its condition.
	Ready bool
	// Terminating pods have a deletionTimestamp.
	Terminating bool
	// Suspended pods are annotated sonde.dev/liveness: suspended, Native ones native.
	Suspended, Native bool
	// Reported is when its agent last said what its checks have found, zero if that is not known.
	Reported time.Time
	// Containers that are guarded.
	Containers []Container
}

// Container that is guarded.
type Container struct {
	Name string
	// Image as in the pod's spec.
	Image string
	// Patience is how long its check has to fail after a restart for that not to have helped: a container that starts fails at first, as the kubelet's
	// failureThreshold allows.
	Patience time.Duration
	// Restarts is its restart count.
	Restarts int
	// Passed is the restart count with which its liveness check has passed last, 0 if it has not passed since it restarted for the first time.
	Passed int
}

// ContainerKey identifies a container: UID of the pod, and name.
type ContainerKey struct{ PodUID, Name string }

// Request of a container whose liveness check fails. It may come again.
type Request struct {
	ContainerKey

	Workload WorkloadID
	// Restarts is the restart count of the container that fails.
	Restarts int
	// Since is when it asked first since its check passed last: the oldest is served first.
	Since time.Time
}

// candidate is a request with what it is about, nil if that is not known.
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

// find returns the pod, nil if it is gone.
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

// current reports whether the container exists and has not restarted since it asked.
func (c *candidate) current() bool { return c.known() && c.container.Restarts == c.Restarts }

func compareWorkloads(a, b WorkloadID) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

func compareContainers(a, b ContainerKey) int {
	return cmp.Or(cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Name, b.Name))
}
