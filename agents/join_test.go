package agents_test

import (
	"context"
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// wantStatus checks the code and the text of a gRPC error.
func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if got := status.Convert(err); got.Code() != code || !strings.Contains(got.Message(), text) {
		t.Errorf("status = %s %q, want %s with %q", got.Code(), got.Message(), code, text)
	}
}

func TestJoinRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1", "web-2")
		good := identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web"}
		expired := h.token(good, time.Hour)
		h.ahead.Store(int64(2 * time.Hour))
		fresh := h.token(good, time.Hour)
		_, request := csr(t)
		tampered := append([]byte(nil), request...)
		tampered[len(tampered)-1] ^= 1
		tests := map[string]struct {
			request *agentv1.JoinRequest
			code    codes.Code
			text    string
		}{
			"expired token":            {&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: expired, Csr: request}, codes.Unauthenticated, "exp: expired at"},
			"no token":                 {&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Csr: request}, codes.Unauthenticated, "empty"},
			"bent token":               {&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: fresh[:len(fresh)-4] + "AAAA", Csr: request}, codes.Unauthenticated, "invalid token"},
			"token of another proxy":   {&agentv1.JoinRequest{Mesh: "default", Name: "web-2", Token: fresh, Csr: request}, codes.PermissionDenied, `for dataplane "web-1" of mesh "default", not "web-2" of "default"`},
			"token of another mesh":    {&agentv1.JoinRequest{Mesh: "other", Name: "web-1", Token: fresh, Csr: request}, codes.PermissionDenied, `for dataplane "web-1" of mesh "default", not "web-1" of "other"`},
			"bent certificate signed":  {&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: fresh, Csr: tampered, ControlPlaneAddress: "cp:5678"}, codes.InvalidArgument, "signature"},
			"no control plane address": {&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: fresh, Csr: request, ControlPlaneAddress: "cp"}, codes.InvalidArgument, `control_plane_address: "cp": must be host:port`},
			"too little memory":        {&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: fresh, Csr: request, MemoryBytes: 1 << 20}, codes.InvalidArgument, "memory_bytes: 1048576: must be from 16777216 to 1125899906842624, or 0 for 536870912"},
			"too much memory":          {&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: fresh, Csr: request, MemoryBytes: 1<<50 + 1}, codes.InvalidArgument, "memory_bytes: 1125899906842625"},
			"token of another workload": {
				&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: h.token(identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/api"}, time.Hour), Csr: request},
				codes.PermissionDenied, `for workload "api", the Dataplane has workload "web"`,
			},
			"unknown dataplane": {
				&agentv1.JoinRequest{Mesh: "default", Name: "new", Token: h.token(identity.Subject{Mesh: "default", Dataplane: "new", Path: "/workload/web"}, time.Hour), Csr: request},
				codes.FailedPrecondition, `dataplane "new" of mesh "default"`,
			},
			"unknown mesh": {
				&agentv1.JoinRequest{Mesh: "new", Name: "web-1", Token: h.token(identity.Subject{Mesh: "new", Dataplane: "web-1", Path: "/workload/web"}, time.Hour), Csr: request},
				codes.FailedPrecondition, `mesh "new"`,
			},
		}
		conn := (&agent{h: h}).dial()
		defer func() { _ = conn.Close() }()
		for name, tc := range tests {
			if tc.request.ControlPlaneAddress == "" {
				tc.request.ControlPlaneAddress = "cp:5678"
			}
			_, err := agentv1.NewAgentServiceClient(conn).Join(wait.Context(t), tc.request)
			if got := status.Convert(err); got.Code() != tc.code || !strings.Contains(got.Message(), tc.text) {
				t.Errorf("%s: Join() = %v, want %s with %q", name, err, tc.code, tc.text)
			}
			if token := tc.request.GetToken(); token != "" && strings.Contains(status.Convert(err).Message(), token) {
				t.Errorf("%s: the error contains the token", name)
			}
		}
		if got := h.metric("sonde_agents_joins_total", "PermissionDenied"); got != 3 {
			t.Errorf("joins rejected with PermissionDenied = %v, want 3", got)
		}
	})
}

func TestJoinWaitsForTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		a := h.agent("web-1")
		wantStatus(t, a.join(), codes.Unavailable, "no view")
		h.fill("web-1")
		a.mustJoin()
	})
}

func TestJoinAgainAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.agent("web-1")
		a.mustJoin()
		if want := "default/web-1 by cp:5678 with 512 MiB"; a.bootstrap != want {
			t.Errorf("bootstrap = %q, want %q", a.bootstrap, want)
		}
		first := a.leaf
		h.restart()
		h.fill("web-1")
		if err := a.renew(); err != nil {
			t.Errorf("the certificate from before the restart: %v", err)
		}
		if err := a.join(); err != nil {
			t.Errorf("the token from before the restart: %v", err)
		}
		if first.SerialNumber.Cmp(a.leaf.SerialNumber) == 0 {
			t.Error("join again: the same serial number")
		}
	})
}

func TestJoinWithCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1", "web-2")
		a := h.agent("web-1")
		a.mustJoin()
		first := a.leaf
		ask := func(meshName, name string) (*agentv1.JoinResponse, error) {
			_, request := csr(t)
			conn := a.dial()
			defer func() { _ = conn.Close() }()
			return agentv1.NewAgentServiceClient(conn).Join(t.Context(),
				&agentv1.JoinRequest{Mesh: meshName, Name: name, Csr: request, ControlPlaneAddress: "cp:5678"})
		}
		response, err := ask("default", "web-1")
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(response.GetIdentity().GetCertificateChain()[0])
		if err != nil {
			t.Fatal(err)
		}
		if leaf.SerialNumber.Cmp(first.SerialNumber) == 0 || leaf.URIs[0].String() != first.URIs[0].String() {
			t.Errorf("it got %s of %s, want another one of %s", leaf.SerialNumber, leaf.URIs[0], first.URIs[0])
		}
		if want := "default/web-1 by cp:5678 with 512 MiB"; string(response.GetBootstrap()) != want {
			t.Errorf("bootstrap = %q, want %q", response.GetBootstrap(), want)
		}
		_, err = ask("default", "web-2")
		wantStatus(t, err, codes.PermissionDenied, `for dataplane "web-1" of mesh "default", not "web-2" of "default"`)
		_, err = ask("other", "web-1")
		wantStatus(t, err, codes.PermissionDenied, `not "web-1" of "other"`)

		// A bad token is refused, whatever the certificate.
		_, request := csr(t)
		conn := a.dial()
		defer func() { _ = conn.Close() }()
		_, err = agentv1.NewAgentServiceClient(conn).Join(t.Context(),
			&agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: "bad", Csr: request, ControlPlaneAddress: "cp:5678"})
		wantStatus(t, err, codes.Unauthenticated, "invalid token")

		h.put(dataplane("default", "web-1", "api"))
		_, err = ask("default", "web-1")
		wantStatus(t, err, codes.PermissionDenied, "the agent needs another token")
	})
}

func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.agent("web-1")
		a.mustJoin()
		old := a.leaf
		if err := a.renew(); err != nil {
			t.Fatal(err)
		}
		if old.SerialNumber.Cmp(a.leaf.SerialNumber) == 0 || old.URIs[0].String() != a.leaf.URIs[0].String() {
			t.Errorf("renewed from %s of %s to %s of %s", old.SerialNumber, old.URIs[0], a.leaf.SerialNumber, a.leaf.URIs[0])
		}

		none := &agent{h: h}
		wantStatus(t, none.renew(), codes.Unauthenticated, "no client certificate")

		h.put(dataplane("default", "web-1", "api"))
		wantStatus(t, a.renew(), codes.PermissionDenied, "join again")
	})
}

func TestCertificateOfAnotherControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stranger := newHarness(t, nil), newHarness(t, nil)
		h.fill("web-1")
		stranger.fill("web-1")
		mine, theirs := h.agent("web-1"), stranger.agent("web-1")
		for _, a := range []*agent{mine, theirs} {
			a.mustJoin()
		}
		theirs.h = h
		_, request := csr(t)
		conn := theirs.dial()
		defer func() { _ = conn.Close() }()
		_, err := agentv1.NewAgentServiceClient(conn).Renew(wait.Context(t), &agentv1.RenewRequest{Csr: request})
		wantStatus(t, err, codes.Unavailable, "")
		h.eventually("the refused handshake is counted", func() bool {
			return h.metric("sonde_identity_connections_closed_total", "handshake") > 0
		})
		if err := mine.renew(); err != nil {
			t.Error(err)
		}
	})
}

func TestJoinsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *agents.Options) { o.SetLimits(agents.Limits{JoinBurst: 2}) })
		h.fill("web-1")
		a := h.agent("web-1")
		for range 2 {
			a.mustJoin()
		}
		wantStatus(t, a.join(), codes.ResourceExhausted, "too many certificates")
	})
}

// TestBadTokensCostGoodOnesNothing has many agents at one address, one of them without a valid token: the others join.
func TestBadTokensCostGoodOnesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1", "web-2")
		stranger := h.agent("web-1")
		stranger.token += "A"
		for range 500 {
			wantStatus(t, stranger.join(), codes.Unauthenticated, "invalid token")
		}
		if err := h.agent("web-2").join(); err != nil {
			t.Error(err)
		}
	})
}

// slowTokens checks a token only when the test releases it.
type slowTokens struct {
	join.Authenticator
	asked, answer chan struct{}
}

func (s *slowTokens) Authenticate(ctx context.Context, token string) (identity.Subject, error) {
	s.asked <- struct{}{}
	<-s.answer
	return s.Authenticator.Authenticate(ctx, token)
}

func TestTokensAreCheckedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowTokens{asked: make(chan struct{}, 2), answer: make(chan struct{})}
		h := newHarness(t, func(o *agents.Options) {
			o.SetLimits(agents.Limits{TokenChecks: 1})
			slow.Authenticator, o.Tokens = o.Tokens, slow
		})
		h.fill("web-1", "web-2")
		first := make(chan error, 1)
		web1, web2 := h.agent("web-1"), h.agent("web-2")
		go func() { first <- web1.join() }()
		<-slow.asked
		wantStatus(t, web2.join(), codes.Unavailable, "1 other tokens are being checked")
		close(slow.answer)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := web2.join(); err != nil {
			t.Error(err)
		}
	})
}

func TestControlPlaneAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *agents.Options) { o.SetLimits(agents.Limits{JoinBurst: 1000}) })
		h.fill("web-1")
		token := h.agent("web-1").token
		_, request := csr(t)
		for address, good := range map[string]bool{
			"cp:5678": true, "sonde-cp.sonde-system.svc:1": true, "10.0.0.1:65535": true, "[2001:db8::1]:5678": true, "under_score:5678": true,
			"cp": false, ":5678": false, "cp:": false, "cp:0": false, "cp:65536": false, "cp:-1": false, "cp:x": false, "a,b:1": false, "a b:1": false, "a/b:1": false,
			"[cp]:5678": false, "2001:db8::1:5678": false, "[2001:db8::1%eth0]:5678": false, "-cp:5678": false, "c\np:5678": false, "\u00fc:5678": false,
			strings.Repeat("a", 254) + ":5678": false,
		} {
			conn := (&agent{h: h}).dial() // the number of calls per agent without a certificate is limited
			_, err := agentv1.NewAgentServiceClient(conn).Join(t.Context(), &agentv1.JoinRequest{
				Mesh: "default", Name: "web-1", Token: token, Csr: request, ControlPlaneAddress: address,
			})
			_ = conn.Close()
			if good && err != nil {
				t.Errorf("%q: %v", address, err)
			}
			if !good {
				wantStatus(t, err, codes.InvalidArgument, "control_plane_address")
			}
		}
	})
}
