package dpagent_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent"
)

// lds is a file of listeners from which an Envoy of a test reads what a control plane would send.
type lds struct {
	t      testing.TB
	path   string
	silent int // port of a server that never sends routes
}

func newLDS(t testing.TB) *lds {
	t.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // its backlog is enough for all connections
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	l := &lds{t: t, path: filepath.Join(t.TempDir(), "lds.json"), silent: silent.Addr().(*net.TCPAddr).Port}
	l.write()
	return l
}

// listener returns a listener; with routes "" it has none and warms until they come, which is never.
func listener(name, address string, port int, warms bool) string {
	routes := `"route_config": {"virtual_hosts": []}`
	if warms {
		routes = `"rds": {"route_config_name": "` + name + `", "config_source": {"resource_api_version": "V3", "initial_fetch_timeout": "0s",
		  "api_config_source": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "silent"}}]}}}`
	}
	return fmt.Sprintf(`{"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": %q,
	 "address": {"socket_address": {"address": %q, "port_value": %d}},
	 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
	  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "x", %s,
	  "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`,
		name, address, port, routes)
}

// write replaces all listeners.
func (l *lds) write(listeners ...string) {
	l.t.Helper()
	text := `{"resources": [` + strings.Join(listeners, ",") + `]}`
	if err := os.WriteFile(l.path+".new", []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(l.path+".new", l.path); err != nil {
		l.t.Fatal(err)
	}
}

// bootstrap adds the file to the bootstrap of other tests.
func (l *lds) bootstrap() []byte {
	l.t.Helper()
	base := strings.TrimSpace(string(bootstrap(l.t, ports{})))
	silent := fmt.Sprintf(`{"name": "silent", "connect_timeout": "1s", "typed_extension_protocol_options": {
	 "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
	  "explicit_http_config": {"http2_protocol_options": {}}}}, "load_assignment": {"cluster_name": "silent", "endpoints": [{"lb_endpoints": [
	  {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}}}}]}]}}`, l.silent)
	base = strings.Replace(base, `"clusters": [`, `"clusters": [`+silent, 1)
	return fmt.Appendf(nil, `%s, "dynamic_resources": {"lds_config": {"resource_api_version": "V3", "path_config_source": {"path": %q}}}}`,
		strings.TrimSuffix(base, "}"), l.path)
}

// TestEnvoyDoesNotApply has a real Envoy not apply, refuse, and apply listeners.
func TestEnvoyDoesNotApply(t *testing.T) {
	t.Parallel()
	l := newLDS(t)
	cp := newControlPlane(t, l.bootstrap())
	cp.start()
	o := options(t, cp)
	lb := balancer{t, freePort(t)}
	o.LBHealthPort = lb.port
	r := startAgentOf(t, o, dpagent.Impatient(3*time.Second))
	r.waitReady()
	good, other := listener("good", "127.0.0.1", freePort(t), false), freePort(t)
	families := func(v4, v6 bool) {
		t.Helper()
		eventually(t, 20*time.Second, func() string {
			_, a, err := lb.get("/livez")
			if err != nil || a.Status["IPv4"].Healthy != v4 || a.Status["IPv6"].Healthy != v6 {
				return fmt.Sprintf("/livez = %+v %v, want IPv4 %t, IPv6 %t", a, err, v4, v6)
			}
			return ""
		})
	}
	l.write(good)
	families(true, true)
	l.write(good, listener("refused", "192.0.2.1", other, false))
	r.logged("Error adding/updating listener(s) refused")
	until := time.Now().Add(9 * time.Second)
	eventually(t, 20*time.Second, func() string {
		if code, why := lb.ask("/livez"); code != http.StatusOK {
			t.Fatalf("Envoy has refused a listener: /livez = %d %q", code, why)
		}
		if time.Now().Before(until) {
			return "going on"
		}
		return ""
	})
	l.write(good, listener("warms", "::1", other, true))
	families(true, false)
	l.write(good, listener("warms", "127.0.0.1", other, true))
	families(false, true)
	l.write(good)
	families(true, true)
}
