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
}

func (p *pod) guarded() bool { return p != nil && len(p.Containers) > 0 }

// readPod returns false for pods that have ended.
func readPod(p *corev1.Pod) (pod, bool) {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return pod{}, false
	}
	r := pod{
		uid: string(p.UID), workload: workloadOf(p),
		Pod: restartbudget.Pod{
			Name: p.Name, Node: intern(p.Spec.NodeName), Template: templateOf(p), Terminating: p.DeletionTimestamp != nil,
		},
	}
	for _, c := range p.Status.Conditions {
		r.Ready = r.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	guarded, decides := guardedContainers(&p.Spec)
	if len(guarded) == 0 {
		return r, true
	}
	r.labels = maps.Clone(p.Labels)
	statuses := map[string]*corev1.ContainerStatus{}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			statuses[list[i].Name] = &list[i]
		}
	}
	r.decides = decides
	for _, name := range guarded {
		c := restartbudget.Container{Name: intern(name)}
		if spec := podspec.Container(&p.Spec, name); spec != nil {
			c.Image = intern(spec.Image)
		}
		if s := statuses[name]; s != nil {
			c.Restarts = int(s.RestartCount)
		}
		r.Containers = append(r.Containers, c)
	}
	return r, true
}

// guardedContainers returns those that the probe table of the sidecar names, sorted, and the longest that the kubelet needs to restart one of them. What
// annotations say is not asked: the agent has the table, and goes by it as long as the pod runs.
func guardedContainers(spec *corev1.PodSpec) (all []string, decides time.Duration) {
	sidecar := podspec.Container(spec, mesh.ContainerSidecar)
	if sidecar == nil {
		return nil, 0
	}
	for i := range sidecar.Env {
		if sidecar.Env[i].Name != mesh.EnvProbeTable || !strings.Contains(sidecar.Env[i].Value, `"guarded"`) { // most pods of most meshes
			continue
		}
		table, _, err := mesh.ParseProbeTable(sidecar.Env[i].Value)
		if err != nil {
			continue // its agent does not start with it
		}
		for _, p := range table {
			if p.Guarded {
				all, decides = append(all, p.Container), max(decides, decidesIn(p))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), decides
}

// workloadOf returns the top owner: a Deployment for a pod of its ReplicaSet, whose name ends with the hash of the template.
func workloadOf(p *corev1.Pod) restartbudget.WorkloadID {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return restartbudget.WorkloadID{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}
	}
	w := restartbudget.WorkloadID{Kind: intern(owner.Kind), Namespace: intern(p.Namespace), Name: intern(owner.Name)}
	if hash := p.Labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
		if name, is := strings.CutSuffix(owner.Name, "-"+hash); is {
			w.Kind, w.Name = "Deployment", intern(name)
		}
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
