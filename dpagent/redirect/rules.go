package redirect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TableName is the name of Sonde's table, which is of family inet.
const TableName = "sonde"

// Names of the chains that redirect. Two have the name of their hook; the third redirects all inbound connections,
// whichever hook they pass.
const (
	chainPrerouting = "prerouting"
	chainOutput     = "output"
	chainInbound    = "inbound"
)

// register is the register that all expressions use, except for the port in an expression that also has an address.
const register = unix.NFT_REG_1

// part is a match or a statement of a rule.
type part struct {
	text  string // as nft prints it
	exprs []expr.Any
}

type rule struct {
	text  string
	exprs []expr.Any
}

// chain is a base chain if it has a hook; it then also has a kind.
type chain struct {
	name  string
	kind  nftables.ChainType
	hook  *nftables.ChainHook
	rules []rule
}

// priority returns the priority of a base chain: filters run after NAT.
func (c *chain) priority() *nftables.ChainPriority {
	if c.kind == nftables.ChainTypeNAT {
		return nftables.ChainPriorityNATDest
	}
	return nftables.ChainPriorityFilter
}

// newTable returns the chains of Sonde's table, in an order in which they can be written. o must be valid.
func newTable(o *Options) []chain {
	user, lo := userIs(o.User), outgoing("lo")
	family := otherFamilies(o.Families)
	output := []rule{
		// the agent's checks, and Envoy's connections to the application
		newRule(user, priorityIs(mesh.SocketPriority), verdict(expr.VerdictReturn, "")),
	}
	if !o.OutboundOnly {
		output = append(output,
			// Envoy may call its own pod like any other. The hook of incoming connections does not see such calls.
			newRule(user, lo, notLoopback4(), verdict(expr.VerdictJump, chainInbound)),
			newRule(user, lo, notLoopback6(), verdict(expr.VerdictJump, chainInbound)),
		)
	}
	output = append(output,
		newRule(user, verdict(expr.VerdictReturn, "")),
		newRule(lo, verdict(expr.VerdictReturn, "")), // an application that calls its own pod
	)
	output = append(output, exclusions(o.ExcludeOutboundPorts)...)
	output = append(output, newRule(isTCP(), redirectTo(o.OutboundPort)))
	outputChain := chain{name: chainOutput, kind: nftables.ChainTypeNAT, hook: nftables.ChainHookOutput,
		rules: append(family, output...)}
	if !o.answersInbound() {
		return []chain{outputChain}
	}
	prerouting := append(otherFamilies(o.Families), probeRedirections(o)...)
	return append([]chain{
		{name: chainInbound, rules: inboundRules(o)},
		{
			name: chainPrerouting, kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting,
			rules: append(prerouting, newRule(verdict(expr.VerdictJump, chainInbound))),
		},
		outputChain,
	}, append(probeFilters(o), guardedFilter(o)...)...)
}

// inboundRules returns the rules for connections to this machine.
func inboundRules(o *Options) []rule {
	if o.OutboundOnly {
		return []rule{newRule(portIs(mesh.PortReadiness), redirectTo(o.InboundPort))}
	}
	// The ports of TCP probes bypass Envoy, and Envoy's own calls to them are refused.
	excluded := exclusions(slices.Concat(o.ExcludeInboundPorts, o.metricsPorts(), probePorts(o.TCPProbes)))
	return append(excluded, newRule(isTCP(), redirectTo(o.InboundPort)))
}

// otherFamilies returns the rule that ignores connections of other families, if any.
func otherFamilies(f Families) []rule {
	switch f {
	case IPv4:
		return []rule{newRule(familyIsNot("ipv4", unix.NFPROTO_IPV4), verdict(expr.VerdictReturn, ""))}
	case IPv6:
		return []rule{newRule(familyIsNot("ipv6", unix.NFPROTO_IPV6), verdict(expr.VerdictReturn, ""))}
	}
	return nil
}

// metricsPorts has the port for Prometheus, if any.
func (o *Options) metricsPorts() []int {
	if o.MetricsPort == 0 {
		return nil
	}
	return []int{o.MetricsPort}
}

// exclusions returns one rule per port. Only the first packet of a connection reaches these rules, so a set would save
// nothing measurable.
func exclusions(ports []int) []rule {
	var rules []rule
	for _, port := range distinct(ports) {
		rules = append(rules, newRule(portIs(port), verdict(expr.VerdictReturn, "")))
	}
	return rules
}

func newRule(parts ...part) rule {
	var r rule
	var words []string
	for _, p := range parts {
		words = append(words, p.text)
		r.exprs = append(r.exprs, p.exprs...)
	}
	r.text = strings.Join(words, " ")
	return r
}

// loaded compares the value that the expression load puts into the register.
func loaded(load expr.Any, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: op, Register: register, Data: data}}
}

func metaIs(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return loaded(&expr.Meta{Key: key, Register: register}, op, data)
}

func userIs(id int) part {
	n := uint32(id)
	return part{"meta skuid " + decimal(n), metaIs(expr.MetaKeySKUID, expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(n))}
}

func priorityIs(n uint32) part {
	return part{fmt.Sprintf("meta priority 0:%x", n), metaIs(expr.MetaKeyPRIORITY, expr.CmpOpEq,
		binaryutil.NativeEndian.PutUint32(n))}
}

func outgoing(device string) part {
	return part{fmt.Sprintf("oifname %q", device), metaIs(expr.MetaKeyOIFNAME, expr.CmpOpEq, deviceName(device))}
}

// deviceName returns a name in the form that the kernel compares as a whole.
func deviceName(device string) []byte {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, device)
	return name
}

func familyIsNot(name string, family byte) part {
	return part{"meta nfproto != " + name, metaIs(expr.MetaKeyNFPROTO, expr.CmpOpNeq, []byte{family})}
}

func isTCP() part {
	return part{"meta l4proto tcp", metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{unix.IPPROTO_TCP})}
}

func portIs(port uint16) part { return tcpPortIs("dport", 2, port) }

func tcpPortIs(name string, offset uint32, port uint16) part {
	load := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	return part{
		"tcp " + name + " " + decimal(port),
		append(isTCP().exprs, loaded(load, expr.CmpOpEq, binaryutil.BigEndian.PutUint16(port))...),
	}
}

// notLoopback4 compares the first byte of the destination.
func notLoopback4() part {
	load := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 1}
	return part{
		"ip daddr != 127.0.0.0/8",
		append(metaIs(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{unix.NFPROTO_IPV4}),
			loaded(load, expr.CmpOpNeq, []byte{127})...),
	}
}

func notLoopback6() part {
	load := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16}
	address := make([]byte, 16)
	address[15] = 1
	return part{
		"ip6 daddr != ::1",
		append(metaIs(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{unix.NFPROTO_IPV6}), loaded(load, expr.CmpOpNeq, address)...),
	}
}

// redirectTo rewrites the destination to a port of this machine.
func redirectTo(port int) part {
	n := uint16(port)
	return part{"redirect to :" + decimal(n), []expr.Any{
		&expr.Immediate{Register: register, Data: binaryutil.BigEndian.PutUint16(n)},
		&expr.Redir{RegisterProtoMin: register, RegisterProtoMax: register, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
	}}
}

// verdict ends the chain, or jumps to another one.
func verdict(kind expr.VerdictKind, target string) part {
	v := &expr.Verdict{Kind: kind, Chain: target}
	return part{instruction(v), []expr.Any{v}}
}
