package redirect

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Describe returns our table as "nft list table inet sonde" prints it. o is valid.
func Describe(o Options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName)
	for n, c := range newTable(&o) {
		if n > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.hook != nil {
			priority := decimal(*nftables.ChainPriorityNATDest)
			if c.name == chainPrerouting {
				priority = "dstnat" // its name, which nft uses for this hook alone
			}
			fmt.Fprintf(&b, "\t\ttype nat hook %s priority %s; policy accept;\n", c.name, priority)
		}
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r.text)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// bytecode returns what a rule does, in the form of "nft --debug=netlink". Two rules are the same if theirs is: the kernel
// adds to some expressions what it has chosen itself, which is left out.
func bytecode(exprs []expr.Any) string {
	var parts []string
	for _, e := range exprs {
		parts = append(parts, "[ "+instruction(e)+" ]")
	}
	return strings.Join(parts, " ")
}

func instruction(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			return fmt.Sprintf("meta load %s => reg %d", metaKey(e.Key), e.Register)
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			return fmt.Sprintf("payload load %db @ %s header + %d => reg %d", e.Len, base(e.Base), e.Offset, e.DestRegister)
		}
	case *expr.Cmp:
		return fmt.Sprintf("cmp %s reg %d 0x%x", operator(e.Op), e.Register, e.Data)
	case *expr.Immediate:
		return fmt.Sprintf("immediate reg %d 0x%x", e.Register, e.Data)
	case *expr.Redir:
		return fmt.Sprintf("redir proto_min reg %d flags 0x%x", e.RegisterProtoMin, e.Flags)
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictReturn:
			return "return"
		case expr.VerdictJump:
			return "jump " + e.Chain
		}
	}
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr.")) + " " + strings.TrimPrefix(fmt.Sprintf("%+v", e), "&")
}

func metaKey(k expr.MetaKey) string {
	switch k {
	case expr.MetaKeySKUID:
		return "skuid"
	case expr.MetaKeyPRIORITY:
		return "priority"
	case expr.MetaKeyOIFNAME:
		return "oifname"
	case expr.MetaKeyNFPROTO:
		return "nfproto"
	case expr.MetaKeyL4PROTO:
		return "l4proto"
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
