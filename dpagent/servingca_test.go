package dpagent_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// tell sends the CAs of the control plane, and waits until the agent reports that it uses them.
func (w *world) tell(epoch int64, cas ...*controlplanetest.Authority) {
	w.t.Helper()
	b := bundleOf(epoch, cas...)
	w.SendServingCA(b)
	w.Expect(func(m *agentMessage) bool {
		return m.GetInUse().GetServingCaId() == b.GetId() && m.GetInUse().GetServingCaEpoch() == epoch
	})
}

// servedBy makes the control plane use a certificate of another CA from now on. All connections break.
func (w *world) servedBy(ca *controlplanetest.Authority) {
	w.t.Helper()
	w.Set(func(s *controlplanetest.State) { s.Serving = ca })
	w.Restart()
}

func TestServingCARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		oldCA, newCA := w.State().Serving, controlplanetest.NewAuthority(t)
		w.Start()
		o := w.options()
		r := w.run(o)
		hello := w.ExpectHello()
		if !slices.Contains(hello.GetFeatures(), agentv1.FeatureServingCA) || hello.GetInUse().GetServingCaId() != "" {
			t.Errorf("Hello = %v, want the feature and nothing in use", hello)
		}
		if joined := w.State().Joined; !slices.Contains(joined, agentv1.FeatureServingCA) || !slices.Contains(joined, agentv1.FeaturePlaintext) {
			t.Errorf("features of the join = %v", joined)
		}
		w.tell(20, oldCA, newCA)
		if file := r.readFile(mesh.FileServingCA); bytes.Count(file, []byte("BEGIN CERTIFICATE")) != 2 {
			t.Errorf("Envoy's file when the agent reports that both CAs are in use: %s", file)
		}
		w.servedBy(newCA)
		if use := w.ExpectHello().GetInUse(); use.GetServingCaEpoch() != 20 {
			t.Errorf("InUse = %v, want epoch 20", use)
		}

		w.SendServingCA(bundleOf(19, oldCA)) // by another replica, which lags behind
		r.logged("ignoring CAs of a control plane replica that has missed the last change")
		if _, metrics := r.get("/metrics"); !strings.Contains(metrics, "sonde_dpagent_serving_ca_older_total 1\n") || !strings.Contains(metrics, "sonde_dpagent_serving_ca_epoch 20\n") {
			t.Error("the metrics lack the epoch, or the rejected older CAs")
		}

		w.tell(30, newCA)
		// The next agent still has the annotation from before the rotation.
		r.end()
		r = w.run(o)
		if use := w.ExpectHello().GetInUse(); use.GetServingCaEpoch() != 30 || use.GetServingCaId() != controlplanetest.BundleOf(newCA).GetId() {
			t.Errorf("InUse after a restart = %v, want epoch 30", use)
		}
		r.waitReady()

		// A server with the old key is no longer accepted, although the file has the old CA.
		w.servedBy(oldCA)
		r.logged("certificate signed by unknown authority")
		// The configured file is newer than the received CAs, so both are trusted.
		third := controlplanetest.NewAuthority(t)
		w.Give(third)
		w.servedBy(third)
		w.ExpectHello()
		w.servedBy(newCA)
		w.ExpectHello()
	})
}

// TestAgentMissesARotation sends the agent no CAs, and checks that it recovers with another file.
func TestAgentMissesARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		w.tell(20, w.State().Serving)
		newCA := controlplanetest.NewAuthority(t)
		w.servedBy(newCA)
		r.logged("certificate signed by unknown authority")
		w.Give(newCA)
		w.ExpectHello()
	})
}

func TestKeptServingCANotUsed(t *testing.T) {
	const kept = "serving-ca.json"
	tests := map[string]struct {
		harm func(map[string]any, *dpagent.Options)
		raw  string // replaces the content of the file
		log  string // "" for none
	}{
		"garbage":                  {raw: "secret", log: "read serving-ca.json: not written by this agent"},
		"epoch 0":                  {harm: func(f map[string]any, _ *dpagent.Options) { f["epoch"] = 0 }, log: "epoch: 0: must be from 1 to 9007199254740992"},
		"epoch -1":                 {harm: func(f map[string]any, _ *dpagent.Options) { f["epoch"] = -1 }, log: "epoch: -1: must be from 1 to"},
		"no CA":                    {harm: func(f map[string]any, _ *dpagent.Options) { f["trusted"] = "" }, log: "trusted: read bundle"},
		"no fingerprint":           {harm: func(f map[string]any, _ *dpagent.Options) { f["replaced"] = []string{"x"} }, log: `replaced[0]: \"x\": must be the SHA-256`},
		"of another control plane": {harm: func(f map[string]any, _ *dpagent.Options) { f["controlPlane"] = "other:5678" }},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld(t)
			w.Start()
			o := w.options()
			r := w.run(o)
			w.ExpectHello()
			w.tell(20, controlplanetest.NewAuthority(t)) // replaces the configured CAs
			r.end()
			data := []byte(tc.raw)
			if tc.raw == "" {
				var f map[string]any
				err := json.Unmarshal(r.readFile(kept), &f)
				if err != nil {
					t.Fatal(err)
				}
				tc.harm(f, &o)
				if data, err = json.Marshal(f); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(o.WorkDir, kept), data, 0o600); err != nil {
				t.Fatal(err)
			}
			r = w.run(o)
			if use := w.ExpectHello().GetInUse(); use.GetServingCaEpoch() != 0 {
				t.Errorf("InUse = %v, want nothing of the file", use)
			}
			said := strings.Contains(r.logs.String(), "ignoring cached control plane CAs, using --ca-cert-file")
			if said != (tc.log != "") || !strings.Contains(r.logs.String(), tc.log) || strings.Contains(r.logs.String(), "secret") {
				t.Errorf("no %q in the log:\n%s", tc.log, r.logs)
			}
		})
	}
}

// TestEnvoyWithInlineCA has the bootstrap of an earlier control plane: the agent must not announce that it could follow
// a rotation.
func TestEnvoyWithInlineCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Set(func(s *controlplanetest.State) { s.Bootstrap = []byte(`{}`) })
		w.Start()
		w.run(w.options())
		if hello := w.ExpectHello(); slices.Contains(hello.GetFeatures(), agentv1.FeatureServingCA) {
			t.Errorf("Hello = %v, want no feature %q", hello, agentv1.FeatureServingCA)
		}
	})
}

func TestBadServingCAIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		good := w.State().Serving.Cert.Raw
		for _, tc := range []struct {
			epoch int64
			roots [][]byte
			want  string
		}{
			{0, [][]byte{good}, "epoch: 0: must be from 1 to 9007199254740992"},
			{-1, [][]byte{good}, "epoch: -1: must be from 1"},
			{1 << 60, [][]byte{good}, "epoch: 1152921504606846976: must be"},
			{5, nil, "0 certificates, not 1 to 64"},
			{5, [][]byte{[]byte("x")}, "certificate 0: x509"},
			{5, [][]byte{make([]byte, 65<<10)}, "certificate 0 has 66560 bytes, more than 65536"},
		} {
			w.SendServingCA(&agentv1.Bundle{Id: "bad", Epoch: tc.epoch, Roots: tc.roots})
			r.logged(tc.want)
		}
		w.Restart()
		w.ExpectHello()
		if _, err := os.Stat(filepath.Join(r.dir, "serving-ca.json")); err == nil {
			t.Error("something was kept")
		}
	})
}
