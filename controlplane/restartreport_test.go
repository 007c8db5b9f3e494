package controlplane

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/peers"
	"github.com/sonde-mesh/sonde/restartbudget"
)

var (
	web = restartbudget.WorkloadID{Kind: "Deployment", Namespace: "shop", Name: "web"}
	db  = restartbudget.WorkloadID{Kind: "StatefulSet", Namespace: "data", Name: "db"}
	at  = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
)

// knownRestarts is what a replica knows.
type knownRestarts struct {
	report    restarts.Report
	unguarded []restarts.Unguarded
	released  []string
	err       error
}

func (k *knownRestarts) Report() (*restarts.Report, error) { return &k.report, k.err }

func (k *knownRestarts) Look(context.Context, string, string) ([]restarts.Unguarded, error) {
	return k.unguarded, nil
}

func (k *knownRestarts) Release(_ context.Context, workload restartbudget.WorkloadID) (int, error) {
	if workload == db {
		return 0, errors.New("forbidden")
	}
	k.released = append(k.released, workload.String())
	return 2, nil
}

func podNamed(id restartbudget.WorkloadID, name string, ready bool, containers ...restarts.Container) restarts.Pod {
	return restarts.Pod{Key: watch.Key{Namespace: id.Namespace, Name: name}, UID: name, Node: "node1", Ready: ready, Workload: id, Containers: containers}
}

func failing(grant string) *restarts.Failing {
	return &restarts.Failing{Container: "app", Since: at, Reason: "refused", Grant: grant}
}

// newReport returns a restartReport of pods with one container each, which is in another state each.
func newReport() (*restartReport, *knownRestarts) {
	k := &knownRestarts{report: restarts.Report{Pods: []restarts.Pod{
		podNamed(db, "web-0", true, restarts.Container{Name: "app", Passing: true}),
		podNamed(web, "web-0", true, restarts.Container{Name: "app", Failing: failing("")}),
		podNamed(web, "web-1", true, restarts.Container{Name: "app", Failing: failing("g"), Grant: &restartbudget.Grant{Granted: at}}),
		podNamed(web, "web-2", false, restarts.Container{Name: "app", Failing: failing("g"), Grant: &restartbudget.Grant{Granted: at, Spent: at, Outcome: restartbudget.Spent}}),
		podNamed(web, "web-3", false, restarts.Container{Name: "app", Passing: true, Grant: &restartbudget.Grant{Granted: at, Spent: at, Judged: at, Outcome: restartbudget.Helped}}),
		podNamed(web, "web-4", true, restarts.Container{Name: "app", Failing: failing("")}),
		podNamed(web, "web-5", true, restarts.Container{Name: "app", Failing: failing("")}),
		podNamed(web, "web-6", true, restarts.Container{Name: "app", Passing: true, Grant: &restartbudget.Grant{Granted: at, Spent: at, Ended: at, Outcome: restartbudget.Helped}}),
		podNamed(web, "web-7", true, restarts.Container{Name: "app", Failing: failing("")}),
	}, Workloads: map[restartbudget.WorkloadID]*restarts.Workload{
		web: {
			Standing: restartbudget.Standing{Replicas: 8, Available: 6, MaxUnavailable: 2, Source: "the default, 25 %"},
			Grants:   []restarts.Grant{{Grant: restartbudget.Grant{Granted: at}, Pod: "web-1", InProgress: true}, {Grant: restartbudget.Grant{Granted: at, Ended: at, Outcome: restartbudget.Refunded}, Pod: "web-0"}},
		}, db: {},
	}}}
	k.report.Pods[5].Unhelpful = true
	decision := func(pod string, c restartbudget.Cause) restartbudget.Decision {
		return restartbudget.Decision{Request: restartbudget.Request{Workload: web, ContainerKey: restartbudget.ContainerKey{PodUID: pod, Name: "app"}}, Verdict: restartbudget.Held, Cause: c}
	}
	round := &restarts.Round{At: at, Epoch: 7, Result: restartbudget.Result{Breaker: restartbudget.Breaker{Open: true, Held: 5, Workloads: 3, Guarded: 9}, Decisions: []restartbudget.Decision{
		decision("web-0", restartbudget.Cause{Reason: restartbudget.ReasonInProgress, Count: 2, Limit: 2, Source: "the default, 25 %"}),
		decision("web-4", restartbudget.Cause{Reason: restartbudget.ReasonUnhelpful, Count: 2, Limit: 2}),
		decision("web-7", restartbudget.Cause{Reason: restartbudget.ReasonSuspended}),
	}}}
	return &restartReport{
		known: k, here: func(peers.DecisionFilter) peers.Decisions { return peers.Decisions{} },
		others: func(_ context.Context, of peers.DecisionFilter) ([]peers.Decisions, []string) {
			stale := peers.Decisions{Round: &adminv1.RestartRound{Replica: "old", Epoch: 6}}
			return []peers.Decisions{decisionsOf("b", round, of), stale}, []string{"c"}
		},
		agent: func(watch.Key) (*adminv1.AgentState, *adminv1.Agent) {
			return &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED}, &adminv1.Agent{Version: "1", Features: []string{agentv1.FeatureRestartGrants}}
		},
	}, k
}

func TestRestartsAreListed(t *testing.T) {
	r, _ := newReport()
	got, err := r.List(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range got.GetRestarts() {
		lines = append(lines, m.GetPod()+" "+m.GetState().String()+": "+m.GetWhy())
		if m.GetNamespace() != "shop" || m.GetContainer() != "app" || m.GetWorkload() != "Deployment/shop/web" || !m.GetSince().AsTime().Equal(at) {
			t.Errorf("%v", m)
		}
	}
	want := []string{
		"web-0 WAITING: 2 of 2 restarts are in progress (the default, 25 %)",
		"web-1 GRANTED: a restart is granted, and the kubelet is told that the check fails",
		"web-2 RESTARTING: the container has restarted, and its liveness probe has not been checked since",
		"web-3 RESTARTING: the container has restarted, and its pod is not Ready yet",
		"web-4 UNHELPFUL: 2 restarts in a row did not help: waiting for another pod template, or for sondectl restarts release",
		"web-5 WAITING: the leader has not decided yet",
		"web-7 WAITING: the pod is annotated sonde.dev/liveness: suspended",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
	wantRound := &adminv1.RestartRound{Replica: "b", Epoch: 7, At: timestamppb.New(at), Mode: "enforce", BreakerOpen: true, Failed: 5, Workloads: 3, Guarded: 9}
	if diff := cmp.Diff(wantRound, got.GetRound(), protocmp.Transform()); diff != "" {
		t.Errorf("the round is not that of the newest leader (-want +got):\n%s", diff)
	}
	if got.GetGuarded() != 8 || strings.Join(got.GetUnhelpful(), " ") != "Deployment/shop/web" || strings.Join(got.GetTail().GetMissingReplicas(), " ") != "c" {
		t.Errorf("List() = %v", got)
	}
}

func TestRestartsOfAllAndOfNone(t *testing.T) {
	r, _ := newReport()
	if _, err := r.List(t.Context(), "shpo"); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), `did you mean "shop"?`) {
		t.Errorf("List() of a namespace that is none: %v", err)
	}
	r.others = func(context.Context, peers.DecisionFilter) ([]peers.Decisions, []string) { return nil, nil }
	if got, err := r.List(t.Context(), ""); err != nil || got.GetRound() != nil || got.GetRestarts()[0].GetWhy() != "no leader of the control plane answers that decides on restarts" {
		t.Errorf("List() without a leader = %v, %v", got, err)
	}
}

func TestRestartsAreExplained(t *testing.T) {
	r, k := newReport()
	got, err := r.Explain(t.Context(), "shop", "web-0")
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.ExplainRestartResponse{
		Namespace: "shop", Pod: "web-0", Node: "node1", Ready: true, Agent: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED}, AgentVersion: "1",
		Round: got.GetRound(), MissingReplicas: []string{"c"},
		Containers: []*adminv1.GuardedContainer{{
			Name: "app", Check: adminv1.GuardedContainer_FAILS, Since: timestamppb.New(at), Failure: "refused", Restart: &adminv1.Restart{
				Namespace: "shop", Pod: "web-0", Container: "app", Workload: "Deployment/shop/web", State: adminv1.Restart_WAITING, Since: timestamppb.New(at),
				Why: "2 of 2 restarts are in progress (the default, 25 %)", Failure: "refused", Decision: &adminv1.RestartDecision{
					PodUid: "web-0", Container: "app", Verdict: "held", Reason: "in_progress", Count: 2, Limit: 2, Source: "the default, 25 %",
					Text:  "2 of 2 restarts are in progress (the default, 25 %)",
					Needs: "a restart that is in progress has to end: its pod is Ready, and its probe has been checked again, or ten minutes are over",
				},
			},
		}},
		Workload: &adminv1.RestartWorkload{
			Name: "Deployment/shop/web", Replicas: 8, Available: 6, MaxUnavailable: 2, Source: "the default, 25 %", InProgress: 1,
			Grants: []*adminv1.RestartGrant{{Pod: "web-1", Granted: timestamppb.New(at), InProgress: true}, {Pod: "web-0", Outcome: "refunded", Granted: timestamppb.New(at), Ended: timestamppb.New(at)}},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Explain() (-want +got):\n%s", diff)
	}
	r.agent = func(watch.Key) (*adminv1.AgentState, *adminv1.Agent) { return nil, &adminv1.Agent{} }
	if got, err = r.Explain(t.Context(), "data", "web-0"); err != nil || !got.GetAgentOutdated() || got.GetContainers()[0].GetCheck() != adminv1.GuardedContainer_PASSES || got.GetContainers()[0].GetRestart() != nil {
		t.Errorf("Explain() of one that passes, with an old agent = %v, %v", got, err)
	}
	for name, tc := range map[string]struct {
		namespace, pod string
		unguarded      []restarts.Unguarded
		code           codes.Code
		text           string
	}{
		"in two namespaces": {"", "web-0", nil, codes.InvalidArgument, `pod "web-0" is in the namespaces data, shop: name one`},
		"there is none":     {"shop", "wbe-0", nil, codes.NotFound, `pod "wbe-0" not found in namespace "shop": did you mean "web-0"?`},
		"nowhere":           {"", "other", nil, codes.NotFound, `pod "other" not found in any namespace`},
		"not guarded":       {"", "bare", []restarts.Unguarded{{Key: watch.Key{Namespace: "a", Name: "bare"}, Why: "why"}, {Key: watch.Key{Namespace: "b", Name: "bare"}, Why: "x"}}, codes.FailedPrecondition, "pod a/bare is not guarded: why; pod b/bare is not guarded: x"},
	} {
		k.unguarded = tc.unguarded
		if _, err := r.Explain(t.Context(), tc.namespace, tc.pod); status.Code(err) != tc.code || status.Convert(err).Message() != tc.text {
			t.Errorf("%s: Explain() = %v, want %s %s", name, err, tc.code, tc.text)
		}
	}
	k.err = errors.New("pods: not read yet")
	if _, err := r.Explain(t.Context(), "shop", "web-0"); status.Code(err) != codes.Unavailable {
		t.Errorf("Explain() before all is read: %v", err)
	}
}

func TestRestartsAreReleased(t *testing.T) {
	for _, tc := range []struct {
		namespace, workload string
		code                codes.Code
		want                string
	}{
		{"", "Deployment/shop/web", codes.OK, "Deployment/shop/web"},
		{"shop", "deployment/web", codes.OK, "Deployment/shop/web"},
		{"shop", "Deploy/shop/web", codes.OK, "Deployment/shop/web"},
		{"", "sts/data/db", codes.Unavailable, "release StatefulSet/data/db: forbidden"},
		{"", "deployment/web", codes.InvalidArgument, `workload "deployment/web": must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace`},
		{"shop", "web", codes.InvalidArgument, `workload "web": must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace`},
		{"shop", "/web", codes.InvalidArgument, `workload "/web": must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace`},
		{"data", "Deployment/shop/web", codes.InvalidArgument, `workload "Deployment/shop/web": is not in namespace "data"`},
		{"", "Deployment/shop/wbe", codes.NotFound, `workload "Deployment/shop/wbe" has no guarded pod: did you mean "Deployment/shop/web"?; those that wait for a release: Deployment/shop/web`},
	} {
		r, k := newReport()
		got, err := r.Release(t.Context(), tc.namespace, tc.workload)
		switch {
		case status.Code(err) != tc.code || err != nil && status.Convert(err).Message() != tc.want:
			t.Errorf("Release(%q, %q) = %v, want %s %s", tc.namespace, tc.workload, err, tc.code, tc.want)
		case err == nil && (got.GetWorkload() != tc.want || got.GetReleased() != 2 || strings.Join(k.released, " ") != tc.want):
			t.Errorf("Release(%q, %q) = %v, and releases %q", tc.namespace, tc.workload, got, k.released)
		}
	}
	r, k := newReport()
	k.report.Pods[5].Unhelpful = false
	if _, err := r.Release(t.Context(), "", "Deployment/shop/none"); !strings.HasSuffix(err.Error(), "; no workload waits for a release") {
		t.Errorf("Release() where none waits: %v", err)
	}
}
