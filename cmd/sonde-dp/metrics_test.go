package main

import (
	"io"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/settings"
)

// TestMetricsFlags shows that errors name the invalid flags for Prometheus.
func TestMetricsFlags(t *testing.T) {
	const run = "run --cp-address=cp:5678 --ca-cert-file=ca --name=web-1 --dataplane-token-file=token "
	for name, tc := range map[string]struct{ args, want string }{
		"no port":           {"--metrics-addr=127.0.0.1", `--metrics-addr: "127.0.0.1": must be host:port`},
		"supervisors' port": {"--metrics-addr=:9902", `--metrics-addr: ":9902": must not use the port for supervisors`},
		"not Envoy's":       {"--metrics-include=envoy_a,go_", `--metrics-include: "go_": must be prefixes of Envoy's metrics`},
		"no prefix":         {"--metrics-include=", `--metrics-include: must not be empty: envoy_ is all of Envoy's metrics`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := newCommand(noGuard)
			cmd.SetArgs(strings.Fields(run + tc.args))
			cmd.SetOut(io.Discard)
			_, err := settings.Execute(t.Context(), cmd)
			if got := settings.ExitCode(err); got != settings.ExitUsage || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("exit code = %d, %v, want %d and %q", got, err, settings.ExitUsage, tc.want)
			}
		})
	}
}
