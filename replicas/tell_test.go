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
			t.Errorf("loaded is %v before it is known which replicas there are", loaded)
		}
		a.knows(proxyOf("default/web", "one"), "default/web")
		a.knows(proxyOf("default/gone", "one"), "default/gone")
		connect(a, b)
		b.hears(t, "default/web", "a one")
		b.hears(t, "default/gone", "a one")
		b.knows(proxyOf("default/web", "two"), "default/web")
		a.hears(t, "default/web", "b two")
		a.knows(proxyOf("default/web", "three"), "default/web")
		b.hears(t, "default/web", "a three")
		a.knows(nil, "default/gone")
		b.hears(t, "default/gone", "")
		if missing := b.Missing(); len(missing) > 0 || b.Check() != nil {
			t.Errorf("missing are %q, %v", missing, b.Check())
		}
		loaded := b.Loaded()
		if len(loaded) != 1 || loaded[0].Unknown || loaded[0].State.GetAuthorities()[0].GetSigningCa() != "a" {
			t.Errorf("loaded is %v", loaded)
		}

		// What a lost replica has said holds, until a new process says otherwise.
		a.stop()
		b.hears(t, "default/web", "a three LOST")
		if !slices.Equal(b.Missing(), []string{"a"}) || b.Check() == nil {
			t.Errorf("missing are %q, %v", b.Missing(), b.Check())
		}
		third, again := c.start("c"), c.start("a")
		again.knows(proxyOf("default/other", "four"), "default/other")
		connect(again, b, third)
		b.hears(t, "default/other", "a four")
		b.hears(t, "default/web", "")
		third.hears(t, "default/web", "b two")
	})
}

func TestLostReplicasAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		a.knows(proxyOf("default/web", "one"), "default/web")
		a.knows(proxyOf("default/db", "one"), "default/db")
		connect(a, b)
		b.hears(t, "default/web", "a one")
		b.hears(t, "default/db", "a one")
		keep := func(said facts.Said) bool { return said.Proxy.GetId() == "default/db" }
		b.Sweep(keep)
		b.hears(t, "default/web", "a one")
		a.stop()
		b.hears(t, "default/web", "a one LOST")
		b.Sweep(keep)
		b.hears(t, "default/web", "")
		b.hears(t, "default/db", "a one LOST")
	})
}

// TestTaken has a replica wait until what it has said is on its way to the Envoys of the other.
func TestTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		b.taken = false
		connect(a, b)
		if a.Behind("default/web") {
			t.Error("a replica is behind that has been told nothing")
		}
		p := proxyOf("default/web", "one")
		p.Awaited = true
		a.knows(p, "default/web")
		b.hears(t, "default/web", "a one")
		if !a.Behind("default/web") {
			t.Error("no replica is behind")
		}
		b.Taken("default/web")
		synctest.Wait()
		if a.Behind("default/web") {
			t.Error("a replica is behind that has taken it")
		}
		a.knows(p, "default/web")
		if !a.Behind("default/web") {
			t.Error("no replica is behind after another change")
		}
		b.stop()
		synctest.Wait()
		if a.Behind("default/web") {
			t.Error("a lost replica is waited for")
		}
	})
}

// TestReplicasThatAreKept has many replicas come and go: those that are lost make room, and what they have said is
// taken back.
func TestReplicasThatAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		b := c.start("b")
		for i := range 17 {
			name := fmt.Sprint("a", i)
			a := c.start(name)
			id := "default/" + name
			a.knows(proxyOf(id, "one"), id)
			a.Follow(map[string]string{"b": b.address})
			b.hears(t, id, name+" one")
			a.stop()
			b.hears(t, id, name+" one LOST")
			time.Sleep(time.Second) // the one that was lost first is forgotten
		}
		b.hears(t, "default/a0", "")
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.told["default/a0"] != "" {
			t.Errorf("of a proxy that is forgotten it was told %q last", b.told["default/a0"])
		}
	})
}

// TestPeerThatReadsNothing has a replica that accepts connections and never answers: the others are told as before.
func TestPeerThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		stuck := c.listen()
		defer func() { _ = stuck.Close() }()
		a.Follow(map[string]string{"b": b.address, "stuck": stuck.Addr().String()})
		b.Follow(map[string]string{"a": a.address})
		a.knows(proxyOf("default/web", "one"), "default/web")
		b.hears(t, "default/web", "a one")
		if a.Behind("default/web") {
			t.Error("a replica that was never reached is waited for")
		}
		if got := a.Missing(); !slices.Equal(got, []string{"stuck"}) {
			t.Errorf("missing are %q", got)
		}
		time.Sleep(time.Minute)
		a.knows(proxyOf("default/web", "two"), "default/web")
		b.hears(t, "default/web", "a two")
	})
}
