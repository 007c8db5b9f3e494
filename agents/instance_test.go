package agents_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/agents/observed"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
)

// podTokens maps tokens to identities or errors.
type podTokens map[string]any

func (p podTokens) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	switch v := p[token].(type) {
	case identity.Subject:
		return v, nil
	case error:
		return identity.Subject{}, v
	}
	return identity.Subject{}, errors.New("invalid token")
}

// db0 is the pod shop/db-0 with that UID.
func db0(uid string) identity.Subject {
	return identity.Subject{Mesh: "default", Dataplane: "db-0.shop", Path: "/ns/shop/sa/db", Instance: uid}
}

// podHarness is a control plane on Kubernetes. Its agents join with the token "<uid>".
type podHarness struct {
	*harness
	mu      sync.Mutex
	refused []join.Refusal
}

func newPodHarness(t *testing.T, tokens podTokens, bend ...func(*agents.Options)) *podHarness {
	t.Helper()
	h := &podHarness{}
	h.harness = &harness{pods: true, bend: func(o *agents.Options) {
		o.Tokens, o.Storage = tokens, nil
		o.Refused = func(r join.Refusal) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.refused = append(h.refused, r)
		}
		for _, b := range bend {
			b(o)
		}
	}}
	h.open(t)
	h.synced()
	return h
}

// has waits until the view has the pod shop/db-0 with that UID.
func (h *podHarness) has(uid string) {
	h.t.Helper()
	d := dataplane("default", "db-0.shop", "db")
	d.Identity = mesh.Identity{Path: "/ns/shop/sa/db", Instance: uid}
	h.put(d)
}

func (h *podHarness) pod(token string) *agent {
	h.t.Helper()
	a := h.agent("db-0.shop")
	a.token = token
	return a
}

// A deleted pod db-0 cannot continue as its successor.
func TestDeletedPodIsNotItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1"), "2": db0("2")})
		h.has("1")
		old := h.pod("1")
		old.mustJoin()
		if got := old.leaf.Subject.SerialNumber; got != "1" {
			t.Errorf("subject serial number = %q, want the UID", got)
		}
		old.connect(true)
		if err := old.renew(); err != nil {
			t.Errorf("Renew of an existing pod: %v", err)
		}

		h.has("2")
		wantStatus(t, old.ending(), codes.Aborted, "a newer proxy of its name")
		old.leave()
		const reason = "is for the one with UID 1 of dataplane \"db-0.shop\", the current one is the one with UID 2"
		wantStatus(t, old.renew(), codes.PermissionDenied, reason)
		wantStatus(t, old.join(), codes.FailedPrecondition, reason)
		wantStatus(t, joinByCertificate(old), codes.PermissionDenied, reason)
		old.open()
		wantStatus(t, old.ending(), codes.PermissionDenied, reason)
		h.eventually("nothing of the old pod is known", func() bool {
			_, p := h.builder.View().Proxy("default/db-0.shop")
			return p.Observed == mesh.Observation{}
		})

		fresh := h.pod("2")
		fresh.mustJoin()
		fresh.connect(false)
		old.leave()
		old.open() // it must not take the session over
		wantStatus(t, old.ending(), codes.PermissionDenied, reason)
		fresh.report()
		if err := fresh.renew(); err != nil {
			t.Error(err)
		}
		if names, _ := h.state.List("."); len(names) != 5 { // serving CA with copies, token key, CAs
			t.Errorf("the state has %v, want nothing about a pod", names)
		}
	})
}

// TestWhatReplicasAreToldOfAPod checks that reports about a pod do not apply to its successor, and that reported
// listeners of Envoy are kept until its agent connects.
func TestWhatReplicasAreToldOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "default/db-0.shop"
		h := newPodHarness(t, podTokens{"1": db0("1")})
		h.has("1")
		old := h.pod("1")
		old.mustJoin()
		old.connect(true)
		old.report()
		if m := h.server.Proxy(id); m.GetInstance() != "1" || !m.GetSession().GetOpen() || m.GetCertificate().GetSerial() == "" {
			t.Errorf("reported %v", m)
		}
		old.leave()
		h.eventually("the session is told as ended", func() bool { return !h.server.Proxy(id).GetSession().GetOpen() })

		h.has("2")
		h.eventually("nothing of the old pod is told", func() bool { return h.server.Proxy(id).GetSession() == nil })
		h.server.ObserveListeners(id, observed.Listeners{Accepted: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}, Since: time.Now()})
		h.server.Heard(id) // another replica has sent a report
		if m := h.server.Proxy(id); m.GetInstance() != "2" || len(m.GetListeners().GetAccepted()) != 1 {
			t.Errorf("reported %v", m)
		}
	})
}

// TestWorkloadIsNoPod checks that a workload's certificate is invalid for a pod of the same name, and a pod's
// certificate for the workload.
func TestWorkloadIsNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workload := identity.Subject{Mesh: "default", Dataplane: "db-0.shop", Path: "/workload/db"}
		h := newPodHarness(t, podTokens{"workload": workload, "path": identity.Subject{Mesh: "default", Dataplane: "db-0.shop", Path: "/ns/shop/sa/other", Instance: "1"}, "1": db0("1")})
		h.put(dataplane("default", "db-0.shop", "db"))
		vm := h.pod("workload")
		vm.mustJoin()
		wantStatus(t, h.pod("1").join(), codes.FailedPrecondition, "the current one is one without a UID")
		h.has("1")
		wantStatus(t, vm.renew(), codes.PermissionDenied, "one without a UID")
		wantStatus(t, vm.join(), codes.FailedPrecondition, "one without a UID")
		wantStatus(t, h.pod("path").join(), codes.PermissionDenied, `for workload "/ns/shop/sa/other", the Dataplane has workload "/ns/shop/sa/db"`)
	})
}

func joinByCertificate(a *agent) error {
	a.h.t.Helper()
	conn := a.dial()
	defer func() { _ = conn.Close() }()
	_, request := csr(a.h.t)
	_, err := agentv1.NewAgentServiceClient(conn).Join(a.h.t.Context(),
		&agentv1.JoinRequest{Mesh: "default", Name: a.name, Csr: request, ControlPlaneAddress: "cp:5678"})
	return err
}

// TestRestartWithoutRecords checks that the control plane continues after it has lost all state except the CA.
func TestRestartWithoutRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1")})
		h.has("1")
		a := h.pod("1")
		a.mustJoin()
		h.restart()
		h.synced()
		h.has("1")
		if got := h.server.States()["default/db-0.shop"].GetPhase(); got != adminv1.AgentState_RECONNECTING {
			t.Errorf("state is %s after the restart, want RECONNECTING", got)
		}
		a.connect(false)
		h.eventually("the session has said what it uses", func() bool {
			_, p := h.builder.View().Proxy("default/db-0.shop")
			return p.Observed.Joined && p.Observed.Path == "/ns/shop/sa/db"
		})
		if err := a.renew(); err != nil {
			t.Error(err)
		}
	})
}

func TestRefusalsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{
			"1": db0("1"), "later": fmt.Errorf("%w: pod shop/db-0", identity.ErrNotKnown), "down": fmt.Errorf("%w: timeout", identity.ErrUnavailable),
		})
		h.has("2")
		stranger := h.pod("bad")
		wantStatus(t, stranger.join(), codes.Unauthenticated, "invalid token")
		wantStatus(t, h.pod("later").join(), codes.FailedPrecondition, "pod shop/db-0")
		wantStatus(t, h.pod("down").join(), codes.Unavailable, "timeout")
		wantStatus(t, h.pod("1").join(), codes.FailedPrecondition, "UID 1")
		wantStatus(t, h.pod("1").join(), codes.FailedPrecondition, "UID 1") // passed to Refused only once
		other := h.pod("1")
		other.name = "db-1.shop"
		wantStatus(t, other.join(), codes.PermissionDenied, `for dataplane "db-0.shop"`)
		h.mu.Lock()
		defer h.mu.Unlock()
		want := []struct {
			authenticated bool
			instance      string
			waiting       bool
			code          string
		}{{false, "", false, "Unauthenticated"}, {false, "", true, "FailedPrecondition"}, {true, "1", true, "FailedPrecondition"}, {true, "1", false, "PermissionDenied"}}
		if len(h.refused) != len(want) {
			t.Fatalf("got %+v, want %d rejections", h.refused, len(want))
		}
		for i, r := range h.refused {
			if r.Mesh != "default" || r.Dataplane != "db-0.shop" || r.Authenticated != want[i].authenticated || r.Instance != want[i].instance || r.Waiting != want[i].waiting ||
				r.Code != want[i].code || net.ParseIP(r.Peer) == nil || r.Reason == "" {
				t.Errorf("rejection %d = %+v, want %+v", i, r, want[i])
			}
		}
	})
}
