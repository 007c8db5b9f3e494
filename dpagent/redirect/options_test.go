package redirect

import (
	"errors"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Options)
		want   []string // prefixes of the errors
	}{
		"good":                     {func(*Options) {}, nil},
		"the largest":              {func(o *Options) { o.User, o.InboundPort, o.ExcludeOutboundPorts = 4294967294, 65535, []int{1, 65535} }, nil},
		"no ports":                 {func(o *Options) { o.InboundPort, o.OutboundPort = 0, -1 }, []string{`OutboundPort: "-1": must be a port`, `InboundPort: "0": must be a port`}},
		"one port for both":        {func(o *Options) { o.InboundPort = o.OutboundPort }, []string{`InboundPort: "15001": must differ`}},
		"each bad exclusion":       {func(o *Options) { o.ExcludeInboundPorts = []int{0, 80, 65536} }, []string{`ExcludeInboundPorts: "0": `, `ExcludeInboundPorts: "65536": `}},
		"bad outbound exclusion":   {func(o *Options) { o.ExcludeOutboundPorts = []int{70000} }, []string{`ExcludeOutboundPorts: "70000": `}},
		"readiness excluded":       {func(o *Options) { o.ExcludeInboundPorts = []int{15022} }, []string{`ExcludeInboundPorts: "15022": must be redirected`}},
		"readiness outbound":       {func(o *Options) { o.ExcludeOutboundPorts = []int{15022} }, nil},
		"metrics":                  {func(o *Options) { o.MetricsPort = 5670 }, nil},
		"metrics, without inbound": {func(o *Options) { o.MetricsPort, o.OutboundOnly = 5670, true }, nil},
		"metrics, no port":         {func(o *Options) { o.MetricsPort = -1 }, []string{`MetricsPort: "-1": must be a port from 1 to 65535, or 0 for none`}},
		"metrics, port 70000":      {func(o *Options) { o.MetricsPort = 70000 }, []string{`MetricsPort: "70000": must be a port`}},
		"metrics, inbound":         {func(o *Options) { o.MetricsPort = 15006 }, []string{`MetricsPort: "15006": must not be a port of Envoy: 15001, 15006 or 15022`}},
		"metrics, outbound":        {func(o *Options) { o.MetricsPort = 15001 }, []string{`MetricsPort: "15001": must not be a port of Envoy`}},
		"metrics, readiness":       {func(o *Options) { o.MetricsPort = 15022 }, []string{`MetricsPort: "15022": must not be a port of Envoy`}},
		"metrics, supervisors":     {func(o *Options) { o.MetricsPort = 9902 }, []string{`MetricsPort: "9902": must not be the port for supervisors`}},
		"metrics, another inbound": {func(o *Options) { o.MetricsPort, o.InboundPort = 25006, 25006 }, []string{`MetricsPort: "25006": must not be a port of Envoy`}},
		"metrics, probes":          {func(o *Options) { o.MetricsPort = 9000 }, []string{`MetricsPort: "9000": must not be an excluded`}},
		"metrics, a TCP probe": {func(o *Options) { o.MetricsPort, o.TCPProbes = 5670, []TCPProbe{{5670, 80}, {9001, 5670}} }, []string{
			`TCPProbes: "5670:80": must not use the port for Prometheus`, `TCPProbes: "9001:5670": must not use`,
		}},
		"guarded":                  {func(o *Options) { o.GuardedPort = 9000 }, nil},
		"guarded, redirected":      {func(o *Options) { o.GuardedPort = 9001 }, []string{`GuardedPort: "9001": must be one of the excluded inbound ports`}},
		"guarded, without inbound": {func(o *Options) { o.GuardedPort, o.OutboundOnly = 9000, true }, []string{`GuardedPort: "9000": must be one of`}},
		"guarded, readiness alone": {func(o *Options) {
			o.OutboundOnly, o.Readiness, o.GuardedPort, o.TCPProbes = true, true, 9000, []TCPProbe{{9001, 6853}}
		}, nil},
		"root":                               {func(o *Options) { o.User = 0 }, []string{`User: "0": must be the id`}},
		"no user's id":                       {func(o *Options) { o.User = 4294967295 }, []string{`User: "4294967295": must be the id`}},
		"other families":                     {func(o *Options) { o.Families = "ipv5" }, []string{`Families: "ipv5": must be dualstack, ipv4 or ipv6`}},
		"probes":                             {func(o *Options) { o.TCPProbes = []TCPProbe{{9001, 6853}, {9002, 6853}, {65535, 1}} }, nil},
		"a probe of an excluded application": {func(o *Options) { o.TCPProbes = []TCPProbe{{9001, 9000}} }, nil},
		"each bad probe": {func(o *Options) { o.TCPProbes = []TCPProbe{{0, 80}, {9001, 6853}, {9001, 65536}} }, []string{
			`TCPProbes: "0:80": must be two ports from 1 to 65535`, `TCPProbes: "9001:65536": must be two ports`,
		}},
		"a probe's port twice": {func(o *Options) { o.TCPProbes = []TCPProbe{{9001, 80}, {9002, 80}, {9001, 81}} }, []string{
			`TCPProbes: "9001:81": must not use the same port as 9001:80`,
		}},
		"a probe of a probe": {func(o *Options) { o.TCPProbes = []TCPProbe{{9001, 9002}, {9002, 80}} }, []string{
			`TCPProbes: "9002:80": must not use a port on which a probed application listens`,
		}},
		"a probe of itself": {func(o *Options) { o.TCPProbes = []TCPProbe{{9001, 9001}} }, []string{
			`TCPProbes: "9001:9001": must not use a port on which a probed application listens`,
		}},
		"probes on Envoy's ports": {func(o *Options) { o.TCPProbes = []TCPProbe{{15001, 80}, {15006, 80}, {15022, 80}} }, []string{
			`TCPProbes: "15001:80": must not use a port of Envoy: 15001, 15006 or 15022`, `TCPProbes: "15006:80": `, `TCPProbes: "15022:80": `,
		}},
		"probes of Envoy's ports": {func(o *Options) { o.TCPProbes = []TCPProbe{{9001, 15001}, {9002, 15006}, {9003, 15022}} }, []string{
			`TCPProbes: "9001:15001": must not use`, `TCPProbes: "9002:15006": must not use`, `TCPProbes: "9003:15022": must not use`,
		}},
		"other ports of Envoy's": {func(o *Options) { o.InboundPort, o.TCPProbes = 25006, []TCPProbe{{9001, 25006}} }, []string{
			`TCPProbes: "9001:25006": must not use a port of Envoy: 15001, 25006 or 15022`,
		}},
		"a probe's port is excluded": {func(o *Options) { o.TCPProbes = []TCPProbe{{9800, 80}} }, []string{
			`TCPProbes: "9800:80": must not use an excluded inbound port`,
		}},
		"a probe without inbound": {func(o *Options) { o.OutboundOnly, o.TCPProbes = true, []TCPProbe{{9001, 80}} }, []string{
			`TCPProbes: "9001:80": must be left out while incoming connections are not redirected`,
		}},
		"everything": {func(o *Options) { *o = Options{} }, []string{
			`OutboundPort: "0": must be a port`, `InboundPort: "0": must be a port`, `InboundPort: "0": must differ`, `User: "0": `, `Families: must be`,
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := defaults()
			tc.change(&o)
			var got []string
			err := o.Validate()
			if err != nil {
				got = strings.Split(err.Error(), "\n")
				if _, ok := errors.AsType[*mesh.FieldError](err); !ok {
					t.Errorf("Validate() = %T, want field errors", err)
				}
			}
			if len(got) != len(tc.want) {
				t.Fatalf("Validate() = %q, want %q", got, tc.want)
			}
			for index, want := range tc.want {
				if !strings.HasPrefix(got[index], want) {
					t.Errorf("Validate() = %q, want the prefix %q", got[index], want)
				}
			}
		})
	}
}
