package faults

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestEnvironmentOfEnvoy starts agents with a secret in their environment, one of them behind a guard. Envoy gets
// only the variables that it needs.
func TestEnvironmentOfEnvoy(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	virtual, err := m.FreeAddress()
	must.Do(t, err)
	_, port, err := net.SplitHostPort(virtual)
	must.Do(t, err)
	env := []string{"DATABASE_TOKEN=secret", "HTTPS_PROXY=http://user:secret@proxy", "GODEBUG=http2client=1", "TZ=UTC"}
	proxies := must.Add(
		t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", AgentEnv: env},
		harness.ProxyOptions{
			Name: "b-1", Service: "b", AgentArgs: []string{"--virtual-probes-port=" + port},
			AgentEnv: append(env, "INSTANCE_IP=127.0.0.1", `KUMA_DATAPLANE_PROBES=[{"httpGet":{"path":"/","port":1}}]`),
		},
	)
	for _, p := range proxies {
		pid, err := p.EnvoyPID()
		must.Do(t, err)
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		must.Do(t, err)
		has := map[string]bool{}
		for v := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
			name, _, _ := strings.Cut(v, "=")
			has[name] = true
		}
		for _, name := range []string{"PATH", "TZ"} {
			if !has[name] {
				t.Errorf("the Envoy of %s has no %s", p.Name, name)
			}
			delete(has, name)
		}
		for _, allowed := range []string{"HOME", "TMPDIR", "LD_LIBRARY_PATH"} {
			delete(has, allowed)
		}
		if len(has) > 0 {
			t.Errorf("the Envoy of %s has the variables %v, too", p.Name, has)
		}
	}
}
