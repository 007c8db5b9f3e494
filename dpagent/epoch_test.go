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

// setEpoch has the control plane issue identities with bundles of an epoch.
func (w *world) setEpoch(n int64) {
	w.Set(func(s *controlplanetest.State) { s.Spoil = func(id *agentv1.Identity) { id.Bundle.Epoch = n } })
}

// bundleOf returns CAs of an epoch.
func bundleOf(epoch int64, cas ...*controlplanetest.Authority) *agentv1.Bundle {
	b := controlplanetest.BundleOf(cas...)
	b.Epoch = epoch
	return b
}

// TestBundlesInOrder has a control plane with replicas that have not all heard of the last change of a mesh's CAs.
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
		r.logged("after epoch 20: it is older than the one in use")
		w.SendRenewNow() // from a replica that lags, too
		r.logged("certificate renewal failed")
		r.trusts("after an older bundle", oldCA, newCA)
		_, metrics := r.get("/metrics")
		count := regexp.MustCompile(`(?m)^sonde_dpagent_identity_older_bundles_total (\d+)$`).FindStringSubmatch(metrics)
		if count == nil || count[1] == "0" || count[1] == "1" {
			t.Errorf("older bundles are not counted: %q", count)
		}

		// The next start knows the epoch, and a replica that has heard of the change lets it join.
		r.end()
		r = w.run(o)
		r.logged("after epoch 20: it is older than the one in use")
		if code, _ := r.get("/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz = %d with an older bundle alone", code)
		}
		w.Set(func(s *controlplanetest.State) { s.Trusted = []*controlplanetest.Authority{oldCA, newCA} })
		w.setEpoch(20)
		r.waitReady()
		r.trusts("after the next start", oldCA, newCA)

		// One of a release without epochs is served as it always was.
		w.setEpoch(0)
		w.SendRenewNow()
		r.logged("certificate renewed")
	})
}

// TestOtherMeshHasOtherEpochs moves a host to a mesh whose CA is older, with the work directory that it has.
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
