package restarts

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// pod is the record of a pod of the mesh. An unguarded pod has no Containers, but is one of its workload's pods.
type pod struct {
	uid      string
	workload restartbudget.WorkloadID
	labels   labels.Set
	// decides is the maximum time until the kubelet restarts a guarded container after it receives the first failure.
	decides time.Duration
	restartbudget.Pod

	wrong []wrongAnnotation
	// An ended pod is not one of its workload's pods. It is kept if it was guarded.
	ended     bool
	instances []instance
	condition condition // its current condition
	unguarded unguarded
	owner     owner
	// For guarded pods: the restart count of the sidecar, and when the kubelet began, or ended, a restart of all
	// containers at once.
	sidecarRestarts int
	restartedAll    time.Time
}

func (p *pod) guarded() bool { return p != nil && len(p.Containers) > 0 }

// has reports whether a grant is for a current container of the pod: another pod of the same name, or a later restart,
// needs another grant.
func (p *pod) has(id restartbudget.GrantID) bool {
	return p != nil && p.uid == id.PodUID && slices.ContainsFunc(p.Containers, func(c restartbudget.Container) bool {
		return c.Name == id.Name && c.Restarts == id.Restarts
	})
}

// sameGrants reports whether both pods have the same grants.
func (p *pod) sameGrants(other *pod) bool {
	return p != nil && p.uid == other.uid && slices.EqualFunc(p.Containers, other.Containers,
		func(a, b restartbudget.Container) bool {
			return a.Name == b.Name && a.Restarts == b.Restarts
		})
}

// readPod returns false for ended pods that were not guarded. The probe table of a pod's sidecar, not its annotation,
// decides whether it is guarded: the agent uses the table as long as the pod runs.
func readPod(p *corev1.Pod) (pod, bool) {
	asked := p.Annotations[mesh.AnnotationGuardedLiveness] == "enabled"
	table := probeTable(&p.Spec, asked)
	guarded, patience := guardedContainers(table)
	if podspec.Ended(p) {
		return pod{uid: string(p.UID), ended: true, instances: instancesOf(p, guarded, nil)}, len(guarded) > 0
	}
	r := pod{
		uid: string(p.UID), workload: workloadOf(p), condition: conditionOf(p),
		Pod: restartbudget.Pod{
			Name: p.Name, Node: intern(p.Spec.NodeName), Template: templateOf(p), Terminating: p.DeletionTimestamp != nil,
		},
	}
	for _, c := range p.Status.Conditions {
		r.Ready = r.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	if asked {
		r.unguarded = unguardedOf(p, table)
	}
	if len(guarded) > 0 {
		r.readGuarded(p, guarded, patience)
		r.decides = decidesIn(table)
	}
	return r, true
}

// readGuarded reads the fields that only guarded pods have.
func (p *pod) readGuarded(o *corev1.Pod, guarded []string, patience map[string]time.Duration) {
	p.labels, p.owner = maps.Clone(o.Labels), ownerOf(o)
	statuses := map[string]*corev1.ContainerStatus{}
	for _, list := range [][]corev1.ContainerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
		for i := range list {
			statuses[list[i].Name] = &list[i]
		}
	}
	p.instances = instancesOf(o, guarded, statuses)
	if s := statuses[mesh.ContainerSidecar]; s != nil {
		p.sidecarRestarts = int(s.RestartCount)
	}
	if c := podspec.Condition(o, corev1.AllContainersRestarting); c != nil {
		p.restartedAll = c.LastTransitionTime.Time
	}
	for _, name := range guarded {
		c := restartbudget.Container{Name: intern(name), Patience: patience[name]}
		if spec := podspec.Container(&o.Spec, name); spec != nil {
			c.Image = intern(spec.Image)
		}
		if s := statuses[name]; s != nil {
			c.Restarts = int(s.RestartCount)
		}
		p.Containers = append(p.Containers, c)
	}
}

// guardedContainers returns the containers that a probe table guards, sorted, and for each the maximum time to reach
// the user's failure threshold.
func guardedContainers(table mesh.ProbeTable) (all []string, patience map[string]time.Duration) {
	patience = map[string]time.Duration{}
	for _, p := range table {
		if p.Guarded {
			all, patience[p.Container] = append(all, p.Container), checksOf(p, p.FailureThreshold)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), patience
}

// probeTable returns the probe table of the sidecar, nil if its agent cannot read it. Unless all is set, it skips
// tables that guard nothing, as in most pods, without decoding them.
func probeTable(spec *corev1.PodSpec, all bool) mesh.ProbeTable {
	sidecar := podspec.Container(spec, mesh.ContainerSidecar)
	if sidecar == nil {
		return nil
	}
	for i := range sidecar.Env {
		if sidecar.Env[i].Name != mesh.EnvProbeTable || len(sidecar.Env[i].Value) > mesh.MaxProbeTable ||
			!all && !strings.Contains(sidecar.Env[i].Value, `"guarded"`) {
			continue
		}
		if table, _, err := mesh.ParseProbeTable(sidecar.Env[i].Value); err == nil {
			return table
		}
	}
	return nil
}

// workloadOf returns the top owner of a pod: its Deployment instead of the ReplicaSet, whose name ends with the hash of
// the template.
func workloadOf(p *corev1.Pod) restartbudget.WorkloadID {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return restartbudget.WorkloadID{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}
	}
	w := restartbudget.WorkloadID{Kind: intern(owner.Kind), Namespace: intern(p.Namespace), Name: intern(owner.Name)}
	if name, is := podspec.DeploymentOf(owner.Name, p); is && owner.Kind == "ReplicaSet" {
		w.Kind, w.Name = "Deployment", intern(name)
	}
	return w
}

// templateOf returns a hash of a pod's template, "" if it is unknown.
func templateOf(p *corev1.Pod) string {
	for _, label := range []string{"pod-template-hash", "controller-revision-hash"} {
		if hash := p.Labels[label]; hash != "" {
			return intern(hash)
		}
	}
	return ""
}

// intern returns an equal string that many pods share.
func intern(s string) string { return unique.Make(s).Value() }
