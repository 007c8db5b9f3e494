package dashboard

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestPatches has pages that keep up, or not.
func TestPatches(t *testing.T) {
	tests := map[string]struct {
		before, after, want string // want is the patch, "" if the page gets everything
	}{
		"a row changes":        {`{"rows":[{"a":1},{"b":1},{"c":1}]}`, `{"rows":[{"a":1},{"b":2},{"c":1}]}`, `{"rows":[[0,1],{"b":2},[2,1]]}`},
		"a row comes":          {`{"rows":[{"a":1},{"c":1}]}`, `{"rows":[{"a":1},{"b":1},{"c":1}]}`, `{"rows":[[0,1],{"b":1},[1,1]]}`},
		"rows go":              {`{"rows":[{"a":1},{"b":1},{"c":1}]}`, `{"rows":[{"c":1}]}`, `{"rows":[[2,1]]}`},
		"all rows go":          {`{"rows":[{"a":1}]}`, `{"rows":[]}`, `{"rows":[]}`},
		"rows change places":   {`{"rows":[{"a":1},{"b":1}]}`, `{"rows":[{"b":1},{"a":1}]}`, `{"rows":[[1,1],[0,1]]}`},
		"rows with brackets":   {`{"rows":[{"a":"]},{\"["},{"b":"\\"}]}`, `{"rows":[{"a":"]},{\"["},{"b":"}"}]}`, `{"rows":[[0,1],{"b":"}"}]}`},
		"rows are the same":    {`{"rows":[{"a":1},{"a":1}]}`, `{"rows":[{"a":1},{"a":1}],"leftOut":7}`, `{"leftOut":7,"rows":[[1,1],[1,1]]}`},
		"a section has no row": {`{"ok":true}`, `{"ok":false}`, ""},
		"there were none yet":  {"", `{"rows":[]}`, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDifferences()
			if tc.before != "" {
				if got := d.patch("workloads", "", "1", json.RawMessage(tc.before)); got != nil {
					t.Errorf("a page that has nothing gets %s", got)
				}
			}
			for range 2 { // the second page
				if got := string(d.patch("workloads", "1", "2", json.RawMessage(tc.after))); !sameJSON(got, tc.want) {
					t.Errorf("the patch is %s, want %s", got, tc.want)
				}
			}
		})
	}
}

func sameJSON(a, b string) bool {
	var one, other any
	return a == b || json.Unmarshal([]byte(a), &one) == nil && json.Unmarshal([]byte(b), &other) == nil && fmt.Sprint(one) == fmt.Sprint(other)
}

func TestPagesThatAreLateGetEverything(t *testing.T) {
	d := newDifferences()
	for i := range maxVersions + 1 {
		d.patch("workloads", "", strconv.Itoa(i), json.RawMessage(`{"rows":[]}`))
	}
	const now = `{"rows":[{"a":1}]}`
	if d.patch("workloads", "0", "now", json.RawMessage(now)) != nil || d.patch("workloads", "2", "now", json.RawMessage(now)) == nil {
		t.Errorf("not the latest %d versions are compared", maxVersions)
	}
}

// TestStateWaitsForAChange checks that a page that has the current state gets an answer at the next change, and without
// one after holdFor.
func TestStateWaitsForAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s := newTestHandler(wellAPI())
		ask := func(have string) (index, time.Duration) {
			began := time.Now()
			var state index
			if err := json.Unmarshal(get(h, "/api/state?have="+have, nil).Body.Bytes(), &state); err != nil {
				t.Fatal(err)
			}
			return state, time.Since(began)
		}
		first, took := ask("")
		if took != 0 {
			t.Errorf("a page that knows nothing waits %s", took)
		}
		if same, took := ask(first.Version); took != holdFor || same.Version != first.Version {
			t.Errorf("without a change it waits %s", took)
		}
		go func() {
			time.Sleep(holdFor / 4)
			if err := s.once(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		if next, took := ask(first.Version); took > holdFor/4+lookEvery || next.Version == first.Version {
			t.Errorf("after a change it waits %s", took)
		}
	})
}
