package redirect

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names of the chains of TCP probes.
const (
	chainPayload     = "payload"
	chainProbeInput  = "probe_input"
	chainProbeOutput = "probe_output"
)

// TCPProbe is a port of the pod for an external prober. A connection to it reaches the application's port, without
// payload in either direction.
type TCPProbe struct {
	// Port is the port that the prober connects to. Nothing listens on it.
	Port int
	// Target is the application's port, to which the kernel redirects.
	Target int
}

// String returns the probe in the format of the flag.
func (p TCPProbe) String() string { return fmt.Sprintf("%d:%d", p.Port, p.Target) }

// probePorts returns the ports of probes.
func probePorts(probes []TCPProbe) []int {
	var ports []int
	for _, p := range probes {
		ports = append(ports, p.Port)
	}
	return ports
}

// probeRedirections returns the rules of each probe, in the order of the ports. The rules keep the destination address,
// since the application may listen on this address only: "redirect" would use any address of the device.
func probeRedirections(o *Options) []rule {
	sorted := slices.SortedFunc(slices.Values(o.TCPProbes), func(a, b TCPProbe) int { return a.Port - b.Port })
	var rules []rule
	for _, p := range sorted {
		if o.Families != IPv6 {
			rules = append(rules, newRule(portIs(uint16(p.Port)), dnatPort4(p.Target)))
		}
		if o.Families != IPv4 {
			rules = append(rules, newRule(portIs(uint16(p.Port)), dnatPort6(p.Target)))
		}
	}
	return rules
}

// probeFilters returns the chains that block payload on connections of TCP probes, in both directions. They recognise
// such a connection by its NAT: all other redirected connections lead to Envoy. They drop packets that connection
// tracking considers invalid: NAT ignores them, so they could enter a probe's connection with the same address and port
// of the prober. When connection tracking has forgotten a probe's connection, the application's next packet would start
// a new one in the other direction, so only a SYN may start one.
func probeFilters(o *Options) []chain {
	if len(o.TCPProbes) == 0 {
		return nil
	}
	var targets []int
	for _, p := range o.TCPProbes {
		targets = append(targets, p.Target)
	}
	input := append(otherFamilies(o.Families), newRule(incoming("lo"), verdict(expr.VerdictReturn, "")))
	output := append(otherFamilies(o.Families), newRule(outgoing("lo"), verdict(expr.VerdictReturn, "")))
	for _, port := range distinct(targets) {
		input = append(input,
			newRule(portIs(port), isInvalid(), verdict(expr.VerdictDrop, "")),
			newRule(portIs(port), directionIs("original", 0), isDestinationNAT(), verdict(expr.VerdictJump, chainPayload)),
		)
		output = append(output,
			newRule(sourcePortIs(port), isInvalid(), verdict(expr.VerdictDrop, "")),
			newRule(sourcePortIs(port), isNew(), isNotSYN(), isTCP(), rejectWithReset()),
			newRule(sourcePortIs(port), directionIs("reply", 1), isDestinationNAT(), verdict(expr.VerdictJump, chainPayload)),
		)
	}
	return []chain{
		{name: chainPayload, rules: payloadRules(o.Families)},
		{name: chainProbeInput, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, rules: input},
		{name: chainProbeOutput, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput, rules: output},
	}
}

// payloadRules returns rules that let packets without payload pass, and reset all other connections. Packets with IP
// options or extension headers are longer. A reset is also what an application gets without a mesh, since the prober
// has already closed its socket when a greeting arrives. If the rules dropped the packet, the application's kernel
// would resend it for minutes.
func payloadRules(f Families) []rule {
	const ipv4Header = 20 // the length of an IPv6 packet excludes its header
	var rules []rule
	for words := byte(5); words <= 15; words++ {
		if f != IPv6 {
			rules = append(rules, newRule(lengthIs4(ipv4Header+4*uint16(words)), doffIs(words), verdict(expr.VerdictReturn, "")))
		}
		if f != IPv4 {
			rules = append(rules, newRule(lengthIs6(4*uint16(words)), doffIs(words), verdict(expr.VerdictReturn, "")))
		}
	}
	return append(rules, newRule(isTCP(), rejectWithReset()))
}

// dnatPort4 rewrites the destination to another port of the same address.
func dnatPort4(port int) part {
	return dnatPort("ip", unix.NFPROTO_IPV4, port, &expr.Payload{DestRegister: register,
		Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4})
}

func dnatPort6(port int) part {
	return dnatPort("ip6", unix.NFPROTO_IPV6, port, &expr.Payload{DestRegister: register,
		Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16})
}

// dnatPort includes the unchanged address, since kernels before 5.19 reject NAT of the port alone in family inet.
func dnatPort(protocol string, family byte, port int, address expr.Any) part {
	const second = unix.NFT_REG_2
	n := uint16(port)
	return part{
		fmt.Sprintf("dnat %s to %s daddr:%d", protocol, protocol, n),
		append(metaIs(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{family}),
			address,
			&expr.Immediate{Register: second, Data: binaryutil.BigEndian.PutUint16(n)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: register, RegProtoMin: second,
				Specified: true},
		),
	}
}

func incoming(device string) part {
	return part{fmt.Sprintf("iifname %q", device), metaIs(expr.MetaKeyIIFNAME, expr.CmpOpEq, deviceName(device))}
}

func sourcePortIs(port uint16) part { return tcpPortIs("sport", 0, port) }

// lengthIs4 compares the length of the packet.
func lengthIs4(n uint16) part { return lengthIs("ip", unix.NFPROTO_IPV4, 2, n) }

// lengthIs6 compares the length of the payload of the IPv6 header.
func lengthIs6(n uint16) part { return lengthIs("ip6", unix.NFPROTO_IPV6, 4, n) }

func lengthIs(protocol string, family byte, offset uint32, n uint16) part {
	load := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 2}
	return part{
		protocol + " length " + decimal(n),
		append(metaIs(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{family}),
			loaded(load, expr.CmpOpEq, binaryutil.BigEndian.PutUint16(n))...),
	}
}

// doffIs compares the length of the TCP header in words of 4 bytes, which is in the upper half of its byte.
func doffIs(words byte) part {
	return part{fmt.Sprintf("tcp doff %d", words), append(isTCP().exprs,
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{0xf0}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{words << 4}},
	)}
}

func isNotSYN() part {
	return part{"tcp flags ! syn", append(isTCP().exprs,
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{0x02}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{0}},
	)}
}

// ctStatusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ctStatusDNAT = 1 << 5

func isInvalid() part { return ctHas("ct state invalid", expr.CtKeySTATE, expr.CtStateBitINVALID) }

func isNew() part { return ctHas("ct state new", expr.CtKeySTATE, expr.CtStateBitNEW) }

func isDestinationNAT() part { return ctHas("ct status dnat", expr.CtKeySTATUS, ctStatusDNAT) }

// ctHas matches connections with a bit.
func ctHas(text string, key expr.CtKey, bit uint32) part {
	none := make([]byte, 4)
	return part{text, []expr.Any{
		&expr.Ct{Key: key, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bit),
			Xor: none},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: none},
	}}
}

// directionIs matches packets of one direction, 0 or 1 in enum ip_conntrack_dir of
// linux/netfilter/nf_conntrack_tuple_common.h.
func directionIs(name string, direction byte) part {
	return part{"ct direction " + name, loaded(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register}, expr.CmpOpEq,
		[]byte{direction})}
}

func rejectWithReset() part {
	return part{"reject with tcp reset", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}
}
