package restarts

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// nothingRestarts makes the leader hold all containers.
var nothingRestarts = restartbudget.Settings{Blacklist: restartbudget.Blacklist{Namespaces: []string{"shop"}}}

// running sets the containers of a pod and its sidecar to running.
func running(p *corev1.Pod) {
	p.Status.ContainerStatuses[0].Started = new(true)
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: mesh.ContainerSidecar, Started: new(true)})
}

// restarts restarts the container app of a pod, after it has run for a minute and ended with that exit code and reason.
func restarts(code int32, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		s := &p.Status.ContainerStatuses[0]
		s.RestartCount++
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, StartedAt: metav1.NewTime(time.Now().Add(-time.Minute))}
	}
}

// kills adds the kubelet's event that it kills a container of web-0.
func (a *api) kills(container, message string, ago time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.killing = append(a.killing, corev1.Event{
		InvolvedObject: corev1.ObjectReference{FieldPath: "spec.containers{" + container + "}"}, Reason: killing, Message: message,
		LastTimestamp: metav1.NewTime(time.Now().Add(-ago)),
	})
}

// unheldEvents returns the events about restarts without a grant.
func (a *api) unheldEvents() int { return len(a.eventsOf(podcause.RestartUnheld)) }

func TestUnheldRestart(t *testing.T) {
	const forLiveness = "Container app failed liveness probe, will be restarted"
	killed := func(a *api) { a.kills("app", forLiveness, time.Second) }
	for name, tc := range map[string]struct {
		before func(*api)          // before the container restarts
		pod    func(*corev1.Pod)   // changes the pod before that
		change func(p *corev1.Pod) // how it restarts
		want   int
	}{
		"it ends when it is told to":     {before: killed, change: restarts(0, "Completed"), want: 1},
		"it is killed":                   {before: killed, change: restarts(exitKilled, "Error"), want: 1},
		"of a native sidecar":            {before: func(a *api) { a.kills("app", "Init container app failed liveness probe", 0) }, change: restarts(1, "Error"), want: 1},
		"the kubelet's event is dropped": {change: restarts(exitTerminated, "Error"), want: 1},
		"no right to read events":        {before: func(a *api) { a.answer = forbidEvents }, change: restarts(exitKilled, "Error"), want: 1},
		"the last event counts": {before: func(a *api) {
			a.kills("app", "Container app definition changed, will be restarted", 20*time.Second)
			a.kills("app", forLiveness, 10*time.Second)
		}, change: restarts(1, "Error"), want: 1},
		"held until a moment ago": {before: func(a *api) {
			killed(a)
			a.pass("web-0")
			wait(30 * time.Second)
		}, change: restarts(1, "Error"), want: 1},

		"its own end":                  {change: restarts(1, "Error")},
		"its own good end":             {change: restarts(0, "Completed")},
		"out of memory":                {before: killed, change: restarts(exitKilled, "OOMKilled")},
		"the node was started again":   {before: killed, change: restarts(exitUnknown, "Unknown")},
		"the runtime has lost it":      {change: restarts(exitKilled, "ContainerStatusUnknown")},
		"its last state is lost":       {before: killed, change: func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount++ }},
		"another container was killed": {before: func(a *api) { a.kills("other", forLiveness, 0) }, change: restarts(1, "Error")},
		"an event of an earlier one":   {before: func(a *api) { a.kills("app", forLiveness, 2*time.Minute) }, change: restarts(1, "Error")},
		"for its startup probe":        {before: func(a *api) { a.kills("app", "Container app failed startup probe, will be restarted", 0) }, change: restarts(exitKilled, "Error")},
		"for another image":            {before: func(a *api) { a.kills("app", "Container app definition changed, will be restarted", 0) }, change: restarts(exitTerminated, "Error")},
		"it has not started":           {pod: func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Started = new(false) }, before: killed, change: restarts(exitKilled, "Error")},
		"the pod is deleted": {before: killed, change: func(p *corev1.Pod) {
			restarts(exitKilled, "Error")(p)
			p.DeletionTimestamp = new(metav1.Now())
		}},
		"another pod of the name": {before: killed, change: func(p *corev1.Pod) {
			restarts(exitKilled, "Error")(p)
			p.UID = "another"
		}},
		"the sidecar has ended": {before: killed, change: func(p *corev1.Pod) {
			restarts(exitKilled, "Error")(p)
			p.Status.ContainerStatuses[1].RestartCount++
		}},
		"all containers restart": {before: killed, change: func(p *corev1.Pod) {
			restarts(exitKilled, "Error")(p)
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.AllContainersRestarting, LastTransitionTime: metav1.Now()})
		}},
		"all have restarted long ago": {before: killed, change: func(p *corev1.Pod) {
			restarts(exitKilled, "Error")(p)
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.AllContainersRestarting, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))})
		}, want: 1},
		"the kubelet decides": {pod: func(p *corev1.Pod) { p.Annotations[mesh.AnnotationLiveness] = string(mesh.LivenessNative) }, before: killed, change: restarts(exitKilled, "Error")},
		"a grant": {before: func(a *api) {
			killed(a)
			a.put(grantOfPod("web-0"), "web-0", 1)
		}, change: restarts(exitKilled, "Error")},
		"a grant that was given back": {before: func(a *api) {
			killed(a)
			g := grantOfPod("web-0")
			g.Outcome, g.Ended = restartbudget.Refunded, time.Now()
			a.put(g, "web-0", 1)
		}, change: restarts(exitKilled, "Error")},
		"the agent has told the kubelet": {before: func(a *api) {
			killed(a)
			m := asking("app")
			m.Held[0].Told = true
			a.say("web-0", m)
			wait(time.Second)
		}, change: restarts(exitKilled, "Error")},
		"held long ago": {before: func(a *api) {
			a.pass("web-0")
			wait(2 * heldMemory)
			killed(a)
		}, change: restarts(exitKilled, "Error")},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			a := newAPI(t, nothingRestarts)
			a.deploy("web", 1)
			p := a.pod("web-0")
			running(p)
			if tc.pod != nil {
				tc.pod(p)
			}
			a.setPod(p)
			defer a.lead(1)()
			a.fail("web-0")
			wait(10 * time.Second)
			if tc.before != nil {
				tc.before(a)
			}
			p = a.pod("web-0")
			tc.change(p)
			a.setPod(p)
			wait(10 * time.Second)
			if is := testutil.ToFloat64(a.r.metrics.unheld.WithLabelValues("node1")); is != float64(tc.want) || a.unheldEvents() != tc.want {
				t.Errorf("%g restarts counted, events %q, want %d", is, a.eventsOf(podcause.RestartUnheld), tc.want)
			}
		})
	}
}

func forbidEvents(r *http.Request) int {
	if strings.HasSuffix(r.URL.Path, "/events") {
		return http.StatusForbidden
	}
	return -1
}

// TestUnheldRestartInTheNextRound delays the API server's answer about a restart. The next round, which follows at
// once, counts the restart.
func TestUnheldRestartInTheNextRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = decideAnyway / 2
		a := newAPI(t, nothingRestarts)
		a.answer = func(r *http.Request) int {
			if strings.HasSuffix(r.URL.Path, "/events") {
				time.Sleep(late)
			}
			return -1
		}
		a.deploy("web", 1)
		p := a.pod("web-0")
		running(p)
		a.setPod(p)
		defer a.lead(1)()
		a.fail("web-0")
		wait(2*decideAnyway + decideEvery)
		restarts(exitKilled, "Error")(p)
		a.setPod(p)
		wait(late + 2*decideEvery)
		if n := a.r.Round().Unheld; len(n) != 1 || n[0].Name != "node1" {
			t.Errorf("the round names %+v, want node1", n)
		}
	})
}

// A new leader's watches may lack both the restart and the grant for it.
func TestUnheldRestartByAGrantOfAnEarlierLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, nothingRestarts)
		a.deploy("web", 1)
		p := a.pod("web-0")
		running(p)
		a.setPod(p)
		key := a.put(grantOfPod("web-0"), "web-0", 7)
		if err := a.r.grants.Delete(a.grants[key]); err != nil {
			t.Fatal(err)
		}
		defer a.lead(8)()
		a.fail("web-0")
		wait(10 * time.Second)
		a.kills("app", "Container app failed liveness probe, will be restarted", time.Second)
		restarts(exitKilled, "Error")(p)
		a.setPod(p)
		wait(10 * time.Second)
		if n := a.unheldEvents(); n != 0 {
			t.Errorf("%d restarts are reported, want none", n)
		}
	})
}

// Restarts before this replica led, or while no replica led, are not counted.
func TestUnheldRestartWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, nothingRestarts)
		a.deploy("web", 1)
		p := a.pod("web-0")
		running(p)
		a.setPod(p)
		stop := a.lead(1)
		a.fail("web-0")
		wait(10 * time.Second)
		stop()
		restarts(exitKilled, "Error")(p)
		a.setPod(p)
		defer a.lead(2)()
		wait(10 * time.Second)
		if a.unheldEvents() != 0 {
			t.Errorf("events %q, want none", a.eventsOf(podcause.RestartUnheld))
		}
		restarts(exitKilled, "Error")(p) // restarted without a grant
		a.setPod(p)
		wait(10 * time.Second)
		if a.unheldEvents() != 1 {
			t.Errorf("events %q, want one", a.eventsOf(podcause.RestartUnheld))
		}
	})
}

// An agent of a pod with whenAway: slots reports failures to the kubelet in its turn while it has no session.
func TestUnheldRestartOfAnAgentThatWasAway(t *testing.T) {
	for name, tc := range map[string]struct {
		policy agentv1.WhenAway_Policy
		moves  bool
		want   int
	}{
		"slots":                  {agentv1.WhenAway_SLOTS, false, 1},
		"slots, another session": {agentv1.WhenAway_SLOTS, true, 0},
		"hold, another session":  {agentv1.WhenAway_HOLD, true, 1},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			a := newAPI(t, nothingRestarts)
			a.deploy("web", 1)
			p := a.pod("web-0")
			running(p)
			a.setPod(p)
			a.r.policies = map[watch.Key]*agentv1.Restarts{keyOf(p): {WhenAway: &agentv1.WhenAway{Policy: tc.policy}}}
			var began atomic.Int64
			began.Store(time.Now().Unix())
			a.r.o.Agents = func() Agents {
				return podAgents{said: a.said, tell: a.tell, agent: &adminv1.Agent{ConnectedSince: timestamppb.New(time.Unix(began.Load(), 0))}}
			}
			defer a.lead(1)()
			a.fail("web-0")
			wait(10 * time.Second)
			if tc.moves {
				began.Store(time.Now().Unix())
			}
			restarts(exitKilled, "Error")(p)
			a.setPod(p)
			wait(10 * time.Second)
			if a.unheldEvents() != tc.want {
				t.Errorf("events %q, want %d", a.eventsOf(podcause.RestartUnheld), tc.want)
			}
		})
	}
}

// Metrics and answers name a bounded number of nodes.
func TestUnheldNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, nothingRestarts)
		a.deploy("web", maxUnheldNodes+10)
		for i := range maxUnheldNodes + 10 {
			p := a.pod(fmt.Sprint("web-", i))
			running(p)
			p.Spec.NodeName = fmt.Sprintf("node-%03d", i)
			a.setPod(p)
			a.fail(p.Name)
		}
		defer a.lead(1)()
		wait(10 * time.Second)
		for i := range maxUnheldNodes + 10 {
			p := a.pod(fmt.Sprint("web-", i))
			restarts(exitKilled, "Error")(p)
			a.setPod(p)
		}
		wait(10 * time.Second)
		nodes := a.r.Round().Unheld
		restarts := 0
		for _, n := range nodes {
			restarts += n.Restarts
		}
		if len(nodes) != maxUnheldNodes+1 || restarts != maxUnheldNodes+10 || nodes[maxUnheldNodes].Name != otherNodes || nodes[maxUnheldNodes].Restarts != 10 {
			t.Errorf("%d nodes with %d restarts, the last one is %+v", len(nodes), restarts, nodes[len(nodes)-1])
		}
		if diff := cmp.Diff(maxUnheldNodes+1, testutil.CollectAndCount(a.r.metrics.unheld)); diff != "" {
			t.Errorf("series (-want +got):\n%s", diff)
		}
	})
}
