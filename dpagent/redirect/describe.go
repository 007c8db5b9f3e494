package redirect

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Describe returns Sonde's table as "nft list table inet sonde" prints it. o must be valid.
func Describe(o Options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName)
	for n, c := range newTable(&o) {
		if n > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.hook != nil {
			fmt.Fprintf(&b, "\t\ttype %s hook %s priority %s; policy accept;\n", c.kind, hookName(c.hook), priorityName(&c))
		}
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r.text)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

func hookName(hook *nftables.ChainHook) string {
	switch *hook {
	case *nftables.ChainHookPrerouting:
		return "prerouting"
	case *nftables.ChainHookInput:
		return "input"
	}
	return "output"
}

// priorityName returns a priority as nft prints it: by name where nft has a name for it in this hook.
func priorityName(c *chain) string {
	switch {
	case c.kind == nftables.ChainTypeFilter:
		return "filter"
	case c.name == chainPrerouting:
		return "dstnat"
	}
	return decimal(*c.priority())
}

// bytecode returns a rule in the form of "nft --debug=netlink". Rules with equal bytecode are equal. It leaves out
// values that the kernel itself adds to some expressions.
func bytecode(exprs []expr.Any) string {
	var parts []string
	for _, e := range exprs {
		parts = append(parts, "[ "+instruction(e)+" ]")
	}
	return strings.Join(parts, " ")
}

func instruction(e expr.Any) string {
	if text := loading(e); text != "" {
		return text
	}
	switch e := e.(type) {
	case *expr.Cmp:
		return fmt.Sprintf("cmp %s reg %d 0x%x", operator(e.Op), e.Register, e.Data)
	case *expr.Immediate:
		return fmt.Sprintf("immediate reg %d 0x%x", e.Register, e.Data)
	case *expr.NAT:
		same := *e
		// as the kernel returns it
		same.RegAddrMax, same.RegProtoMax = cmp.Or(e.RegAddrMax, e.RegAddrMin), cmp.Or(e.RegProtoMax, e.RegProtoMin)
		return "nat " + strings.Trim(fmt.Sprintf("%+v", same), "{}")
	case *expr.Redir:
		return fmt.Sprintf("redir proto_min reg %d flags 0x%x", e.RegisterProtoMin, e.Flags)
	case *expr.Bitwise:
		return fmt.Sprintf("bitwise reg %d = ( reg %d & 0x%x ) ^ 0x%x", e.DestRegister, e.SourceRegister, e.Mask, e.Xor)
	case *expr.Reject:
		return fmt.Sprintf("reject type %d code %d", e.Type, e.Code)
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictDrop:
			return "drop"
		case expr.VerdictReturn:
			return "return"
		case expr.VerdictJump:
			return "jump " + e.Chain
		}
	}
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr.")) + " " +
		strings.TrimPrefix(fmt.Sprintf("%+v", e), "&")
}

// loading returns the instruction of an expression that loads something of the packet or its connection into a
// register, or "" for any other expression.
func loading(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			return fmt.Sprintf("meta load %s => reg %d", metaKey(e.Key), e.Register)
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			return fmt.Sprintf("payload load %db @ %s header + %d => reg %d", e.Len, base(e.Base), e.Offset, e.DestRegister)
		}
	case *expr.Ct:
		if !e.SourceRegister {
			return fmt.Sprintf("ct load %s => reg %d", ctKey(e.Key), e.Register)
		}
	}
	return ""
}

func metaKey(k expr.MetaKey) string {
	switch k {
	case expr.MetaKeySKUID:
		return "skuid"
	case expr.MetaKeyPRIORITY:
		return "priority"
	case expr.MetaKeyIIFNAME:
		return "iifname"
	case expr.MetaKeyOIFNAME:
		return "oifname"
	case expr.MetaKeyNFPROTO:
		return "nfproto"
	case expr.MetaKeyL4PROTO:
		return "l4proto"
	}
	return fmt.Sprintf("key %d", k)
}

func ctKey(k expr.CtKey) string {
	switch k {
	case expr.CtKeySTATE:
		return "state"
	case expr.CtKeySTATUS:
		return "status"
	case expr.CtKeyDIRECTION:
		return "direction"
	}
	return fmt.Sprintf("key %d", k)
}

func base(b expr.PayloadBase) string {
	switch b {
	case expr.PayloadBaseNetworkHeader:
		return "network"
	case expr.PayloadBaseTransportHeader:
		return "transport"
	}
	return fmt.Sprintf("%d", b)
}

func operator(op expr.CmpOp) string {
	switch op {
	case expr.CmpOpEq:
		return "eq"
	case expr.CmpOpNeq:
		return "neq"
	}
	return fmt.Sprintf("op %d", op)
}
