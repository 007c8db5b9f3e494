package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// inspectTable is a table of inspect.
type inspectTable struct {
	header []string
	rows   []printer.Row
}

func (t *inspectTable) add(cells ...string) { t.rows = append(t.rows, printer.Row{Cells: cells}) }

// desiredTables has the types of resources of the control plane that inspect writes as tables.
var desiredTables = map[adminv1.Kind]func(resources [][]byte) (*inspectTable, error){
	adminv1.KindListeners: listenersTable,
	adminv1.KindClusters:  clustersTable,
	adminv1.KindEndpoints: endpointsTable,
}

// envoyAddress is an address in Envoy's JSON.
type envoyAddress struct {
	SocketAddress struct {
		Address string `json:"address"`
		Port    uint32 `json:"port_value"`
	} `json:"socket_address"`
	Pipe struct {
		Path string `json:"path"`
	} `json:"pipe"`
}

// String implements fmt.Stringer.
func (a envoyAddress) String() string {
	switch {
	case a.Pipe.Path != "":
		return a.Pipe.Path
	case a.SocketAddress.Address != "":
		return mesh.JoinHostPort(a.SocketAddress.Address, a.SocketAddress.Port)
	}
	return ""
}

// envoyAssignment has the endpoints of a cluster.
type envoyAssignment struct {
	Cluster   string `json:"cluster_name"`
	Endpoints []struct {
		Endpoints []struct {
			Endpoint struct {
				Address envoyAddress `json:"address"`
			} `json:"endpoint"`
			Metadata struct {
				Filters map[string]map[string]string `json:"filter_metadata"`
			} `json:"metadata"`
		} `json:"lb_endpoints"`
	} `json:"endpoints"`
}

// filterChain tells how a listener accepts connections.
type filterChain struct {
	TransportSocket json.RawMessage `json:"transport_socket"`
	Filters         []struct {
		Name   string `json:"name"`
		Config any    `json:"typed_config"`
	} `json:"filters"`
}

func listenersTable(resources [][]byte) (*inspectTable, error) {
	t := &inspectTable{header: []string{"NAME", "ADDRESS", "PROTOCOL", "ACCEPTS", "TO"}}
	for _, body := range resources {
		var l struct {
			Name    string        `json:"name"`
			Address envoyAddress  `json:"address"`
			Chains  []filterChain `json:"filter_chains"`
			Default *filterChain  `json:"default_filter_chain"`
		}
		if err := json.Unmarshal(body, &l); err != nil {
			return nil, err
		}
		if l.Default != nil {
			l.Chains = append(l.Chains, *l.Default)
		}
		protocols, accepts, to := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, chain := range l.Chains {
			accepts[tlsOf(len(chain.TransportSocket) > 0)] = true
			for _, f := range chain.Filters {
				if _, name, _ := strings.Cut(f.Name, "envoy.filters.network."); name == "tcp_proxy" {
					protocols["tcp"] = true
				} else if name == "http_connection_manager" {
					protocols["http"] = true
				}
				destinations(f.Config, to)
			}
		}
		t.add(l.Name, l.Address.String(), inWords(protocols), inWords(accepts), inWords(to))
	}
	return t, nil
}

// destinations adds the clusters and the names of the routes that a filter's configuration names.
func destinations(config any, to map[string]bool) {
	switch v := config.(type) {
	case map[string]any:
		for key, value := range v {
			if name, ok := value.(string); ok && (key == "cluster" || key == "route_config_name") {
				to[name] = true
			}
			destinations(value, to)
		}
	case []any:
		for _, value := range v {
			destinations(value, to)
		}
	}
}

// tlsOf describes connections with or without a TLS context, which is always mutual.
func tlsOf(tls bool) string {
	if tls {
		return "mtls"
	}
	return "plaintext"
}

func inWords(set map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(set)), ",") }

func clustersTable(resources [][]byte) (*inspectTable, error) {
	t := &inspectTable{header: []string{"NAME", "TYPE", "CONNECTS", "ENDPOINTS"}}
	for _, body := range resources {
		var c struct {
			Name            string          `json:"name"`
			Type            string          `json:"type"`
			TransportSocket json.RawMessage `json:"transport_socket"`
			Matches         []any           `json:"transport_socket_matches"`
			Assignment      envoyAssignment `json:"load_assignment"`
		}
		if err := json.Unmarshal(body, &c); err != nil {
			return nil, err
		}
		connects := tlsOf(len(c.TransportSocket) > 0)
		if len(c.Matches) > 0 {
			connects = "by-endpoint"
		}
		var addresses []string
		for _, group := range c.Assignment.Endpoints {
			for _, e := range group.Endpoints {
				addresses = append(addresses, e.Endpoint.Address.String())
			}
		}
		t.add(c.Name, strings.ToLower(c.Type), connects, strings.Join(addresses, ","))
	}
	return t, nil
}

func endpointsTable(resources [][]byte) (*inspectTable, error) {
	t := &inspectTable{header: []string{"CLUSTER", "ENDPOINT", "CONNECTS"}}
	for _, body := range resources {
		var a envoyAssignment
		if err := json.Unmarshal(body, &a); err != nil {
			return nil, err
		}
		before := len(t.rows)
		for _, group := range a.Endpoints {
			for _, e := range group.Endpoints {
				match := e.Metadata.Filters["envoy.transport_socket_match"]["sonde"] // mtls, or server-first
				t.add(a.Cluster, e.Endpoint.Address.String(), cmp.Or(match, tlsOf(false)))
			}
		}
		if len(t.rows) == before {
			t.add(a.Cluster, "", "")
		}
	}
	return t, nil
}
