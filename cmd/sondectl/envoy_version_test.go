package main

import (
	"slices"
	"testing"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

func TestUnsupportedEnvoyIsShown(t *testing.T) {
	for version, want := range map[string][]string{
		"":       nil,
		"1.40.0": nil,
		"1.37.2": {"unsupported: envoy 1.37.2: supported are 1.38 to 1.40"},
	} {
		r := proxyRow(&adminv1.Proxy{Name: "web-1", Agent: &adminv1.Agent{EnvoyVersion: version}})
		if !slices.Equal(r.Notes, want) {
			t.Errorf("notes of a proxy with Envoy %q = %q, want %q", version, r.Notes, want)
		}
		if nacks := r.Cells[len(r.Cells)-1]; nacks != "" {
			t.Errorf("refused resources of a proxy with Envoy %q = %q, want none", version, nacks)
		}
	}
}
