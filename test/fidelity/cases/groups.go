package cases

import (
	"fmt"
	"slices"
)

// Group is a table of cases.
type Group struct {
	Title string
	Cases []Case
}

// tables of cases, in the order of results.md.
var tables = []struct {
	title string
	cases func() []Case
}{
	{"Status", statuses},
	{"Interim answers", interims},
	{"Paths and queries", paths},
	{"Headers", headers},
	{"Redirects", redirects},
	{"Bodies", bodies},
	{"Servers that do not behave", brokenServers},
	{"Time", timeouts},
	{"TLS and HTTP/2", tlsAndHTTP2},
	{"TCP", tcpPorts},
	{"gRPC", grpcs},
	{"Fields of 1.37", newFields},
	{"Named ports and host", portsAndHosts},
	{"Several containers", severalContainers},
	{"Addresses", addresses},
	{"Hooks", hooks},
	{"Cases of the kubelet's own tests", kubeletTests},
}

// Groups returns all cases.
func Groups() []Group {
	var all []Group
	for _, table := range tables {
		g := Group{table.title, table.cases()}
		for i := range g.Cases {
			c := &g.Cases[i]
			c.Number = i
			c.Process = c.Process || i%10 == 0 && !c.noYAML
		}
		all = append(all, g)
	}
	return all
}

// Find returns the case with a name.
func Find(name string) (*Case, error) {
	for _, table := range tables {
		list := table.cases()
		if i := slices.IndexFunc(list, func(c Case) bool { return c.Name == name }); i >= 0 {
			return &list[i], nil
		}
	}
	return nil, fmt.Errorf("find case %q: not found", name)
}
