package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// apiServerTable is the nftables table, in the network namespace of a node, that drops the node's packets to the API
// server.
const apiServerTable = "inet sonde_testbed_apiserver"

// SetLink connects a node to the others or disconnects it. The first node cannot be disconnected: it has the control
// plane.
func (c *Cluster) SetLink(ctx context.Context, node int, up bool) error {
	if _, err := c.cuttable(node); err != nil {
		return err
	}
	return c.setPort(ctx, node, up)
}

// cuttable returns the description of the cluster, or an error for a node that cannot be disconnected.
func (c *Cluster) cuttable(node int) (description, error) {
	d, err := c.complete()
	if err != nil {
		return d, err
	}
	if err := d.checkNode(node); err != nil {
		return d, err
	}
	if node == 1 {
		return d, fmt.Errorf("node 1 has the control plane: cut off another, of 2 to %d", d.Nodes)
	}
	return d, nil
}

// setPort attaches the peer of the node's interface to the bridge, up or down.
func (c *Cluster) setPort(ctx context.Context, node int, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	_, err := machine.Run(ctx, "", "ip", "-n", c.switchNamespace(), "link", "set", nodeName(node), "master", bridge, state)
	return err
}

// SetAPIServerLink connects the host processes of a node, kubelet and kube-proxy, to the API server, or drops their
// packets to it. It does not affect pods, even to the API server, or connections to the node, such as the API server's
// requests to the kubelet. It is independent of SetLink. The first node cannot be disconnected: it has the control
// plane.
func (c *Cluster) SetAPIServerLink(ctx context.Context, node int, up bool) error {
	d, err := c.cuttable(node)
	if err != nil {
		return err
	}
	families, err := d.IPFamily.families()
	if err != nil {
		return err
	}
	command := machine.Enter(c.namespace(node), "", "nft", "-f", "-")
	_, err = machine.Run(ctx, apiServerRules(families, up), command[0], command[1:]...)
	return err
}

// apiServerRules returns the input of nft: the table with its rules, or its deletion if the link is up. Both work with
// and without an existing table. Packets of pods are forwarded, and pass neither hook. At the output hook, addresses of
// Services are already translated; at the input hook, not yet translated back.
func apiServerRules(families []family, up bool) string {
	var out, in strings.Builder
	for _, f := range families {
		protocol := "ip"
		if f == familyIPv6 {
			protocol = "ip6"
		}
		fmt.Fprintf(&out, "\t\t%s daddr %s tcp dport %d drop\n", protocol, f.nodeAddress(1), portAPI)
		fmt.Fprintf(&in, "\t\t%s saddr %s tcp sport %d drop\n", protocol, f.nodeAddress(1), portAPI)
	}
	rules := "add table " + apiServerTable + "\ndelete table " + apiServerTable + "\n"
	if up {
		return rules
	}
	const chain = "\tchain %[1]s {\n\t\ttype filter hook %[1]s priority filter; policy accept;\n%[2]s\t}\n"
	return rules + "table " + apiServerTable + " {\n" + fmt.Sprintf(chain, "output", out.String()) +
		fmt.Sprintf(chain, "input", in.String()) + "}\n"
}
