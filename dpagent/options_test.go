package dpagent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent"
)

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*dpagent.Options)
		want   []string // in the error; none: no error
	}{
		"good": {change: func(*dpagent.Options) {}},
		"nothing": {
			change: func(o *dpagent.Options) { *o = dpagent.Options{} },
			want:   []string{"ControlPlane: is required", "CAFile: is required", "Name: is required", "TokenFile: is required"},
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
		"many threads":     {change: func(o *dpagent.Options) { o.Concurrency = 5000 }, want: []string{"Concurrency", "5000"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := dpagent.Options{ControlPlane: "cp:5678", CAFile: "ca", Name: "web-1", TokenFile: "token"}
			tc.change(&o)
			o.SetDefaults()
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

func TestNoEnvoy(t *testing.T) {
	for _, path := range []string{"/nonexistent/envoy", "/bin/true"} {
		_, err := newAgent(t, dpagent.Options{ControlPlane: "cp:5678", CAFile: "ca", Name: "web-1", TokenFile: "token", EnvoyPath: path})
		if err == nil || !strings.Contains(err.Error(), "EnvoyPath") || !strings.Contains(err.Error(), path) {
			t.Errorf("New() with Envoy %s: error = %v, want one that names it", path, err)
		}
	}
}
