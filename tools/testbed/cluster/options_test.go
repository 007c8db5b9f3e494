package cluster

import (
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/binaries"
)

// TestUpRefused shows that Up rejects invalid options, with all errors, before it changes the machine.
func TestUpRefused(t *testing.T) {
	tests := map[string]struct {
		change func(*Options)
		want   []string
	}{
		"no node":            {func(o *Options) { o.Nodes = 0 }, []string{"number of nodes 0: it must be 1 to 20"}},
		"too many nodes":     {func(o *Options) { o.Nodes = 21 }, []string{"number of nodes 21: it must be 1 to 20"}},
		"no family":          {func(o *Options) { o.IPFamily = "ipv5" }, []string{`IP family "ipv5" is unknown`}},
		"no grace":           {func(o *Options) { o.NodeMonitorGracePeriod = 0 }, []string{"node monitor grace period 0s: it must be 10s to 1h0m0s"}},
		"a long grace":       {func(o *Options) { o.NodeMonitorGracePeriod = 61 * time.Minute }, []string{"node monitor grace period 1h1m0s: it must be 10s to 1h0m0s"}},
		"an empty zone":      {func(o *Options) { o.Zones = []string{"a", ""} }, []string{`zone "": it must be the value of a label`}},
		"a zone as a flag":   {func(o *Options) { o.Zones = []string{"a=b"} }, []string{`zone "a=b": it must be the value of a label`}},
		"a long zone":        {func(o *Options) { o.Zones = []string{strings.Repeat("a", 64)} }, []string{"it must be the value of a label"}},
		"a zone twice":       {func(o *Options) { o.Zones = []string{"a", "a"} }, []string{`zone "a": it must be given once`}},
		"more zones":         {func(o *Options) { o.Zones = []string{"a", "b", "c"} }, []string{"3 zones for 2 nodes: there must be a node for each"}},
		"several at a time":  {func(o *Options) { o.Nodes, o.NodeMonitorGracePeriod = 0, time.Second }, []string{"number of nodes 0", "node monitor grace period 1s"}},
		"a newer kubelet":    {func(o *Options) { o.Kubernetes, o.NodeKubernetes = "1.36.3", []binaries.Version{"1.36.3", "1.37.2"} }, []string{"node of Kubernetes 1.37.2: with an API server of 1.36.3 a kubelet must be 1.33 to 1.36"}},
		"more versions":      {func(o *Options) { o.NodeKubernetes = []binaries.Version{"1.37.2", "1.36.3", "1.36.3"} }, []string{"3 versions for 2 nodes: there must be a node for each"}},
		"a gate alone":       {func(o *Options) { o.FeatureGates = []string{"H2CContainerProbe"} }, []string{`feature gate "H2CContainerProbe": it must be Name=true or Name=false`}},
		"a gate as a list":   {func(o *Options) { o.FeatureGates = []string{"A=true B=true"} }, []string{`feature gate "A=true B=true": it must be`}},
		"a gate twice":       {func(o *Options) { o.FeatureGates = []string{"A=true", "A=false"} }, []string{`feature gate "A=false": A must be given once`}},
		"zones and no nodes": {func(o *Options) { o.Nodes, o.Zones = -1, []string{"a"} }, []string{"number of nodes -1", "1 zones for -1 nodes"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := Options{Nodes: 2, IPFamily: Dual, NodeMonitorGracePeriod: DefaultNodeMonitorGracePeriod}
			tc.change(&o)
			c, err := New(filepath.Join(t.TempDir(), "state"), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			err = c.Up(t.Context(), o, &binaries.Getter{})
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Up(): error = %v, want one with %q", err, want)
				}
			}
		})
	}
}

// TestVersionsOfNodes shows that versions are assigned to nodes in turn.
func TestVersionsOfNodes(t *testing.T) {
	o := Options{Kubernetes: "1.37.2", NodeKubernetes: []binaries.Version{"1.37.2", "1.36.3"}}
	for node, want := range map[int]binaries.Version{1: "1.37.2", 2: "1.36.3", 3: "1.37.2"} {
		if got := o.version(node); got != want {
			t.Errorf("node %d has version %s, want %s", node, got, want)
		}
	}
	if got := (Options{Kubernetes: "1.36.3"}).version(2); got != "1.36.3" {
		t.Errorf("without versions of nodes node 2 has %s", got)
	}
}

// TestOptionsInCommands checks the options in the arguments of the programs.
func TestOptionsInCommands(t *testing.T) {
	c := newCluster(t)
	o := Options{Nodes: 4, IPFamily: Dual, Zones: []string{"a", "b"}, NodeMonitorGracePeriod: 40 * time.Second}
	families, err := o.families()
	if err != nil {
		t.Fatal(err)
	}
	arguments := func(processes []process, program string) []string {
		i := slices.IndexFunc(processes, func(p process) bool { return p.program() == program })
		return processes[i].Command
	}
	if got := arguments(c.controlPlane("/bin", families, o.NodeMonitorGracePeriod), "kube-controller-manager"); !slices.Contains(got, "--node-monitor-grace-period=40s") {
		t.Errorf("the controller-manager has %q", got)
	}
	for node, zone := range map[int]string{1: "a", 2: "b", 3: "a", 4: "b"} {
		if got := arguments(c.nodeProcesses("/bin", node, o.zone(node), families), "kubelet"); !slices.Contains(got, "--node-labels=topology.kubernetes.io/zone="+zone) {
			t.Errorf("the kubelet of node %d has %q, want zone %s", node, got, zone)
		}
	}
	for _, argument := range arguments(c.nodeProcesses("/bin", 1, Options{}.zone(1), families), "kubelet") {
		if strings.HasPrefix(argument, "--node-labels") {
			t.Errorf("without zones the kubelet has %s", argument)
		}
	}
}
