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

// pod is what is kept of a pod of the mesh. One that is not guarded has no Containers, and counts in its workload.
type pod struct {
	uid      string
	workload restartbudget.WorkloadID
	labels   labels.Set
	decides  time.Duration // the longest that the kubelet needs to restart a guarded container since it is told that its probe fails
	restartbudget.Pod

	wrong []wrongAnnotation
	// ended pods count in nothing. They are kept if they were guarded.
	ended     bool
	instances []instance
	condition condition // what it says now
	unguarded unguarded
	owner     owner
}

func (p *pod) guarded() bool { return p != nil && len(p.Containers) > 0 }

// has reports whether a grant is for a container of the pod as it is: another pod of the name, or another restart, needs another one.
func (p *pod) has(id restartbudget.GrantID) bool {
	return p != nil && p.uid == id.PodUID && slices.ContainsFunc(p.Containers, func(c restartbudget.Container) bool {
		return c.Name == id.Name && c.Restarts == id.Restarts
	})
}

// sameGrants reports whether both pods have the same grants.
func (p *pod) sameGrants(other *pod) bool {
	return p != nil && p.uid == other.uid && slices.EqualFunc(p.Containers, other.Containers, func(a, b restartbudget.Container) bool {
		return a.Name == b.Name && a.Restarts == b.Restarts
	})
}

// readPod returns false for pods that have ended and were not guarded. A pod is guarded by the probe table of its sidecar, not by its annotation: the agent
// has the table, and goes by it as long as the pod runs.
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

// readGuarded takes what is kept of a guarded pod alone.
func (p *pod) readGuarded(o *corev1.Pod, guarded []string, patience map[string]time.Duration) {
	p.labels, p.owner = maps.Clone(o.Labels), ownerOf(o)
	statuses := map[string]*corev1.ContainerStatus{}
	for _, list := range [][]corev1.ContainerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
		for i := range list {
			statuses[list[i].Name] = &list[i]
		}
	}
	p.instances = instancesOf(o, guarded, statuses)
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

// guardedContainers returns those that a probe table guards, sorted, and how long each takes at most to fail as often as the user allows.
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

// probeTable returns that of the sidecar, nil if there is none that its agent can read. Unless all are asked for, those that guard nothing are left out
// without being read: they are those of most pods of most meshes.
func probeTable(spec *corev1.PodSpec, all bool) mesh.ProbeTable {
	sidecar := podspec.Container(spec, mesh.ContainerSidecar)
	if sidecar == nil {
		return nil
	}
	for i := range sidecar.Env {
		if sidecar.Env[i].Name != mesh.EnvProbeTable || len(sidecar.Env[i].Value) > mesh.MaxProbeTable || !all && !strings.Contains(sidecar.Env[i].Value, `"guarded"`) {
			continue
		}
		if table, _, err := mesh.ParseProbeTable(sidecar.Env[i].Value); err == nil {
			return table
		}
	}
	return nil
}

// workloadOf returns the top owner: a Deployment for a pod of its ReplicaSet, whose name ends with the hash of the template.
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

// templateOf returns a hash of the template of a pod, "" if nothing says it.
func templateOf(p *corev1.Pod) string {
	for _, label := range []string{"pod-template-hash", "controller-revision-hash"} {
		if hash := p.Labels[label]; hash != "" {
			return intern(hash)
		}
	}
	return ""
}

// intern returns a string that many pods share.
func intern(s string) string { return unique.Make(s).Value() }
