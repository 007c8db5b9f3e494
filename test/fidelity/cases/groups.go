package cases

import "fmt"

// Group is a table of cases.
type Group struct {
	Title string
	Cases []Case
}

// Groups returns all cases, in the order of docs/fidelity.md.
func Groups() []Group {
	groups := []Group{
		{"Status", statuses()},
		{"Interim answers", interims()},
		{"Paths and queries", paths()},
		{"Headers", headers()},
		{"Redirects", redirects()},
		{"Bodies", bodies()},
		{"Servers that do not behave", brokenServers()},
		{"Time", timeouts()},
		{"TLS and HTTP/2", tlsAndHTTP2()},
		{"TCP", tcpPorts()},
		{"gRPC", grpcs()},
		{"Named ports and host", portsAndHosts()},
		{"Several containers", severalContainers()},
		{"Addresses", addresses()},
		{"Hooks", hooks()},
		{"Cases of the kubelet's own tests", kubeletTests()},
	}
	for _, g := range groups {
		for i := range g.Cases {
			c := &g.Cases[i]
			c.Number = i
			c.Process = c.Process || i%10 == 0 && !c.noYAML
		}
	}
	return groups
}

// Find returns the case of a name.
func Find(name string) (*Case, error) {
	for _, g := range Groups() {
		for i := range g.Cases {
			if g.Cases[i].Name == name {
				return &g.Cases[i], nil
			}
		}
	}
	return nil, fmt.Errorf("find the case %q: there is none of this name", name)
}
