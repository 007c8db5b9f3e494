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
		want   []string // the beginnings of the errors
	}{
		"good":                   {func(*Options) {}, nil},
		"the largest":            {func(o *Options) { o.User, o.InboundPort, o.ExcludeOutboundPorts = 4294967294, 65535, []int{1, 65535} }, nil},
		"no ports":               {func(o *Options) { o.InboundPort, o.OutboundPort = 0, -1 }, []string{`OutboundPort: "-1": must be a port`, `InboundPort: "0": must be a port`}},
		"one port for both":      {func(o *Options) { o.InboundPort = o.OutboundPort }, []string{`InboundPort: "15001": must differ`}},
		"each bad exclusion":     {func(o *Options) { o.ExcludeInboundPorts = []int{0, 80, 65536} }, []string{`ExcludeInboundPorts: "0": `, `ExcludeInboundPorts: "65536": `}},
		"bad outbound exclusion": {func(o *Options) { o.ExcludeOutboundPorts = []int{70000} }, []string{`ExcludeOutboundPorts: "70000": `}},
		"readiness excluded":     {func(o *Options) { o.ExcludeInboundPorts = []int{15022} }, []string{`ExcludeInboundPorts: "15022": must be redirected`}},
		"readiness outbound":     {func(o *Options) { o.ExcludeOutboundPorts = []int{15022} }, nil},
		"root":                   {func(o *Options) { o.User = 0 }, []string{`User: "0": must be the id`}},
		"nobody's id":            {func(o *Options) { o.User = 4294967295 }, []string{`User: "4294967295": must be the id`}},
		"other families":         {func(o *Options) { o.Families = "ipv5" }, []string{`Families: "ipv5": must be dualstack, ipv4 or ipv6`}},
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
					t.Errorf("Validate() = %q, want it to begin %q", got[index], want)
				}
			}
		})
	}
}
