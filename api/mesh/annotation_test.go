package mesh_test

import (
	"slices"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestParseSwitch(t *testing.T) {
	for value, want := range map[string]bool{"enabled": true, "true": true, "disabled": false, "false": false} {
		if on, err := mesh.ParseSwitch(value); on != want || err != nil {
			t.Errorf("ParseSwitch(%q) = %v, %v, want %v", value, on, err, want)
		}
	}
	for _, value := range []string{"", "yes", "True", " true"} {
		if on, err := mesh.ParseSwitch(value); on || err == nil || err.Error() != "must be enabled or disabled" {
			t.Errorf("ParseSwitch(%q) = %v, %v", value, on, err)
		}
	}
}

func TestParseLiveness(t *testing.T) {
	for _, value := range []mesh.Liveness{mesh.LivenessSuspended, mesh.LivenessNative} {
		if got, err := mesh.ParseLiveness(string(value)); got != value || err != nil {
			t.Errorf("ParseLiveness(%q) = %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "enabled", "Native", "suspended "} {
		if got, err := mesh.ParseLiveness(value); got != "" || err == nil || err.Error() != "must be suspended or native" {
			t.Errorf("ParseLiveness(%q) = %q, %v", value, got, err)
		}
	}
}

func TestParsePorts(t *testing.T) {
	tests := map[string]struct {
		ports []uint32
		wrong bool
	}{
		"":                    {},
		" ":                   {},
		"9800":                {ports: []uint32{9800}},
		"9801, 9800 ,65535,1": {ports: []uint32{9801, 9800, 65535, 1}},
		"9800,9801,9800":      {ports: []uint32{9800, 9801}},
		"9800,":               {ports: []uint32{9800}, wrong: true},
		"0":                   {wrong: true},
		"65536,80":            {ports: []uint32{80}, wrong: true},
		"80,-1,+2,http,81":    {ports: []uint32{80, 81}, wrong: true},
	}
	for value, tc := range tests {
		ports, err := mesh.ParsePorts[uint32](value)
		if !slices.Equal(ports, tc.ports) {
			t.Errorf("ParsePorts(%q) = %v, want %v", value, ports, tc.ports)
		}
		if tc.wrong != (err != nil) || err != nil && err.Error() != "must be ports from 1 to 65535 with commas between them, or empty" {
			t.Errorf("ParsePorts(%q): %v, want an error: %v", value, err, tc.wrong)
		}
	}
}
