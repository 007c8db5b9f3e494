package agents_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/agents"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// frozen is a harness whose mesh is frozen while why has a reason, with the three agents of trio.
func frozen(t *testing.T) (h *harness, all []*agent, why *atomic.Pointer[string]) {
	t.Helper()
	why = &atomic.Pointer[string]{}
	why.Store(new(""))
	h = newHarness(t, func(o *agents.Options) { o.Frozen = func() string { return *why.Load() } })
	return h, h.trio(), why
}

// A forced rotation skips no silent proxy while the mesh is frozen.
func TestFrozenRotationSkipsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all, why := frozen(t)
		why.Store(new("most proxies of the mesh are not seen"))
		all[2].leave()
		h.rotate(true)
		h.ahead.Store(int64(2 * time.Minute))
		all[0].obey()
		all[1].obey()
		h.waitsFor(adminv1.Rotation_TRUST_BOTH, "web-3")
		time.Sleep(time.Minute) // recheck runs meanwhile
		h.waitsFor(adminv1.Rotation_TRUST_BOTH, "web-3")
		why.Store(new(""))
		h.waitsFor(adminv1.Rotation_RENEW_LEAVES, "web-1", "web-2", "web-3")
	})
}

// Records of silent proxies are kept meanwhile, even if their Dataplane is removed.
func TestFrozenForgetsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, all, why := frozen(t)
		why.Store(new("most nodes of zone a are not seen"))
		all[2].leave()
		if last, joined := h.server.LastSeen("default/web-3"); !joined || h.server.Connected("default/web-3") || last.IsZero() {
			t.Errorf("web-3 was seen last %s, joined: %t", last, joined)
		}
		if !h.server.Connected("default/web-1") {
			t.Error("web-1 is not connected")
		}
		h.delete("web-3")
		h.ahead.Store(int64(25 * time.Hour)) // its certificate has expired
		time.Sleep(time.Minute)              // recheck runs meanwhile
		if _, joined := h.server.LastSeen("default/web-3"); !joined {
			t.Error("its record is removed")
		}
		why.Store(new(""))
		h.eventually("it is forgotten", func() bool {
			_, joined := h.server.LastSeen("default/web-3")
			return !joined
		})
	})
}
