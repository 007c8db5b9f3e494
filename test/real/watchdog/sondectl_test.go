package watchdog

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	inspected "github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/watchdog"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// An operator shows a cluster, pauses it, and resumes it with sondectl.
func TestSondectl(t *testing.T) {
	program, err := harness.BuildInto(t.Context(), filepath.Join(t.TempDir(), "bin"), "cmd/sondectl")
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, "operated", 3)
	s.watch("local: true")
	s.start("a")
	s.verdict("seen", "")
	run := func(ctx context.Context, args string) string {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, program, append(strings.Fields("watchdog "+args), "--kubeconfig="+cluster.Kubeconfig)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return err.Error() + ": " + out.String()
		}
		return out.String()
	}
	says := func(args string, want ...string) {
		t.Helper()
		must.Poll(t, args, func(ctx context.Context) error {
			out := run(ctx, args)
			for _, w := range want {
				if !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
					return fmt.Errorf("no %q in %s", w, out)
				}
			}
			return nil
		})
	}
	says("status -A", "operated operated seen ", " - 0/3")
	says("status nosuch -n operated", "exit status 1", `read WatchedCluster "nosuch"`, "not found")
	says("status operated -A", "exit status 2", "--all-namespaces")
	says("pause operated -n operated", "operated is paused: nothing is scaled")
	says("status operated -n operated", "operated operated seen ", " yes 0/3")
	says("pause nosuch -n operated", "exit status 1", `update WatchedCluster "nosuch"`)
	s.connect(false)
	s.verdict("lost", "all")
	s.stays("paused", longEnough)
	says("resume operated -n operated", "operated is not paused")
	s.scaled(0, 0, 0)
	says("status -n operated", "operated operated lost ", " - 3/3", "cause: all", "Deployment kcm: Lowered, replicas 2")
	says("status operated -n operated -o yaml", "verdict: lost")
	says("explain operated -n operated", "nodes: lost (all) for ", "3 of 3 nodes have not renewed their leases for 3s, although the API server answers", "(all) 3 3 0 lost all",
		"Deployment/mcm 0 0 Lowered nothing replicas before: 1", "Deployment/kcm 1 0 Lowered nothing replicas before: 2")
	says("explain operated -n operated -o json", `"next": "dependants are scaled down, level by level"`, `"replicas": 0`)
	readsForThePage(t)
	says("explain nosuch -n operated", "exit status 1", `read WatchedCluster "nosuch"`)
	s.connect(true)
	s.scaled(2, 1, 1)
}

// readsForThePage reads what sondectl dashboard shows of the cluster.
func readsForThePage(t *testing.T) {
	t.Helper()
	in, err := inspected.Open(inspected.Options{Kubeconfig: cluster.Kubeconfig})
	must.Do(t, err)
	reader, err := watchdog.NewReader(in)
	must.Do(t, err)
	clusters, _, err := reader.List(t.Context(), 500)
	must.Do(t, err)
	for i := range clusters {
		if clusters[i].Name != "operated" {
			continue
		}
		e := watchdog.Explain(t.Context(), &clusters[i], reader.In("operated"))
		if e.Verdict != "lost" || len(e.Dependants) != 3 || e.Dependants[0].Replicas == nil || *e.Dependants[0].Replicas != 0 {
			t.Errorf("the page gets %+v", e)
		}
		return
	}
	t.Error("the page gets no such cluster")
}
