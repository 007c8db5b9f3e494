package mesh

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestInspectEnvoy shows the output of a real Envoy with sondectl, without its private key.
func TestInspectEnvoy(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	p := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"a"}})[0]
	inspect := func(what ...string) string {
		t.Helper()
		text, err := m.Ctl(t.Context(), append([]string{"inspect", "dataplane", "a-1", "--type"}, what...)...)
		must.Do(t, err)
		return text
	}
	dump := inspect("config-dump")
	var configs struct {
		Configs []object `json:"configs"`
	}
	must.Do(t, json.Unmarshal([]byte(dump), &configs))
	for _, want := range []string{"BootstrapConfigDump", "ListenersConfigDump", "EndpointsConfigDump", "SecretsConfigDump", "inbound:" + p.Inbound} {
		if !strings.Contains(dump, want) {
			t.Errorf("config-dump has no %s", want)
		}
	}
	key, err := p.KeyPEM()
	must.Do(t, err)
	body := strings.Split(key, "\n")[1]
	for form, secret := range map[string]string{"as PEM": body, "in base64": base64.StdEncoding.EncodeToString([]byte(key))[:200]} {
		if strings.Contains(dump, secret) {
			t.Errorf("config-dump has the private key %s", form)
		}
	}
	for what, want := range map[string]string{
		"stats": `(?m)^server\.live: 1$`, "logging": `(?m)^ *active loggers:$`,
		"clusters": `(?m)^a +\S+ +healthy +\d+ +\d+$`, "clusters -o text": `(?m)^a::.*::health_flags::healthy$`,
		"clusters -o json": `"health_flags": "healthy"`, "clusters --desired": `(?m)^a +eds +by-endpoint +-$`, "clusters --desired -o yaml": `^clusters:\n`,
		"endpoints": `(?m)^a +\S+ +mtls$`, "listeners": `(?m)^inbound:` + p.Inbound + ` .* mtls +inbound:\d+$`,
		"active-listeners": `(?m)^inbound:` + p.Inbound + ` +` + p.Inbound + `$`,
		"certificates":     `(?m)^presented .*spiffe://default\.sonde\.internal/workload/a$`,
	} {
		if text := inspect(strings.Fields(what)...); !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("--type %s has no %s:\n%.1000s", what, want, text)
		}
	}
	p.Agent.Kill()
	must.Poll(t, "the agent to disconnect", func(ctx context.Context) error {
		_, err := m.Ctl(ctx, "inspect", "dataplane", "a-1", "--type", "stats")
		if err == nil || !strings.Contains(err.Error(), "has no session with this replica of the control plane") {
			return errors.New("sondectl says: " + fmt.Sprint(err))
		}
		return nil
	})
}

// TestMetricsAreDocumented compares the metrics of the programs with docs/metrics.md, which must list each of Sonde's
// metrics with its type.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	documented := documentedMetrics(t)
	m := newMesh(t, strict)
	p := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"a"}})[0]
	for program, url := range map[string]string{"sonde-cp": "http://" + m.Health + "/metrics", "sonde-dp": "http://" + p.Admin + "/metrics"} {
		text, err := m.Get(t.Context(), url)
		must.Do(t, err)
		found := 0
		for _, line := range regexp.MustCompile(`(?m)^# TYPE (sonde_\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
			found++
			if got := documented[line[1]]; got != line[2] {
				t.Errorf("%s serves %s of type %s, want %q as in docs/metrics.md", program, line[1], line[2], got)
			}
		}
		if !strings.Contains(text, "\nsonde_build_info{commit=") {
			t.Errorf("%s has no build information", program)
		}
		if found < 10 {
			t.Errorf("%s serves %d metrics of Sonde's:\n%s", program, found, text)
		}
	}
}

// documentedMetrics returns the types of the metrics in docs/metrics.md, by name.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	must.Do(t, err)
	types := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(sonde_\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(string(text), -1) {
		types[row[1]] = row[2]
	}
	return types
}
