package restarts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Report is what a replica knows of guarded pods, whether it leads or not.
type Report struct {
	// Pods that are guarded, sorted by namespace and name.
	Pods []Pod
	// Workloads of them.
	Workloads map[restartbudget.WorkloadID]*Workload
}

// Pod is one that is guarded.
type Pod struct {
	watch.Key

	UID, Node string
	Ready     bool
	Workload  restartbudget.WorkloadID
	// Unhelpful says that restarts of its workload with its template have not helped, so that it waits.
	Unhelpful bool
	// Containers that are guarded, sorted by name.
	Containers []Container
}

// Container of a guarded pod.
type Container struct {
	Name     string
	Restarts int
	// Failing is nil if its last check has not failed. Passing says that it has passed; with neither the agent has not said anything.
	Failing *Failing
	Passing bool
	// Grant is the newest one, nil if there is none.
	Grant *restartbudget.Grant
}

// Workload of guarded pods.
type Workload struct {
	restartbudget.Standing

	// Grants of its containers: those in progress first, then the newest.
	Grants []Grant
}

// Grant of a container of a pod.
type Grant struct {
	restartbudget.Grant

	Pod string
	// InProgress grants take a place of their workload: they have not ended, and their pod is there.
	InProgress bool
}

// Report returns what this replica knows. Its error is what has not been read yet.
func (r *Restarts) Report() (*Report, error) {
	if err := r.missing(); err != nil {
		return nil, err
	}
	liveness, all := r.o.Liveness(), r.allGrants()
	in, pods := r.cluster.input(liveness)
	state := restartbudget.Restore(time.Now(), grantsOf(all))
	report := &Report{Workloads: map[restartbudget.WorkloadID]*Workload{}}
	newest, restarting := map[restartbudget.ContainerKey]*grant{}, map[string]bool{}
	for id := range in.Workloads {
		report.Workloads[id] = &Workload{}
	}
	for _, g := range all {
		_, there := pods[g.ID.PodUID]
		inProgress := there && g.Ended.IsZero()
		restarting[g.ID.PodUID] = restarting[g.ID.PodUID] || inProgress
		if before := newest[g.ID.ContainerKey]; before == nil || compareTries(g, before) > 0 {
			newest[g.ID.ContainerKey] = g
		}
		if w := report.Workloads[g.Workload]; w != nil {
			w.Grants = append(w.Grants, Grant{g.Grant, g.pod.Name, inProgress})
		}
	}
	for id, w := range in.Workloads {
		report.Workloads[id].Standing = w.Standing(id, restarting)
		slices.SortFunc(report.Workloads[id].Grants, compareShown)
	}
	for _, key := range r.cluster.pods.Keys() {
		if p := r.cluster.pods.Get(key); p.guarded() {
			report.Pods = append(report.Pods, p.report(key, liveness[key], newest, state))
		}
	}
	slices.SortFunc(report.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return report, nil
}

func compareTries(a, b *grant) int {
	return cmp.Or(cmp.Compare(a.ID.Restarts, b.ID.Restarts), cmp.Compare(a.ID.Try, b.ID.Try))
}

func compareShown(a, b Grant) int {
	switch {
	case a.InProgress && !b.InProgress:
		return -1
	case b.InProgress && !a.InProgress:
		return 1
	}
	return cmp.Or(b.Granted.Compare(a.Granted), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.ID.Name, b.ID.Name), cmp.Compare(b.ID.Restarts, a.ID.Restarts))
}

func (p *pod) report(key watch.Key, said Liveness, newest map[restartbudget.ContainerKey]*grant, state *restartbudget.State) Pod {
	r := Pod{Key: key, UID: p.uid, Node: p.Node, Ready: p.Ready, Workload: p.workload, Unhelpful: state.Waits(p.workload, p.Template)}
	for _, c := range p.Containers {
		shown := Container{Name: c.Name, Restarts: c.Restarts, Passing: slices.Contains(said.Passing, c.Name)}
		if i := slices.IndexFunc(said.Failing, func(f Failing) bool { return f.Container == c.Name }); i >= 0 {
			shown.Failing = &said.Failing[i]
		}
		if g := newest[restartbudget.ContainerKey{PodUID: p.uid, Name: c.Name}]; g != nil {
			shown.Grant = &g.Grant
		}
		r.Containers = append(r.Containers, shown)
	}
	return r
}

// lookTimeout is how long the API server may take to say whether a pod exists.
const lookTimeout = 5 * time.Second

// Unguarded is a pod that is not guarded, and why, to be shown.
type Unguarded struct {
	watch.Key

	Why string
}

// Look asks the API server for pods of that name, in all namespaces if that is "", and returns why they are not guarded. It is for those that are
// not in a Report.
func (r *Restarts) Look(ctx context.Context, namespace, name string) ([]Unguarded, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := r.o.Watching.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return nil, fmt.Errorf("read pod %q: %w", name, err)
	}
	var all []Unguarded
	for i := range found.Items {
		p := &found.Items[i]
		all = append(all, Unguarded{watch.Key{Namespace: p.Namespace, Name: p.Name}, whyUnguarded(p)})
	}
	return all, nil
}

func whyUnguarded(p *corev1.Pod) string {
	guarded := p.Annotations[mesh.AnnotationGuardedLiveness]
	containers, _ := guardedContainers(probeTable(&p.Spec, false))
	switch {
	case podspec.Ended(p):
		return "it has ended"
	case p.Labels[mesh.LabelMesh] == "" || podspec.Container(&p.Spec, mesh.ContainerSidecar) == nil:
		return "it has no sidecar"
	case len(containers) > 0:
		return "this replica of the control plane has not read it yet"
	case guarded == "":
		return "it has no annotation " + mesh.AnnotationGuardedLiveness + ": that of its namespace is for pods that are made after it"
	case guarded != "enabled":
		return fmt.Sprintf("its annotation %s is %.40q", mesh.AnnotationGuardedLiveness, guarded)
	}
	return "none of its containers has a liveness probe that can be guarded: sondectl probes explain says why"
}
