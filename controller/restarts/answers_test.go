package restarts

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

var (
	db = restartbudget.WorkloadID{Kind: "StatefulSet", Namespace: "data", Name: "db"}
	at = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
)

// answering has the inputs of a test's Answers.
type answering struct {
	*Answers
	t *testing.T
	// api receives releases; unguarded has the pods that it finds.
	api       *patched
	unguarded []corev1.Pod
	liveness  map[watch.Key]agentv1.ReportedLiveness
	agents    podAgents
}

// readAll marks everything as read, without any object yet.
func (r *Restarts) readAll(t *testing.T) {
	t.Helper()
	for _, replace := range []func([]any, string) error{
		r.grants.Replace, r.cluster.pods.Replace, r.cluster.deployments.Replace, r.cluster.statefulSets.Replace,
		r.cluster.daemonSets.Replace, r.cluster.disruption.Replace, r.cluster.budgets.Replace,
	} {
		if err := replace(nil, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// pod adds a guarded pod with a container in this state, as its agent reports it.
func (a *answering) pod(id restartbudget.WorkloadID, name, template string, ready bool, said *agentv1.Liveness) {
	a.t.Helper()
	p := guardedPod()
	p.Namespace, p.Name, p.UID = id.Namespace, name, types.UID(name)
	p.Labels["pod-template-hash"], p.OwnerReferences[0].Name = template, id.Name+"-"+template
	if id.Kind != "Deployment" {
		p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = id.Kind, id.Name
	}
	if !ready {
		p.Status.Conditions[0].Status = corev1.ConditionFalse
	}
	if err := a.cluster.pods.Add(p); err != nil {
		a.t.Fatal(err)
	}
	a.liveness[watch.Key{Namespace: id.Namespace, Name: name}] = agentv1.ReportedLiveness{Report: said, At: at}
}

// grant adds the last grant of the container of a pod.
func (a *answering) grant(g restartbudget.Grant, pod string) {
	a.t.Helper()
	g.ID = restartbudget.GrantID{ContainerKey: restartbudget.ContainerKey{PodUID: pod, Name: "app"}, Restarts: 3}
	if g.Workload, g.Granted = web, at; pod == "db-1" {
		g.Workload = db
	}
	o := objectOf(g, watch.Key{Namespace: g.Workload.Namespace, Name: pod}, 1)
	o.Name, o.Status = pod, statusOf(g)
	a.put(a.t, o)
}

func failing(grant string) *agentv1.Liveness {
	return &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: "app", Reason: "refused", Grant: grant}}}
}

func passing() *agentv1.Liveness { return &agentv1.Liveness{Passing: []string{"app"}} }

// newAnswers returns Answers about pods with one container each. Each pod is in another state.
func newAnswers(t *testing.T) *answering {
	t.Helper()
	a := &answering{t: t, api: &patched{codes: map[string][]int{}}, liveness: map[watch.Key]agentv1.ReportedLiveness{}}
	r := newPatching(t, a.api)
	a.agents = podAgents{
		said:  func() map[watch.Key]agentv1.ReportedLiveness { return a.liveness },
		agent: &adminv1.Agent{Version: "1", Features: []string{agentv1.FeatureRestartGrants}}, state: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED},
	}
	r.o.Agents = func() Agents { return a.agents }
	r.o.Watching = kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://api", Transport: handled{http.HandlerFunc(a.findPods)}})
	r.readAll(t)
	a.Answers = &Answers{Restarts: r, Replica: "a", Others: others{&Round{At: at, Epoch: 7, Result: decidedResult}}}
	a.pod(db, "web-0", "t", true, passing())
	a.pod(web, "web-0", "t", true, failing(""))
	a.pod(web, "web-1", "t", true, failing("g"))
	a.pod(web, "web-2", "t", false, failing("g"))
	a.pod(web, "web-3", "t", false, passing())
	a.pod(web, "web-4", "t", true, failing(""))
	a.pod(web, "web-5", "bad", true, failing(""))
	a.pod(web, "web-6", "t", true, passing())
	a.pod(web, "web-7", "t", true, failing(""))
	a.grant(restartbudget.Grant{}, "web-1")
	a.grant(restartbudget.Grant{Spent: at, Outcome: restartbudget.Spent}, "web-2")
	a.grant(restartbudget.Grant{Spent: at, Judged: at, Outcome: restartbudget.Helped}, "web-3")
	a.grant(restartbudget.Grant{Spent: at, Ended: at, Judged: at, Outcome: restartbudget.Helped}, "web-6")
	for _, gone := range []string{"bad-0", "bad-1"} {
		a.grant(restartbudget.Grant{Template: "bad", Spent: at, Ended: at, Judged: at, Outcome: restartbudget.Unhelpful}, gone)
	}
	a.grant(restartbudget.Grant{}, "gone")
	return a
}

// findPods finds pods in place of the API server.
func (a *answering) findPods(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: a.unguarded}
	if err := json.NewEncoder(w).Encode(list); err != nil {
		a.t.Error(err)
	}
}

// decidedResult is what the leader has decided.
var decidedResult = restartbudget.Result{
	Breaker: restartbudget.Breaker{Open: true, Held: 5, Workloads: 3, Guarded: 9},
	Decisions: []restartbudget.Decision{
		heldBy("web-0", restartbudget.Cause{Reason: restartbudget.ReasonInProgress, Count: 2, Limit: 2, Source: "the default, 25 %"}),
		heldBy("web-4", restartbudget.Cause{Reason: restartbudget.ReasonUnhelpful, Count: 2, Limit: 2}),
		heldBy("web-7", restartbudget.Cause{Reason: restartbudget.ReasonSuspended}),
	},
}

func heldBy(pod string, c restartbudget.Cause) restartbudget.Decision {
	key := restartbudget.ContainerKey{PodUID: pod, Name: "app"}
	return restartbudget.Decision{Request: restartbudget.Request{Workload: web, ContainerKey: key}, Verdict: restartbudget.Held, Cause: c}
}

// others has replica b, which leads, and an earlier leader that does not know that yet. Replica c does not answer; c
// and d are disconnected.
type others struct{ round *Round }

func (o others) Decisions(_ context.Context, of *peerv1.ListDecisionsRequest) ([]*peerv1.ListDecisionsPart, []string) {
	stale := &peerv1.ListDecisionsPart{Round: &adminv1.RestartRound{Replica: "old", Epoch: 6}}
	return []*peerv1.ListDecisionsPart{o.round.message("b", of), stale}, []string{"c"}
}

func (others) Missing() []string { return []string{"c", "d"} }

// alone has no other replicas.
type alone struct{}

func (alone) Decisions(context.Context, *peerv1.ListDecisionsRequest) ([]*peerv1.ListDecisionsPart, []string) {
	return nil, nil
}

func (alone) Missing() []string { return nil }

func (a *answering) list(namespace string) (*adminv1.ListRestartsResponse, error) {
	return a.ListRestarts(a.t.Context(), &adminv1.ListRestartsRequest{Namespace: namespace})
}

func (a *answering) explain(namespace, pod string) (*adminv1.ExplainRestartResponse, error) {
	return a.ExplainRestart(a.t.Context(), &adminv1.ExplainRestartRequest{Namespace: namespace, Pod: pod})
}

func (a *answering) release(namespace, workload string) (*adminv1.ReleaseRestartsResponse, error) {
	return a.ReleaseRestarts(a.t.Context(), &adminv1.ReleaseRestartsRequest{Namespace: namespace, Workload: workload})
}

// Answers show the breaker of a single namespace.
func TestBreakerOfANamespaceIsListed(t *testing.T) {
	round := &Round{At: at, Result: restartbudget.Result{Breaker: restartbudget.Breaker{Held: 5, Workloads: 3, Guarded: 9, Alone: restartbudget.NamespaceHeld{Name: "shop", Held: 4, Workloads: 3}}}}
	if r := round.message("b", nil).GetRound(); r.GetBreakerOpen() || r.GetBreakerNamespace() != "shop" || r.GetBreakerNamespaceFailed() != 4 || r.GetFailed() != 5 {
		t.Errorf("round %v", r)
	}
}

func TestRestartsAreListed(t *testing.T) {
	a := newAnswers(t)
	got, err := a.list("shop")
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
		"web-1 GRANTED: a restart is granted, and the kubelet receives the failure",
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
		t.Errorf("the round is not the newest leader's (-want +got):\n%s", diff)
	}
	if got.GetGuarded() != 8 || strings.Join(got.GetUnhelpful(), " ") != "Deployment/shop/web" || strings.Join(got.GetTail().GetMissingReplicas(), " ") != "c d" {
		t.Errorf("List() = %v", got)
	}
}

func TestRestartsOfAllAndOfNone(t *testing.T) {
	a := newAnswers(t)
	if _, err := a.list("shpo"); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), `did you mean "shop"?`) {
		t.Errorf("List() of an unknown namespace: %v", err)
	}
	a.Others = alone{}
	if got, err := a.list(""); err != nil || got.GetRound() != nil || got.GetRestarts()[0].GetWhy() != "no leader of the control plane has answered" {
		t.Errorf("List() without a leader = %v, %v", got, err)
	}
	a.round.Store(&Round{At: at, Epoch: 8, Result: decidedResult})
	if got, err := a.list(""); err != nil || got.GetRound().GetReplica() != "a" || got.GetRound().GetEpoch() != 8 {
		t.Errorf("List() of the leader = %v, %v", got, err)
	}
}

// Answers are bounded, and say how many entries they leave out.
func TestAnswersAreBounded(t *testing.T) {
	a := newAnswers(t)
	a.Others = alone{}
	for i := range adminv1.MaxListed {
		a.pod(restartbudget.WorkloadID{Kind: "Deployment", Namespace: "shop", Name: fmt.Sprint("more-", i)}, fmt.Sprint("more-", i), "bad", true, failing(""))
		a.grant(restartbudget.Grant{Template: "t", Spent: at, Ended: at, Judged: at, Outcome: restartbudget.Helped}, fmt.Sprint("was-", i))
	}
	got, err := a.list("shop")
	if err != nil || len(got.GetRestarts()) != adminv1.MaxListed || got.GetTail().GetLeftOut() != 7 || got.GetTail().GetMissingReplicas() != nil {
		t.Errorf("ListRestarts() has %d, and omits %d: %v", len(got.GetRestarts()), got.GetTail().GetLeftOut(), err)
	}
	explained, err := a.explain("shop", "web-1")
	if w := explained.GetWorkload(); err != nil || len(w.GetGrants()) != maxGrants || w.GetLeftOut() != adminv1.MaxListed+7-maxGrants || !w.GetGrants()[0].GetInProgress() {
		t.Errorf("ExplainRestart() has %d grants, and omits %d: %v", len(w.GetGrants()), w.GetLeftOut(), err)
	}
}

func TestRestartsAreExplained(t *testing.T) {
	a := newAnswers(t)
	got, err := a.explain("shop", "web-0")
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.ExplainRestartResponse{
		Namespace: "shop", Pod: "web-0", Node: "node1", Ready: true, Agent: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED}, AgentVersion: "1",
		Round: got.GetRound(), MissingReplicas: []string{"c", "d"}, Hold: "errored",
		Containers: []*adminv1.GuardedContainer{{
			Name: "app", Restarts: 3, Check: adminv1.GuardedContainer_FAILS, Since: timestamppb.New(at), Failure: "refused", Restart: &adminv1.Restart{
				Namespace: "shop", Pod: "web-0", Container: "app", Workload: "Deployment/shop/web", State: adminv1.Restart_WAITING, Since: timestamppb.New(at),
				Why: "2 of 2 restarts are in progress (the default, 25 %)", Failure: "refused", Decision: &adminv1.RestartDecision{
					PodUid: "web-0", Container: "app", Verdict: "held", Reason: "in_progress", Count: 2, Limit: 2, Source: "the default, 25 %",
					Text:  "2 of 2 restarts are in progress (the default, 25 %)",
					Needs: "a restart that is in progress has to end: its pod is Ready, and its probe has been checked again, or ten minutes are over",
				},
			},
		}},
		Workload: &adminv1.RestartWorkload{
			Name: "Deployment/shop/web", Replicas: 8, Available: 5, MaxUnavailable: 2, Source: "the default, 25 %", InProgress: 3,
			Grants: got.GetWorkload().GetGrants(),
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Explain() (-want +got):\n%s", diff)
	}
	wantGrants(t, got.GetWorkload().GetGrants())
	a.agents.agent = &adminv1.Agent{}
	if got, err = a.explain("data", "web-0"); err != nil || !got.GetAgentOutdated() || got.GetContainers()[0].GetCheck() != adminv1.GuardedContainer_PASSES || got.GetContainers()[0].GetRestart() != nil {
		t.Errorf("Explain() of a passing container with an old agent = %v, %v", got, err)
	}
}

// wantGrants checks the grants of a workload: those in progress come first.
func wantGrants(t *testing.T, all []*adminv1.RestartGrant) {
	t.Helper()
	var grants []string
	for _, g := range all {
		grants = append(grants, strings.TrimSpace(fmt.Sprint(g.GetPod(), " ", g.GetOutcome())))
		if inProgress := len(grants) <= 3; g.GetInProgress() != inProgress || g.GetContainer() != "app" || g.GetRestarts() != 3 {
			t.Errorf("grant %d is %v", len(grants), g)
		}
	}
	want := []string{"web-1", "web-2 spent", "web-3 helped", "bad-0 unhelpful", "bad-1 unhelpful", "gone", "web-6 helped"}
	if diff := cmp.Diff(want, grants); diff != "" {
		t.Errorf("grants (-want +got):\n%s", diff)
	}
}

// For a pod that is not guarded, the error gives the reason.
func TestOtherPodsAreExplained(t *testing.T) {
	a := newAnswers(t)
	for name, tc := range map[string]struct {
		namespace, pod string
		unguarded      []corev1.Pod
		code           codes.Code
		text           string
	}{
		"no name":           {"shop", "", nil, codes.InvalidArgument, "pod: must not be empty"},
		"in two namespaces": {"", "web-0", nil, codes.InvalidArgument, `pod "web-0" is in the namespaces data, shop: name one`},
		"unknown pod":       {"shop", "wbe-0", nil, codes.NotFound, `pod "wbe-0" not found in namespace "shop": did you mean "web-0"?`},
		"nowhere":           {"", "other", nil, codes.NotFound, `pod "other" not found in any namespace`},
		"not guarded": {"", "bare", []corev1.Pod{barePod("a"), barePod("b")}, codes.FailedPrecondition,
			"pod a/bare is not guarded: it has no sidecar; pod b/bare is not guarded: it has no sidecar"},
	} {
		a.unguarded = tc.unguarded
		if _, err := a.explain(tc.namespace, tc.pod); status.Code(err) != tc.code || status.Convert(err).Message() != tc.text {
			t.Errorf("%s: Explain() = %v, want %s %s", name, err, tc.code, tc.text)
		}
	}
	unread := &Answers{Restarts: newPatching(t, &patched{})}
	if _, err := unread.ExplainRestart(t.Context(), &adminv1.ExplainRestartRequest{Namespace: "shop", Pod: "web-0"}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not read yet") {
		t.Errorf("Explain() before everything is read: %v", err)
	}
}

func barePod(namespace string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bare"}}
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
		{"", "sts/data/db", codes.Unavailable, "release StatefulSet/data/db: write the status of RestartGrant data/db-1: "},
		{"", "deployment/web", codes.InvalidArgument, `workload "deployment/web": must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace`},
		{"shop", "web", codes.InvalidArgument, `workload "web": must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace`},
		{"shop", "/web", codes.InvalidArgument, `workload "/web": must be Kind/namespace/name, such as Deployment/shop/web, or kind/name with a namespace`},
		{"data", "Deployment/shop/web", codes.InvalidArgument, `workload "Deployment/shop/web": is not in namespace "data"`},
		{"", "Deployment/shop/wbe", codes.NotFound, `workload "Deployment/shop/wbe" has no guarded pod: did you mean "Deployment/shop/web"?; workloads that wait for a release: Deployment/shop/web`},
	} {
		a := newAnswers(t)
		a.grant(restartbudget.Grant{Spent: at, Ended: at, Judged: at, Outcome: restartbudget.Unhelpful}, "db-1")
		a.api.codes["db-1"] = []int{http.StatusForbidden}
		var log strings.Builder
		a.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		got, err := a.release(tc.namespace, tc.workload)
		switch patches := a.api.take(); {
		case status.Code(err) != tc.code || err != nil && !strings.HasPrefix(status.Convert(err).Message(), tc.want):
			t.Errorf("Release(%q, %q) = %v, want %s %s", tc.namespace, tc.workload, err, tc.code, tc.want)
		case err == nil && (got.GetWorkload() != tc.want || got.GetReleased() != 2 || strings.Join(patches, "") != "bad-0"+releasing+"bad-1"+releasing):
			t.Errorf("Release(%q, %q) = %v, and writes %q", tc.namespace, tc.workload, got, patches)
		case (err == nil) != strings.Contains(log.String(), `msg="restarts released" peer="" caller="" workload=Deployment/shop/web released=2`):
			t.Errorf("Release(%q, %q) logs %q", tc.namespace, tc.workload, &log)
		}
	}
	a := newAnswers(t)
	if err := a.grants.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := a.release("", "Deployment/shop/none"); !strings.HasSuffix(err.Error(), "; no workload waits for a release") {
		t.Errorf("Release() without a waiting workload: %v", err)
	}
}
