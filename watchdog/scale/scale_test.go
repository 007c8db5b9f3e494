package scale

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/watchdog/config"
)

func TestLevels(t *testing.T) {
	tests := map[string]struct {
		dependants []config.Dependant
		up, down   string
	}{
		"one after the other":       {[]config.Dependant{dependant("kcm", 0, 2), dependant("mcm", 1, 1), dependant("ca", 2, 0)}, "kcm, mcm, ca", "ca, mcm, kcm"},
		"some at once":              {[]config.Dependant{dependant("kcm", 0, 1), dependant("mcm", 1, 0), dependant("ca", 2, 0)}, "kcm, mcm, ca", "mcm+ca, kcm"},
		"all at once":               {[]config.Dependant{dependant("kcm", 5, 5), dependant("mcm", 5, 5)}, "kcm+mcm", "kcm+mcm"},
		"levels with gaps":          {[]config.Dependant{dependant("kcm", 100, 7), dependant("mcm", 1, 9), dependant("ca", 100, 8)}, "mcm, kcm+ca", "kcm, ca, mcm"},
		"in no order, and no other": {[]config.Dependant{dependant("b", 1, 1), dependant("a", 0, 1), dependant("c", 0, 0)}, "a+c, b", "c, b+a"},
		"none":                      {nil, "", ""},
	}
	text := func(levels [][]config.Dependant) string {
		var parts []string
		for _, level := range levels {
			var names []string
			for _, d := range level {
				names = append(names, d.Ref.Name)
			}
			parts = append(parts, strings.Join(names, "+"))
		}
		return strings.Join(parts, ", ")
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := text(levelsOf(Up, tc.dependants)); got != tc.up {
				t.Errorf("up %q, want %q", got, tc.up)
			}
			if got := text(levelsOf(Down, tc.dependants)); got != tc.down {
				t.Errorf("down %q, want %q", got, tc.down)
			}
		})
	}
}

// The order of all writes, down and up: the information for scaling up is written first.
func TestDownAndUp(t *testing.T) {
	w := newWorld(map[string]int32{"kcm": 3, "mcm": 1})
	dependants := []config.Dependant{dependant("kcm", 0, 1), dependant("mcm", 1, 0)}
	run := func(direction Direction, want ...string) {
		t.Helper()
		if err := w.scaler().Run(t.Context(), direction, dependants); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, w.taken()); d != "" {
			t.Errorf("%s (-want +got):\n%s", direction, d)
		}
	}
	run(Down,
		"Lowering mcm", "annotate mcm", "set 0 mcm", "Lowered mcm", "scale-down mcm: success 1",
		"Lowering kcm", "annotate kcm", "set 0 kcm", "Lowered kcm", "scale-down kcm: success 3")
	if got := w.described("kcm"); got != "0 meltdown-protection-active= replicas=3" {
		t.Errorf("kcm is %q", got)
	}
	run(Down)
	run(Up,
		"Raising kcm", "set 3 kcm", "annotate kcm", "forget kcm", "scale-up kcm: success 3",
		"Raising mcm", "set 1 mcm", "annotate mcm", "forget mcm", "scale-up mcm: success 1")
	if got := w.described("kcm"); got != "3" {
		t.Errorf("kcm is %q", got)
	}
	run(Up)
}

// Actions on one dependant, by its state.
func TestOne(t *testing.T) {
	protected := func(replicas string) map[string]string {
		return map[string]string{AnnotationProtected: "", AnnotationReplicas: replicas}
	}
	tests := map[string]struct {
		direction   Direction
		replicas    int32
		annotations map[string]string
		want        string // state afterwards
		reports     string
	}{
		"down":                           {Down, 2, nil, "0 meltdown-protection-active= replicas=2", "success 2"},
		"down at 0":                      {Down, 0, nil, "0", ""},
		"down, of the watchdog before":   {Down, 0, protected("2"), "0 meltdown-protection-active= replicas=2", ""},
		"down, with old annotations":     {Down, 4, protected("2"), "0 meltdown-protection-active= replicas=4", "success 4"},
		"down, ignored":                  {Down, 2, map[string]string{AnnotationIgnore: "true"}, "2 ignore-scaling=true", ""},
		"down, not ignored":              {Down, 2, map[string]string{AnnotationIgnore: "false"}, "0 ignore-scaling=false meltdown-protection-active= replicas=2", "success 2"},
		"down, ignored by what":          {Down, 2, map[string]string{AnnotationIgnore: "maybe"}, "0 ignore-scaling=maybe meltdown-protection-active= replicas=2", "success 2"},
		"up":                             {Up, 0, protected("2"), "2", "success 2"},
		"up, of another scaled down":     {Up, 0, nil, "0", ""},
		"up, replicas of an old one":     {Up, 0, map[string]string{AnnotationReplicas: "2"}, "0 replicas=2", ""},
		"up, without replicas":           {Up, 0, map[string]string{AnnotationProtected: ""}, "1", "success 1"},
		"up, replicas are no number":     {Up, 0, protected("many"), "1", "success 1"},
		"up, replicas are too many":      {Up, 0, protected("99999999999"), "1", "success 1"},
		"up, replicas are 0":             {Up, 0, protected("0"), "1", "success 1"},
		"up, set by another":             {Up, 5, protected("2"), "5", "kept 5"},
		"up, runs":                       {Up, 5, nil, "5", ""},
		"up, ignored":                    {Up, 0, map[string]string{AnnotationProtected: "", AnnotationReplicas: "2", AnnotationIgnore: "true"}, "0 ignore-scaling=true replicas=2", "ignored 0"},
		"up, ignored, not scaled down":   {Up, 0, map[string]string{AnnotationIgnore: "true"}, "0 ignore-scaling=true", ""},
		"down, ignored, was protected":   {Down, 1, map[string]string{AnnotationProtected: "", AnnotationIgnore: "1"}, "1 ignore-scaling=1", "ignored 1"},
		"up, annotations of its own":     {Up, 1, map[string]string{"a/b": "c"}, "1 b=c", ""},
		"down, annotations of its own":   {Down, 1, map[string]string{"a/b": "c"}, "0 b=c meltdown-protection-active= replicas=1", "success 1"},
		"up, the others are not dropped": {Up, 0, map[string]string{"a/b": "c", AnnotationProtected: "", AnnotationReplicas: "3"}, "3 b=c", "success 3"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, dryRun := range []bool{true, false} {
				w := newWorld(map[string]int32{"kcm": tc.replicas})
				w.operator("kcm", func(o *Object) { maps.Copy(o.Annotations, tc.annotations) })
				before := w.described("kcm")
				s := w.scaler()
				s.DryRun = dryRun
				if err := s.Run(t.Context(), tc.direction, []config.Dependant{dependant("kcm", 0, 0)}); err != nil {
					t.Error(err)
				}
				reports, writes := "", 0
				for _, line := range w.taken() {
					if _, report, ok := strings.Cut(line, "kcm: "); ok {
						reports = report
					} else {
						writes++
					}
				}
				if dryRun {
					if is := w.described("kcm"); is != before || writes > 0 || strings.HasPrefix(reports, "dry-run") != (tc.reports != "") {
						t.Errorf("dry run: %q, %d writes, reports %q: want nothing done, and told what would be", is, writes, reports)
					}
					continue
				}
				if is := w.described("kcm"); is != tc.want || reports != tc.reports || len(w.steps) != strings.Count(tc.reports, "success")*strings.Count(string(tc.direction), "down") {
					t.Errorf("%q, reports %q, steps %v; want %q, %q", is, reports, w.steps, tc.want, tc.reports)
				}
			}
		})
	}
}

// Missing dependants.
func TestMissing(t *testing.T) {
	two := func(optional bool) []config.Dependant {
		first := dependant("ca", 0, 0)
		first.Optional = optional
		return []config.Dependant{first, dependant("kcm", 1, 1)}
	}
	t.Run("optional", func(t *testing.T) {
		w := newWorld(map[string]int32{"kcm": 1})
		if err := errors.Join(w.scaler().Run(t.Context(), Down, two(true)), w.scaler().Run(t.Context(), Up, two(true))); err != nil || w.described("kcm") != "1" {
			t.Errorf("kcm is %q, %v", w.described("kcm"), err)
		}
	})
	t.Run("required", func(t *testing.T) {
		w := newWorld(map[string]int32{"kcm": 1})
		err := w.scaler().Run(t.Context(), Down, two(false))
		if want := []string{"scale-down ca: error 0: scale Deployment ca: not found"}; !errors.Is(err, ErrGone) || !slices.Equal(w.taken(), want) || w.described("kcm") != "1" {
			t.Errorf("kcm is %q, %v, want the levels behind to wait", w.described("kcm"), err)
		}
	})
	t.Run("gone while it was scaled down", func(t *testing.T) {
		w := newWorld(map[string]int32{"kcm": 1, "ca": 1})
		if err := w.scaler().Run(t.Context(), Down, two(false)); err != nil {
			t.Error(err)
		}
		delete(w.objects, "ca")
		if err := w.scaler().Run(t.Context(), Up, two(false)); err != nil || w.described("kcm") != "1" || len(w.steps) > 0 {
			t.Errorf("kcm is %q, steps %v, %v: want all that is there up", w.described("kcm"), w.steps, err)
		}
	})
	t.Run("no scale", func(t *testing.T) {
		w := newWorld(map[string]int32{"kcm": 1, "ca": 1})
		w.noScale = map[string]bool{"ca": true}
		if err := w.scaler().Run(t.Context(), Down, two(true)); !errors.Is(err, ErrNoScale) {
			t.Errorf("Run() = %v, want %v", err, ErrNoScale)
		}
		w.operator("kcm", func(o *Object) {
			o.Replicas, o.Annotations = 0, map[string]string{AnnotationProtected: "", AnnotationReplicas: "2"}
		})
		if err := w.scaler().Run(t.Context(), Up, two(true)); err != nil || w.described("kcm") != "2" {
			t.Errorf("kcm is %q, %v: want it up, whatever is wrong with another one", w.described("kcm"), err)
		}
	})
}

// Replicas that another client sets while the nodes are lost are kept, during that and after it.
func TestReplicasOfOthersAreKept(t *testing.T) {
	w := newWorld(map[string]int32{"kcm": 3, "mcm": 1, "ca": 1})
	run := func(direction Direction) {
		t.Helper()
		if err := w.scaler().Run(t.Context(), direction, example()); err != nil {
			t.Error(err)
		}
	}
	run(Down)
	w.operator("kcm", func(o *Object) { o.Replicas = 5 })
	w.operator("mcm", func(o *Object) { o.Annotations = map[string]string{} }) // it must stay at 0
	w.taken()
	run(Down)
	run(Down)
	if got, want := w.taken(), []string{"Kept kcm", "scale-down kcm: kept 5"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	run(Up)
	for name, want := range map[string]string{"kcm": "5", "mcm": "0", "ca": "1"} {
		if got := w.described(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	run(Down)
	if got := w.described("kcm"); got != "0 meltdown-protection-active= replicas=5" {
		t.Errorf("kcm is %q, want it down: the nodes are lost anew", got)
	}
}

// A write does not overwrite another client's change since the read.
func TestConflict(t *testing.T) {
	w := newWorld(map[string]int32{"kcm": 3})
	times := 0
	w.before = func(what string) error {
		if what == "set 0 kcm" && times < 2 {
			times++
			w.set(w.objects["kcm"], func(o *Object) { o.Replicas++ })
			return ErrConflict
		}
		return nil
	}
	if err := w.scaler().Run(t.Context(), Down, []config.Dependant{dependant("kcm", 0, 0)}); err != nil {
		t.Error(err)
	}
	if got := w.described("kcm"); got != "0 meltdown-protection-active= replicas=5" {
		t.Errorf("kcm is %q, want the replicas that it had at last", got)
	}
	w.before = func(string) error { return ErrConflict }
	if err := w.scaler().Run(t.Context(), Up, []config.Dependant{dependant("kcm", 0, 0)}); !errors.Is(err, ErrConflict) {
		t.Errorf("Run() = %v, want it to give up", err)
	}
}

// The delay only applies to necessary actions, once for all dependants of a level, and the action depends on the state
// after it.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(map[string]int32{"kcm": 3, "mcm": 1})
		dependants := []config.Dependant{dependant("kcm", 0, 0), dependant("mcm", 0, 0)}
		for i := range dependants {
			dependants[i].Down.Delay, dependants[i].Up.Delay = 30*time.Second, time.Minute
		}
		took := func(direction Direction, meanwhile func()) time.Duration {
			begin := time.Now()
			time.AfterFunc(10*time.Second, meanwhile)
			if err := w.scaler().Run(t.Context(), direction, dependants); err != nil {
				t.Error(err)
			}
			return time.Since(begin)
		}
		if d := took(Down, func() { w.operator("kcm", func(o *Object) { o.Replicas = 7 }) }); d != 30*time.Second || w.described("kcm") != "0 meltdown-protection-active= replicas=7" {
			t.Errorf("down after %s, kcm is %q", d, w.described("kcm"))
		}
		if d := took(Down, func() {}); d != 0 {
			t.Errorf("nothing to do took %s", d)
		}
		if d := took(Up, func() { w.operator("mcm", func(o *Object) { o.Replicas = 4 }) }); d != time.Minute || w.described("kcm") != "7" || w.described("mcm") != "4" {
			t.Errorf("up after %s, kcm is %q, mcm %q", d, w.described("kcm"), w.described("mcm"))
		}
		if d := took(Up, func() {}); d != 0 {
			t.Errorf("nothing to do took %s", d)
		}
	})
}

// A level waits for the pods of the previous one, for a limited time. A cancelled run ends at once.
func TestSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(map[string]int32{"kcm": 3, "mcm": 1})
		w.running = false
		dependants := []config.Dependant{dependant("mcm", 0, 0), dependant("kcm", 1, 1)}
		begin := time.Now()
		time.AfterFunc(1900*time.Millisecond, func() { w.operator("mcm", func(o *Object) { o.Running = 0 }) })
		if err := w.scaler().Run(t.Context(), Down, dependants); err != nil {
			t.Error(err)
		}
		if took, want := time.Since(begin), 2*time.Second+settleTimeout; took != want {
			t.Errorf("took %s, want %s: two seconds for one, and as long as it waits for the other", took, want)
		}
		for i := range dependants {
			dependants[i].Up.Delay = time.Hour
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin = time.Now()
		w.taken()
		if err := w.scaler().Run(ctx, Up, dependants); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 10*time.Second || len(w.taken()) > 0 {
			t.Errorf("Run() = %v after %s, want it to end with its context, and nothing to be done", err, time.Since(begin))
		}
	})
}

// A dependant whose annotations cannot be removed, for example because of a policy, has its replicas: higher levels are
// scaled up, no action is repeated, and the next runs retry.
func TestAnnotationsStay(t *testing.T) {
	for name, other := range map[string]int32{"scaled up": 0, "set by another client": 5} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(map[string]int32{"kcm": 3, "mcm": 1, "ca": 1})
			if err := w.scaler().Run(t.Context(), Down, example()); err != nil {
				t.Fatal(err)
			}
			if other > 0 {
				w.operator("kcm", func(o *Object) { o.Replicas = other })
			}
			denied := errors.New("denied")
			w.before = func(what string) error {
				if what == "annotate kcm" {
					return denied
				}
				return nil
			}
			w.taken()
			for range 2 {
				if err := w.scaler().Run(t.Context(), Up, example()); !errors.Is(err, denied) {
					t.Errorf("Run() = %v, want that it is denied", err)
				}
			}
			w.before = nil
			if err := w.scaler().Run(t.Context(), Up, example()); err != nil {
				t.Error(err)
			}
			const failed = "scale-up kcm: error 0: scale Deployment kcm: annotations are not removed: denied"
			want := []string{failed, "Raising mcm", "set 1 mcm", "annotate mcm", "forget mcm", "scale-up mcm: success 1",
				"Raising ca", "set 1 ca", "annotate ca", "forget ca", "scale-up ca: success 1", failed, "annotate kcm", "forget kcm"}
			if other > 0 {
				want = append(want, "scale-up kcm: kept 5")
			} else {
				want = append([]string{"Raising kcm", "set 3 kcm"}, append(want, "scale-up kcm: success 3")...)
			}
			if got := w.taken(); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			if len(w.steps) > 0 {
				t.Errorf("steps are left: %v", w.steps)
			}
		})
	}
}
