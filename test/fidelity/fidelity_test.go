// Package fidelity_test runs the kubelet's own probe code twice over a zoo of applications: against the application itself,
// and against what the injector makes of the pod. The verdict must be the same, and what the application sees.
package fidelity_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/test/harness"
)

var update = flag.Bool("update", false, "write docs/fidelity.md")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// groups of the zoo, in the order of the table.
var groups = []struct {
	title string
	zoo   func() zoo
}{
	{"Status", statuses},
	{"Interim answers", interims},
	{"Paths and queries", paths},
	{"Headers", headers},
	{"Redirects", redirects},
	{"Bodies", bodies},
	{"Servers that do not behave", wrongServers},
	{"Time", times},
	{"TLS and HTTP/2", secure},
	{"TCP", tcps},
	{"gRPC", grpcs},
	{"Named ports and host", ports},
	{"Several containers", several},
	{"Addresses", addresses},
	{"Hooks", hooks},
	{"Cases of the kubelet's own tests", kubeletTests},
}

// atOnce is how many scenarios run at a time: most of them wait.
const atOnce = 24

// tries of a scenario whose verdict depends on time: the machine may be busy.
const tries = 3

// result of a scenario.
type result struct {
	direct, through *outcome
	err             error
	// wrong says how it differs from what was expected.
	wrong []string
}

// TestGoldenFidelity is named for `make golden`.
func TestGoldenFidelity(t *testing.T) {
	t.Parallel()
	h, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ps := newPlaces(0)
	var all [][]scenario
	results := map[*scenario]*result{}
	var running errgroup.Group
	running.SetLimit(atOnce)
	for _, group := range groups {
		list := group.zoo()
		all = append(all, list)
		for i := range list {
			s := &list[i]
			r := &result{}
			results[s] = r
			running.Go(func() error {
				r.run(t.Context(), s, ps, h)
				return nil
			})
		}
	}
	_ = running.Wait() // errors are in the results
	report(t, all, results)
}

// run tries a scenario. Its problems are in r.
func (r *result) run(ctx context.Context, s *scenario, ps *places, h *handlers) {
	for range tries {
		var p place
		if p, r.err = ps.take(s.at); r.err != nil {
			return
		}
		r.once(ctx, s, p, h)
		switch {
		case inUse(r.err): // somebody else listens on all addresses
		case r.err == nil && len(r.wrong) == 0 || !s.timing:
			return
		}
	}
}

func (r *result) once(ctx context.Context, s *scenario, p place, h *handlers) {
	*r = result{}
	if r.direct, r.err = s.direct(ctx, p); r.err != nil {
		return
	}
	if r.through, r.err = s.through(ctx, p, h); r.err != nil {
		return
	}
	if want := s.wants(len(r.direct.verdicts)); !slices.Equal(r.direct.verdicts, want) {
		r.wrong = append(r.wrong, fmt.Sprintf("verdicts without a mesh: %v, want %v\n%s", r.direct.verdicts, want, strings.Join(r.direct.messages, "\n")))
	}
	if !slices.Equal(r.direct.verdicts, r.through.verdicts) {
		r.wrong = append(r.wrong, fmt.Sprintf("verdicts through the mesh: %v, without: %v\n%s\nwithout:\n%s",
			r.through.verdicts, r.direct.verdicts, strings.Join(r.through.messages, "\n"), strings.Join(r.direct.messages, "\n")))
	}
	if diff := cmp.Diff(s.requests(r.direct), s.requests(r.through)); diff != "" {
		r.wrong = append(r.wrong, "what the application saw (- without a mesh, + through it):\n"+diff)
	}
	if left := len(r.through.warnings) > 0; left != s.left {
		r.wrong = append(r.wrong, fmt.Sprintf("left as it is: %v, want %v: %q", left, s.left, r.through.warnings))
	}
}

// report writes the table, and fails for each scenario that differs.
func report(t *testing.T, all [][]scenario, results map[*scenario]*result) {
	table := newTable()
	for i, group := range groups {
		table.group(group.title)
		for j := range all[i] {
			s := &all[i][j]
			r := results[s]
			t.Run(s.name, func(t *testing.T) {
				if r.err != nil {
					t.Fatal(r.err)
				}
				for _, wrong := range r.wrong {
					t.Error(wrong)
				}
				table.row(s, r)
			})
		}
	}
	t.Log("\n" + table.String())
	if t.Failed() {
		return
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "docs", "fidelity.md")
	if *update {
		if err := os.WriteFile(path, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), table.String()); diff != "" {
		t.Errorf("%s is not what this test found; write it anew with `make golden` (- file, + now):\n%s", path, diff)
	}
}
