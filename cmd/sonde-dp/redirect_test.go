package main

import (
	"io"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/settings"
)

// Flags are checked before anything is written: none of these commands reaches the kernel.
func TestRedirectionBadInput(t *testing.T) {
	tests := map[string]struct {
		args string
		want []string
	}{
		"a typing error":     {"install transparent-prox", []string{`command "transparent-prox" not found: did you mean transparent-proxy?`}},
		"no command":         {"uninstall", []string{"a command is missing: transparent-proxy"}},
		"a flag of Kuma's":   {"install transparent-proxy --redirect-dns", []string{"--redirect-dns: is an unknown flag"}},
		"an argument":        {"check transparent-proxy now", []string{`unknown command "now"`}},
		"each bad port":      {"install transparent-proxy --exclude-inbound-ports 9000,0,65536", []string{`--exclude-inbound-ports: "0": must be a port`, `--exclude-inbound-ports: "65536": must be a port`}},
		"no number":          {"install transparent-proxy --exclude-outbound-ports 80,http", []string{`"http": must be a port`, "--exclude-outbound-ports"}},
		"a range":            {"install transparent-proxy --exclude-inbound-ports 9000-9020", []string{`"9000-9020": must be a port`, "--exclude-inbound-ports"}},
		"an empty port":      {"install transparent-proxy --exclude-inbound-ports 9000,,9800", []string{`"": must be a port`, "--exclude-inbound-ports"}},
		"zeros":              {"check transparent-proxy --redirect-inbound-port 0 --redirect-outbound-port 0", []string{`--redirect-inbound-port: "0"`, `--redirect-outbound-port: "0"`}},
		"root":               {"install transparent-proxy --kuma-dp-uid 0", []string{`--kuma-dp-uid: "0"`, "cannot be root"}},
		"other families":     {"install transparent-proxy --ip-family-mode ipv5", []string{`--ip-family-mode: "ipv5": must be dualstack, ipv4 or ipv6`}},
		"no probe":           {"install transparent-proxy --redirect-tcp-probes 9001:6853,9002", []string{"--redirect-tcp-probes", `"9002": must be a probe's port and the application's port`}},
		"an empty probe":     {"install transparent-proxy --redirect-tcp-probes 9001:6853,", []string{"--redirect-tcp-probes", `"": must be a probe's port`}},
		"three ports":        {"install transparent-proxy --redirect-tcp-probes 1:2:3", []string{"--redirect-tcp-probes", `"1:2:3": must be a probe's port`}},
		"a bad probe":        {"check transparent-proxy --redirect-tcp-probes 9001:6853,9001:0", []string{`--redirect-tcp-probes: "9001:0": must be two ports`}},
		"the same probe":     {"check transparent-proxy --redirect-tcp-probes 9001:6853 --redirect-tcp-probes 9001:80", []string{`--redirect-tcp-probes: "9001:80": must not use the same port as`}},
		"probes of nothing":  {"install transparent-proxy --redirect-inbound=false --redirect-tcp-probes 9001:6853", []string{`--redirect-tcp-probes: "9001:6853": must be left out while incoming connections`}},
		"metrics, no port":   {"install transparent-proxy --metrics-port 70000", []string{`--metrics-port: "70000": must be a port from 1 to 65535, or 0 for none`}},
		"metrics, no number": {"install transparent-proxy --metrics-port x", []string{`--metrics-port`, `"x"`}},
		"metrics, Envoy's":   {"install transparent-proxy --metrics-port 15022", []string{`--metrics-port: "15022": must not be a port of Envoy`}},
		"metrics, probes":    {"check transparent-proxy --metrics-port 9000 --exclude-inbound-ports 9000", []string{`--metrics-port: "9000": must not be an excluded`}},
		"the readiness port": {"install transparent-proxy --exclude-inbound-ports 15022", []string{`--exclude-inbound-ports: "15022": must be redirected`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := newCommand(noGuard)
			cmd.SetArgs(strings.Fields(tc.args))
			cmd.SetOut(io.Discard)
			_, err := settings.Execute(t.Context(), cmd)
			if got := settings.ExitCode(err); got != settings.ExitUsage {
				t.Fatalf("exit code = %d, %v, want %d", got, err, settings.ExitUsage)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestPortsFlag(t *testing.T) {
	tests := map[string]struct {
		values []string
		want   string
	}{
		"none":     {[]string{""}, ""},
		"the seed": {[]string{"9000,9800"}, "9000,9800"},
		"spaces":   {[]string{" 9000, 9800 "}, "9000,9800"},
		"twice":    {[]string{"9000", "9800"}, "9000,9800"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var ports portsFlag
			for _, value := range tc.values {
				if err := ports.Set(value); err != nil {
					t.Fatal(err)
				}
			}
			if got := ports.String(); got != tc.want {
				t.Errorf("Set(%q): %s, want %s", tc.values, got, tc.want)
			}
		})
	}
}

func TestTCPProbesFlag(t *testing.T) {
	tests := map[string]struct {
		values []string
		want   string
	}{
		"none":   {[]string{""}, ""},
		"spaces": {[]string{" 9001:6853, 9002:3306 "}, "9001:6853,9002:3306"},
		"twice":  {[]string{"9001:6853", "", "9002:6853"}, "9001:6853,9002:6853"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var probes tcpProbesFlag
			for _, value := range tc.values {
				if err := probes.Set(value); err != nil {
					t.Fatal(err)
				}
			}
			if got := probes.String(); got != tc.want {
				t.Errorf("Set(%q): %s, want %s", tc.values, got, tc.want)
			}
		})
	}
}
