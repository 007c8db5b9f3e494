package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/store"
)

// A table shows the failing probes of a proxy with ages: another time alone is not a change.
func TestWatchOfProxies(t *testing.T) {
	now := time.Now()
	listed := func(reason string, at time.Time, passes uint32) *listing {
		p := &adminv1.Proxy{Mesh: "default", Name: "web-1", Verdicts: &adminv1.Verdicts{Probes: []*adminv1.ProbeVerdicts{
			{Container: "app", Probe: "readiness", Reason: reason, Total: 2, Changes: []*adminv1.VerdictChange{{At: timestamppb.New(at), Verdict: "failure"}}},
			{Container: "app", Probe: "liveness", Total: passes, Changes: []*adminv1.VerdictChange{{At: timestamppb.New(at), Verdict: "success"}}},
		}}}
		l, err := newListing(proxiesHeader, []*adminv1.Proxy{p}, showMessage(proxyRow))
		if err != nil {
			t.Fatal(err)
		}
		l.compared = comparedProxies([]*adminv1.Proxy{p})
		return l
	}
	for format, want := range map[printer.Format]int{printer.Table: 2, printer.Wide: 2, printer.Name: 2, printer.JSON: 4} {
		var out printer.Output
		w := &watcher{out: &out, of: proxies, output: &getOutput{format: format, noHeaders: true}}
		for _, l := range []*listing{listed("refused", now, 1), listed("refused", now.Add(time.Second), 1), listed("refused", now, 3), listed("timeout", now, 3)} {
			if err := w.show(l); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Count(out.String(), "web-1"); got != want {
			t.Errorf("%s: %d rows, want %d:\n%s", format, got, want, &out)
		}
	}
}

func TestWatcher(t *testing.T) {
	listed := func(rows ...[3]string) *listing {
		l := &listing{header: []string{"MESH", "NAME", "AGE"}, more: []string{"COLOUR"}}
		for _, r := range rows {
			cells := []string{"default", r[0], r[1]}
			l.rows = append(l.rows, printer.Row{Cells: cells, Wide: cells, More: []string{"blue"}})
			l.documents = append(l.documents, map[string]string{"mesh": "default", "name": r[0], "health": r[2]})
		}
		return l
	}
	before := listed([3]string{"a", "1s", "ready"}, [3]string{"b", "1s", "ready"}, [3]string{"c", "1s", "<-"})
	after := listed([3]string{"a", "2s", "ready"}, [3]string{"b", "2s", "draining"}, [3]string{"new", "0s", "ready"})
	cut := listed([3]string{"b", "1s", "ready"})
	cut.tail = &adminv1.Tail{LeftOut: 2}
	head := "MESH      NAME   AGE\ndefault   a      1s\ndefault   b      1s\ndefault   c      1s\n"
	tests := map[string]struct {
		format printer.Format
		shown  []*listing
		want   string
	}{
		"all at first":        {printer.Table, []*listing{before}, head},
		"none at first":       {printer.Table, []*listing{listed(), listed([3]string{"a", "1s", "ready"})}, "MESH   NAME   AGE\ndefault   a      1s\n"},
		"changes alone":       {printer.Table, []*listing{before, after}, head + "default   b      2s\ndefault   new    0s\ndefault   c      1s\n  removed\n"},
		"an age alone":        {printer.Table, []*listing{before, listed([3]string{"a", "9s", "ready"}, [3]string{"b", "9s", "ready"}, [3]string{"c", "9s", "<-"})}, head},
		"columns stay wide":   {printer.Table, []*listing{before, listed([3]string{"longest", "1s", "ready"}), listed([3]string{"d", "1s", "ready"})}, head + "default   longest   1s\ndefault   a         1s\n  removed\ndefault   b         1s\n  removed\ndefault   c         1s\n  removed\ndefault   d         1s\ndefault   longest   1s\n  removed\n"},
		"what is not listed":  {printer.Table, []*listing{before, cut, before}, head},
		"comes back":          {printer.JSON, []*listing{cut, listed(), cut}, "{\n  \"health\": \"ready\",\n  \"mesh\": \"default\",\n  \"name\": \"b\"\n}\n{\n  \"removed\": true,\n  \"health\": \"ready\",\n  \"mesh\": \"default\",\n  \"name\": \"b\"\n}\n{\n  \"health\": \"ready\",\n  \"mesh\": \"default\",\n  \"name\": \"b\"\n}\n"},
		"YAML":                {printer.YAML, []*listing{cut, listed([3]string{"b", "1s", "<-"}), listed()}, "---\nhealth: ready\nmesh: default\nname: b\n---\nhealth: <-\nmesh: default\nname: b\n---\nremoved: true\nhealth: <-\nmesh: default\nname: b\n"},
		"names":               {printer.Name, []*listing{before, after}, "thing/a\nthing/b\nthing/c\nthing/b\nthing/new\nthing/c\n"},
		"a template":          {"jsonpath={.name}: {.health}{.removed}", []*listing{cut, listed([3]string{"b", "1s", "<-"}), listed()}, "b: ready\nb: <-\nb: <-true\n"},
		"wide":                {printer.Wide, []*listing{cut}, "MESH      NAME   AGE   COLOUR\ndefault   b      1s    blue\n"},
		"JSON is not escaped": {printer.JSON, []*listing{listed([3]string{"b", "1s", "<-"}), listed([3]string{"b", "1s", "<-"})}, "{\n  \"health\": \"<-\",\n  \"mesh\": \"default\",\n  \"name\": \"b\"\n}\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out printer.Output
			output := &getOutput{}
			if err := output.Set(string(tc.format)); err != nil {
				t.Fatal(err)
			}
			w := &watcher{out: &out, of: collection{singular: "thing", inMeshes: true}, output: output}
			for _, l := range tc.shown {
				if err := w.show(l); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// changingAgents are agents whose states change.
type changingAgents struct {
	madeUpAgents
	agents map[mesh.ID]*adminv1.Agent
	states func() map[mesh.ID]*adminv1.AgentState
}

func (c changingAgents) Agents() map[mesh.ID]*adminv1.Agent      { return c.agents }
func (c changingAgents) States() map[mesh.ID]*adminv1.AgentState { return c.states() }

// TestWatch watches during a change and a restart of the control plane, until its context ends, as with a signal.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, signal := context.WithCancel(t.Context())
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("testdata/watch")); err != nil {
			t.Fatal(err)
		}
		state, err := store.OpenState(filepath.Join(dir, "state"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = state.Close() })
		o, err := options(ctx, dir, state)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		problems := []*adminv1.Problem{{File: "old.yaml", Text: "broken"}}
		phase := adminv1.AgentState_CONNECTED
		streams, missing := madeUpStreams(ctx)
		agents := madeUpAgents{}.Agents()
		o.Lists.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) { return streams, missing } // same start time
		o.Lists.Problems = func() []*adminv1.Problem {
			mu.Lock()
			defer mu.Unlock()
			return problems
		}
		o.Lists.Agents = changingAgents{agents: agents, states: func() map[mesh.ID]*adminv1.AgentState {
			mu.Lock()
			defer mu.Unlock()
			return map[mesh.ID]*adminv1.AgentState{"default/web-1": {Phase: phase}}
		}}
		n := virtual.NewNetwork()
		serve := func() (stop func()) {
			end, err := serveAdmin(n, o)
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := end(); err != nil {
					t.Error(err)
				}
			}
		}
		stop := serve()
		var stdout, stderr logtest.Buffer
		ended := make(chan int, 1)
		go func() {
			ended <- on(n).run(ctx, []string{
				"get", "proxies", "web-1", "--mesh=default", "-w", "--address=" + adminAt,
				"--ca-cert-file=" + filepath.Join(dir, "state", "serving-ca.crt"), "--token-file=" + filepath.Join(dir, "state", "admin-token"),
			}, strings.NewReader(""), &stdout, &stderr)
		}()
		says := func(what, row, errs string) {
			t.Helper()
			time.Sleep(watchEvery)
			out, err := stdout.Take(), stderr.Take()
			if !strings.Contains(out, row) || (out == "") != (row == "") || !strings.Contains(err, errs) || (err == "") != (errs == "") {
				t.Errorf("%s: it writes %q and says %q, want %q and %q", what, out, err, row, errs)
			}
			if header := strings.Contains(out, "NAME"); header != (what == "the first") {
				t.Errorf("%s: it writes a header: %t", what, header)
			}
		}
		time.Sleep(watchEvery / 2) // each following step is halfway between two polls
		says("the first", "connected", "sondectl: store: error: old.yaml: broken\n")
		says("no change", "", "")
		mu.Lock()
		phase, problems = adminv1.AgentState_STOPPED, []*adminv1.Problem{{File: "new.yaml", Document: 2, Line: 3, Warning: true, Text: "odd"}}
		mu.Unlock()
		says("a change", "stopped", "sondectl: store: warning: new.yaml, document 2, line 3: odd\nsondectl: store: resolved: error: old.yaml: broken\n")
		stop()
		says("no control plane", "", "retrying every 2s\n")
		says("still none", "", "")
		mu.Lock()
		phase = adminv1.AgentState_LOST
		mu.Unlock()
		stop = serve()
		says("it is back", "lost", "sondectl: the control plane responds again\n")
		says("no change again", "", "")
		signal()
		if code := <-ended; code != exit.OK {
			t.Errorf("exit code = %d, want %d", code, exit.OK)
		}
		stop()
	})
}
