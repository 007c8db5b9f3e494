package restarts

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

// workload is a Deployment.
type workload struct {
	namespace string
	name      string
	replicas  int
	probes    []mesh.Probe // of its containers
	template  int
	bad       map[int]*fault // the fault of all pods of a template
	// unhelpful has the grants of restarts that a leader has found unhelpful, by template.
	unhelpful map[int]map[string]bool
	away      *agentv1.WhenAway
	pods      []*pod     // including deleted pods
	budgets   []budgetAt // in order of time
}

// budgetAt is how many pods may be unavailable from a time on.
type budgetAt struct {
	at   time.Time
	pods int
}

// fault is the reason why a liveness probe fails.
type fault struct {
	unready bool // readiness fails, too
	heals   int  // after this many restarts; 0 means never
}

// pod is a pod, with its part of the kubelet of its node. simulation.mu guards its fields, except for those that
// never change.
type pod struct {
	sim                         *simulation
	of                          *workload
	name, uid, host, node, hash string
	template                    int
	containers                  []*container
	cancel                      context.CancelFunc
	tasks                       sync.WaitGroup
	changed                     chan struct{}

	agent          *agent // nil while it is dead
	agents         int
	keeping        sync.Mutex
	kept           *agentv1.Restarts // guarded by keeping
	sidecarDown    bool
	sidecars       int       // sidecars that have ended
	stopped        bool      // all processes of the sidecar are stopped
	forgot         time.Time // when its agent lost its state
	lost           time.Time // since when the agent has no session; zero with a session
	connected      time.Time // when it got its last session
	ready          bool
	deleted        time.Time
	gone           bool
	available      bool      // as at the API server: Ready, and not deleted
	availableSince time.Time // since when available has its value
}

// container is a container with a guarded liveness probe.
type container struct {
	pod        *pod
	probe      mesh.Probe
	readyAfter time.Duration

	restarts int
	running  bool
	started  time.Time
	broken   *fault
	checked  bool // since its start
	worker   worker
	again    chan struct{} // receives a value when the kubelet has restarted
}

func (c *container) name() string { return c.probe.Container }

func (c *container) failing() bool { return c.fault() != nil }

func (c *container) fault() *fault {
	if bad := c.pod.of.bad[c.pod.template]; bad != nil {
		return bad
	}
	return c.broken
}

// ready returns the result of the readiness probe.
func (c *container) ready() bool {
	f := c.fault()
	return c.running && time.Since(c.started) >= c.readyAfter && (f == nil || !f.unready)
}

// proxy is the name of the Dataplane.
func (p *pod) proxy() string { return p.name + "." + p.of.namespace }

func (p *pod) id() mesh.ID { return mesh.MakeID(mesh.DefaultMesh, p.proxy()) }

// keep is a held.Options.Keep.
func (p *pod) keep(m *agentv1.Restarts) {
	p.keeping.Lock() // not simulation.mu, which the kubelet holds while it asks
	defer p.keeping.Unlock()
	p.kept = proto.CloneOf(m)
}

func (p *pod) takeKept() *agentv1.Restarts {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	return p.kept
}

// update recomputes whether the pod is Ready. The caller holds mu.
func (p *pod) update() {
	ready := true
	for _, c := range p.containers {
		ready = ready && c.ready()
	}
	if ready != p.ready {
		p.ready = ready
		p.sim.Note("%s is Ready: %v", p.name, ready)
	}
	p.sim.settle(p)
	p.statusChanged()
}

func (p *pod) statusChanged() {
	select {
	case p.changed <- struct{}{}:
	default: // the last value has not been written yet
	}
}

// writeStatus writes the changed status as soon as the API server responds.
func (p *pod) writeStatus(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
		for ok := false; !ok; ok = !p.sim.apiAway() {
			if !pause(ctx, 10*time.Millisecond+p.sim.latency(longestAnswer)) {
				return
			}
		}
		p.sim.mu.Lock()
		o, available := p.object(), p.ready && p.deleted.IsZero()
		if available != p.available {
			p.available, p.availableSince = available, time.Now()
		}
		p.sim.mu.Unlock()
		if _, err := p.sim.api.patch("pods", keyOf(o), encode(o)); err != nil { // the pod is new
			p.sim.api.put("pods", o)
		}
	}
}

// The caller of object holds mu.
func (p *pod) object() *corev1.Pod {
	ready := corev1.ConditionFalse
	if p.ready {
		ready = corev1.ConditionTrue
	}
	sidecar := corev1.Container{Name: mesh.ContainerSidecar}
	o := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.of.namespace, Name: p.name, UID: types.UID(p.uid), Annotations: map[string]string{mesh.AnnotationGuardedLiveness: "enabled"},
			Labels:          map[string]string{"app": p.of.name, "pod-template-hash": p.hash, mesh.LabelMesh: mesh.DefaultMesh},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: p.of.name + "-" + p.hash, Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: p.node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
	if !p.deleted.IsZero() {
		o.DeletionTimestamp = new(metav1.NewTime(p.deleted))
	}
	var table []mesh.Probe
	for _, c := range p.containers {
		table = append(table, c.probe)
		o.Spec.Containers = append(o.Spec.Containers, corev1.Container{Name: c.name(), Image: "app:1"})
		status := corev1.ContainerStatus{Name: c.name(), RestartCount: int32(c.restarts), Ready: c.ready(), Started: new(c.running), ContainerID: fmt.Sprintf("containerd://%s-%d", c.name(), c.restarts)}
		if c.restarts > 0 {
			status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", StartedAt: metav1.NewTime(c.started.Add(-time.Second))}
		}
		o.Status.ContainerStatuses = append(o.Status.ContainerStatuses, status)
	}
	o.Status.ContainerStatuses = append(o.Status.ContainerStatuses, corev1.ContainerStatus{Name: mesh.ContainerSidecar, RestartCount: int32(p.sidecars)})
	sidecar.Env = []corev1.EnvVar{{Name: mesh.EnvProbeTable, Value: string(encode(table))}}
	o.Spec.Containers = append(o.Spec.Containers, sidecar)
	return o
}

// dataplane returns the Dataplane of the pod.
func (p *pod) dataplane() *mesh.Dataplane {
	d := &mesh.Dataplane{}
	d.Mesh, d.Name = mesh.DefaultMesh, p.proxy()
	d.Identity = mesh.Identity{Instance: p.uid}
	d.Spec.Networking.Address = p.host
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: "web"}}}
	d.SetDefaults()
	return d
}

// startPod starts a pod of the newest template, with its agent.
func (s *simulation) startPod(ctx context.Context, w *workload) {
	s.started++
	hash := fmt.Sprint("t", w.template)
	p := &pod{
		sim: s, of: w, name: fmt.Sprintf("%s-%s-%d", w.name, hash, s.started), uid: fmt.Sprint("uid-", s.started), host: fmt.Sprintf("10.1.%d.%d", s.started/250, 1+s.started%250),
		node: fmt.Sprint("node", s.random.IntN(3)), hash: hash, template: w.template, changed: make(chan struct{}, 1), availableSince: time.Now(),
	}
	s.Note("%s is made", p.name)
	for _, probe := range w.probes {
		p.containers = append(p.containers, &container{
			pod: p, probe: probe, readyAfter: time.Duration(s.random.IntN(10)) * time.Second, running: true, started: time.Now(), again: make(chan struct{}, 1),
		})
	}
	ctx, p.cancel = context.WithCancel(ctx)
	s.mu.Lock()
	w.pods = append(w.pods, p)
	s.mu.Unlock()
	s.tell(func(r *replica) { r.Pipeline.Builder.Set(virtualplane.SourceObjects, p.dataplane()) })
	p.startAgent(ctx)
	p.tasks.Go(func() { p.writeStatus(ctx) })
	s.mu.Lock()
	defer s.mu.Unlock()
	p.update()
	for _, c := range p.containers {
		p.tasks.Go(func() { c.probeUntil(ctx) })
		p.later(ctx, c.readyAfter, p.update)
	}
}

// later calls a function with the lock held, unless the pod has been deleted by then.
func (p *pod) later(ctx context.Context, after time.Duration, do func()) {
	p.tasks.Go(func() {
		if pause(ctx, after) {
			p.sim.mu.Lock()
			defer p.sim.mu.Unlock()
			do()
		}
	})
}

// deletePod deletes a pod, which ends a while later.
func (s *simulation) deletePod(p *pod) {
	s.mu.Lock()
	s.Note("%s is deleted", p.name)
	p.deleted = time.Now()
	p.update()
	s.mu.Unlock()
}

// endPod removes a pod.
func (s *simulation) endPod(p *pod) {
	p.stopAgent()
	p.cancel()
	p.tasks.Wait()
	s.mu.Lock()
	p.gone = true
	if p.available {
		p.available, p.availableSince = false, time.Now()
	}
	s.mu.Unlock()
	if _, err := s.api.remove("pods", p.of.namespace+"/"+p.name); err != nil {
		s.Detail("%v", err) // its status was never written
	}
	s.tell(func(r *replica) { r.Pipeline.Builder.Delete(virtualplane.SourceObjects, p.dataplane().Key()) })
}
