package cluster

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// Nodes are seen for two minutes. Then something happens, and two minutes later the dependants have these replicas.
func TestLeases(t *testing.T) {
	tests := map[string]struct {
		nodes int
		begin func(*world)
		then  func(*world)
		want  string
	}{
		"all renewed":            {nodes: 4, then: func(*world) {}, want: up},
		"none renewed":           {nodes: 4, then: func(w *world) { w.cut(true) }, want: down},
		"half renewed":           {nodes: 4, then: func(w *world) { w.cut(true, "n0", "n1") }, want: up},
		"the fraction":           {nodes: 5, then: func(w *world) { w.cut(true, "n0", "n1", "n2") }, want: down},
		"less than the fraction": {nodes: 12, then: func(w *world) { w.cut(true, "n0", "n1", "n2", "n3", "n4", "n5", "n6") }, want: up},
		"no node":                {nodes: 0, then: func(*world) {}, want: up},
		"one node":               {nodes: 1, then: func(w *world) { w.cut(true) }, want: up},
		"two nodes":              {nodes: 2, then: func(w *world) { w.cut(true) }, want: down},
		"shrinks to one":         {nodes: 3, begin: func(w *world) { w.cut(true) }, then: func(w *world) { w.change(func() { delete(w.nodes, "n1"); delete(w.nodes, "n2") }) }, want: up},
		"shrinks to none":        {nodes: 3, begin: func(w *world) { w.cut(true) }, then: func(w *world) { w.change(func() { clear(w.nodes) }) }, want: up},
		"comes back":             {nodes: 3, begin: func(w *world) { w.cut(true) }, then: func(w *world) { w.cut(false) }, want: up},
		"leases without nodes": {nodes: 6, then: func(w *world) {
			w.cut(true, "n0", "n1", "n2", "n3")
			w.change(func() { deleteNodes(w, "n0", "n1", "n2", "n3") })
		}, want: up},
		"renewed ones without nodes": {nodes: 6, then: func(w *world) { w.cut(true, "n0", "n1"); w.change(func() { deleteNodes(w, "n2", "n3", "n4", "n5") }) }, want: down},
		"an autoscaler deletes": {nodes: 6, then: func(w *world) {
			w.cut(true, "n0", "n1", "n2", "n3")
			w.change(func() { going(w, "n0", "n1", "n2", "n3") })
		}, want: up},
		"it deletes few":         {nodes: 6, then: func(w *world) { w.cut(true); w.change(func() { going(w, "n0") }) }, want: down},
		"clocks are wrong":       {nodes: 4, begin: func(w *world) { skew(w, -time.Hour, 30*time.Second, time.Hour, -30*time.Second) }, then: func(*world) {}, want: up},
		"clocks are wrong, none": {nodes: 4, begin: func(w *world) { skew(w, -time.Hour, 30*time.Second, time.Hour, -30*time.Second) }, then: func(w *world) { w.cut(true) }, want: down},
		"all clocks are set":     {nodes: 4, then: func(w *world) { skew(w, -time.Hour, -time.Hour, -time.Hour, -time.Hour) }, want: up},
		"new nodes that never renew": {nodes: 2, then: func(w *world) {
			w.change(func() { w.add("x", time.Hour); w.add("y", time.Hour); w.add("z", time.Hour) })
		}, want: up},
		"one zone of two":          {nodes: 4, begin: func(w *world) { zones(w) }, then: func(w *world) { w.cut(true, "n0", "n2") }, want: up},
		"the API server, and back": {nodes: 4, then: outage("version", partition.APIServerAway), want: up},
		"throttled, and back":      {nodes: 4, then: outage("leases", partition.Throttled), want: up},
		"nodes cannot be listed":   {nodes: 4, then: func(w *world) { w.cut(true); outage("nodes", partition.Unreadable)(w) }, want: down},
		"taints cannot be read":    {nodes: 4, then: func(w *world) { w.change(func() { w.apiErr["going"] = fails(partition.Unreadable, 0) }); w.cut(true) }, want: up},
		"leases cannot be listed": {nodes: 4, then: func(w *world) {
			w.change(func() { w.apiErr["leases"] = fails(partition.APIServerAway, 0) })
			w.cut(true)
		}, want: up},
		"throttled while down": {nodes: 4, begin: func(w *world) { w.cut(true) }, then: func(w *world) { w.change(func() { w.apiErr["leases"] = fails(partition.Throttled, 0) }); w.cut(false) }, want: down},
		"API server away while down": {nodes: 4, begin: func(w *world) { w.cut(true) }, then: func(w *world) {
			w.change(func() { w.apiErr["version"] = fails(partition.APIServerAway, 0) })
			w.cut(false)
		}, want: down},
		"the kubeconfig is refused":   {nodes: 4, then: func(w *world) { w.change(func() { w.apiErr["open"] = fails(partition.Unreadable, 0) }); w.cut(true) }, want: up},
		"an error that says no cause": {nodes: 4, then: func(w *world) { w.change(func() { w.apiErr["open"] = errCut }); w.cut(true) }, want: up},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld(tc.nodes)
			_, _, stop := w.lead(t.Context(), 1)
			defer stop()
			after(time.Minute)
			if tc.begin != nil {
				tc.begin(w)
			}
			after(2 * time.Minute)
			tc.then(w)
			after(3 * time.Minute)
			if got := w.replicas(); got != tc.want {
				t.Errorf("%s, want %s; actions %q", got, tc.want, w.actions)
			}
			if tc.want == up {
				if err := w.left(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func deleteNodes(w *world, names ...string) {
	for _, name := range names {
		w.nodes[name].deleted = true
	}
}

func going(w *world, names ...string) {
	for _, name := range names {
		w.nodes[name].going = true
	}
}

func skew(w *world, clocks ...time.Duration) {
	w.change(func() {
		for i, d := range clocks {
			w.nodes["n"+string(rune('0'+i))].skew = d
		}
	})
}

func zones(w *world) {
	w.change(func() {
		for name, n := range w.nodes {
			n.zone = map[bool]string{true: "a", false: "b"}[name == "n0" || name == "n2"]
		}
	})
}

// outage makes a request fail for a minute.
func outage(what string, cause partition.Cause) func(*world) {
	return func(w *world) {
		w.change(func() { w.apiErr[what] = fails(cause, 0) })
		after(time.Minute)
		w.change(func() { delete(w.apiErr, what) })
	}
}

// Kubelets that get through once per expiry do not make dependants scale up and down repeatedly, for any probe
// interval. Once they get through regularly, dependants are scaled up after one expiry.
func TestRenewedOncePerExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(4)
		c, _, stop := w.lead(t.Context(), 1)
		defer stop()
		conf := *c.config.Load()
		conf.Probe.Interval = 2 * time.Second
		conf.Dependants = slices.Clone(conf.Dependants)
		conf.Dependants[1].Up.Delay = 0
		c.Configure(&conf, metav1.Condition{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted"})
		after(time.Minute)
		w.cut(true)
		after(2 * time.Minute)
		began := len(w.actions)
		for range 10 {
			w.change(func() {
				for _, n := range w.nodes {
					n.renewed, n.written = time.Now(), time.Now()
				}
			})
			after(conf.Judge.Silence + 5*time.Second)
			if got := w.replicas(); got != down {
				t.Fatalf("%s after a renewal, want %s; actions %q", got, down, w.actions[began:])
			}
		}
		if n := len(w.actions); n != began {
			t.Errorf("actions %q, want none", w.actions[began:])
		}
		w.cut(false)
		after(conf.Judge.Silence)
		if got := w.replicas(); got != down {
			t.Errorf("%s within an expiry, want %s", got, down)
		}
		after(renewEvery + 30*time.Second) // time until the first renewal, plus the delays of the levels
		if got := w.replicas(); got != up {
			t.Errorf("%s after an expiry, want %s", got, up)
		}
	})
}

// Dependants are down before the first node is Unknown, which it is after 40 s without a renewal.
func TestInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(10)
		_, _, stop := w.lead(t.Context(), 1)
		defer stop()
		after(5 * time.Minute)
		w.cut(true)
		first := time.Now()
		w.change(func() {
			for _, n := range w.nodes {
				if n.renewed.Before(first) {
					first = n.renewed
				}
			}
		})
		after(time.Until(first.Add(51 * time.Second))) // the default of recent releases
		if got := w.replicas(); got != down {
			t.Errorf("%s 51 s after the first renewal that was the last, want %s", got, down)
		}
	})
}

// A leader that starts without renewals has no verdict of its own, but uses the previous leader's.
func TestTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(4)
		w.cut(true)
		_, _, stop := w.lead(t.Context(), 1)
		after(5 * time.Minute)
		if got := w.replicas(); got != up || w.status.Verdict != string(partition.Unknown) || w.status.Cause != string(partition.Unheard) {
			t.Errorf("%s, status %+v: want no judgement of leases that were never renewed", got, w.status)
		}
		w.cut(false)
		after(time.Minute)
		w.cut(true)
		after(2 * time.Minute)
		stop()
		if got := w.replicas(); got != down {
			t.Errorf("%s, want %s", got, down)
		}
		_, _, stop = w.lead(t.Context(), 2)
		defer stop()
		after(5 * time.Minute)
		if got := w.replicas(); got != down || w.status.Verdict != string(partition.Lost) || w.status.Epoch != 2 {
			t.Errorf("%s, status %+v: want it to go on", got, w.status)
		}
		w.cut(false)
		after(3 * time.Minute)
		if err := w.left(); w.replicas() != up || err != nil {
			t.Errorf("%s, %v, want %s", w.replicas(), err, up)
		}
	})
}

// A replaced leader no longer writes.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(4)
		old, _, stopOld := w.lead(t.Context(), 1)
		defer stopOld()
		after(time.Minute)
		w.change(func() { // the next leader has no reason to change a dependant
			w.status.Epoch = 2
			w.version++
		})
		w.cut(true)
		after(3 * time.Minute)
		if got := w.replicas(); got != up || w.status.Epoch != 2 || w.status.Verdict != string(partition.Seen) {
			t.Errorf("%s, status %+v: want nothing of the old leader's", got, w.status)
		}
		if err := old.Check(time.Now().Add(time.Hour)); err != nil {
			t.Errorf("Check() = %v of one that has ended", err)
		}
		if _, _, stop := w.lead(t.Context(), 1); true {
			after(time.Minute)
			stop()
		}
		if w.status.Epoch != 2 {
			t.Errorf("the epoch is %d", w.status.Epoch)
		}
	})
}

// Throttled: it waits for Retry-After, or for the configured delay.
func TestBacksOff(t *testing.T) {
	tests := map[string]struct {
		err  error
		want time.Duration
	}{
		"as asked":          {fails(partition.Throttled, 50*time.Second), 50 * time.Second},
		"as told":           {fails(partition.Throttled, 0), 25 * time.Second},
		"asked for nothing": {fails(partition.APIServerAway, 0), 10 * time.Second},
		"asked for a year":  {fails(partition.Throttled, 365*24*time.Hour), maxRetryAfter},
		"asked for a blink": {fails(partition.Throttled, time.Second), 10 * time.Second},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld(2)
			c, _, stop := w.lead(t.Context(), 1)
			defer stop()
			conf := *c.config.Load()
			conf.Probe.Jitter, conf.Probe.Throttled = 0, 25*time.Second
			c.Configure(&conf, metav1.Condition{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted"})
			w.change(func() { w.apiErr["version"] = tc.err })
			after(10 * time.Minute)
			w.mu.Lock()
			defer w.mu.Unlock()
			n := len(w.probes)
			if between := w.probes[n-1].Sub(w.probes[n-2]); between != tc.want {
				t.Errorf("probes are %s apart, want %s", between, tc.want)
			}
		})
	}
}

// A change of the verdict ends scaling: if the state becomes unknown nothing more is scaled, and scaling continues with
// the verdict.
func TestVerdictChangesMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(4)
		_, _, stop := w.lead(t.Context(), 1)
		defer stop()
		after(time.Minute)
		w.cut(true)
		after(2 * time.Minute)
		w.cut(false)
		for w.replicas() == down { // kcm comes first, mcm after 30 s
			after(time.Second)
		}
		if got := w.replicas(); got != "ca 0, kcm 2, mcm 0" {
			t.Fatalf("%s, want kcm alone", got)
		}
		w.change(func() { w.apiErr["version"] = fails(partition.APIServerAway, 0) })
		after(5 * time.Minute)
		if got := w.replicas(); got != "ca 0, kcm 2, mcm 0" {
			t.Errorf("%s without sight, want what it was", got)
		}
		w.change(func() { clear(w.apiErr) })
		after(3 * time.Minute)
		if err := w.left(); w.replicas() != up || err != nil {
			t.Errorf("%s, %v, want %s", w.replicas(), err, up)
		}
	})
}

// A dependant removed from the object while it is scaled down is still scaled up.
func TestDependantIsTakenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(4)
		c, _, stop := w.lead(t.Context(), 1)
		defer stop()
		after(time.Minute)
		w.cut(true)
		after(2 * time.Minute)
		fewer := *c.config.Load()
		fewer.Dependants = fewer.Dependants[:1]
		c.Configure(&fewer, metav1.Condition{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted"})
		w.cut(false)
		after(3 * time.Minute)
		if err := w.left(); w.replicas() != up || err != nil {
			t.Errorf("%s, %v, want %s", w.replicas(), err, up)
		}
	})
}

// If paused, or in a dry run, it judges, but scales nothing. A dry run reports its actions once.
func TestPausedAndDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(4)
		c, _, stop := w.lead(t.Context(), 1, func(o *Options) { o.DryRun = true })
		after(time.Minute)
		w.cut(true)
		after(5 * time.Minute)
		if got := w.replicas(); got != up || w.status.Verdict != string(partition.Lost) || len(w.status.Steps) > 0 {
			t.Errorf("dry run: %s, status %+v", got, w.status)
		}
		slices.Sort(w.actions)
		if got := strings.Join(w.actions, ", "); got != "scale-down ca: dry-run, scale-down kcm: dry-run, scale-down mcm: dry-run" {
			t.Errorf("actions are %q, want each once", got)
		}
		if n := c.Snapshot().Leases; n[Expired] != 4 || n[Renewed] != 0 {
			t.Errorf("leases %v, want 4 that have expired", n)
		}
		w.cut(false) // otherwise the next leader scales down before the pause
		after(2 * time.Minute)
		stop()
		c, _, stop = w.lead(t.Context(), 2)
		defer stop()
		paused := *c.config.Load()
		paused.Paused = true
		c.Configure(&paused, metav1.Condition{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted"})
		after(2 * time.Minute)
		w.cut(true)
		after(2 * time.Minute)
		if got := w.replicas(); got != up || w.status.Verdict != string(partition.Lost) {
			t.Errorf("paused: %s, status %+v", got, w.status)
		}
	})
}

// Events report a loss, the actions, and the end of the loss.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(3)
		_, _, stop := w.lead(t.Context(), 1)
		defer stop()
		after(2 * time.Minute)
		w.cut(true)
		after(2 * time.Minute)
		w.cut(false)
		after(3 * time.Minute)
		want := "NodesLost ScaledDown ScaledDown ScaledDown NodesSeen ScaledUp ScaledUp ScaledUp"
		if got := strings.Join(w.told, " "); got != want {
			t.Errorf("events are %s, want %s", got, want)
		}
	})
}

var _ scale.Objects = client{}

// After an outage of the API server, nodes have time to renew their leases, whenever the first probe is.
func TestOutageIsNoSilence(t *testing.T) {
	for _, cause := range []partition.Cause{partition.APIServerAway, partition.Throttled} {
		for back := range 10 { // seconds
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(6)
				_, _, stop := w.lead(t.Context(), 1)
				defer stop()
				after(2 * time.Minute)
				w.change(func() { w.apiErr["version"] = fails(cause, 0) })
				after(5*time.Minute + time.Duration(back)*time.Second)
				w.change(func() { delete(w.apiErr, "version") })
				after(5 * time.Minute)
				if len(w.actions) > 0 {
					t.Errorf("%s, back after %d s: %q", cause, back, w.actions)
				}
			})
		}
	}
}
