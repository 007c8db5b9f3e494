package check

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestGuardedLiveness(t *testing.T) {
	with := func(r *adminv1.RestartRound) facts { return facts{admin: is(admin{round: is(r)})} }
	nodes := []*adminv1.UnheldNode{
		{Name: "a", Restarts: 12, Last: timestamppb.New(now.Add(-time.Minute)), Namespace: "shop", Pod: "web-0", Container: "app"},
		{Name: "b", Restarts: 1, Last: timestamppb.New(now.Add(-time.Hour)), Namespace: "shop", Pod: "web-1", Container: "app"},
	}
	tests{
		"all are held":      {with(&adminv1.RestartRound{Replica: "sonde-cp-a"}), "[ok]   guarded liveness: no container whose failure was held back has restarted without a grant since replica sonde-cp-a leads\n"},
		"no leader":         {with(nil), "[warn] guarded liveness: no replica leads: no restart is granted, and restarts without a grant are not detected\n       do: see sondectl get health\n"},
		"no answer":         {facts{admin: read[admin]{err: errForbidden}}, ""}, // another check reports it
		"of no such method": {facts{admin: is(admin{round: read[*adminv1.RestartRound]{err: errors.New("no")}})}, "[warn] guarded liveness: not checked: no\n       do: fix the error, and check again\n"},
		"held as errored": {with(&adminv1.RestartRound{Replica: "sonde-cp-a", Hold: "errored", Unheld: nodes}), `
[fail] guarded liveness: kubelets have restarted containers whose failures were held back: no restart budget limits these restarts
       a: 12 restarts, the last one at 2026-11-27T11:59:00Z: container app of pod shop/web-0
       b: 1 restart, the last one at 2026-11-27T11:00:00Z: container app of pod shop/web-1
       do: helm upgrade with --set config.guardedLiveness.hold=warning: takes effect within two minutes, without restarting pods (docs/guarded-liveness.md)
`},
		"held as warnings": {with(&adminv1.RestartRound{Replica: "sonde-cp-a", Hold: "warning", Unheld: nodes[1:]}), `
[fail] guarded liveness: kubelets have restarted containers whose failures were held back: no restart budget limits these restarts, although failures are held back as warnings
       b: 1 restart, the last one at 2026-11-27T11:00:00Z: container app of pod shop/web-1
       do: see the events Killing and RestartUnheld in kubectl describe pod
`},
	}.run(t, guardedLiveness)
}

func TestTriedLiveness(t *testing.T) {
	found := func(hold string, outcomes ...outcome) facts {
		return facts{tried: is(tried{outcomes: outcomes}), admin: is(admin{round: is(&adminv1.RestartRound{Hold: hold})})}
	}
	good, bad := outcome{node: "a", liveness: discards}, outcome{node: "b", liveness: counts}
	tests{
		"all discard": {found("errored", good, outcome{node: "c", liveness: discards}), "[ok]   errored probes: the kubelets of 2 nodes discard errored liveness probes\n"},
		"one counts": {found("errored", good, bad), `
[fail] errored probes: the kubelet counts errored liveness probes as failures: guarded liveness does not limit restarts there
       b
       do: helm upgrade with --set config.guardedLiveness.hold=warning: takes effect within two minutes, without restarting pods (docs/guarded-liveness.md)
[ok]   errored probes: the kubelets of 1 node discard errored liveness probes
`},
		"one counts, held as warnings": {found("warning", bad), `
[ok]   errored probes: the kubelet counts errored liveness probes as failures on 1 node: guarded liveness holds failures back as warnings
       b
`},
		"nothing was asked": {found("errored", outcome{node: "c", livenessReason: "ended with exit code 1 (Error): sonde-dp: the kubelet has not probed often enough"}), `
[warn] errored probes: unknown on some nodes
       ended with exit code 1 (Error): sonde-dp: the kubelet has not probed often enough: c
       do: fix the errors below, and check again
`},
		"no pod": {found("errored", outcome{node: "d", problem: unstarted, livenessReason: "its container has not ended"}), ""},
	}.run(t, triedLiveness)
}

// Verdicts about the kubelet from a pod's status, and whether they are final.
func TestLivenessOf(t *testing.T) {
	ended := func(name string, code int32, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}}}
	}
	redirected := ended(mesh.ContainerInit, 0, "")
	const counted = "sonde-dp: " + mesh.KubeletCountsErrored + ": the container was ended after 1 errored probes\n"
	for name, tc := range map[string]struct {
		statuses []corev1.ContainerStatus
		deleted  bool
		want     verdict
		reason   string
		done     bool
	}{
		"it discards":           {[]corev1.ContainerStatus{redirected, ended(containerLiveness, 0, "")}, false, discards, "", true},
		"it counts":             {[]corev1.ContainerStatus{redirected, ended(containerLiveness, 1, counted)}, false, counts, "", true},
		"the pod is deleted":    {[]corev1.ContainerStatus{redirected, ended(containerLiveness, 1, counted)}, true, notKnown, "the pod was deleted", true},
		"an image of before":    {[]corev1.ContainerStatus{redirected, ended(containerLiveness, 2, `sonde-dp: command "kubelet" not found`)}, false, notKnown, `ended with exit code 2 (Error): sonde-dp: command "kubelet" not found`, true},
		"killed without a word": {[]corev1.ContainerStatus{redirected, ended(containerLiveness, 137, "")}, false, notKnown, "ended with exit code 137 (Error)", true},
		"it goes on":            {[]corev1.ContainerStatus{redirected, {Name: containerLiveness}}, false, notKnown, "its container has not ended", false},
		"redirection goes on":   {[]corev1.ContainerStatus{{Name: mesh.ContainerInit}, ended(containerLiveness, 0, "")}, false, discards, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{ContainerStatuses: tc.statuses}}
			if tc.deleted {
				pod.DeletionTimestamp = new(metav1.Now())
			}
			o, done := outcomeOfPod(pod)
			if o.liveness != tc.want || o.livenessReason != tc.reason || done != tc.done {
				t.Errorf("outcomeOfPod() = %+v, %t, want %q, %q, %t", o, done, tc.want, tc.reason, tc.done)
			}
		})
	}
}

func TestKubeletGates(t *testing.T) {
	tests{
		"none has it": {facts{gates: is(gates{asked: 3})}, "[ok]   kubelet gates: 3 kubelets of 3 do not have ProbeErrorAsFailure\n"},
		"one has it, one does not answer": {facts{gates: is(gates{asked: 2, on: []string{"a"}, unread: map[string][]string{"no answer": {"b"}}})}, `
[warn] kubelet gates: the kubelet has the gate ProbeErrorAsFailure: it counts errored probes as failures, so guarded liveness does not limit restarts there
       a
       do: helm upgrade with --set config.guardedLiveness.hold=warning: takes effect within two minutes, without restarting pods (docs/guarded-liveness.md)
[warn] kubelet gates: unknown on some nodes
       no answer: b
       do: check again, or use --nodes
[ok]   kubelet gates: 1 kubelet of 2 do not have ProbeErrorAsFailure
`},
		"held as warnings": {facts{gates: is(gates{asked: 1, on: []string{"a"}}), admin: is(admin{round: is(&adminv1.RestartRound{Hold: "warning"})})}, `
[ok]   kubelet gates: the kubelet has the gate ProbeErrorAsFailure: guarded liveness holds failures back as warnings
       a
`},
		"no right": {facts{gates: read[gates]{err: errForbidden}}, `
[warn] kubelet gates: not checked: things is forbidden: no right
       do: get the right, or ask a user who has it to check
`},
	}.run(t, kubeletGates)
}

// Missing metrics of a kubelet do not mean that a gate is off.
func TestGateOn(t *testing.T) {
	const others = "# HELP kubernetes_feature_enabled [BETA]\nkubernetes_feature_enabled{name=\"A\",stage=\"\"} 1\n"
	for name, tc := range map[string]struct {
		metrics string
		on, bad bool
	}{
		"on":         {others + `kubernetes_feature_enabled{name="ProbeErrorAsFailure",stage="ALPHA"} 1` + "\nmachine_cpu_cores 2\n", true, false},
		"off":        {others + `kubernetes_feature_enabled{name="ProbeErrorAsFailure",stage="ALPHA"} 0` + "\n", false, false},
		"not known":  {others, false, false},
		"no metrics": {"machine_cpu_cores 2\n", false, true},
		"nothing":    {"", false, true},
	} {
		if on, err := gateOn(strings.NewReader(tc.metrics)); on != tc.on || (err != nil) != tc.bad {
			t.Errorf("%s: gateOn() = %t, %v", name, on, err)
		}
	}
}

// Kubelets are chosen beginning with one of each version.
func TestKubeletsToAsk(t *testing.T) {
	var nodes []corev1.Node
	for i := range kubeletsAtMost + 5 {
		n := node(fmt.Sprintf("node-%02d", i), "v1.36.3", "6.8.0", "amd64")
		if i == kubeletsAtMost+3 {
			n.Status.NodeInfo.KubeletVersion = "v1.37.2"
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		nodes = append(nodes, n)
	}
	nodes[1].Status.Conditions = nil
	if got := kubeletsToAsk(nodes); len(got) != kubeletsAtMost || got[0] != "node-00" || got[1] != "node-23" || got[2] != "node-02" {
		t.Errorf("kubeletsToAsk() = %q", got)
	}
}
