package dpagent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	sondeprobe "github.com/sonde-mesh/sonde/dpagent/probe"
)

// minimal returns only the required options.
func minimal() dpagent.Options {
	o := dpagent.DefaultOptions()
	o.ControlPlane, o.CAFile, o.Name, o.TokenFile = "cp:5678", "ca", "web-1", "token"
	return o
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*dpagent.Options)
		want   []string // in the error; none: no error
	}{
		"good": {change: func(*dpagent.Options) {}},
		"nothing": {
			change: func(o *dpagent.Options) { *o = dpagent.Options{} },
			want:   []string{"ControlPlane: is required", "CAFile: is required", "Name: is required", "TokenFile: is required", "Mesh: is required", "AdminAddress: is required", "DrainTime"},
		},
		"no port":          {change: func(o *dpagent.Options) { o.ControlPlane = "cp" }, want: []string{"ControlPlane", `"cp"`}},
		"port 0":           {change: func(o *dpagent.Options) { o.ControlPlane = "cp:0" }, want: []string{"ControlPlane", "cp:0"}},
		"port 70000":       {change: func(o *dpagent.Options) { o.AdminAddress = "127.0.0.1:70000" }, want: []string{"AdminAddress", "70000"}},
		"a URL":            {change: func(o *dpagent.Options) { o.ControlPlane = "https://cp:5678" }, want: []string{"ControlPlane", "https://cp:5678"}},
		"no host":          {change: func(o *dpagent.Options) { o.ControlPlane = ":5678" }, want: []string{"ControlPlane", ":5678"}},
		"a name with mesh": {change: func(o *dpagent.Options) { o.Name = "a/b" }, want: []string{"Name", "a/b"}},
		"no drain":         {change: func(o *dpagent.Options) { o.DrainTime = time.Millisecond }, want: []string{"DrainTime", "1ms"}},
		"probe port -1":    {change: func(o *dpagent.Options) { o.Probes.Port = -1 }, want: []string{"Probes.Port", "-1"}},
		"port 65536":       {change: func(o *dpagent.Options) { o.Probes.Port = 65536 }, want: []string{"Probes.Port", "65536"}},
		"load balancers":   {change: func(o *dpagent.Options) { o.LBHealthPort, o.LBDrainTime = 8090, time.Minute }},
		"load balancers, port -1": {
			change: func(o *dpagent.Options) { o.LBHealthPort = -1 }, want: []string{"LBHealthPort", "-1", "or 0 for none"},
		},
		"load balancers, port 65536": {change: func(o *dpagent.Options) { o.LBHealthPort = 65536 }, want: []string{"LBHealthPort", "65536"}},
		"load balancers, Envoy's port": {
			change: func(o *dpagent.Options) { o.LBHealthPort = mesh.PortRedirectIn }, want: []string{"LBHealthPort", "15006", "redirection"},
		},
		"load balancers, readiness": {
			change: func(o *dpagent.Options) { o.LBHealthPort = mesh.PortReadiness }, want: []string{"LBHealthPort", "15022", "readiness"},
		},
		"load balancers, supervisors": {
			change: func(o *dpagent.Options) { o.LBHealthPort = mesh.PortMetrics }, want: []string{"LBHealthPort", "9902", "supervisors"},
		},
		"load balancers, any port of supervisors": {change: func(o *dpagent.Options) { o.LBHealthPort, o.AdminAddress = 8090, "127.0.0.1:0" }},
		"load balancers, probes": {
			change: func(o *dpagent.Options) {
				o.LBHealthPort, o.Probes = 9000, sondeprobe.Environment{Port: 9000, Table: `[{"httpGet":{"port":80}}]`, InstanceIP: "127.0.0.1"}
			},
			want: []string{"LBHealthPort", "9000", "virtual port"},
		},
		"load balancers, no probes": {change: func(o *dpagent.Options) { o.LBHealthPort, o.Probes.Port = 9000, 9000 }},
		"load balancers, -1s":       {change: func(o *dpagent.Options) { o.LBDrainTime = -time.Second }, want: []string{"LBDrainTime", "-1s", "from 0s to 1h"}},
		"load balancers, 2h":        {change: func(o *dpagent.Options) { o.LBDrainTime = 2 * time.Hour }, want: []string{"LBDrainTime", "2h0m0s"}},
		"negative threads":          {change: func(o *dpagent.Options) { o.Concurrency = -1 }, want: []string{"Concurrency", `"-1"`, "from 1 to 1024, or 0"}},
		"no drain time":             {change: func(o *dpagent.Options) { o.DrainTime = 0 }, want: []string{"DrainTime", `"0s"`}},
		"many threads":              {change: func(o *dpagent.Options) { o.Concurrency = 5000 }, want: []string{"Concurrency", "5000"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := minimal()
			tc.change(&o)
			err := o.Validate()
			if (err != nil) != (tc.want != nil) {
				t.Fatalf("Validate() error = %v, want %q", err, tc.want)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Validate() error = %v, want it to say %q", err, want)
				}
			}
		})
	}
}
