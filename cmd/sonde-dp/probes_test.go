package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Mistakes in the environment of the probes are reported at the start, and nothing is served.
func TestProbesBadInput(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.Addr().(*net.TCPAddr).Port
	const good = `[{"id":"a","container":"app","type":"liveness","httpGet":{"port":8080}}]`
	tests := map[string]struct {
		table, ip string
		port      int
		want      []string
	}{
		"no JSON":           {`{`, "127.0.0.1", 9000, []string{"KUMA_DATAPLANE_PROBES", "must be JSON"}},
		"no handler":        {`[{"id":"a"}]`, "127.0.0.1", 9000, []string{`probes[0] (id "a"`, "exactly one of"}},
		"two handlers":      {`[{"grpc":{"port":1},"tcpSocket":{"port":1}}]`, "127.0.0.1", 9000, []string{"probes[0]", "tcpSocket, grpc"}},
		"bad port":          {`[{"grpc":{"port":70000}}]`, "127.0.0.1", 9000, []string{"probes[0]", "grpc.port", "70000"}},
		"the same port":     {good, "127.0.0.1", 8080, []string{`container "app"`, "must not be the virtual port"}},
		"no address":        {good, "", 9000, []string{"INSTANCE_IP: is required"}},
		"no pod address":    {good, "0.0.0.0", 9000, []string{"INSTANCE_IP", "0.0.0.0"}},
		"bad address":       {good, "pod", 9000, []string{"INSTANCE_IP", `"pod"`}},
		"bad probe port":    {good, "127.0.0.1", 65536, []string{`--virtual-probes-port: "65536"`}},
		"no probe port":     {good, "127.0.0.1", 0, []string{`--virtual-probes-port: "0"`}},
		"the port is taken": {good, "127.0.0.1", port, []string{"--virtual-probes-port", "address already in use"}},
		"not our address":   {good, "192.0.2.1", 9000, []string{"INSTANCE_IP", "--virtual-probes-port", "192.0.2.1:9000", "cannot assign"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv(mesh.EnvProbeTable, tc.table)
			t.Setenv(mesh.EnvInstanceIP, tc.ip)
			cmd := newCommand(noGuard)
			cmd.SetArgs([]string{"probes", fmt.Sprintf("--virtual-probes-port=%d", tc.port), "--log-level=error"})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := cmd.ExecuteContext(ctx)
			if err == nil {
				t.Fatal("it runs")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// loopback7 is an address whose ports the kernel does not use for outgoing connections: a free port stays free.
const loopback7 = "127.0.0.7"

// Without probes each answer is 404.
func TestProbesEmptyTable(t *testing.T) {
	for _, table := range []string{"", "[]"} {
		t.Run(table, func(t *testing.T) {
			free, err := net.Listen("tcp", loopback7+":0")
			if err != nil {
				t.Fatal(err)
			}
			address := free.Addr().String()
			_ = free.Close()
			t.Setenv(mesh.EnvProbeTable, table)
			t.Setenv(mesh.EnvInstanceIP, loopback7)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			cmd := newCommand(noGuard)
			cmd.SetArgs([]string{"probes", "--virtual-probes-port=" + strings.Split(address, ":")[1], "--log-level=error"})
			go func() { ended <- cmd.ExecuteContext(ctx) }()
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
			for deadline := time.Now().Add(10 * time.Second); ; {
				answer, err := client.Get("http://" + address + "/8080/")
				if err != nil && time.Now().Before(deadline) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				if answer.StatusCode != http.StatusNotFound {
					t.Errorf("answer = %s, want 404", answer.Status)
				}
				break
			}
			stop()
			if err := <-ended; err != nil {
				t.Errorf("end: %v", err)
			}
		})
	}
}
