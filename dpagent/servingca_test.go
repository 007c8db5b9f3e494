package dpagent_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent"
)

// newServed is a control plane whose Envoys call it.
func newServed(t *testing.T) (*controlPlane, dpagent.Options) {
	t.Helper()
	cp := newControlPlane(t, nil)
	_, port, err := net.SplitHostPort(cp.address)
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	cp.bootstrap = bootstrap(t, ports{ADS: at})
	return cp, options(t, cp)
}

// tell sends the control plane's CAs, and waits until the agent says that it uses them.
func (cp *controlPlane) tell(epoch int64, cas ...*authority) {
	cp.t.Helper()
	b := bundleOf(cas...)
	b.Epoch = epoch
	cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_ServingCa{ServingCa: b}}
	cp.expect(func(m *agentMessage) bool {
		return m.GetInUse().GetServingCaId() == b.GetId() && m.GetInUse().GetServingCaEpoch() == epoch
	})
}

// servedBy has the control plane show a certificate of another CA from now on. All connections break.
func (cp *controlPlane) servedBy(ca *authority) {
	cp.t.Helper()
	cp.stop()
	cp.serving = ca
	cp.start()
}

// connects waits until the agent has a session, and Envoy an ADS stream, that are new.
func (cp *controlPlane) connects(r *running, before int64) *agentv1.Hello {
	cp.t.Helper()
	hello := cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil }).GetHello()
	eventually(cp.t, 20*time.Second, func() string {
		if cp.ads.Load() > before {
			return ""
		}
		_, metrics := r.get("/metrics")
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "envoy_cluster_ssl_fail_verify") {
				return "Envoy has no ADS stream: " + line
			}
		}
		return "Envoy has no ADS stream"
	})
	return hello
}

func TestServingCARotation(t *testing.T) {
	t.Parallel()
	cp, o := newServed(t)
	oldCA, newCA := cp.serving, newAuthority(t)
	cp.start()
	r := startAgent(t, o)
	hello := cp.connects(r, 0)
	if !slices.Contains(hello.GetFeatures(), agentv1.FeatureServingCA) || hello.GetInUse().GetServingCaId() != "" {
		t.Errorf("Hello = %v, want the feature and nothing in use", hello)
	}
	cp.set(func() {
		if !slices.Contains(cp.joined, agentv1.FeatureServingCA) || !slices.Contains(cp.joined, agentv1.FeaturePlaintext) {
			t.Errorf("features of the join = %v", cp.joined)
		}
	})
	cp.tell(20, oldCA, newCA)
	if file, err := os.ReadFile(filepath.Join(o.WorkDir, "sds", "serving-ca.json")); err != nil || bytes.Count(file, []byte("BEGIN CERTIFICATE")) != 2 {
		t.Errorf("Envoy's file when the agent says that both CAs are in use: %s, %v", file, err)
	}
	streams := cp.ads.Load()
	cp.servedBy(newCA)
	if use := cp.connects(r, streams).GetInUse(); use.GetServingCaEpoch() != 20 {
		t.Errorf("InUse = %v, want epoch 20", use)
	}

	// Another replica lags.
	b := bundleOf(oldCA)
	b.Epoch = 19
	cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_ServingCa{ServingCa: b}}
	r.logged("CAs of a control plane that has not heard of the last change not used")
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, "sonde_dpagent_serving_ca_older_total 1\n") || !strings.Contains(metrics, "sonde_dpagent_serving_ca_epoch 20\n") {
		t.Error("the metrics do not say the epoch, and that older CAs were refused")
	}

	cp.tell(30, newCA)
	// The next start has the annotation of before the rotation.
	r.cancel()
	r.waitEnd(20 * time.Second)
	streams = cp.ads.Load()
	r = startAgent(t, o)
	if use := cp.connects(r, streams).GetInUse(); use.GetServingCaEpoch() != 30 || use.GetServingCaId() != bundleOf(newCA).GetId() {
		t.Errorf("InUse after a restart = %v, want epoch 30", use)
	}
	r.waitReady()

	// Whoever has the old key is no control plane any more, although the file has the old CA.
	cp.servedBy(oldCA)
	r.logged("certificate signed by unknown authority")
	streams = cp.ads.Load()
	// Given a newer file than what it was told: both count.
	third := newAuthority(t)
	cp.give(third)
	cp.servedBy(third)
	cp.connects(r, streams)
	cp.servedBy(newCA)
	cp.connects(r, cp.ads.Load())
}

// TestAgentMissesARotation is told nothing, and goes on once it is given another file.
func TestAgentMissesARotation(t *testing.T) {
	t.Parallel()
	cp, o := newServed(t)
	cp.start()
	r := startAgent(t, o)
	cp.connects(r, 0)
	cp.tell(20, cp.serving)
	streams := cp.ads.Load()
	newCA := newAuthority(t)
	cp.servedBy(newCA)
	r.logged("certificate signed by unknown authority")
	cp.give(newCA)
	cp.connects(r, streams)
}

func TestKeptServingCANotUsed(t *testing.T) {
	t.Parallel()
	kept := "serving-ca.json"
	tests := map[string]struct {
		harm func(map[string]any, *dpagent.Options)
		raw  string // instead
		log  string // "" for none
	}{
		"garbage":                  {raw: "secret", log: "read serving-ca.json: it is not what this agent writes"},
		"epoch 0":                  {harm: func(f map[string]any, _ *dpagent.Options) { f["epoch"] = 0 }, log: "epoch: 0: must be from 1 to 9007199254740992"},
		"epoch -1":                 {harm: func(f map[string]any, _ *dpagent.Options) { f["epoch"] = -1 }, log: "epoch: -1: must be from 1 to"},
		"no CA":                    {harm: func(f map[string]any, _ *dpagent.Options) { f["trusted"] = "" }, log: "trusted: read bundle"},
		"no fingerprint":           {harm: func(f map[string]any, _ *dpagent.Options) { f["replaced"] = []string{"x"} }, log: `replaced[0]: \"x\": must be the SHA-256`},
		"of another control plane": {harm: func(f map[string]any, _ *dpagent.Options) { f["controlPlane"] = "other:5678" }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cp, o := newServed(t)
			cp.start()
			r := startAgent(t, o)
			cp.connects(r, 0)
			other := newAuthority(t)
			cp.tell(20, other) // what was given is replaced
			r.cancel()
			r.waitEnd(20 * time.Second)
			path := filepath.Join(o.WorkDir, kept)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if tc.raw != "" {
				data = []byte(tc.raw)
			} else {
				var f map[string]any
				if err := json.NewDecoder(bytes.NewReader(data)).Decode(&f); err != nil {
					t.Fatal(err)
				}
				tc.harm(f, &o)
				if data, err = json.Marshal(f); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			streams := cp.ads.Load()
			r = startAgent(t, o)
			if use := cp.connects(r, streams).GetInUse(); use.GetServingCaEpoch() != 0 {
				t.Errorf("InUse = %v, want nothing of the file", use)
			}
			said := strings.Contains(r.logs.String(), "kept CAs of the control plane not used, those that were given are")
			if said != (tc.log != "") || !strings.Contains(r.logs.String(), tc.log) || strings.Contains(r.logs.String(), "secret") {
				t.Errorf("the log does not say %q:\n%s", tc.log, r.logs)
			}
		})
	}
}

// TestEnvoyWithInlineCA has a bootstrap of an earlier control plane: the agent does not say that it could follow a rotation.
func TestEnvoyWithInlineCA(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	if hello := cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil }).GetHello(); slices.Contains(hello.GetFeatures(), agentv1.FeatureServingCA) {
		t.Errorf("Hello = %v, want no feature %q", hello, agentv1.FeatureServingCA)
	}
}

func TestBadServingCAIsNotTaken(t *testing.T) {
	t.Parallel()
	cp, o := newServed(t)
	cp.start()
	r := startAgent(t, o)
	cp.connects(r, 0)
	send := func(epoch int64, roots ...[]byte) {
		cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_ServingCa{ServingCa: &agentv1.Bundle{Id: "bad", Epoch: epoch, Roots: roots}}}
	}
	send(0, cp.serving.cert.Raw)
	r.logged("epoch: 0: must be from 1 to 9007199254740992")
	send(-1, cp.serving.cert.Raw)
	r.logged("epoch: -1: must be from 1")
	send(1<<60, cp.serving.cert.Raw)
	r.logged("epoch: 1152921504606846976: must be")
	send(5)
	r.logged("0 certificates, not 1 to 64")
	send(5, []byte("x"))
	r.logged("certificate 0: x509")
	send(5, make([]byte, 65<<10))
	r.logged("certificate 0 has 66560 bytes, more than 65536")
	streams := cp.ads.Load()
	cp.servedBy(cp.serving)
	cp.connects(r, streams)
	if _, err := os.Stat(filepath.Join(o.WorkDir, "serving-ca.json")); err == nil {
		t.Error("something was kept")
	}
}
