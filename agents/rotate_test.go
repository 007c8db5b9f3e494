package agents_test

import (
	"bytes"
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// trio returns three agents with sessions.
func trio(t *testing.T) (*harness, []*agent) {
	t.Helper()
	h := newHarness(t, nil)
	return h, h.trio()
}

func (h *harness) trio() []*agent {
	h.t.Helper()
	h.fill("web-1", "web-2", "web-3")
	return []*agent{h.joined("web-1"), h.joined("web-2"), h.joined("web-3")}
}

// TestRotationOfAnUnknownMesh checks that nothing is rotated or logged.
func TestRotationOfAnUnknownMesh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := trio(t)
		calls := map[string]func(meshName string) error{
			"RotateCA": func(meshName string) error {
				_, err := h.server.Rotations().RotateCA(t.Context(), &adminv1.RotateCARequest{Mesh: meshName})
				return err
			},
			"GetRotation": func(meshName string) error {
				_, err := h.server.Rotations().GetRotation(t.Context(), &adminv1.GetRotationRequest{Mesh: meshName})
				return err
			},
		}
		for name, call := range calls {
			if err := call("nowhere"); status.Code(err) != codes.NotFound {
				t.Errorf("%s() of an unknown mesh: %v", name, err)
			}
			if err := call("default"); err != nil {
				t.Errorf("%s() of a mesh: %v", name, err)
			}
		}
		if n := strings.Count(h.log.String(), "CA rotation requested"); n != 1 {
			t.Errorf("%d lines about rotations in the log, want 1:\n%s", n, h.log)
		}
	})
}

// again restarts the control plane, and reconnects the agents.
func (h *harness) again(all ...*agent) {
	h.t.Helper()
	for _, a := range all {
		a.leave()
	}
	h.restart()
	h.fill("web-1", "web-2", "web-3")
	for _, a := range all {
		a.connect(false)
	}
}

func (h *harness) rotate(force bool) {
	h.t.Helper()
	if _, err := h.server.Rotations().RotateCA(h.t.Context(), &adminv1.RotateCARequest{Mesh: "default", Force: force}); err != nil {
		h.t.Fatal(err)
	}
}

// waitsFor waits until the rotation is at that step and waits for these proxies.
func (h *harness) waitsFor(step adminv1.Rotation_Step, names ...string) {
	h.t.Helper()
	var got *adminv1.Rotation
	h.eventually(step.String()+" waits for the right proxies", func() bool {
		var err error
		if got, err = h.server.Rotations().GetRotation(h.t.Context(), &adminv1.GetRotationRequest{Mesh: "default"}); err != nil {
			h.t.Fatal(err)
		}
		var waiting []string
		for _, p := range got.GetWaiting() {
			waiting = append(waiting, p.GetName())
		}
		return got.GetStep() == step && cmp.Equal(waiting, names)
	})
}

// trust checks that each agent accepts the leaves of the other agents, and that the control plane accepts all leaves.
func (h *harness) trust(all ...*agent) {
	h.t.Helper()
	for _, from := range all {
		if _, err := h.authority.Verify([]*x509.Certificate{from.leaf}); err != nil {
			h.t.Errorf("the control plane rejects %s: %v", from.name, err)
		}
		for _, to := range all {
			if err := accepts(to, from); err != nil {
				h.t.Errorf("%s rejects %s: %v", to.name, from.name, err)
			}
		}
	}
}

func accepts(to, from *agent) error {
	roots := x509.NewCertPool()
	for _, der := range to.bundle.GetRoots() {
		root, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		roots.AddCert(root)
	}
	_, err := from.leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: to.h.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// obey lets each agent follow its messages, and checks after each that no agent is rejected.
func (h *harness) obey(all ...*agent) {
	h.t.Helper()
	for _, a := range all {
		a.obey()
		h.trust(all...)
	}
}

func TestRotation(t *testing.T) {
	for name, restart := range map[string]bool{"in one go": false, "with a restart at each step": true} {
		virtual.Run(t, name, func(t *testing.T) {
			h, all := trio(t)
			old := all[0].leaf
			before := all[0].bundle
			steps := []adminv1.Rotation_Step{adminv1.Rotation_TRUST_BOTH, adminv1.Rotation_RENEW_LEAVES, adminv1.Rotation_TRUST_NEW}
			h.rotate(false)
			for _, step := range steps {
				h.waitsFor(step, "web-1", "web-2", "web-3")
				if restart {
					h.again(all...)
				}
				h.rotate(false) // continues the current rotation
				all[0].obey()
				h.trust(all...)
				h.waitsFor(step, "web-2", "web-3")
				if restart {
					h.again(all...)
				}
				all[1].obey()
				h.trust(all...)
				h.waitsFor(step, "web-3")
				all[2].obey()
				h.trust(all...)
			}
			h.waitsFor(adminv1.Rotation_IDLE)
			h.trust(all...)
			after := all[0].bundle
			if len(after.GetRoots()) != 1 || bytes.Equal(after.GetRoots()[0], before.GetRoots()[0]) || after.GetId() == before.GetId() {
				t.Errorf("the bundle after the rotation has %d roots, or is the old one", len(after.GetRoots()))
			}
			if _, err := h.authority.Verify([]*x509.Certificate{old}); err == nil {
				t.Error("the control plane accepts a leaf of the old CA after the rotation")
			}
		})
	}
}

func TestRotationDropsTheOldKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all := trio(t)
		h.rotate(false)
		h.obey(all...)
		h.waitsFor(adminv1.Rotation_RENEW_LEAVES, "web-1", "web-2", "web-3")
		data, err := h.state.Read("meshes/default/ca.json")
		if err != nil {
			t.Fatal(err)
		}
		if keys, certs := bytes.Count(data, []byte("BEGIN PRIVATE KEY")), bytes.Count(data, []byte("BEGIN CERTIFICATE")); keys != 1 || certs != 2 {
			t.Errorf("%d keys and %d certificates are stored, want the new key and both certificates", keys, certs)
		}
	})
}

func TestRotationWaitsForASilentProxyUntilItsCertificateIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all := trio(t)
		all[2].leave()
		h.rotate(false)
		h.obey(all[:2]...)
		h.waitsFor(adminv1.Rotation_TRUST_BOTH, "web-3")
		got, err := h.server.Rotations().GetRotation(t.Context(), &adminv1.GetRotationRequest{Mesh: "default"})
		if err != nil {
			t.Fatal(err)
		}
		if p := got.GetWaiting()[0]; !p.GetSilent() || !p.GetCertificateExpires().AsTime().Equal(all[2].leaf.NotAfter) {
			t.Errorf("waiting = %v, want silent until %s", p, all[2].leaf.NotAfter)
		}

		h.ahead.Store(int64(23 * time.Hour))
		for _, a := range all[:2] {
			if err := a.renew(); err != nil {
				t.Fatal(err)
			}
			a.report()
		}
		h.waitsFor(adminv1.Rotation_TRUST_BOTH, "web-3")
		h.ahead.Store(int64(25 * time.Hour))
		h.obey(all[:2]...)
		h.obey(all[:2]...)
		h.waitsFor(adminv1.Rotation_IDLE)
	})
}

func TestForcedRotationPassesOverSilentProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all := trio(t)
		all[2].leave()
		h.rotate(true)
		all[0].obey()
		h.ahead.Store(int64(2 * time.Minute))
		h.waitsFor(adminv1.Rotation_TRUST_BOTH, "web-2", "web-3") // web-2 is not silent, only slow
		all[1].obey()
		h.waitsFor(adminv1.Rotation_RENEW_LEAVES, "web-1", "web-2", "web-3")

		h.again(all[:2]...) // the forced rotation survives the restart
		h.obey(all[:2]...)
		h.trust(all[:2]...)
		// After the restart, web-3 has not had time to reconnect.
		h.waitsFor(adminv1.Rotation_RENEW_LEAVES, "web-3")
		h.ahead.Store(int64(4 * time.Minute))
		h.obey(all[:2]...)
		h.waitsFor(adminv1.Rotation_IDLE)

		wantStatus(t, all[2].renew(), codes.Unavailable, "") // rejected in the handshake
		if err := all[2].join(); err != nil {
			t.Fatalf("the skipped proxy joins again: %v", err)
		}
		h.trust(all...)
	})
}

func TestProxyThatComesBackInTheMiddleCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all := trio(t)
		all[2].leave()
		h.ahead.Store(int64(2 * time.Minute))
		h.rotate(true)
		all[0].obey()
		all[1].obey()
		h.waitsFor(adminv1.Rotation_RENEW_LEAVES, "web-1", "web-2", "web-3")
		all[2].connect(false)
		all[2].obey() // the bundle first
		if len(all[2].bundle.GetRoots()) != 2 {
			t.Fatalf("the bundle has %d roots, want both", len(all[2].bundle.GetRoots()))
		}
		all[2].obey() // then the leaf
		h.obey(all[:2]...)
		h.waitsFor(adminv1.Rotation_TRUST_NEW, "web-1", "web-2", "web-3")
	})
}

func TestRotationOfAnEmptyMeshIsOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill()
		before, err := h.server.Rotations().GetRotation(t.Context(), &adminv1.GetRotationRequest{Mesh: "default"})
		if err != nil || before.GetStep() != adminv1.Rotation_IDLE {
			t.Fatalf("a mesh without a CA: %v, %v, want IDLE", before, err)
		}
		got, err := h.server.Rotations().RotateCA(t.Context(), &adminv1.RotateCARequest{Mesh: "default", Force: false})
		if err != nil || got.GetStep() != adminv1.Rotation_IDLE {
			t.Errorf("Rotate() = %v, %v, want IDLE", got, err)
		}
	})
}
