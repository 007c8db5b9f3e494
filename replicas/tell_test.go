package replicas_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/facts"
)

func TestReplicasTellEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		if loaded := b.Loaded(); len(loaded) != 1 || !loaded[0].Unknown {
			t.Errorf("loaded = %v before the replicas are known", loaded)
		}
		a.setProxy(proxyOf("default/web", "one"), "default/web")
		a.setProxy(proxyOf("default/gone", "one"), "default/gone")
		connect(a, b)
		b.wantReports(t, "default/web", "a one")
		b.wantReports(t, "default/gone", "a one")
		b.setProxy(proxyOf("default/web", "two"), "default/web")
		a.wantReports(t, "default/web", "b two")
		a.setProxy(proxyOf("default/web", "three"), "default/web")
		b.wantReports(t, "default/web", "a three")
		a.setProxy(nil, "default/gone")
		b.wantReports(t, "default/gone", "")
		if missing := b.Missing(); len(missing) > 0 || b.Check() != nil {
			t.Errorf("missing %q, %v", missing, b.Check())
		}
		loaded := b.Loaded()
		if len(loaded) != 1 || loaded[0].Unknown || loaded[0].State.GetAuthorities()[0].GetSigningCa() != "a" {
			t.Errorf("loaded = %v", loaded)
		}

		// Reports of a lost replica stay in effect until a new process reports something else.
		a.stop()
		b.wantReports(t, "default/web", "a three LOST")
		if !slices.Equal(b.Missing(), []string{"a"}) || b.Check() == nil {
			t.Errorf("missing %q, %v", b.Missing(), b.Check())
		}
		third, again := c.start("c"), c.start("a")
		again.setProxy(proxyOf("default/other", "four"), "default/other")
		connect(again, b, third)
		b.wantReports(t, "default/other", "a four")
		b.wantReports(t, "default/web", "")
		third.wantReports(t, "default/web", "b two")
	})
}

func TestLostReplicasAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		a.setProxy(proxyOf("default/web", "one"), "default/web")
		a.setProxy(proxyOf("default/db", "one"), "default/db")
		connect(a, b)
		b.wantReports(t, "default/web", "a one")
		b.wantReports(t, "default/db", "a one")
		keep := func(said facts.Said) bool { return said.Proxy.GetId() == "default/db" }
		b.Sweep(keep)
		b.wantReports(t, "default/web", "a one")
		a.stop()
		b.wantReports(t, "default/web", "a one LOST")
		b.Sweep(keep)
		b.wantReports(t, "default/web", "")
		b.wantReports(t, "default/db", "a one LOST")
	})
}

// TestTaken has a replica wait until the other has passed its report on to Envoys.
func TestTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		b.taken = false
		connect(a, b)
		if a.Behind("default/web") {
			t.Error("a replica is behind without any report")
		}
		p := proxyOf("default/web", "one")
		p.Awaited = true
		a.setProxy(p, "default/web")
		b.wantReports(t, "default/web", "a one")
		if !a.Behind("default/web") {
			t.Error("no replica is behind")
		}
		b.Taken("default/web")
		synctest.Wait()
		if a.Behind("default/web") {
			t.Error("a replica is behind after it has taken the report")
		}
		a.setProxy(p, "default/web")
		if !a.Behind("default/web") {
			t.Error("no replica is behind after another change")
		}
		b.stop()
		synctest.Wait()
		if a.Behind("default/web") {
			t.Error("Behind() waits for a lost replica")
		}
	})
}

// TestReplicasThatAreKept starts and stops many replicas. New replicas displace lost ones, whose reports are dropped.
func TestReplicasThatAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		b := c.start("b")
		for i := range 17 {
			name := fmt.Sprint("a", i)
			a := c.start(name)
			id := "default/" + name
			a.setProxy(proxyOf(id, "one"), id)
			a.Follow(map[string]string{"b": b.address})
			b.wantReports(t, id, name+" one")
			a.stop()
			b.wantReports(t, id, name+" one LOST")
			time.Sleep(time.Second) // the replica that was lost first is dropped
		}
		b.wantReports(t, "default/a0", "")
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.told["default/a0"] != "" {
			t.Errorf("the last report of a removed proxy is %q", b.told["default/a0"])
		}
	})
}

// TestPeerThatReadsNothing has a replica that accepts connections but never answers: the other replicas still get
// reports.
func TestPeerThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		stuck := c.listen()
		defer func() { _ = stuck.Close() }()
		a.Follow(map[string]string{"b": b.address, "stuck": stuck.Addr().String()})
		b.Follow(map[string]string{"a": a.address})
		a.setProxy(proxyOf("default/web", "one"), "default/web")
		b.wantReports(t, "default/web", "a one")
		if a.Behind("default/web") {
			t.Error("Behind() waits for a replica that was never connected")
		}
		if got := a.Missing(); !slices.Equal(got, []string{"stuck"}) {
			t.Errorf("missing %q", got)
		}
		time.Sleep(time.Minute)
		a.setProxy(proxyOf("default/web", "two"), "default/web")
		b.wantReports(t, "default/web", "a two")
	})
}
