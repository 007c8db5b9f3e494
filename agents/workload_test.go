package agents_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestWorkloadChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		a.wantInbounds("")
		h.becomes("web", meshview.Ready, meshview.NoReason)

		h.put(dataplane("default", "web-1", "api"))
		if m := a.receive(); m.GetRenewNow() == nil {
			t.Fatalf("got %v, want RenewNow", m)
		}
		h.becomes("api", meshview.NotReady, meshview.OtherWorkload)
		a.wantInbounds(`the certificate is for workload "web", the Dataplane has workload "api"`)
		wantStatus(t, a.renew(), codes.PermissionDenied, "join again")
		wantStatus(t, a.join(), codes.PermissionDenied, "sondectl generate dataplane-token")
		a.report() // as after a reconnect: no renewal is due
		if lines := h.log.Lines("level=WARN", "certificateWorkload=web", "workload=api", "proxy=web-1"); len(lines) != 1 {
			t.Errorf("%d warnings, want one: %s", len(lines), lines)
		}

		a.token = h.token(identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/api"}, time.Hour)
		a.mustJoin()
		if e := h.endpoint("api", "web-1"); e.Health != meshview.NotReady {
			t.Errorf("the certificate is not in use yet, the endpoint is %+v", e)
		}
		a.report()
		a.wantInbounds("")
		h.becomes("api", meshview.Ready, meshview.NoReason)
		a.wantNothing("it uses its new certificate")
	})
}

func TestWorkloadThatChangesBackNeedsNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		h.put(dataplane("default", "web-1", "api"))
		if m := a.receive(); m.GetRenewNow() == nil {
			t.Fatalf("got %v, want RenewNow", m)
		}
		h.becomes("api", meshview.NotReady, meshview.OtherWorkload)
		h.put(dataplane("default", "web-1", "web"))
		h.becomes("web", meshview.Ready, meshview.NoReason)
		if err := a.renew(); err != nil {
			t.Fatal(err)
		}
		a.report()
		h.put(dataplane("default", "web-1", "api"))
		if m := a.receive(); m.GetRenewNow() == nil {
			t.Fatalf("after another change: %v, want RenewNow", m)
		}
	})
}

// TestWorkloadChangesWithoutASession has an agent reconnect to a Dataplane with another workload, also after a restart
// of the control plane.
func TestWorkloadChangesWithoutASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		a.leave()
		h.put(dataplane("default", "web-1", "api"))
		h.becomes("api", meshview.NotReady, meshview.OtherWorkload)
		h.restart()
		h.put(dataplane("default", "web-1", "api"))
		h.synced()
		h.becomes("api", meshview.NotReady, meshview.OtherWorkload)
		a.connect(false)
		if m := a.receive(); m.GetRenewNow() == nil {
			t.Fatalf("got %v, want RenewNow", m)
		}
	})
}
