// Package fidelity_test runs the kubelet's own probe code three times over many applications: against the application
// itself, and against the injected pod in both modes. The verdicts must be the same, and so must everything that the
// application sees.
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
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/harness"
)

var (
	update = flag.Bool("update", false, "write results.md")
	only   = flag.String("case", "", "run only the cases whose name contains this, and ignore results.md")
)

func TestMain(m *testing.M) {
	if os.Getenv(portVariable) != "" {
		if err := runAgent(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if err := leaks(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// leaks returns the goroutines that do not end. The kubelet cannot cancel a gRPC probe, even if its pod is gone: it
// lasts up to its timeout of half a minute.
func leaks() error {
	flush := goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")
	deadline := time.Now().Add(time.Minute)
	err := goleak.Find(flush)
	for err != nil && time.Now().Before(deadline) {
		err = goleak.Find(flush)
	}
	return err
}

// atOnce is how many cases run at the same time: most of them only wait.
const atOnce = 24

// A case is tried again if its verdict depends on time or is wrong without a mesh, since the machine may be busy. Each
// pause is twice as long as the one before. An agent that is late itself reports so, and is asked again.
const (
	tries      = 6
	firstPause = time.Second
)

// result is the result of a case.
type result struct {
	direct, through, perPort *outcome

	err error
	// wrong lists the differences from what was expected.
	wrong []string
	// classes of the events, as indexes into eventClasses.
	classes []int
}

// TestGoldenFidelity is named for `make golden`.
func TestGoldenFidelity(t *testing.T) {
	slowtest.Skip(t, "waits for the timeouts of hundreds of probes")
	t.Parallel()
	groups := cases.Groups()
	report(t, groups, runAll(t, groups, 0, func(*kernel) kubelets { return inProcess }))
}

// runAll runs all cases with the kubelets that ask returns. The number of the run selects its addresses.
func runAll(t *testing.T, groups []cases.Group, number int, ask func(*kernel) kubelets) map[*cases.Case]*result {
	h, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &perPort{handlers: h, pool: newAddressPool(number)}
	if os.Geteuid() == 0 {
		m.kernel = newKernel(t)
	}
	m.kubelets = ask(m.kernel)
	results := map[*cases.Case]*result{}
	var running errgroup.Group
	running.SetLimit(atOnce)
	for _, group := range groups {
		for i := range group.Cases {
			c := &group.Cases[i]
			if !strings.Contains(c.Name, *only) {
				continue
			}
			r := &result{}
			results[c] = r
			running.Go(func() error {
				r.run(t.Context(), c, m)
				return nil
			})
		}
	}
	_ = running.Wait() // errors are in the results
	return results
}

// run tries a case. Problems are recorded in r.
func (r *result) run(ctx context.Context, c *cases.Case, m *perPort) {
	for i := range tries {
		if i > 0 {
			<-time.After(firstPause << (i - 1))
		}
		var p cases.PodAddress
		if p, r.err = m.pool.take(c.At); r.err != nil {
			return
		}
		r.once(ctx, c, p, m)
		switch {
		case cases.InUse(r.err): // another program listens on all addresses
		// The mesh was not involved in these verdicts.
		case r.err == nil && !slices.Equal(r.direct.verdicts, c.Wants(len(r.direct.verdicts), m.kubelets.minor)):
		case r.err == nil && len(r.wrong) == 0 || !c.Timed():
			return
		}
	}
}

func (r *result) once(ctx context.Context, c *cases.Case, p cases.PodAddress, m *perPort) {
	*r = result{}
	if r.direct, r.err = m.direct(ctx, c, p); r.err != nil {
		return
	}
	if want := c.Wants(len(r.direct.verdicts), m.kubelets.minor); !slices.Equal(r.direct.verdicts, want) {
		r.wrong = append(r.wrong, fmt.Sprintf("verdicts without a mesh: %v, want %v\n%s", r.direct.verdicts, want, strings.Join(r.direct.messages, "\n")))
	}
	if c.ByLibraries(m.kubelets.minor) {
		return
	}
	if r.through, r.err = m.through(ctx, c, p); r.err != nil {
		return
	}
	if r.perPort, r.err = m.ask(ctx, c, p); r.err != nil {
		return
	}
	if !slices.Equal(r.direct.verdicts, r.through.verdicts) {
		r.wrong = append(r.wrong, fmt.Sprintf("verdicts through the mesh: %v, without: %v\n%s\nwithout:\n%s",
			r.through.verdicts, r.direct.verdicts, strings.Join(r.through.messages, "\n"), strings.Join(r.direct.messages, "\n")))
	}
	if diff := cmp.Diff(requests(c, r.direct), requests(c, r.through)); diff != "" {
		r.wrong = append(r.wrong, "what the application saw (- without a mesh, + through it):\n"+diff)
	}
	if unchanged := len(r.through.warnings) > 0; unchanged != c.Unchanged {
		r.wrong = append(r.wrong, fmt.Sprintf("not rewritten: %v, want %v: %q", unchanged, c.Unchanged, r.through.warnings))
	}
	r.judgePerPort(c)
	r.judgeEvents(c, m.kubelets.minor)
}

// judgePerPort compares the per-port mode with what the kubelet finds without a mesh.
func (r *result) judgePerPort(c *cases.Case) {
	if !slices.Equal(r.perPort.verdicts, r.direct.verdicts) {
		r.wrong = append(r.wrong, fmt.Sprintf("verdicts in per-port mode: %v, without a mesh: %v\n%s",
			r.perPort.verdicts, r.direct.verdicts, strings.Join(r.perPort.messages, "\n")))
	}
	if diff := cmp.Diff(requests(c, r.direct), requests(c, r.perPort)); diff != "" {
		r.wrong = append(r.wrong, "what the application saw (- without a mesh, + in per-port mode):\n"+diff)
	}
	if unchanged := len(r.perPort.warnings) > 0; unchanged != c.Unchanged {
		r.wrong = append(r.wrong, fmt.Sprintf("not rewritten in per-port mode: %v, want %v: %q", unchanged, c.Unchanged, r.perPort.warnings))
	}
}

// report fails a test with all problems of the case.
func (r *result) report(t *testing.T) {
	if r.err != nil {
		t.Fatal(r.err)
	}
	for _, wrong := range r.wrong {
		t.Error(wrong)
	}
}

// report writes the table, and fails for each case that differs.
func report(t *testing.T, groups []cases.Group, results map[*cases.Case]*result) {
	table := newTable()
	for _, group := range groups {
		table.group(group.Title)
		for i := range group.Cases {
			c := &group.Cases[i]
			r := results[c]
			if r == nil {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				r.report(t)
				table.row(c, r)
			})
		}
	}
	t.Log("\n" + table.String())
	if t.Failed() || *only != "" {
		return
	}
	for i := range table.unseen {
		t.Errorf("no case has an event of form %q", eventClasses[i].direct)
	}
	if os.Geteuid() != 0 {
		redirecttest.NotHere(t, "this needs root, to make network namespaces: TCP probes were not tried in per-port mode, and results.md is not compared")
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "test", "fidelity", "results.md")
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
		t.Errorf("%s differs from the results of this test; run `make golden` to update it (- file, + now):\n%s", path, diff)
	}
}
