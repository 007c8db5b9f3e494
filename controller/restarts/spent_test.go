package restarts

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Restarts that the count does not show.
func TestSpent(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		change func(*corev1.Pod)
		want   string
	}{
		"another container ID": {corev1.RestartPolicyAlways, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].ContainerID = "containerd://b" }, "spent"},
		"the same one":         {corev1.RestartPolicyAlways, func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, ""},
		"the status is lost":   {corev1.RestartPolicyAlways, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, ""},
		"ended, to restart":    {corev1.RestartPolicyAlways, ended(0), ""},
		"failed, to restart":   {corev1.RestartPolicyOnFailure, ended(137), ""},
		"ended for good":       {corev1.RestartPolicyOnFailure, ended(0), "spent"},
		"never restarts":       {corev1.RestartPolicyNever, ended(137), "spent"},
		"the pod has failed":   {corev1.RestartPolicyNever, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "spent"},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			a := newAPI(t, restartbudget.Settings{})
			a.deploy("web", 1)
			p := a.pod("web-0")
			p.Spec.RestartPolicy, p.Status.ContainerStatuses[0].ContainerID = tc.policy, "containerd://a"
			a.setPod(p)
			defer a.lead(1)()
			a.fail("web-0")
			wait(time.Second)
			a.want("web-0 app 3.0 epoch 1")
			a.say("web-0", &agentv1.Liveness{}) // it has used the grant, and requests no other one
			tc.change(p)
			a.setPod(p)
			wait(time.Second)
			a.want(strings.TrimSpace("web-0 app 3.0 epoch 1 " + tc.want))
		})
	}
}

// A container that has ended for good gets no grant, although its agent requests one until the pod is deleted.
func TestEndedContainerAsksInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 1)
		p := a.pod("web-0")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		ended(1)(p)
		a.setPod(p)
		defer a.lead(1)()
		a.fail("web-0")
		wait(time.Minute)
		if all := a.all(); all != nil {
			t.Errorf("grants %q", all)
		}
	})
}

// The agent receives a grant only while the container has the grant's restart count.
func TestGrantIsForOneRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 1)
		a.put(grantOfPod("web-0"), "web-0", 7)
		if got := a.toldTo("web-0"); len(got) != 1 {
			t.Errorf("before the restart the agent gets %q", got)
		}
		p := a.pod("web-0")
		p.Status.ContainerStatuses[0].RestartCount++
		a.told = nil
		a.setPod(p)
		if got := a.toldTo("web-0"); got != nil || len(a.told) == 0 {
			t.Errorf("after the restart the agent gets %q, after %d wakes", got, len(a.told))
		}
	})
}

func ended(code int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{ExitCode: code}
	}
}
