// Package feature tests each scenario over real ADS, in both protocols: from objects of the store to what is sent to
// Envoy.
package feature

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/test/featuretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	apiIdentity    = "spiffe://default.sonde.internal/workload/api"
	canaryIdentity = "spiffe://default.sonde.internal/workload/canary"
	dbIdentity     = "spiffe://default.sonde.internal/workload/db"
	// noIdentity is the identity that a cluster accepts if its service has no sidecar.
	noIdentity = "spiffe://nobody"

	allListeners = "listener inbound:10.0.0.1:8080 outbound:127.0.0.1:10001 outbound:127.0.0.1:10002 readiness"
)

// firstSync is what web-1 of the case two-services is sent first.
var firstSync = []string{"cluster api db inbound:8080", "endpoint api db", allListeners, "route api"}

// both runs a scenario in both protocols, each in its own bubble.
func both(t *testing.T, scenario func(t *testing.T, p envoysim.Protocol)) {
	t.Helper()
	for _, p := range envoysim.Protocols() {
		virtual.Run(t, string(p), func(t *testing.T) { scenario(t, p) })
	}
}

// synced runs a scenario in both protocols for the proxy web-1 of the case two-services and these additional files. It
// begins when web-1 has everything.
func synced(t *testing.T, scenario func(t *testing.T, f *featuretest.Feature, web *featuretest.Client), files ...string) {
	t.Helper()
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		for _, file := range files {
			f.Put(file)
		}
		web := f.Connect("web-1", p)
		web.Sent(firstSync...)
		scenario(t, f, web)
	})
}
