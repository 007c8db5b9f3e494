package replicas_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		connect(a, b)
		b.setProxy(proxyOf("default/web", "one"), "default/web")
		var got []byte
		take := func(part []byte) error {
			got = append(got, part...)
			return nil
		}
		if err := a.Peers.Query(t.Context(), "b", "default/web", mesh.ViewStats, take); err != nil || string(got) != "b stats" {
			t.Errorf("Query() = %q, %v", got, err)
		}
		if err := a.Peers.Query(t.Context(), "b", "default/none", mesh.ViewStats, take); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("Query() of a proxy without a session: %v", err)
		}
		if err := a.Peers.Query(t.Context(), "c", "default/web", mesh.ViewStats, take); status.Code(err) != codes.Unavailable {
			t.Errorf("Query() of an unknown replica: %v", err)
		}
		if got := a.Peers.CheckDuplicate(t.Context(), "b", "default/web", "two", "10.0.0.1"); !strings.HasPrefix(got, "refused: default/web") {
			t.Errorf("CheckDuplicate() = %q", got)
		}
		if got := a.Peers.CheckDuplicate(t.Context(), "c", "default/web", "two", "10.0.0.1"); got != "" {
			t.Errorf("an unknown replica rejects: %q", got)
		}
		streams, missing := a.Peers.Streams(t.Context())
		if len(streams) != 1 || streams["default/b"][0].GetReplica() != "b" || len(missing) > 0 {
			t.Errorf("Streams() = %v, %q", streams, missing)
		}
		b.stop()
		if _, missing := a.Peers.Streams(t.Context()); !slices.Equal(missing, []string{"b"}) {
			t.Errorf("missing %q", missing)
		}
	})
}

// TestAskPlaintext requests the counts of agents at another replica. One of them reports impossible values.
func TestAskPlaintext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		connect(a, b)
		for id, from := range map[string]string{"default/web": "10.0.0.7", "default/bad": "curl", "other/web": "10.0.0.8"} {
			p := proxyOf(id, "one")
			p.Plaintext = &peerv1.Plaintext{Said: &agentv1.Plaintext{Inbounds: []*agentv1.PlaintextInbound{{Port: 80, Sources: []*agentv1.PlaintextSource{{Address: from, Tally: &agentv1.PlaintextTally{Count: 1}}}}}}}
			b.mu.Lock()
			b.proxies[id] = p // b does not send it without a request
			b.mu.Unlock()
		}
		got := a.Peers.AskPlaintext(t.Context(), []string{"default"})
		if len(got) != 1 || got[0].GetId() != "default/web" || got[0].GetPlaintext().GetSaid().GetInbounds()[0].GetSources()[0].GetAddress() != "10.0.0.7" {
			t.Errorf("AskPlaintext() = %v", got)
		}
		b.stop()
		if got := a.Peers.AskPlaintext(t.Context(), []string{"default"}); len(got) > 0 {
			t.Errorf("a stopped replica has answered %v", got)
		}
	})
}

// TestDecisions asks for the leader's decisions, which do not fit into one part.
func TestDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		connect(a, b)
		decided, missing := a.Peers.Decisions(t.Context(), &peerv1.ListDecisionsRequest{Namespace: "shop", PodUid: "u"})
		if len(decided) != 1 || decided[0].GetRound().GetEpoch() != 7 || len(decided[0].GetDecisions()) != 1200 || len(missing) > 0 {
			t.Errorf("Decisions() = %.200v, %q", decided, missing)
		} else if last := decided[0].GetDecisions()[1199]; last.GetPodUid() != "u" || last.GetContainer() != "shop1199" {
			t.Errorf("the last decision is %v", last)
		}
		if decided, missing := b.Peers.Decisions(t.Context(), &peerv1.ListDecisionsRequest{}); len(decided) > 0 || len(missing) > 0 {
			t.Errorf("a replica that does not lead has decisions: %v, %q", decided, missing)
		}
		b.stop()
		if decided, missing := a.Peers.Decisions(t.Context(), &peerv1.ListDecisionsRequest{}); len(decided) > 0 || !slices.Equal(missing, []string{"b"}) {
			t.Errorf("Decisions() = %v, missing %q", decided, missing)
		}
	})
}

// TestListUnresponsive asks another replica whose agents hang. Once that replica is gone, the answer names it as
// missing.
func TestListUnresponsive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		connect(a, b)
		for _, id := range []mesh.ID{"default/web", "shop/web"} {
			b.mu.Lock()
			b.proxies[id] = proxyOf(id, "one")
			b.mu.Unlock()
		}
		for meshName, want := range map[string]int{"default": 1, "": 2, "other": 0} {
			if got, missing := a.Peers.ListUnresponsive(t.Context(), meshName); len(got) != want || len(missing) > 0 {
				t.Errorf("ListUnresponsive(%q) = %v, %v", meshName, got, missing)
			}
		}
		b.stop()
		if got, missing := a.Peers.ListUnresponsive(t.Context(), ""); len(got) > 0 || !slices.Equal(missing, []string{"b"}) {
			t.Errorf("ListUnresponsive() = %v, %v without the replica", got, missing)
		}
	})
}
