package main

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// madeUpRestarts is a fake with containers of two namespaces, and a different leader for each.
type madeUpRestarts struct{}

// before returns a time d and half a second ago, so that the output is d.
func before(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(-d - 500*time.Millisecond))
}

func madeUpRestartList() []*adminv1.Restart {
	return []*adminv1.Restart{
		{Namespace: "edge", Pod: "gateway-0", Container: "gateway", Workload: "StatefulSet/edge/gateway", State: adminv1.Restart_GRANTED, Since: before(3 * time.Second), Why: "a restart is granted, and the kubelet receives the failure", Failure: "HTTP probe failed with statuscode: 503"},
		{Namespace: "shop", Pod: "api-0", Container: "api", Workload: "Deployment/shop/api", State: adminv1.Restart_UNHELPFUL, Since: before(4 * time.Minute), Why: "2 restarts in a row did not help: waiting for another pod template, or for sondectl restarts release", Failure: "connection refused"},
		{Namespace: "shop", Pod: "web-0", Container: "web", Workload: "Deployment/shop/web", State: adminv1.Restart_WAITING, Since: before(41 * time.Second), Why: "2 of 2 restarts are in progress (the default, 25 %)", Failure: "a\nb\x1b[31m",
			Decision: &adminv1.RestartDecision{Verdict: "held", Reason: "in_progress", Count: 2, Limit: 2, Source: "the default, 25 %", Needs: "a restart that is in progress has to end"}},
		{Namespace: "shop", Pod: "web-1", Container: "web", Workload: "Deployment/shop/web", State: adminv1.Restart_RESTARTING, Since: before(12 * time.Second), Why: "the container has restarted, and its pod is not Ready yet"},
	}
}

func (madeUpRestarts) ListRestarts(_ context.Context, request *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	namespace := request.GetNamespace()
	r := &adminv1.ListRestartsResponse{Guarded: 24}
	for _, m := range madeUpRestartList() {
		if namespace == "" || m.GetNamespace() == namespace {
			r.Restarts = append(r.Restarts, m)
		}
	}
	switch namespace {
	case "shpo":
		return nil, status.Error(codes.NotFound, `namespace "shpo" has no guarded pod: did you mean "shop"?`)
	case "edge":
		r.Tail = &adminv1.Tail{MissingReplicas: []string{"sonde-cp-b"}}
	case "calm":
		r.Round = &adminv1.RestartRound{Replica: "sonde-cp-a", Mode: "enforce"}
	default:
		r.Round = &adminv1.RestartRound{Replica: "sonde-cp-a", Mode: "dryRun", BreakerOpen: true, Failed: 9, Guarded: 24, Workloads: 3}
		r.Unhelpful = []string{"Deployment/shop/api"}
	}
	return r, nil
}

func (madeUpRestarts) ExplainRestart(_ context.Context, request *adminv1.ExplainRestartRequest) (*adminv1.ExplainRestartResponse, error) {
	pod := request.GetPod()
	r := &adminv1.ExplainRestartResponse{
		Namespace: "shop", Pod: pod, Node: "worker-1", Ready: true, Agent: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED, Since: before(5 * time.Minute)},
		AgentVersion: "0.1.0", Round: &adminv1.RestartRound{Replica: "sonde-cp-a", Epoch: 7, Mode: "enforce", At: before(time.Second), Hold: "warning"}, Hold: "warning",
		Workload: &adminv1.RestartWorkload{Name: "Deployment/shop/web", Replicas: 10, Available: 8, MaxUnavailable: 2, Source: "the default, 25 %"},
	}
	switch pod {
	case "web-0":
		r.Containers = []*adminv1.GuardedContainer{
			{Name: "log", Restarts: 1, Check: adminv1.GuardedContainer_PASSES},
			{Name: "new", Check: adminv1.GuardedContainer_UNKNOWN},
			{Name: "web", Check: adminv1.GuardedContainer_FAILS, Since: before(41 * time.Second), Failure: "connection refused", Restart: madeUpRestartList()[2]},
		}
		r.Workload.InProgress, r.Workload.LeftOut = 2, 3
		r.Workload.Grants = []*adminv1.RestartGrant{
			{Pod: "web-1", Container: "web", Granted: before(30 * time.Second), Spent: before(12 * time.Second), Outcome: "spent", InProgress: true},
			{Pod: "web-2", Container: "web", Restarts: 3, Granted: before(20 * time.Second), InProgress: true},
			{Pod: "web-3", Container: "web", Granted: before(9 * time.Minute), Spent: before(8 * time.Minute), Judged: before(7 * time.Minute), Ended: before(7 * time.Minute), Outcome: "helped"},
			{Pod: "web-4", Container: "web", Granted: before(20 * time.Minute), Outcome: "spent", Spent: before(19 * time.Minute)},
			{Pod: "web-5", Container: "web", Granted: before(30 * time.Minute), DryRun: true, Outcome: "refunded", Ended: before(29 * time.Minute)},
		}
		return r, nil
	case "lost-0":
		r.Agent = &adminv1.AgentState{Phase: adminv1.AgentState_LOST, Since: before(3 * time.Minute)}
		r.Ready, r.Hold, r.Round, r.MissingReplicas, r.Workload.Unhelpful = false, "", nil, []string{"sonde-cp-b"}, true
		r.Containers = []*adminv1.GuardedContainer{{Name: "web", Check: adminv1.GuardedContainer_UNKNOWN}}
		return r, nil
	case "old-0":
		r.AgentOutdated, r.Hold = true, ""
		return r, nil
	case "bare-0":
		return nil, status.Error(codes.FailedPrecondition, "pod shop/bare-0 is not guarded: it has no sidecar")
	}
	return nil, status.Errorf(codes.NotFound, "pod %q not found in any namespace", pod)
}

func (madeUpRestarts) ReleaseRestarts(_ context.Context, request *adminv1.ReleaseRestartsRequest) (*adminv1.ReleaseRestartsResponse, error) {
	namespace, workload := request.GetNamespace(), request.GetWorkload()
	released := map[string]uint32{"Deployment/shop/api": 2, "deployment/one": 1, "Deployment/shop/web": 0}
	n, ok := released[workload]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "workload %q has no guarded pod; no workload waits for a release", workload)
	}
	if namespace != "" {
		workload = "Deployment/" + namespace + "/one"
	}
	return &adminv1.ReleaseRestartsResponse{Workload: workload, Released: n}, nil
}

// TestRoundTexts shows the texts about unusual states of the leader.
func TestRoundTexts(t *testing.T) {
	for name, tc := range map[string]struct {
		round *adminv1.RestartRound
		want  []string
	}{
		"usual":     {&adminv1.RestartRound{Mode: "enforce"}, nil},
		"no leader": {nil, []string{"the control plane has no leader: no restarts are granted"}},
		"off":       {&adminv1.RestartRound{Mode: "off"}, []string{"the mode is off: the kubelet restarts containers by itself"}},
		"later":     {&adminv1.RestartRound{Mode: "x"}, []string{`the mode is "x", which this sondectl does not support`}},
		"not held": {&adminv1.RestartRound{Mode: "enforce", Unheld: []*adminv1.UnheldNode{{Name: "node1"}, {Name: "node2"}}}, []string{
			"kubelets of 2 nodes have restarted containers although their failures were held back, first on node node1: see sondectl check --installed",
		}},
	} {
		if diff := cmp.Diff(tc.want, describe.Round(tc.round)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestHoldTexts shows the texts about how failures are held back.
func TestHoldTexts(t *testing.T) {
	const errored, warning = "failures as errored: the kubelet discards them", "failures as warnings: the kubelet counts the probe as passed, with an event ProbeWarning that contains HELD"
	for name, tc := range map[string]struct{ agent, round, want string }{
		"errored":                   {"errored", "errored", errored},
		"warning":                   {"warning", "warning", warning},
		"an earlier control plane":  {"errored", "", errored},
		"an earlier agent":          {"errored", "warning", errored + "; guardedLiveness.hold is warning: the agent's release is older, or another replica has not read the setting yet"},
		"nothing":                   {"", "warning", ""},
		"of a later control plane?": {"later", "later", ""},
	} {
		if got := holdText(&adminv1.ExplainRestartResponse{Hold: tc.agent, Round: &adminv1.RestartRound{Hold: tc.round}}); got != tc.want {
			t.Errorf("%s: holdText() = %q, want %q", name, got, tc.want)
		}
	}
}

// TestAgentTexts shows the texts about disconnected agents.
func TestAgentTexts(t *testing.T) {
	for want, a := range map[string]*adminv1.ExplainRestartResponse{
		"unknown to the control plane: its probe results are unknown, and it gets no grants":                                                {},
		"never-joined: it has no session, so its probe results are unknown, and it gets no grants":                                          {Agent: &adminv1.AgentState{Phase: adminv1.AgentState_NEVER_JOINED}},
		"lost for 3m: it has no session, so its current probe results are unknown, and it gets no grants":                                   {Agent: &adminv1.AgentState{Phase: adminv1.AgentState_LOST, Since: before(3 * time.Minute)}},
		"connected for 3m, but version 0.1.0 is too old to hold failures back (feature restart-grants): it reports failures to the kubelet": {AgentVersion: "0.1.0", AgentOutdated: true, Agent: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED, Since: before(3 * time.Minute)}},
	} {
		if got := agentText(a); got != want {
			t.Errorf("agentText() = %q, want %q", got, want)
		}
	}
}
