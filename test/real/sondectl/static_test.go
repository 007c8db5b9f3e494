package sondectl_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestEnvoyTakesStatic has Envoy validate static configurations with and without secrets.
func TestEnvoyTakesStatic(t *testing.T) {
	const dataplane = `
---
type: Dataplane
name: web-1
networking:
  address: 10.0.0.1
  inbound: [{port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
  `
	const service = `
---
type: Service
name: api
protocol: grpc
addresses: ["10.96.0.1:80"]
endpoints: [{address: 10.0.0.9, port: 80}]
`
	mesh := func(mode string) string {
		return "type: Mesh\nname: default\nmtls:\n  enabledBackend: ca-1\n  backends: [{name: ca-1, type: builtin, mode: " + mode + "}]"
	}
	tests := map[string]struct {
		file    string
		secrets bool
	}{
		"mTLS":       {mesh("STRICT") + dataplane + "outbound: [{port: 10001, tags: {kuma.io/service: api}}]" + service, true},
		"redirected": {mesh("PERMISSIVE") + dataplane + "transparentProxying: {redirectPortInbound: 15006, redirectPortOutbound: 15001}" + service, true},
		"no mTLS":    {"type: Mesh\nname: default" + dataplane, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config, err := sondectl(t, "generate", "envoy", "-f", write(t, "mesh.yaml", tc.file), "--static").Output()
			if err != nil {
				t.Fatal(err)
			}
			if secrets := bytes.Contains(config, []byte("PRIVATE KEY")); secrets != tc.secrets {
				t.Errorf("the configuration has secrets: %t, want %t", secrets, tc.secrets)
			}
			envoy := exec.CommandContext(t.Context(), built(t).Envoy, "--mode", "validate", "--disable-hot-restart", "-c", write(t, "static.yaml", string(config)))
			envoy.Dir, envoy.Env = t.TempDir(), os.Environ()
			if out, err := envoy.CombinedOutput(); err != nil || !strings.Contains(string(out), "OK") {
				t.Errorf("Envoy: %v\n%s", err, out)
			}
		})
	}
}
