//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// fleet is a Deployment whose liveness probes can fail, with observations of its pods.
type fleet struct {
	*namespace
	app  string
	pods int

	mu    sync.Mutex
	began time.Time // when the probes started to fail
	seen  map[types.UID]seenPod
	// curve has the number of pods that were not Ready, at each change.
	curve []point
	// before has the restarts of each pod when its probes started to fail.
	before map[types.UID]int32
	// mostDown is the largest number of pods that were not Ready at once; mostRestarting is the largest number that
	// had restarted and had not been Ready since.
	mostDown, mostRestarting int
	// worst lists the pods that were not Ready at mostDown.
	worst string
}

type seenPod struct {
	ready bool
	// restarts of the application, and their number when it was last Ready
	restarts, readyWith int32
	// text is the kubelet's last message about the pod.
	text string
}

type point struct {
	at   time.Duration
	down int
}

// newFleet creates a Deployment. guarded is the value of the annotation. The liveness probes fail after fail is
// called; edit may change the template.
func (n *namespace) newFleet(app string, pods int, guarded string, edit ...func(*corev1.PodTemplateSpec)) *fleet {
	n.t.Helper()
	d := newDeployment(app, int32(pods), nil)
	d.Spec.Template.Annotations[mesh.AnnotationGuardedLiveness] = guarded
	d.Spec.Template.Spec.NodeName = "" // the pods need the CPUs of more than one node
	c := &d.Spec.Template.Spec.Containers[0]
	c.Args = append(c.Args, "--grpc-service=liveness")
	c.LivenessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: portGRPC, Service: new("liveness")}},
		PeriodSeconds: 1, FailureThreshold: 3,
	}
	c.ReadinessProbe = healthz(3)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		p.TimeoutSeconds = 10 // only the response matters here, not its delay
	}
	c.ReadinessProbe.InitialDelaySeconds = 3
	for _, e := range edit {
		e(&d.Spec.Template)
	}
	n.create(d)
	return &fleet{namespace: n, app: app, pods: pods, seen: map[types.UID]seenPod{}}
}

// healthz returns a probe, once a second, of a path whose response the test can change.
func healthz(threshold int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(portHTTP)}},
		PeriodSeconds: 1, FailureThreshold: threshold,
	}
}

// watch waits until all pods run, and observes them until the test ends.
func (f *fleet) watch() {
	f.t.Helper()
	f.waitRolledOut(f.app)
	ctx, cancel := context.WithCancel(f.t.Context())
	pods := cluster.client.CoreV1().Pods(f.name)
	options := metav1.ListOptions{LabelSelector: "app=" + f.app}
	list, err := pods.List(ctx, options)
	if err != nil {
		f.t.Fatal(err)
	}
	f.began = time.Now()
	for i := range list.Items {
		f.see(&list.Items[i])
	}
	options.ResourceVersion = list.ResourceVersion
	w, err := pods.Watch(ctx, options)
	if err != nil {
		f.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			if p, is := e.Object.(*corev1.Pod); is && e.Type != watch.Deleted {
				f.see(p)
			}
		}
		if ctx.Err() == nil {
			f.t.Errorf("the watch of %s has ended: the observations are incomplete", f.app)
		}
	}()
	f.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func (f *fleet) see(p *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.seen[p.UID]
	s.ready, s.restarts, s.text = isReady(p) == nil, status(p, "app").RestartCount, p.Name+" "+summary(p)
	if s.ready {
		s.readyWith = s.restarts
	}
	f.seen[p.UID] = s
	down, restarting, texts := 0, 0, []string(nil)
	for _, s := range f.seen {
		if !s.ready {
			down++
			texts = append(texts, s.text)
		}
		if s.restarts > s.readyWith {
			restarting++
		}
	}
	if down > f.mostDown {
		f.mostDown, f.worst = down, strings.Join(texts, "\n  ")
	}
	f.mostRestarting = max(f.mostRestarting, restarting)
	if len(f.curve) == 0 || f.curve[len(f.curve)-1].down != down {
		f.curve = append(f.curve, point{time.Since(f.began), down})
	}
}

// fail makes the liveness probes of all pods fail until their containers restart, and also their readiness probes if
// readiness is set.
func (f *fleet) fail(readiness bool) {
	f.t.Helper()
	f.mu.Lock()
	f.began, f.curve, f.mostDown, f.mostRestarting, f.before = time.Now(), nil, 0, 0, map[types.UID]int32{}
	for uid, s := range f.seen {
		f.before[uid] = s.restarts
	}
	f.mu.Unlock()
	for _, pod := range f.podsOf(f.app) {
		if readiness {
			f.setHealthz(pod, 500)
		}
		f.setLive(pod, false)
	}
}

// setLive makes the liveness probe of a pod fail or pass.
func (f *fleet) setLive(pod string, live bool) {
	f.t.Helper()
	status := "NOT_SERVING"
	if live {
		status = "SERVING"
	}
	f.namespace.app(pod).waitPut("/grpc", url.Values{"service": {"liveness"}, "status": {status}})
}

func (n *namespace) setHealthz(pod string, code int) {
	n.t.Helper()
	n.app(pod).waitPut("/http", url.Values{"status": {strconv.Itoa(code)}})
}

// restarts returns the application's restarts in all pods, and how many pods have not been Ready since their restart.
func (f *fleet) restarts() (all, restarting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.seen {
		all += int(s.restarts)
		if s.restarts > s.readyWith {
			restarting++
		}
	}
	return all, restarting
}

// waitRestarts waits until there have been want restarts, and fails the test if there are more.
func (f *fleet) waitRestarts(want int) {
	f.t.Helper()
	f.wait(fmt.Sprintf("%d restarts of %s", want, f.app), func() error {
		if all, _ := f.restarts(); all < want {
			return fmt.Errorf("there were %d", all)
		}
		return nil
	})
}

// waitHealed waits until each container has restarted since the probes started to fail, and all pods
// are Ready.
func (f *fleet) waitHealed() {
	f.t.Helper()
	f.wait("the restart of all of "+f.app, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for uid, s := range f.seen {
			if s.restarts == f.before[uid] || !s.ready {
				return fmt.Errorf("pod %s: %+v", uid, s)
			}
		}
		return nil
	})
}

// check fails the test if more than most pods restarted at once, and logs the curve.
func (f *fleet) check(most int) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.t.Log(f.text())
	if f.mostRestarting > most {
		f.t.Errorf("%s: %d of %d pods restarted at once, want at most %d", f.app, f.mostRestarting, f.pods, most)
	}
}

// text draws the curve of pods that are not Ready, one point per two seconds.
func (f *fleet) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: at most %d of %d pods were not Ready, and %d restarted, at once\n", f.app, f.mostDown, f.pods, f.mostRestarting)
	down := 0
	for at, i := time.Duration(0), 0; i < len(f.curve); at += 2 * time.Second {
		for ; i < len(f.curve) && f.curve[i].at <= at; i++ {
			down = f.curve[i].down
		}
		fmt.Fprintf(&text, "%4.0f s %s\n", at.Seconds(), strings.Repeat("#", down))
	}
	return text.String()
}

// newBudget returns a RestartBudget for the pods of an application.
func newBudget(app, spec string) string {
	return "apiVersion: sonde.dev/v1alpha1\nkind: RestartBudget\nmetadata: {name: " + app + "}\nspec: {selector: {matchLabels: {app: " + app + "}}, " + spec + "}\n"
}
