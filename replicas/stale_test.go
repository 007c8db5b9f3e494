package replicas

import (
	"slices"
	"strings"
	"testing"
)

// comparison is one call of Compare, with the revision up to which this replica has seen everything, and the newest
// revisions of the others.
type comparison struct {
	seen   uint64
	others map[string]uint64
}

func repeat(n int, c comparison) (all []comparison) {
	for range n {
		all = append(all, c)
	}
	return all
}

// then appends to a copy of the sequence, since several cases begin with the same comparisons.
func then(first []comparison, more ...comparison) []comparison {
	return slices.Concat(first, more)
}

// TestBehind has an API server that confirms each revision that replicas report.
func TestBehind(t *testing.T) {
	late := repeat(9, comparison{99, map[string]uint64{"b": 100}})
	// lagging sees each revision that many comparisons later than b.
	lagging := func(lag, n int) (all []comparison) {
		for i := range n {
			all = append(all, comparison{uint64(1000 + i - lag), map[string]uint64{"b": uint64(1000 + i)}})
		}
		return all
	}
	tests := map[string]struct {
		comparisons []comparison
		stale       string // the replica that is ahead, "" without one
		verdicts    int    // number of changes of the verdict
	}{
		"no other":                  {repeat(10, comparison{5, nil}), "", 0},
		"all have seen the same":    {repeat(10, comparison{100, map[string]uint64{"b": 100, "c": 99}}), "", 0},
		"others lag":                {repeat(10, comparison{100, map[string]uint64{"b": 99}}), "", 0},
		"nothing read here":         {repeat(10, comparison{0, map[string]uint64{"b": 100}}), "", 0},
		"nothing said":              {repeat(10, comparison{9, map[string]uint64{"b": 0}}), "", 0},
		"late for a moment":         {then(late[:5], comparison{100, map[string]uint64{"b": 100}}), "", 0},
		"late for long":             {repeat(6, comparison{99, map[string]uint64{"b": 98, "c": 100}}), "c", 1},
		"the others go on":          {then(late[:3], repeat(3, comparison{99, map[string]uint64{"b": 2000}})...), "b", 1},
		"caught up":                 {then(late, comparison{101, map[string]uint64{"b": 101}}), "", 2},
		"late again at once":        {then(late, repeat(20, comparison{101, map[string]uint64{"b": 102}})...), "b", 1},
		"in time again":             {then(then(late, repeat(3, comparison{101, map[string]uint64{"b": 102}})...), comparison{103, map[string]uint64{"b": 104}}), "", 2},
		"always a little late":      {lagging(1, 100), "", 0},
		"always late, and no more":  {lagging(4, 100), "", 0},
		"always too late":           {lagging(8, 100), "b", 1},
		"always much too late":      {lagging(30, 100), "b", 1},
		"the other is gone":         {then(late, comparison{99, nil}), "", 2},
		"the other is not ready":    {then(late, comparison{99, map[string]uint64{"b": 0}}), "", 2},
		"another one is ahead, too": {then(late, repeat(3, comparison{99, map[string]uint64{"b": 0, "a": 100}})...), "a", 1},
		"the other reads anew":      {then(late, comparison{99, map[string]uint64{"b": 7}}), "", 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var b behind
			verdicts := 0
			for _, c := range tc.comparisons {
				before := b.stale
				b.compare(c.seen, c.others)
				if b.due() {
					b.decide(b.target)
				}
				if b.stale != before {
					verdicts++
				}
			}
			if err := b.err(); (err != nil) != (tc.stale != "") || err != nil && !strings.HasPrefix(err.Error(), "replica "+tc.stale+" has seen changes of pods for ") {
				t.Errorf("at the end: %v, want an error that names %q", err, tc.stale)
			}
			if verdicts != tc.verdicts {
				t.Errorf("%d changes of the verdict, want %d", verdicts, tc.verdicts)
			}
		})
	}
}

// TestBehindADeadState has a replica that was not restarted after etcd was restored from an older state. It still
// reports a revision from after that state.
func TestBehindADeadState(t *testing.T) {
	var b behind
	for seen := uint64(500); seen < 1600; seen += 10 {
		b.compare(seen, map[string]uint64{"old": max(1000, seen)})
		if b.due() {
			b.decide(seen)
		}
		if b.stale {
			t.Fatalf("at %d: %v", seen, b.err())
		}
	}
	for range 6 {
		b.compare(1600, map[string]uint64{"old": 1700})
	}
	if !b.due() {
		t.Error("versions after the dead state are ignored")
	}
}
