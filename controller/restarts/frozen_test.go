package restarts

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/restartbudget"
)

// Nothing is granted while most nodes or proxies are not seen, and the decision says why.
func TestNothingIsGrantedWhileFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, neverOpen)
		var why atomic.Pointer[string]
		why.Store(new("most nodes of zone a are not seen (one-zone)"))
		a.r.o.Frozen = func() string { return *why.Load() }
		a.deploy("web", 4)
		a.fail("web-0")
		defer a.lead(5)()
		wait(10 * time.Second)
		if all := a.all(); len(all) > 0 {
			t.Errorf("granted %v", all)
		}
		decisions := a.r.Round().Decisions
		if len(decisions) != 1 || decisions[0].Reason != restartbudget.ReasonFrozen || decisions[0].String() != "the mesh is frozen: most nodes of zone a are not seen (one-zone)" {
			t.Errorf("decisions %v", decisions)
		}
		why.Store(new(""))
		wait(10 * time.Second)
		if all := a.all(); len(all) != 1 {
			t.Errorf("granted %v once the nodes are seen", all)
		}
	})
}
