package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// The program reports invalid environment variables for probes at the start, and serves nothing.
func TestProbesBadInput(t *testing.T) {
	const good = `[{"id":"a","container":"app","type":"liveness","httpGet":{"port":8080}}]`
	tests := map[string]struct {
		table, ip string
		port      int
		want      []string
	}{
		"no JSON":        {`{`, "127.0.0.1", 9000, []string{"KUMA_DATAPLANE_PROBES", "must be JSON"}},
		"no handler":     {`[{"id":"a"}]`, "127.0.0.1", 9000, []string{`probes[0] (id "a"`, "exactly one of"}},
		"two handlers":   {`[{"grpc":{"port":1},"tcpSocket":{"port":1}}]`, "127.0.0.1", 9000, []string{"probes[0]", "tcpSocket, grpc"}},
		"bad port":       {`[{"grpc":{"port":70000}}]`, "127.0.0.1", 9000, []string{"probes[0]", "grpc.port", "70000"}},
		"the same port":  {good, "127.0.0.1", 8080, []string{`container "app"`, "must not be the virtual port"}},
		"no address":     {good, "", 9000, []string{"INSTANCE_IP: is required"}},
		"no pod address": {good, "0.0.0.0", 9000, []string{"INSTANCE_IP", "0.0.0.0"}},
		"bad address":    {good, "pod", 9000, []string{"INSTANCE_IP", `"pod"`}},
		"bad probe port": {good, "127.0.0.1", 65536, []string{`--virtual-probes-port: "65536"`}},
		"no probe port":  {good, "127.0.0.1", 0, []string{`--virtual-probes-port: "0"`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv(mesh.EnvProbeTable, tc.table)
			t.Setenv(mesh.EnvInstanceIP, tc.ip)
			cmd := newCommand(noGuard)
			cmd.SetArgs([]string{"probes", fmt.Sprintf("--virtual-probes-port=%d", tc.port), "--log-level=error"})
			err := cmd.ExecuteContext(t.Context())
			if err == nil {
				t.Fatal("the command runs")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}
