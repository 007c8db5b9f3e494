package restartbudget

import (
	"testing"
	"time"
)

// A grant that another leader has written late takes a place and counts in its minute. One that is known already does not.
func TestAdd(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	late := opened("web-0", "app")
	late.Granted = start.Add(-time.Hour)
	if _, is := c.state.Last(late.ID.ContainerKey); is || !c.state.Add(c.now, late) {
		t.Fatal("a grant is there before it is added, or not taken")
	}
	if last, is := c.state.Last(late.ID.ContainerKey); !is || last != late {
		t.Errorf("Last() = %+v, %t", last, is)
	}
	if c.state.Add(c.now, late) {
		t.Error("a grant is taken twice")
	}
	c.ask("web-0", "web-1")
	c.want("web-0 granted_before", "web-1 in_progress")
	c.in.Settings.PerMinute = 1
	c.want("web-0 granted_before", "web-1 per_minute")
	c.in.Settings.PerMinute = 0
	earlier := late
	earlier.ID.Restarts--
	if c.state.Add(c.now, earlier) {
		t.Error("a grant of an earlier restart is taken for the last one")
	}
	over := late
	over.ID.Try, over.Outcome, over.Ended = 1, Refunded, start
	if !c.state.Add(c.now, over) {
		t.Error("a later try is not taken")
	}
	c.want("web-0 granted", "web-1 in_progress")
	if g := grantOf(t, c.decide(), "web-0"); g.ID.Try != 2 {
		t.Errorf("the next try is %d, want 2", g.ID.Try)
	}
}
