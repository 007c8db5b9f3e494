package agents_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

// following returns an agent with the feature "serving-ca", and with a session in which it has stored the received CAs.
func (h *harness) following(name string) *agent {
	h.t.Helper()
	a := h.agent(name)
	a.features = append(a.features, agentv1.FeatureServingCA)
	a.mustJoin()
	a.connect(false)
	a.obey()
	h.eventually(name+" is known to follow", func() bool {
		holders, _ := h.authority.Holders("default", time.Time{})
		return slices.ContainsFunc(holders, func(known identity.Holder) bool {
			return known.Dataplane == name && known.ServingCA == a.servingCA.GetId()
		})
	})
	return a
}

// followers returns three such agents.
func followers(t *testing.T) (*harness, []*agent) {
	t.Helper()
	h := newHarness(t, nil)
	h.fill("web-1", "web-2", "web-3")
	return h, []*agent{h.following("web-1"), h.following("web-2"), h.following("web-3")}
}

func (h *harness) rotateServing(force, proceed bool) {
	h.t.Helper()
	if _, err := h.server.Rotations().RotateServingCA(h.t.Context(), &adminv1.RotateServingCARequest{Force: force, Proceed: proceed}); err != nil {
		h.t.Fatal(err)
	}
}

// servingIs waits until the rotation of the serving CA is at that step and waits for these proxies.
func (h *harness) servingIs(step adminv1.Rotation_Step, names ...string) *adminv1.Rotation {
	h.t.Helper()
	var got *adminv1.Rotation
	h.eventually(step.String()+" of the serving CA waits for the right proxies", func() bool {
		var err error
		if got, err = h.server.Rotations().GetServingRotation(h.t.Context(), nil); err != nil {
			h.t.Fatal(err)
		}
		var waiting []string
		for _, p := range got.GetWaiting() {
			if p.GetMesh() != "default" {
				h.t.Errorf("waiting = %v, want the mesh", p)
			}
			waiting = append(waiting, p.GetName())
		}
		return got.GetStep() == step && cmp.Equal(waiting, names)
	})
	return got
}

// reachable checks that an agent can reconnect with the CAs that it trusts.
func (h *harness) reachable(all ...*agent) {
	h.t.Helper()
	for _, a := range all {
		if err := a.renew(); err != nil {
			h.t.Errorf("%s cannot reach the control plane: %v", a.name, err)
		}
	}
}

func TestServingCARotation(t *testing.T) {
	for name, restart := range map[string]bool{"in one go": false, "with a restart at each step": true} {
		virtual.Run(t, name, func(t *testing.T) {
			h, all := followers(t)
			again := func() {
				t.Helper()
				if restart {
					h.again(all...)
				}
				h.reachable(all...)
			}
			before := all[0].servingCA
			if len(before.GetRoots()) != 1 || before.GetEpoch() <= 0 {
				t.Fatalf("sent %v before any rotation, want one CA", before)
			}
			h.servingIs(adminv1.Rotation_IDLE)
			again()

			h.rotateServing(false, false)
			h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-1", "web-2", "web-3")
			again()
			all[0].obey()
			again()
			h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-2", "web-3")
			all[1].obey()
			all[2].obey()
			if len(all[0].servingCA.GetRoots()) != 2 || all[0].servingCA.GetEpoch() <= before.GetEpoch() {
				t.Errorf("sent %v in the first step, want both CAs with a higher epoch", all[0].servingCA)
			}
			got := h.servingIs(adminv1.Rotation_TRUST_BOTH)
			if !got.GetPaused() {
				t.Errorf("rotation = %v, want it to wait for the operator", got)
			}
			h.rotateServing(false, false)
			again()
			h.servingIs(adminv1.Rotation_TRUST_BOTH)

			h.rotateServing(false, true)
			got = h.servingIs(adminv1.Rotation_TRUST_NEW, "web-1", "web-2", "web-3")
			if len(got.GetMissed()) > 0 || got.GetPaused() {
				t.Errorf("rotation = %v, want none missed", got)
			}
			again()
			all[0].obey()
			again()
			all[1].obey()
			h.servingIs(adminv1.Rotation_TRUST_NEW, "web-3")
			again()
			all[2].obey()
			h.servingIs(adminv1.Rotation_IDLE)
			again()
			after := all[0].servingCA
			if len(after.GetRoots()) != 1 || slices.Equal(after.GetRoots()[0], before.GetRoots()[0]) {
				t.Errorf("sent %v after the rotation, want only the new CA", after)
			}
		})
	}
}

// TestAgentAwayButForOneStep has an agent that received both CAs, was then disconnected, and reconnects after the
// rotation.
func TestAgentAwayButForOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all := followers(t)
		h.rotateServing(false, true)
		all[2].obey()
		h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-1", "web-2")
		all[2].leave()
		all[0].obey()
		all[1].obey()
		h.servingIs(adminv1.Rotation_TRUST_NEW, "web-1", "web-2", "web-3")
		h.ahead.Store(int64(2 * time.Minute))
		h.rotateServing(true, true)
		all[0].obey()
		all[1].obey()
		if got := h.servingIs(adminv1.Rotation_IDLE); len(got.GetMissed()) > 0 {
			t.Errorf("missed = %v, want none: web-3 trusts the new CA", got.GetMissed())
		}
		all[2].connect(false)
		all[2].obey()
		if len(all[2].servingCA.GetRoots()) != 1 {
			t.Errorf("sent %v, want only the new CA", all[2].servingCA)
		}
	})
}

// TestAgentThatMissesAll has a silent agent, for which the rotation does not wait.
func TestAgentThatMissesAll(t *testing.T) {
	tests := map[string]struct {
		force bool
		ahead time.Duration
	}{
		"forced":                      {true, 2 * time.Minute},
		"its certificate has expired": {false, 25 * time.Hour},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h, all := followers(t)
			all[2].leave()
			h.rotateServing(tc.force, true)
			all[0].obey()
			all[1].obey()
			got := h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-3")
			if w := got.GetWaiting()[0]; !w.GetSilent() || w.GetOutdated() || w.GetCertificateExpires().AsTime().IsZero() {
				t.Errorf("waiting = %v, want silent, with the end of its certificate", w)
			}
			if tc.ahead > time.Hour { // the certificates of the others are still valid
				h.ahead.Store(int64(23 * time.Hour))
				h.reachable(all[:2]...)
				all[0].report()
				all[1].report()
			}
			h.ahead.Store(int64(tc.ahead))
			all[0].obey()
			all[1].obey()
			missed := func(want ...string) {
				t.Helper()
				h.eventually("the right proxies are named as missed", func() bool {
					var names []string
					for _, p := range h.servingIs(adminv1.Rotation_IDLE).GetMissed() {
						names = append(names, mesh.MakeID(p.GetMesh(), p.GetName()))
					}
					return cmp.Equal(names, want)
				})
			}
			missed("default/web-3")
			all[2].token = h.token(identity.Subject{Mesh: "default", Dataplane: "web-3", Path: "/workload/web"}, time.Hour)
			wantStatus(t, all[2].join(), codes.Unavailable, "unknown authority")
			h.again(all[:2]...)
			missed("default/web-3") // also after a restart

			all[2].trusted = h.serving.CA() // an operator replaced its file
			all[2].mustJoin()
			all[2].connect(false)
			all[2].obey()
			h.eventually("web-3 is forgotten", func() bool { return len(h.serving.Rotation().Missed) == 0 })
			all[2].leave()
			missed()
		})
	}
}

func TestMissedProxyIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all := followers(t)
		all[2].leave()
		h.ahead.Store(int64(2 * time.Minute))
		h.rotateServing(true, true)
		all[0].obey()
		all[1].obey()
		h.eventually("web-3 is missed", func() bool { return slices.Equal(h.serving.Rotation().Missed, []string{"default/web-3"}) })
		h.delete("web-3")
		h.eventually("web-3 is forgotten", func() bool { return len(h.serving.Rotation().Missed) == 0 })
	})
}

// TestOutdatedAgentIsWaitedFor has an agent of an earlier release: the rotation waits for it, and the agent is served
// as before.
func TestOutdatedAgentIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.joined("web-1")
		a.report()
		h.rotateServing(true, true)
		got := h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-1")
		if w := got.GetWaiting()[0]; w.GetSilent() || !w.GetOutdated() {
			t.Errorf("waiting = %v, want a connected, outdated agent", w)
		}
		h.reachable(a)
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: a.inUse()}})
		h.rotate(false)
		a.obey() // the next message is about the mesh's CA
		h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-1")
	})
}

// TestServingCARotationWaitsForOthers has another replica, or an API server, that completes each step late.
func TestServingCARotationWaitsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loaded atomic.Pointer[ca.Step] // the last step that the other replica has loaded
		none := ca.StepNone
		loaded.Store(&none)
		h := newHarness(t, func(o *agents.Options) {
			o.ServingWaits = []func(context.Context, serving.Rotation) []string{func(_ context.Context, r serving.Rotation) []string {
				if r.Step != *loaded.Load() {
					return []string{"replica b has not loaded step " + string(r.Step)}
				}
				return nil
			}}
		})
		h.fill("web-1")
		a := h.following("web-1")
		h.rotateServing(false, true)
		a.obey()
		steps := []ca.Step{ca.StepTrustBoth, ca.StepRenewLeaves, ca.StepTrustNew}
		for i, shown := range []adminv1.Rotation_Step{adminv1.Rotation_TRUST_BOTH, adminv1.Rotation_RENEW_LEAVES, adminv1.Rotation_TRUST_NEW} {
			if steps[i] == ca.StepTrustNew {
				a.obey()
			}
			got := h.servingIs(shown)
			if want := []string{"replica b has not loaded step " + string(steps[i])}; !slices.Equal(got.GetOthers(), want) || got.GetPaused() {
				t.Errorf("others = %q, want %q", got.GetOthers(), want)
			}
			h.rotateServing(false, true)
			h.reachable(a)
			h.servingIs(shown)
			loaded.Store(&steps[i])
		}
		h.servingIs(adminv1.Rotation_IDLE)
	})
}

// TestServingCARotationGoesOnAfterAFullDisk has a disk without space for the copies when a step begins.
func TestServingCARotationGoesOnAfterAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		storage := &secrettest.Memory{Fail: func(name string) error {
			if full.Load() && name == "serving-ca.crt" {
				return errors.New("disk full")
			}
			return nil
		}}
		h := newHarness(t, func(o *agents.Options) {
			var err error
			if o.ServingCA, err = serving.Open(t.Context(), serving.Options{Storage: storage}); err != nil {
				t.Fatal(err)
			}
		})
		h.fill()
		waits := func(step adminv1.Rotation_Step) {
			t.Helper()
			time.Sleep(time.Minute)
			got, want := h.servingIs(step), []string{"write serving-ca.crt: disk full"}
			if !slices.Equal(got.GetOthers(), want) || got.GetPaused() {
				t.Errorf("others = %q, paused %v, want %q", got.GetOthers(), got.GetPaused(), want)
			}
		}
		full.Store(true)
		_, err := h.server.Rotations().RotateServingCA(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "rotate the serving CA: ") || strings.Contains(h.log.String(), "CA rotation requested") {
			t.Errorf("RotateServingCA() = %v, want that the copies are not written, and no line about a rotation in the log:\n%s", err, h.log)
		}
		waits(adminv1.Rotation_TRUST_BOTH)
		full.Store(false)
		time.Sleep(time.Minute)
		if got := h.servingIs(adminv1.Rotation_TRUST_BOTH); !got.GetPaused() || len(got.GetOthers()) > 0 {
			t.Errorf("others = %q, paused %v, want only paused", got.GetOthers(), got.GetPaused())
		}
		full.Store(true)
		// This fails only if the next step begins before the answer.
		_, err = h.server.Rotations().RotateServingCA(t.Context(), &adminv1.RotateServingCARequest{Proceed: true})
		if err != nil && !strings.Contains(err.Error(), "disk full") {
			t.Fatal(err)
		}
		waits(adminv1.Rotation_RENEW_LEAVES)
		full.Store(false)
		h.servingIs(adminv1.Rotation_IDLE)
	})
}

// TestAgentAheadIsToldNothing has an agent report newer CAs than this replica has.
func TestAgentAheadIsToldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.following("web-1")
		a.leave()
		a.servingCA = &agentv1.Bundle{Id: "newer", Epoch: a.servingCA.GetEpoch() + 1}
		a.connect(false)
		h.rotate(false)
		if m := a.receive(); m.GetBundle() == nil {
			t.Errorf("sent %v, want the mesh's CA next", m)
		}
	})
}

// TestBootstrapSaysWhatTheAgentDoes joins as an agent of an earlier release, as an agent that writes the file of CAs,
// and as an agent that accepts records of plaintext.
func TestBootstrapSaysWhatTheAgentDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *agents.Options) {
			o.Bootstrap = func(_ *meshview.Proxy, s join.Sidecar) ([]byte, error) {
				return json.Marshal(map[string]bool{agentv1.FeatureServingCA: s.ServingCAFile, agentv1.FeaturePlaintext: s.Records})
			}
		})
		h.fill("web-1")
		a := h.agent("web-1")
		for want, features := range map[string][]string{
			`{"plaintext":false,"serving-ca":false}`: nil,
			`{"plaintext":false,"serving-ca":true}`:  {agentv1.FeatureServingCA},
			`{"plaintext":true,"serving-ca":true}`:   {agentv1.FeatureServingCA, agentv1.FeaturePlaintext},
		} {
			_, request := csr(t)
			conn := a.dial()
			response, err := agentv1.NewAgentServiceClient(conn).Join(t.Context(), &agentv1.JoinRequest{
				Mesh: "default", Name: "web-1", Token: a.token, Csr: request, ControlPlaneAddress: "cp:5678", Features: features,
			})
			_ = conn.Close()
			if err != nil || string(response.GetBootstrap()) != want {
				t.Errorf("features %v: bootstrap for %s, %v, want %s", features, response.GetBootstrap(), err, want)
			}
		}
	})
}

// TestServingCARotationOfPods checks that after a restart, before any report, the rotation waits for each agent in the
// view.
func TestServingCARotationOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &harness{pods: true}
		h.open(t)
		h.fill("web-1", "web-2", "web-3")
		all := []*agent{h.following("web-1"), h.following("web-2"), h.following("web-3")}
		h.rotateServing(false, true)
		for _, a := range all[:2] {
			a.obey()
		}
		for _, a := range all {
			a.leave()
		}
		h.restart()
		h.fill("web-1", "web-2", "web-3")
		h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-1", "web-2", "web-3")
		for _, a := range all {
			a.connect(false)
		}
		h.servingIs(adminv1.Rotation_TRUST_BOTH, "web-3")
		all[2].obey()
		h.servingIs(adminv1.Rotation_TRUST_NEW, "web-1", "web-2", "web-3")
		for _, a := range all {
			a.obey()
		}
		h.servingIs(adminv1.Rotation_IDLE)
	})
}
