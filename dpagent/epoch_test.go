package dpagent_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// TestBundlesInOrder is a control plane whose replicas have not all heard of the last change of a mesh's CAs.
func TestBundlesInOrder(t *testing.T) {
	port := freePort(t)
	cp := newControlPlane(t, bootstrap(t, ports{MTLS: port}))
	epoch := func(n int64) {
		cp.set(func() { cp.spoil = func(id *agentv1.Identity) { id.Bundle.Epoch = n } })
	}
	epoch(10)
	cp.start()
	o := options(t, cp)
	r := startAgent(t, o)
	r.waitReady()
	use := cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil }).GetHello().GetInUse()
	sum := sha256.Sum256(cp.ca.cert.Raw)
	if end := use.GetLeafNotAfter().AsTime(); use.GetBundleEpoch() != 10 || use.GetLeafCa() != hex.EncodeToString(sum[:16]) || time.Until(end) > time.Hour || time.Until(end) < 50*time.Minute {
		t.Errorf("InUse = %v, want epoch 10, the CA's fingerprint and the leaf's end", use)
	}

	newCA := newAuthority(t)
	send := func(epoch int64, cas ...*authority) {
		b := bundleOf(cas...)
		b.Epoch = epoch
		cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Bundle{Bundle: b}}
	}
	send(20, cp.ca, newCA)
	cp.expect(func(m *agentMessage) bool { return m.GetInUse().GetBundleEpoch() == 20 })
	served := func() string {
		if _, err := call(t, port, newCA); err != nil {
			return err.Error()
		}
		return ""
	}
	eventually(t, 5*time.Second, served)

	send(19, cp.ca)
	r.logged("after epoch 20: it is older than the one in use")
	cp.send <- renewNow() // from a replica that lags, too
	r.logged("certificate renewal failed")
	if why := served(); why != "" {
		t.Errorf("a client of the new CA after an older bundle: %s", why)
	}
	_, metrics := r.get("/metrics")
	count := regexp.MustCompile(`(?m)^sonde_dpagent_identity_older_bundles_total (\d+)$`).FindStringSubmatch(metrics)
	if count == nil || count[1] == "0" || count[1] == "1" {
		t.Errorf("older bundles are not counted: %q", count)
	}

	// The next start knows the epoch, and a replica that has heard of the change lets it join.
	r.cancel()
	r.waitEnd(20 * time.Second)
	r = startAgent(t, o)
	r.logged("after epoch 20: it is older than the one in use")
	if code, _ := r.get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz = %d with an older bundle alone", code)
	}
	cp.set(func() { cp.trusted = []*authority{cp.ca, newCA} })
	epoch(20)
	r.waitReady()
	eventually(t, 5*time.Second, served)

	// One of a release without epochs is served as it always was.
	epoch(0)
	cp.send <- renewNow()
	r.logged("certificate renewed")
}

// TestOtherMeshHasOtherEpochs moves a host to a mesh whose CA is older, with the work directory that it has.
func TestOtherMeshHasOtherEpochs(t *testing.T) {
	cp := newControlPlane(t, bootstrap(t, ports{}))
	epoch := int64(20)
	cp.spoil = func(id *agentv1.Identity) { id.Bundle.Epoch = epoch }
	cp.start()
	o := options(t, cp)
	joinOnce(t, o)
	cp.set(func() { epoch = 10 })
	o.Mesh = "other"
	joinOnce(t, o)
}
