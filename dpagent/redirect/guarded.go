package redirect

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const chainGuarded = "guarded"

// guardedFilter returns the chain that makes connections to GuardedPort wait while nothing listens there. It drops the
// kernel's refusal, the only reset with sequence 0, so that the client retries until there is a listener. Without it, a
// guarded liveness probe would fail once per period while the sidecar restarts.
func guardedFilter(o *Options) []chain {
	if o.GuardedPort == 0 {
		return nil
	}
	return []chain{{
		name: chainGuarded, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput,
		rules: append(otherFamilies(o.Families),
			// the pod itself gets the refusal, as without this chain
			newRule(outgoing("lo"), verdict(expr.VerdictReturn, "")),
			newRule(sourcePortIs(uint16(o.GuardedPort)), hasSequence0(), isReset(), verdict(expr.VerdictDrop, "")),
		),
	}}
}

func hasSequence0() part {
	load := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 4, Len: 4}
	return part{"tcp sequence 0", append(isTCP().exprs, loaded(load, expr.CmpOpEq, make([]byte, 4))...)}
}

func isReset() part {
	return part{"tcp flags rst", append(isTCP().exprs,
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{0x04}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: []byte{0}},
	)}
}
