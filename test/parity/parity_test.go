package parity

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

var (
	update = flag.Bool("update", false, "write docs/parity.md and results.md")
	once   = flag.Bool("once", false, "make no call once more that does not end as it must")
	only   = flag.String("call", "", "make only the calls whose name contains this")
)

// programs and envoys make up the meshes of the tests. envoys has one of each supported minor version, or only the
// newest.
var (
	programs harness.Programs
	envoys   []string
)

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "calls through real Envoys")
	var err error
	if programs, err = harness.Build(context.Background(), harness.Race); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		os.Exit(1)
	}
	if envoys, err = harness.EnvoysOfTests(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "find the Envoys of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// A call that never ends in the mesh is a difference like any other: it ends after patience. If it does not end as it
// must, it is made again with longPatience, since the machine may be busy.
const (
	patience     = 3 * time.Second
	longPatience = time.Minute
)

// TestParity makes each call in each way. The calls of one application are made one after the other, so that the
// application's reports belong to one call.
func TestParity(t *testing.T) {
	for _, envoy := range envoys {
		t.Run(filepath.Base(filepath.Dir(envoy)), func(t *testing.T) {
			all := calls()
			r := newRig(t, envoy, all)
			minor := minorOf(t, envoy)
			results := map[*call]map[way]string{}
			for _, c := range all {
				if c.runs() {
					results[c] = map[way]string{}
				}
			}
			var running errgroup.Group
			for _, app := range r.applications {
				running.Go(func() error {
					for _, c := range all {
						if results[c] != nil && c.app == app.application {
							r.make(t.Context(), c, app, minor, results[c])
						}
					}
					return nil
				})
			}
			_ = running.Wait() // errors are in the results
			report(t, all, minor, results)
		})
	}
}

// minorOf returns 40 for .../envoy-1.40.0/envoy, and the newest minor version for a path without a version.
func minorOf(t *testing.T, envoy string) int {
	t.Helper()
	_, version, said := strings.Cut(filepath.Base(filepath.Dir(envoy)), "envoy-1.")
	minor, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(minor)
	if !said || err != nil {
		return math.MaxInt
	}
	return n
}

// runs reports whether a call is made in this run.
func (c *call) runs() bool {
	if c.program != "" {
		if _, err := exec.LookPath(c.program); err != nil {
			return false
		}
	}
	return strings.Contains(c.name, *only) && (c.takes == 0 || os.Getenv("SONDE_TEST_ENVOYS") == "all")
}

// make makes a call in each way.
func (r *rig) make(ctx context.Context, c *call, app *served, envoy int, outcomes map[way]string) {
	for _, w := range ways {
		at, ok := app.at[w]
		if !ok {
			continue
		}
		outcome := c.make(ctx, app, at, patience+c.takes)
		if !c.expects(w, envoy, outcome) && !*once {
			if strings.HasSuffix(outcome, applicationSaw+sawNothing) {
				app.settle(ctx)
			}
			outcome = c.make(ctx, app, at, longPatience)
		}
		outcomes[w] = outcome
	}
}

// make makes a call once, and returns the outcome, at the latest after within.
func (c *call) make(ctx context.Context, app *served, at string, within time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	app.forget()
	outcome := []string{c.client(ctx, at)}
	for range c.sees {
		outcome = append(outcome, applicationSaw+app.next(ctx))
	}
	return strings.Join(outcome, "; ")
}

// report fails for each call that does not end as expected.
func report(t *testing.T, all []*call, envoy int, results map[*call]map[way]string) {
	for _, c := range all {
		if results[c] == nil {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for _, w := range ways {
				got, made := results[c][w]
				if !made || c.expects(w, envoy, got) {
					continue
				}
				want := c.want
				if d := c.difference(w, envoy); d != nil {
					want = d.want
				}
				t.Errorf("%s:\ngot  %s\nwant %s", w, got, want)
			}
		})
	}
}

// TestGoldenPages compares docs/parity.md and results.md with the table.
func TestGoldenPages(t *testing.T) {
	root, err := harness.Root()
	must.Do(t, err)
	for path, text := range map[string]string{
		filepath.Join(root, "docs", "parity.md"):            page(calls()),
		filepath.Join(root, "test", "parity", "results.md"): resultsPage(calls()),
	} {
		if *update {
			must.Do(t, os.WriteFile(path, []byte(text), 0o644))
		}
		have, err := os.ReadFile(path)
		must.Do(t, err)
		if diff := cmp.Diff(string(have), text); diff != "" {
			t.Errorf("%s differs from the table of this test; run `make golden` to update it (- file, + now):\n%s", path, diff)
		}
	}
}
