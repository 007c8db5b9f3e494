package restarts

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/sonde-mesh/sonde/restartbudget"
)

// After an outage writes may succeed before a watch is open again: what the leader knows may be old, so nothing is
// granted until it is.
func TestNothingIsGrantedWhileAWatchIsLost(t *testing.T) {
	utilruntime.ErrorHandlers = nil // one of them waits by a time that is not this test's
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, neverOpen)
		var away atomic.Bool
		away.Store(true)
		a.answer = func(r *http.Request) int {
			switch query := r.URL.Query(); {
			case r.Method != http.MethodGet || query.Has("continue"):
				return -1 // a write, or the leader's own list
			case away.Load():
				return http.StatusServiceUnavailable
			case query.Get("sendInitialEvents") != "":
				return http.StatusUnprocessableEntity // an API server that lists
			case query.Get("watch") != "":
				return 0
			}
			return -1
		}
		a.deploy("web", 4)
		a.fail("web-0")
		defer a.run(a.r.grants.Run)()
		wait(time.Second)
		defer a.lead(5)()
		wait(10 * time.Second)
		if all := a.all(); len(all) > 0 {
			t.Errorf("granted is %v", all)
		}
		decisions := a.r.Round().Decisions
		if len(decisions) != 1 || decisions[0].Reason != restartbudget.ReasonUnread || decisions[0].String() != "the cluster cannot be read: restartgrants: no" {
			t.Errorf("decisions are %v", decisions)
		}
		away.Store(false)
		wait(10 * time.Second)
		if all := a.all(); len(all) != 1 {
			t.Errorf("granted is %v once it is read", all)
		}
	})
}
