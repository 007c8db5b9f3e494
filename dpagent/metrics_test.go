package dpagent_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sonde-mesh/sonde/dpagent"
	sondeprobe "github.com/sonde-mesh/sonde/dpagent/probe"
)

func TestValidateMetrics(t *testing.T) {
	const field, malformed = `MetricsAddress: "`, `": must be host:port, with a port from 0 to 65535; an empty host means all addresses`
	many := make([]string, 101)
	for i := range many {
		many[i] = "envoy_"
	}
	tests := map[string]struct {
		address string
		include []string
		change  func(*dpagent.Options)
		want    string // "" for none
	}{
		"none":              {},
		"all addresses":     {address: ":5670"},
		"one address":       {address: "10.0.0.1:5670"},
		"IPv6":              {address: "[fd00::1]:5670"},
		"a free port":       {address: "127.0.0.1:0"},
		"a port":            {address: "5670", want: field + "5670" + malformed},
		"no port":           {address: "127.0.0.1:", want: field + "127.0.0.1:" + malformed},
		"a name of a port":  {address: ":http", want: field + ":http" + malformed},
		"port 70000":        {address: ":70000", want: field + ":70000" + malformed},
		"port -1":           {address: ":-1", want: field + ":-1" + malformed},
		"IPv6, no brackets": {address: "fd00::1:5670", want: field + "fd00::1:5670" + malformed},
		"a URL":             {address: "http://127.0.0.1:5670", want: field + "http://127.0.0.1:5670" + malformed},
		"a path":            {address: ":5670/metrics", want: field + ":5670/metrics" + malformed},
		"inbound":           {address: ":15006", want: field + `:15006": must not use the port of redirection`},
		"outbound":          {address: ":15001", want: field + `:15001": must not use the port of redirection`},
		"readiness":         {address: "10.0.0.1:15022", want: field + `10.0.0.1:15022": must not use the port of the sidecar's readiness`},
		"supervisors":       {address: ":9902", want: field + `:9902": must not use the port for supervisors`},
		"load balancers":    {address: ":9100", change: func(o *dpagent.Options) { o.LBHealthPort = 9100 }, want: field + `:9100": must not use the port for load balancers`},
		"probes": {address: ":9000", change: func(o *dpagent.Options) {
			o.Probes = sondeprobe.Environment{Port: 9000, Table: `[{"httpGet":{"port":80}}]`, InstanceIP: "127.0.0.1"}
		}, want: field + `:9000": must not use the virtual port, on which probes are answered`},
		"no probes":       {address: ":9000", change: func(o *dpagent.Options) { o.Probes.Port = 9000 }},
		"all of Envoy's":  {address: ":5670", include: []string{"envoy_"}},
		"not Envoy's":     {address: ":5670", include: []string{"envoy_a", "sonde_"}, want: `MetricsInclude: "sonde_": must be prefixes of Envoy's metrics with commas between them, such as envoy_server_,envoy_http_`},
		"an expression":   {include: []string{"envoy_.*"}, want: `MetricsInclude: "envoy_.*": must be prefixes`},
		"an empty prefix": {include: []string{""}, want: `MetricsInclude: must be prefixes`},
		"too many":        {include: many, want: `MetricsInclude: "101 prefixes": must be at most 100 prefixes`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := minimal()
			o.MetricsAddress, o.MetricsInclude = tc.address, tc.include
			if tc.change != nil {
				tc.change(&o)
			}
			err := o.Validate()
			if (err != nil) != (tc.want != "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("Validate() = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestScrapeOfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWorld(t).start()
		_, page := r.get("/metrics")
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(page))
		if err != nil {
			t.Fatalf("%v in:\n%s", err, page)
		}
		for _, name := range []string{"sonde_dpagent_envoy_running", "sonde_healthcheck", "envoy_server_live"} {
			if families[name] == nil {
				t.Errorf("no %s", name)
			}
		}
	})
}
