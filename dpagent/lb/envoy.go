package lb

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Admin is Envoy's admin interface. *envoy.Admin implements it.
type Admin interface {
	Get(ctx context.Context, path string) ([]byte, error)
}

// family is an IP family, named as in kube-proxy.
type family string

const (
	ipv4 family = "IPv4"
	ipv6 family = "IPv6"
)

var families = []family{ipv4, ipv6}

// resource is a listener or cluster that Envoy has received but not applied.
type resource struct {
	name     string
	families []family  // families it serves; all if it has no address
	warming  time.Time // when Envoy received the new version
	active   time.Time // when Envoy received the version in use; zero if none is in use
}

// Requests to Envoy. Versions in a dump are useless here, since a listener updated in place keeps its original version.
// Times are the update's times (Envoy: source/common/listener_manager/listener_manager_impl.cc).
const (
	gaugesPath = `/stats?type=Gauges&filter=%5E(listener_manager%5C.(total_listeners_(active%7Cwarming)%7Cworkers_started)` +
		`%7Ccluster_manager%5C.warming_clusters)%24`
	listenersPath       = "/config_dump?resource=dynamic_listeners&mask=name,active_state.last_updated,warming_state"
	clustersPath        = "/config_dump?mask=last_updated,cluster.name&resource="
	warmingClustersPath = clustersPath + "dynamic_warming_clusters"
	activeClustersPath  = clustersPath + "dynamic_active_clusters"
)

// unapplied returns what Envoy has received but not applied. It requests a dump only if the gauges show pending
// changes.
func unapplied(ctx context.Context, admin Admin) ([]resource, error) {
	text, err := admin.Get(ctx, gaugesPath)
	if err != nil {
		return nil, err
	}
	gauges, err := parseGauges(text)
	if err != nil {
		return nil, err
	}
	var all []resource
	// Before its workers start, Envoy counts warming listeners as active.
	starting := gauges["listener_manager.workers_started"] == 0 && gauges["listener_manager.total_listeners_active"] > 0
	if starting || gauges["listener_manager.total_listeners_warming"] > 0 {
		if all, err = warmingListeners(ctx, admin); err != nil {
			return nil, err
		}
	}
	if gauges["cluster_manager.warming_clusters"] > 0 {
		clusters, err := warmingClusters(ctx, admin)
		if err != nil {
			return nil, err
		}
		all = append(all, clusters...)
	}
	return all, nil
}

// parseGauges reads gauges, one per line.
func parseGauges(text []byte) (map[string]int, error) {
	gauges := map[string]int{}
	for line := range bytes.Lines(text) {
		name, digits, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
		value, err := strconv.Atoi(digits)
		if err != nil {
			return nil, fmt.Errorf("read envoy's gauges: invalid line %q", line)
		}
		gauges[name] = value
	}
	return gauges, nil
}

// get reads the needed fields of a dump.
func get[T any](ctx context.Context, admin Admin, path string) ([]T, error) {
	text, err := admin.Get(ctx, path)
	if err != nil {
		return nil, err
	}
	var dump struct {
		Configs []T `json:"configs"`
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return nil, fmt.Errorf("read envoy's answer to %s: %w", path, mesh.ExplainJSON("", text, &dump))
	}
	return dump.Configs, nil
}

// dynamicListener is an envoy.admin.v3.ListenersConfigDump.DynamicListener.
type dynamicListener struct {
	Name   string `json:"name"`
	Active struct {
		LastUpdated time.Time `json:"last_updated"`
	} `json:"active_state"`
	Warming *struct {
		LastUpdated time.Time `json:"last_updated"`
		Listener    listener  `json:"listener"`
	} `json:"warming_state"`
}

type listener struct {
	Address    address `json:"address"`
	Additional []struct {
		Address address `json:"address"`
	} `json:"additional_addresses"`
}

type address struct {
	Socket struct {
		Address    string `json:"address"`
		IPv4Compat bool   `json:"ipv4_compat"`
	} `json:"socket_address"`
}

func warmingListeners(ctx context.Context, admin Admin) ([]resource, error) {
	listeners, err := get[dynamicListener](ctx, admin, listenersPath)
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, l := range listeners {
		if l.Warming != nil {
			all = append(all, resource{
				name: "listener " + l.Name, families: l.Warming.Listener.families(), warming: l.Warming.LastUpdated,
				active: l.Active.LastUpdated,
			})
		}
	}
	return all, nil
}

// families returns all families if a listener has no address, such as one on a Unix socket.
func (l *listener) families() []family {
	var all []family
	add := func(a address) {
		ip, err := netip.ParseAddr(a.Socket.Address)
		if err != nil {
			return
		}
		if ip.Unmap().Is4() || a.Socket.IPv4Compat {
			all = append(all, ipv4)
		}
		if ip.Is6() && !ip.Is4In6() {
			all = append(all, ipv6)
		}
	}
	add(l.Address)
	for _, a := range l.Additional {
		add(a.Address)
	}
	if len(all) == 0 {
		return families
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// dynamicCluster is an envoy.admin.v3.ClustersConfigDump.DynamicCluster.
type dynamicCluster struct {
	Cluster struct {
		Name string `json:"name"`
	} `json:"cluster"`
	LastUpdated time.Time `json:"last_updated"`
}

// warmingClusters returns the warming clusters. Each affects all families, since listeners of all families use it.
func warmingClusters(ctx context.Context, admin Admin) ([]resource, error) {
	warming, err := get[dynamicCluster](ctx, admin, warmingClustersPath)
	if err != nil {
		return nil, err
	}
	active, err := get[dynamicCluster](ctx, admin, activeClustersPath)
	if err != nil {
		return nil, err
	}
	used := make(map[string]time.Time, len(active))
	for _, c := range active {
		used[c.Cluster.Name] = c.LastUpdated
	}
	all := make([]resource, 0, len(warming))
	for _, c := range warming {
		all = append(all, resource{
			name: "cluster " + c.Cluster.Name, families: families, warming: c.LastUpdated, active: used[c.Cluster.Name],
		})
	}
	return all, nil
}
