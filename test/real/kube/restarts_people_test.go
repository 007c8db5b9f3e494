package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"

	"github.com/sonde-mesh/sonde/test/must"
)

// guarded is the agent of a guarded pod, with a session.
type guarded struct {
	*machine

	stream agentv1.AgentService_SessionClient
}

func openGuarded(m *machine, p *plane) *guarded {
	m.t.Helper()
	m.join(p)
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Minute) // the test fails if no grant arrives
	m.t.Cleanup(cancel)
	stream, err := agentv1.NewAgentServiceClient(m.dial(p)).Session(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	g := &guarded{m, stream}
	hello := m.hello(false)
	hello.GetHello().Features = append(hello.GetHello().GetFeatures(), agentv1.FeatureRestartGrants)
	g.send(hello)
	return g
}

func (g *guarded) send(message *agentv1.AgentMessage) {
	g.t.Helper()
	if err := g.stream.Send(message); err != nil {
		g.t.Fatal(err)
	}
}

// fails reports that the container app fails, and the grant in use, if any. The control plane accepts one report per
// second.
func (g *guarded) fails(grant string) {
	g.t.Helper()
	held := &agentv1.HeldLiveness{Container: "app", Reason: "connection refused", Grant: grant}
	g.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: &agentv1.Liveness{Held: []*agentv1.HeldLiveness{held}}}})
	time.Sleep(1100 * time.Millisecond)
}

// granted waits for a new grant, and returns its name.
func (g *guarded) granted(before string) string {
	g.t.Helper()
	for {
		r, err := g.stream.Recv()
		if err != nil {
			g.t.Fatal(err)
		}
		for _, grant := range r.GetRestarts().GetGrants() {
			if grant.GetName() != before {
				return grant.GetName()
			}
		}
		if answer := g.answer(r); answer != nil {
			g.send(answer)
		}
	}
}

// restarted writes the restart count of the container app, as the kubelet does.
func restarted(t *testing.T, client kubernetes.Interface, namespace string, times int32) {
	t.Helper()
	pods := client.CoreV1().Pods(namespace)
	must.Poll(t, "the status of the pod", func(ctx context.Context) error {
		pod, err := pods.Get(ctx, "guarded", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", RestartCount: times}}
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
}

// TestRestartsAtTheReplicaThatFollows has a container that still fails after two restarts. The follower lists and
// explains the leader's decision, and releases the workload, which then gets another grant.
func TestRestartsAtTheReplicaThatFollows(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	const ns = "restarts-people"
	namespace(t, client, ns, nil)
	leader, leads, follows := leaderAndFollower(t, client, startReplicas(t, "a", "b"))
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	admin, ctx := follows.adminClient(t, client)
	list := func(holds func(*adminv1.ListRestartsResponse, *adminv1.Restart) bool) {
		t.Helper()
		must.Poll(t, "the list of restarts", func(context.Context) error {
			r, err := admin.ListRestarts(ctx, &adminv1.ListRestartsRequest{Namespace: ns})
			if err == nil && (len(r.GetRestarts()) != 1 || !holds(r, r.GetRestarts()[0])) {
				err = fmt.Errorf("%v", r)
			}
			return err
		})
	}
	g := openGuarded(newGuardedPod(t, client, ns), leads)
	last := ""
	for times := range int32(2) {
		g.fails("")
		last = g.granted(last)
		g.fails(last)
		list(func(_ *adminv1.ListRestartsResponse, r *adminv1.Restart) bool {
			return r.GetState() == adminv1.Restart_GRANTED
		})
		restarted(t, client, ns, times+1)
		list(func(_ *adminv1.ListRestartsResponse, r *adminv1.Restart) bool {
			return r.GetState() == adminv1.Restart_RESTARTING
		})
	}
	g.fails("")
	list(func(all *adminv1.ListRestartsResponse, r *adminv1.Restart) bool {
		return r.GetState() == adminv1.Restart_UNHELPFUL && strings.Contains(r.GetWhy(), "2 restarts in a row did not help") && all.GetRound().GetReplica() == leader
	})
	explainsRestarts(ctx, t, client, admin, ns)

	if r, err := admin.ReleaseRestarts(ctx, &adminv1.ReleaseRestartsRequest{Namespace: ns, Workload: "pod/guarded"}); err != nil || r.GetReleased() != 2 {
		t.Fatalf("ReleaseRestarts() = %v, %v", r, err)
	}
	if third := g.granted(last); !strings.HasPrefix(third, "guarded.app.2.0.") {
		t.Errorf("after the release the grant is %s", third)
	}
	must.Poll(t, "nothing to release", func(context.Context) error {
		r, err := admin.ReleaseRestarts(ctx, &adminv1.ReleaseRestartsRequest{Workload: "Pod/" + ns + "/guarded"})
		if err == nil && r.GetReleased() != 0 {
			err = errors.New(r.String())
		}
		return err
	})
	leads.stop()
	leadsWithTheRelease(ctx, t, admin, ns, leader)
}

// leadsWithTheRelease waits until another replica has decided, and no workload waits for a release.
func leadsWithTheRelease(ctx context.Context, t *testing.T, admin adminv1.AdminServiceClient, ns, before string) {
	t.Helper()
	must.Poll(t, "the other replica to lead, with the release", func(context.Context) error {
		r, err := admin.ListRestarts(ctx, &adminv1.ListRestartsRequest{Namespace: ns})
		if err == nil && (r.GetRound() == nil || r.GetRound().GetReplica() == before || len(r.GetUnhelpful()) > 0) {
			err = errors.New(r.String())
		}
		return err
	})
}

// leaderAndFollower returns which of the control planes a and b leads, and both.
func leaderAndFollower(t *testing.T, client kubernetes.Interface, planes []*plane) (name string, leads, follows *plane) {
	t.Helper()
	must.Poll(t, "a leader", func(ctx context.Context) (err error) {
		name, err = holder(ctx, client)
		return err
	})
	if name == "b" {
		return name, planes[1], planes[0]
	}
	return name, planes[0], planes[1]
}

// explainsRestarts explains a pod whose restarts did not help, and pods that cannot be explained.
func explainsRestarts(ctx context.Context, t *testing.T, client kubernetes.Interface, admin adminv1.AdminServiceClient, ns string) {
	t.Helper()
	must.Poll(t, "the explanation from the grants", func(context.Context) error { return explained(ctx, admin, ns) })
	if _, err := client.CoreV1().Pods(ns).Create(t.Context(), podOf(ns, "bare", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for pod, want := range map[string]struct {
		code codes.Code
		text string
	}{
		"bare":    {codes.FailedPrecondition, "pod " + ns + "/bare is not guarded: it has no sidecar"},
		"gaurded": {codes.NotFound, `pod "gaurded" not found in namespace "` + ns + `": did you mean "guarded"?`},
	} {
		_, err := admin.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Pod: pod, Namespace: ns})
		if status.Code(err) != want.code || status.Convert(err).Message() != want.text {
			t.Errorf("ExplainRestart() of %s: %v, want %s", pod, err, want.text)
		}
	}
}

// explained returns an error unless the explanation says, from the grants, that two restarts did
// not help.
func explained(ctx context.Context, admin adminv1.AdminServiceClient, ns string) error {
	all, err := admin.ListRestarts(ctx, &adminv1.ListRestartsRequest{Namespace: ns})
	if err != nil || strings.Join(all.GetUnhelpful(), " ") != "Pod/"+ns+"/guarded" || len(all.GetTail().GetMissingReplicas()) > 0 || all.GetRestarts()[0].GetFailure() != "connection refused" {
		return fmt.Errorf("ListRestarts() = %v, %w", all, err)
	}
	r, err := admin.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Pod: "guarded", Namespace: ns})
	if err != nil {
		return err
	}
	w, c := r.GetWorkload(), r.GetContainers()[0]
	got := fmt.Sprintf("agent %s, outdated %t; check %s, restarts %d, decision %s; may lose %d, unhelpful %t, of %d grants the first %s", r.GetAgent().GetPhase(), r.GetAgentOutdated(),
		c.GetCheck(), c.GetRestarts(), c.GetRestart().GetDecision().GetReason(), w.GetMaxUnavailable(), w.GetUnhelpful(), len(w.GetGrants()), w.GetGrants()[0].GetOutcome())
	const want = "agent CONNECTED, outdated false; check FAILS, restarts 2, decision unhelpful; may lose 1, unhelpful true, of 2 grants the first unhelpful"
	if got != want {
		return fmt.Errorf("ExplainRestart():\n got %s\nwant %s", got, want)
	}
	return nil
}
