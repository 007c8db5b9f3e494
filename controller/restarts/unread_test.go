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

// After an outage writes may succeed before a watch is open again. The leader's data may be old until then, so it
// grants nothing.
func TestNothingIsGrantedWhileAWatchIsLost(t *testing.T) {
	utilruntime.ErrorHandlers = nil // one of these handlers waits by the real clock
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
				return http.StatusUnprocessableEntity // an API server without streaming lists
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
			t.Errorf("granted %v", all)
		}
		decisions := a.r.Round().Decisions
		if len(decisions) != 1 || decisions[0].Reason != restartbudget.ReasonUnread || decisions[0].String() != "the cluster cannot be read: restartgrants: no" {
			t.Errorf("decisions %v", decisions)
		}
		away.Store(false)
		wait(10 * time.Second)
		if all := a.all(); len(all) != 1 {
			t.Errorf("granted %v after the read", all)
		}
	})
}
