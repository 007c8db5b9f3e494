package redirect

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// findTable returns Sonde's table in the kernel, or nil.
func (k kernel) findTable() (*nftables.Table, error) {
	c, err := k.queries(0)
	if err != nil {
		return nil, err
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if t.Name == TableName {
			return t, nil
		}
	}
	return nil, nil
}

// compare returns the differences between the table in the kernel and the wanted chains.
func (k kernel) compare(want []chain) (differences []string, err error) {
	found, err := k.findTable()
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return []string{"table inet " + TableName + " is missing"}, nil
	}
	most := 0
	for i := range want {
		most += len(want[i].rules)
	}
	c, err := k.queries(most)
	if err != nil {
		return nil, err
	}
	if found.Flags != 0 {
		differences = append(differences, fmt.Sprintf("table inet %s has flags, such as dormant, which disables it",
			TableName))
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name != TableName })
	for i := range want {
		index := slices.IndexFunc(chains, func(c *nftables.Chain) bool { return c.Name == want[i].name })
		if index < 0 {
			differences = append(differences, "chain "+want[i].name+" is missing")
			continue
		}
		rules, err := c.GetRules(found, chains[index])
		if err != nil {
			return nil, err
		}
		differences = append(differences, want[i].compare(chains[index], rules)...)
		chains = slices.Delete(chains, index, index+1)
	}
	for _, c := range chains {
		differences = append(differences, "chain "+c.Name+" is unknown")
	}
	return differences, nil
}

// compare returns the differences between c and a chain in the kernel.
func (c *chain) compare(at *nftables.Chain, got []*nftables.Rule) (differences []string) {
	type found struct {
		code  string // computed once: both lists may have thousands of rules
		exprs []expr.Any
	}
	if !c.hasHookOf(at) {
		differences = append(differences, "chain "+c.name+" has a wrong type, hook, priority or policy")
	}
	rules := make([]found, 0, len(got))
	for _, r := range got {
		rules = append(rules, found{bytecode(r.Exprs), r.Exprs})
	}
	if slices.EqualFunc(c.rules, rules, func(r rule, f found) bool { return bytecode(r.exprs) == f.code }) {
		return differences
	}
	before := len(differences)
	for _, r := range c.rules {
		code := bytecode(r.exprs)
		index := slices.IndexFunc(rules, func(f found) bool { return f.code == code })
		if index < 0 {
			differences = append(differences, fmt.Sprintf("chain %s: missing rule: %s", c.name, r.text))
		} else {
			rules = slices.Delete(rules, index, index+1)
		}
	}
	for _, r := range rules {
		differences = append(differences, fmt.Sprintf("chain %s: unexpected rule: %s", c.name, textOf(r.exprs)))
	}
	if len(differences) == before {
		differences = append(differences, "chain "+c.name+": the rules are in the wrong order")
	}
	return differences
}

func (c *chain) hasHookOf(got *nftables.Chain) bool {
	if c.hook == nil {
		return got.Hooknum == nil
	}
	return got.Hooknum != nil && *got.Hooknum == *c.hook && got.Type == c.kind &&
		got.Priority != nil && *got.Priority == *c.priority() &&
		got.Policy != nil && *got.Policy == nftables.ChainPolicyAccept
}

// textOf returns a rule as nft prints it if Sonde writes this rule with some options, or else its bytecode.
func textOf(exprs []expr.Any) string {
	code := bytecode(exprs)
	var probe TCPProbe
	var o Options
	for n, e := range exprs {
		switch e := e.(type) {
		case *expr.Cmp:
			if m, ok := exprs[max(n-1, 0)].(*expr.Meta); ok && m.Key == expr.MetaKeySKUID && len(e.Data) == 4 {
				o.User = int(binaryutil.NativeEndian.Uint32(e.Data))
			} else if len(e.Data) == 2 {
				port := int(binaryutil.BigEndian.Uint16(e.Data))
				o.ExcludeInboundPorts, o.GuardedPort, probe = []int{port}, port, TCPProbe{Port: port, Target: port}
			}
		case *expr.Immediate:
			if len(e.Data) == 2 {
				o.InboundPort = int(binaryutil.BigEndian.Uint16(e.Data))
				probe.Target = o.InboundPort
			}
		}
	}
	o.TCPProbes, o.Readiness = []TCPProbe{probe}, true
	for _, o.Families = range []Families{IPv4, IPv6} {
		for _, o.OutboundOnly = range []bool{false, true} {
			for _, c := range newTable(&o) {
				for _, r := range c.rules {
					if bytecode(r.exprs) == code {
						return r.text
					}
				}
			}
		}
	}
	return code
}
