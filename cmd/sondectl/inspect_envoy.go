package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// envoyTables has the views of Envoy that inspect writes as tables. Each returns the whole document, too.
var envoyTables = map[mesh.EnvoyView]func(text []byte) (document any, table *inspectTable, err error){
	mesh.ViewClusters:     activeClusters,
	mesh.ViewListeners:    activeListeners,
	mesh.ViewCertificates: certificates,
}

// activeCluster is a cluster of Envoy. Envoy's names of settings and statistics are the keys.
type activeCluster struct {
	Name      string            `json:"name"`
	Settings  map[string]string `json:"settings"`
	Endpoints []activeEndpoint  `json:"endpoints"`
}

type activeEndpoint struct {
	Address string            `json:"address"`
	Values  map[string]string `json:"values"`
}

// endpoint returns the endpoint at an address, which it adds if it is new.
func (c *activeCluster) endpoint(address string) *activeEndpoint {
	if n := len(c.Endpoints); n == 0 || c.Endpoints[n-1].Address != address {
		c.Endpoints = append(c.Endpoints, activeEndpoint{address, map[string]string{}})
	}
	return &c.Endpoints[len(c.Endpoints)-1]
}

// activeClusters reads Envoy's text, with a line for each value: cluster::key::value, or
// cluster::address::key::value.
// Source: https://www.envoyproxy.io/docs/envoy/latest/operations/admin#get--clusters
func activeClusters(text []byte) (any, *inspectTable, error) {
	all := []*activeCluster{}
	for line := range strings.Lines(string(text)) {
		name, rest := cutField(strings.TrimSuffix(line, "\n"))
		first, rest := cutField(rest)
		second, value := cutField(rest)
		if name == "" || first == "" {
			continue
		}
		if n := len(all); n == 0 || all[n-1].Name != name {
			all = append(all, &activeCluster{Name: name, Settings: map[string]string{}, Endpoints: []activeEndpoint{}})
		}
		switch c := all[len(all)-1]; {
		case strings.Contains(first, ":") || strings.Contains(first, "/"):
			c.endpoint(first).Values[second] = value
		case value != "": // of a priority
			c.Settings[first+"."+second] = value
		default:
			c.Settings[first] = second
		}
	}
	slices.SortStableFunc(all, func(a, b *activeCluster) int { return strings.Compare(a.Name, b.Name) })
	t := &inspectTable{header: []string{"CLUSTER", "ENDPOINT", "HEALTH", "REQUESTS", "FAILED"}}
	for _, c := range all {
		if len(c.Endpoints) == 0 {
			t.add(c.Name, "", "", "", "")
		}
		for _, e := range c.Endpoints {
			health := strings.ReplaceAll(strings.TrimPrefix(e.Values["health_flags"], "/"), "/", ",")
			failed := number(e.Values["rq_error"]) + number(e.Values["cx_connect_fail"])
			t.add(c.Name, e.Address, health, e.Values["rq_total"], strconv.FormatUint(failed, 10))
		}
	}
	return map[string]any{"clusters": all}, t, nil
}

// cutField cuts a line at the first "::" outside of an IPv6 address.
func cutField(line string) (field, rest string) {
	inside := false
	for i, r := range line {
		switch {
		case r == '[' || r == ']':
			inside = r == '['
		case !inside && strings.HasPrefix(line[i:], "::"):
			return line[:i], line[i+2:]
		}
	}
	return line, ""
}

func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64) // Envoy writes numbers
	return n
}

func activeListeners(text []byte) (any, *inspectTable, error) {
	var all struct {
		Listeners []struct {
			Name    string       `json:"name"`
			Address envoyAddress `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, nil, err
	}
	t := &inspectTable{header: []string{"NAME", "ADDRESS"}}
	for _, l := range all.Listeners {
		t.add(l.Name, l.Address.String())
	}
	return json.RawMessage(text), t, nil
}

// envoyCertificate is a certificate in Envoy's JSON.
type envoyCertificate struct {
	Serial  string     `json:"serial_number"`
	Expires time.Time  `json:"expiration_time"`
	Names   []certName `json:"subject_alt_names"`
}

type certName struct {
	URI string `json:"uri"`
	DNS string `json:"dns"`
}

func certificates(text []byte) (any, *inspectTable, error) {
	var all struct {
		Certificates []struct {
			CA    []envoyCertificate `json:"ca_cert"`
			Chain []envoyCertificate `json:"cert_chain"`
		} `json:"certificates"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, nil, err
	}
	t := &inspectTable{header: []string{"USE", "EXPIRES", "SERIAL", "NAMES"}}
	seen := map[string]bool{} // each listener and cluster has them
	add := func(use string, certificates []envoyCertificate) {
		for _, c := range certificates {
			if key := use + c.Serial; !seen[key] {
				seen[key] = true
				t.add(use, describe.Until(timestamppb.New(c.Expires)), c.Serial, c.names())
			}
		}
	}
	for _, pair := range all.Certificates {
		add("presented", pair.Chain)
		add("trusted", pair.CA)
	}
	return json.RawMessage(text), t, nil
}

func (c *envoyCertificate) names() string {
	names := make([]string, len(c.Names))
	for i, n := range c.Names {
		names[i] = cmp.Or(n.URI, n.DNS)
	}
	return strings.Join(names, ",")
}
