package mesh_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestRedirectionAgain(t *testing.T) {
	want := mesh.Redirection{
		OutboundOnly: true, ExcludeInboundPorts: []int32{9000, 22}, ExcludeOutboundPorts: []int32{5432}, MetricsPort: 5670, GuardedPort: 9000,
		TCPProbes: []mesh.RedirectedProbe{{Port: 9001, Target: 6853}}, Families: "dualstack",
	}
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := mesh.ParseRedirection(text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseRedirection(%s) = %+v, %v", text, got, err)
	}
}

func TestRedirectionBadInput(t *testing.T) {
	for text, want := range map[string]string{
		``:                          "EOF",
		`{"families":"ipv4"}{}`:     "nothing after it",
		`{"families":"ipv4"} x`:     "nothing after it",
		`[]`:                        "cannot unmarshal",
		`{"families":"ipv4","a":1}`: `unknown field "a"`,
		`{"families":"ipv4","excludeInboundPorts":["80"]}`:                                "cannot unmarshal",
		`{"families":"ipv4",` + strings.Repeat(" ", 64<<10) + `}`:                         "must have at most 65536",
		`{"families":"ipv4","excludeInboundPorts":[1` + strings.Repeat(",1", 2000) + `]}`: "2001: must be at most 2000",
	} {
		if _, err := mesh.ParseRedirection(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRedirection(%.60s) = %v, want %s", text, err, want)
		}
	}
	tooMany := mesh.Redirection{ExcludeInboundPorts: slices.Repeat([]int32{80}, 2001), Families: "ipv4"}
	if _, err := tooMany.Encode(); err == nil || !strings.Contains(err.Error(), "in a pod without kuma-init") {
		t.Errorf("Encode() of 2,001 ports = %v", err)
	}
}
