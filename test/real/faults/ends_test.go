package faults

import (
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestApplicationThatEndsBeforeItsSidecar ends a replica like a pod whose application ends at once: the hook, then
// the application, then the sidecar. Callers outside of the mesh have kept their connections. A request that no
// application received ends with its connection, as it would without a mesh; no caller gets a 503 instead.
func TestApplicationThatEndsBeforeItsSidecar(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		protocol string
		args     []string
		callers  func(at string) []harness.Caller
	}{
		"HTTP": {"http", nil, func(at string) []harness.Caller {
			post := harness.NewHTTPCaller("http://"+at+"/", true, false)
			post.Method = http.MethodPost
			return []harness.Caller{
				harness.NewHTTPCaller("http://"+at+"/", true, false), harness.NewHTTPCaller("http://"+at+"/", false, false),
				harness.NewHTTPCaller("http://"+at+"/", true, true), post,
			}
		}},
		"HTTP, last to end": {"http", []string{"--last-to-end"}, func(at string) []harness.Caller {
			return []harness.Caller{harness.NewHTTPCaller("http://"+at+"/", true, false), harness.NewHTTPCaller("http://"+at+"/", false, false)}
		}},
		"gRPC": {"grpc", nil, func(at string) []harness.Caller {
			return []harness.Caller{harness.NewGRPCCaller(at, true), harness.NewGRPCCaller(at, false)}
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML("PERMISSIVE")})
			// Each worker of Envoy detects the end of the application by itself: with two workers, a call could fail
			// at each of them.
			args := append(slices.Clone(tc.args), "--concurrency=1")
			p := must.Add(t, m, harness.ProxyOptions{Name: "b-1", Service: "b", Protocol: tc.protocol, AgentArgs: args})[0]
			callers := tc.callers(p.Inbound)
			load := harness.StartLoad(t.Context(), 5*time.Millisecond, callers...)
			reaches(t, load, p.Name)
			before := load.Report()
			if before.Failed > 0 {
				t.Fatalf("before the end: %s", before)
			}
			must.Do(t, exec.CommandContext(t.Context(), programs.Agent, "drain", "--begin", "--work-dir="+p.Dir()).Run())
			p.App.Kill()
			killed := load.Report()
			time.Sleep(200 * time.Millisecond) // the time that the kubelet takes until it terminates the sidecar
			began := time.Now()
			must.Do(t, p.Agent.Terminate(t.Context()))
			took := time.Since(began)
			r := load.Stop()
			t.Logf("the agent has ended after %s: %s", took, r)
			if r.Failed == 0 {
				t.Error("no call has failed: the test does not show how calls fail")
			}
			for _, reason := range slices.Sorted(maps.Keys(r.Reasons)) {
				// Envoy had sent the request: the kernel accepts connections for a process until it has closed all
				// the process's sockets.
				begun := strings.Contains(reason, "connection termination") && r.Reasons[reason]-killed.Reasons[reason] <= len(callers)
				if strings.Contains(reason, "upstream connect error") && !begun {
					t.Errorf("%d x %s", r.Reasons[reason], reason)
				}
			}
		})
	}
}
