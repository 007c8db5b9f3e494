package mesh

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/sonde-mesh/sonde/test/cgrouptest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestWorkersFollowTheQuota runs Envoys in cgroups with a CPU quota. An Envoy has one worker thread for each
// processor of the quota, and its limits do not depend on the quota.
func TestWorkersFollowTheQuota(t *testing.T) {
	tests := map[string]struct {
		milli int // thousandths of a processor
		args  []string
		want  int
	}{
		"no quota":                  {want: min(2, runtime.NumCPU())},
		"a part":                    {milli: 250, want: 1},
		"one":                       {milli: 1000, want: 1},
		"a little more":             {milli: 1100, want: min(2, runtime.NumCPU())},
		"more than the machine has": {milli: 1000 * (runtime.NumCPU() + 7), want: runtime.NumCPU()},
		"explicit concurrency":      {milli: 1000, args: []string{"--concurrency=3"}, want: 3},
	}
	limits := map[string]string{}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			confined := programs
			if tc.milli > 0 {
				g := cgrouptest.New(t, "cpu")
				const period = 100000
				quota := strconv.Itoa(tc.milli * period / 1000)
				g.Set(t, "cpu.cfs_quota_us", "cpu.max", quota)
				confined.Agent = g.Agent(t, programs.Agent, "web-1")
			}
			m := harness.New(t, harness.Options{Programs: confined, MeshYAML: harness.MeshYAML(permissive)})
			web := must.Add(t, m, harness.ProxyOptions{Name: "web-1", Service: "web", AgentArgs: tc.args})[0]
			var info struct {
				Options struct {
					Concurrency int `json:"concurrency"`
				} `json:"command_line_options"`
			}
			must.Do(t, web.EnvoyJSON(t.Context(), "/server_info", &info))
			if info.Options.Concurrency != tc.want {
				t.Errorf("Envoy has %d worker threads, want %d", info.Options.Concurrency, tc.want)
			}
			text, err := os.ReadFile(filepath.Join(web.Dir(), "bootstrap.json"))
			must.Do(t, err)
			var bootstrap struct {
				Overload json.RawMessage `json:"overload_manager"`
			}
			must.Do(t, json.Unmarshal(text, &bootstrap))
			if len(bootstrap.Overload) == 0 {
				t.Fatalf("Envoy's bootstrap has no overload manager:\n%s", text)
			}
			limits[string(bootstrap.Overload)] = name
		})
	}
	if len(limits) != 1 {
		t.Errorf("the limits depend on the number of worker threads: %v", limits)
	}
}
