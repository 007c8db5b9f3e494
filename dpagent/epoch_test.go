package dpagent_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
)

// setEpoch makes the control plane issue identities with bundles of an epoch.
func (w *world) setEpoch(n int64) {
	w.Set(func(s *controlplanetest.State) { s.Spoil = func(id *agentv1.Identity) { id.Bundle.Epoch = n } })
}

// bundleOf returns CAs of an epoch.
func bundleOf(epoch int64, cas ...*controlplanetest.Authority) *agentv1.Bundle {
	b := controlplanetest.BundleOf(cas...)
	b.Epoch = epoch
	return b
}

// TestBundlesInOrder runs a control plane with replicas that have not all received the last change of a mesh's CAs.
func TestBundlesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setEpoch(10)
		w.Start()
		o := w.options()
		r := w.run(o)
		r.waitReady()
		use := w.ExpectHello().GetInUse()
		oldCA, newCA := w.State().CA, controlplanetest.NewAuthority(t)
		sum := sha256.Sum256(oldCA.Cert.Raw)
		if left := time.Until(use.GetLeafNotAfter().AsTime()); use.GetBundleEpoch() != 10 || use.GetLeafCa() != hex.EncodeToString(sum[:16]) || left > time.Hour || left < 50*time.Minute {
			t.Errorf("InUse = %v, want epoch 10, the CA's fingerprint and the leaf's end", use)
		}

		w.SendBundle(bundleOf(20, oldCA, newCA))
		w.Expect(func(m *agentMessage) bool { return m.GetInUse().GetBundleEpoch() == 20 })
		r.trusts("after epoch 20", oldCA, newCA)
		w.SendBundle(bundleOf(19, oldCA))
		r.logged("after epoch 20: older than the one in use")
		w.SendRenewNow() // also from a replica that lags behind
		r.logged("failed to renew certificate")
		r.trusts("after an older bundle", oldCA, newCA)
		_, metrics := r.get("/metrics")
		count := regexp.MustCompile(`(?m)^sonde_dpagent_identity_older_bundles_total (\d+)$`).FindStringSubmatch(metrics)
		if count == nil || count[1] == "0" || count[1] == "1" {
			t.Errorf("older bundles are not counted: %q", count)
		}

		// The next agent loads the epoch from the work directory, and can only join at a replica that has received the
		// change.
		r.end()
		r = w.run(o)
		r.logged("after epoch 20: older than the one in use")
		if code, _ := r.get("/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz = %d with only an older bundle", code)
		}
		w.Set(func(s *controlplanetest.State) { s.Trusted = []*controlplanetest.Authority{oldCA, newCA} })
		w.setEpoch(20)
		r.waitReady()
		r.trusts("after the next start", oldCA, newCA)

		// A control plane of a release without epochs still works.
		w.setEpoch(0)
		w.SendRenewNow()
		r.logged("renewed certificate")
	})
}

// TestOtherMeshHasOtherEpochs moves a host to a mesh with an older CA, and keeps its work directory.
func TestOtherMeshHasOtherEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setEpoch(20)
		w.Start()
		o := w.options()
		w.joinOnce(o)
		w.setEpoch(10)
		o.Mesh = "other"
		w.joinOnce(o)
	})
}
