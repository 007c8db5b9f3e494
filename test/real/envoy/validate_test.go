package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/harness"
)

const hcm = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

// binaries returns Envoys of all supported versions. It finds them only once.
var binaries = sync.OnceValues(func() ([]string, error) { return harness.EnvoysOfTests(context.Background()) })

func envoys(t *testing.T) []string {
	t.Helper()
	paths, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// Each Envoy accepts the resources of each proxy of the golden files.
func TestGoldenResources(t *testing.T) {
	for _, directory := range goldenDirectories(t) {
		config := write(t, "resources.json", asOne(t, directory))
		for _, binary := range envoys(t) {
			t.Run(name(directory, binary), func(t *testing.T) { validate(t, binary, config) })
		}
	}
}

// Each Envoy accepts a static configuration unchanged, in an otherwise empty directory.
func TestGoldenStatic(t *testing.T) {
	for _, directory := range goldenDirectories(t) {
		config, err := filepath.Abs(filepath.Join(directory, "static.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, binary := range envoys(t) {
			t.Run(name(directory, binary), func(t *testing.T) { validateIn(t, t.TempDir(), binary, config) })
		}
	}
}

// Envoy rejects a bad configuration, which shows that the two tests above can fail.
func TestBadConfigurationIsRefused(t *testing.T) {
	config := write(t, "bad.json", map[string]any{"admin": map[string]any{"no_such_field": true}})
	for _, binary := range envoys(t) {
		if out, err := run(t, t.TempDir(), binary, "--mode", "validate", "-c", config); err == nil {
			t.Errorf("%s takes it:\n%s", binary, out)
		}
	}
}

// Envoy starts without warnings, even if the control plane is unreachable.
func TestBootstrapStartsWithoutWarning(t *testing.T) {
	bootstrap := read[map[string]any](t, filepath.Join("..", "..", "..", "testdata", "mtls-strict", "all-1", "bootstrap.yaml"))
	endpoint := dig(t, bootstrap, "static_resources", "clusters", 0, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint",
		"address", "socket_address").(map[string]any)
	endpoint["address"], endpoint["port_value"] = "127.0.0.1", 1 // nothing listens there on any machine
	for _, binary := range envoys(t) {
		t.Run(filepath.Base(filepath.Dir(binary)), func(t *testing.T) {
			directory := workDirectory(t)
			config := write(t, "bootstrap.json", bootstrap)
			if out := startAndStop(t, directory, binary, config); warnings(out) != "" {
				t.Errorf("envoy warns:\n%s", warnings(out))
			}
		})
	}
}

// startAndStop runs Envoy until its admin interface answers, and returns what it logged.
func startAndStop(t *testing.T, directory, binary, config string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := command(ctx, directory, binary, "-c", config, "--concurrency", "1")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	state, err := untilLive(ctx, filepath.Join(directory, "admin.sock"))
	if signalErr := cmd.Process.Signal(syscall.SIGTERM); signalErr != nil {
		t.Error(signalErr)
	}
	if waitErr := cmd.Wait(); waitErr != nil {
		t.Errorf("envoy ends with %v", waitErr)
	}
	if err != nil {
		t.Fatalf("envoy does not answer: %v\n%s", err, log.String())
	}
	if !strings.Contains(state, "control_plane.connected_state: 0") {
		t.Errorf("envoy keeps no statistic of its control plane: %q", state)
	}
	return log.String()
}

// warnings returns the lines of a log above level info, except for Envoy's own exit and the lines that the agent
// drops.
func warnings(log string) string {
	var found []string
	for line := range strings.Lines(log) {
		bad := strings.Contains(line, "][warning]") || strings.Contains(line, "][error]") || strings.Contains(line, "][critical]")
		if bad && !strings.Contains(line, "caught ENVOY_SIGTERM") && !strings.Contains(line, "allow_custom_methods' is marked as work-in-progress") {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

func validate(t *testing.T, binary, config string) {
	t.Helper()
	validateIn(t, workDirectory(t), binary, config)
}

func validateIn(t *testing.T, directory, binary, config string) {
	t.Helper()
	out, err := run(t, directory, binary, "--mode", "validate", "-c", config)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if w := warnings(out); w != "" {
		t.Errorf("envoy warns:\n%s", w)
	}
}

func run(t *testing.T, directory, binary string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := command(ctx, directory, binary, args...).CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return string(out), err
}

func command(ctx context.Context, directory, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, append(args, "--disable-hot-restart", "--log-level", "warning")...)
	cmd.Dir = directory
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// workDirectory makes a directory with the files that Envoy needs from an agent's work directory.
func workDirectory(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	// Any secrets of a static configuration with mTLS are valid here.
	static := read[map[string]any](t, filepath.Join("..", "..", "..", "testdata", "mtls-strict", "all-1", "static.yaml"))
	for _, secret := range dig(t, static, "static_resources", "secrets").([]any) {
		secret := secret.(map[string]any)
		writeSecret(t, directory, secret)
		if secret["name"] == "ca" {
			secret["name"] = "serving-ca"
			writeSecret(t, directory, secret)
		}
	}
	return directory
}

func writeSecret(t *testing.T, directory string, secret map[string]any) {
	t.Helper()
	secret["@type"] = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	body := marshal(t, map[string]any{"resources": []any{secret}})
	path := filepath.Join(directory, "sds", secret["name"].(string)+".json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
}

func goldenDirectories(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "*", "*", "bootstrap.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	directories := make([]string, len(files))
	for i, f := range files {
		directories[i] = filepath.Dir(f)
	}
	return directories
}

func name(directory, binary string) string {
	proxy := filepath.Base(filepath.Dir(directory)) + "/" + filepath.Base(directory)
	return proxy + "/" + filepath.Base(filepath.Dir(binary))
}

// asOne makes one configuration from all resources of a proxy. Routes and endpoints cannot be static by themselves,
// so asOne wraps each in a listener or a cluster.
func asOne(t *testing.T, directory string) map[string]any {
	t.Helper()
	config := read[map[string]any](t, filepath.Join(directory, "bootstrap.yaml"))
	static := config["static_resources"].(map[string]any)
	clusters := append(static["clusters"].([]any), read[[]any](t, filepath.Join(directory, "clusters.yaml"))...)
	for _, a := range read[[]any](t, filepath.Join(directory, "endpoints.yaml")) {
		service := a.(map[string]any)["cluster_name"].(string)
		clusters = append(clusters, map[string]any{"name": "endpoints:" + service, "type": "STATIC", "load_assignment": a})
	}
	listeners := read[[]any](t, filepath.Join(directory, "listeners.yaml"))
	for _, r := range read[[]any](t, filepath.Join(directory, "routes.yaml")) {
		listeners = append(listeners, aroundRoute(r.(map[string]any)))
	}
	static["clusters"], static["listeners"] = clusters, listeners
	return config
}

func aroundRoute(route map[string]any) map[string]any {
	router := map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
	manager := map[string]any{
		"@type": "type.googleapis.com/" + hcm, "stat_prefix": "route", "route_config": route,
		"http_filters": []any{map[string]any{"name": "router", "typed_config": router}},
	}
	return map[string]any{
		"name":          "route:" + route["name"].(string),
		"address":       map[string]any{"pipe": map[string]any{"path": route["name"].(string) + ".sock"}},
		"filter_chains": []any{map[string]any{"filters": []any{map[string]any{"name": "http", "typed_config": manager}}}},
	}
}

func read[T any](t *testing.T, path string) T {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var into T
	if err := yaml.Unmarshal(text, &into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return into
}

func write(t *testing.T, name string, v any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, marshal(t, v), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// dig follows a path of keys and indices.
func dig(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			v = v.(map[string]any)[step]
		case int:
			v = v.([]any)[step]
		}
	}
	return v
}
