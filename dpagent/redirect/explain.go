package redirect

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// trialTable is created and removed in one transaction, so no other program sees it.
const trialTable = "sonde_trial"

// requirement is a feature that the kernel must have.
type requirement struct {
	what, option, module string
	family               nftables.TableFamily
	try                  func(*nftables.Conn, *nftables.Table)
}

// requirements returns the kernel features that Sonde's table needs; each may depend on those before it. Matches that
// are part of nf_tables are not listed. A nil o returns the requirements of any table.
func requirements(o *Options) []requirement {
	base := func(c *nftables.Conn, t *nftables.Table) *nftables.Chain {
		return c.AddChain(&nftables.Chain{
			Name: chainOutput, Table: t, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
		})
	}
	// alone tries parts of a rule in a chain without a hook
	alone := func(parts ...part) func(*nftables.Conn, *nftables.Table) {
		return func(c *nftables.Conn, t *nftables.Table) {
			c.AddRule(&nftables.Rule{Table: t, Chain: c.AddChain(&nftables.Chain{Name: chainPayload, Table: t}),
				Exprs: newRule(parts...).exprs})
		}
	}
	all := []requirement{
		{"nftables", "CONFIG_NF_TABLES", "nf_tables", nftables.TableFamilyIPv4, func(*nftables.Conn, *nftables.Table) {}},
		{"nftables of family inet", "CONFIG_NF_TABLES_INET", "nf_tables", nftables.TableFamilyINet,
			func(*nftables.Conn, *nftables.Table) {}},
		{
			"NAT in nftables of family inet (Linux 5.2)", "CONFIG_NFT_NAT", "nft_chain_nat", nftables.TableFamilyINet,
			func(c *nftables.Conn, t *nftables.Table) { base(c, t) },
		},
		{
			"redirection in nftables", "CONFIG_NFT_REDIR", "nft_redir", nftables.TableFamilyINet,
			func(c *nftables.Conn, t *nftables.Table) {
				c.AddRule(&nftables.Rule{Table: t, Chain: base(c, t), Exprs: newRule(isTCP(), redirectTo(1)).exprs})
			},
		},
	}
	if o == nil || len(o.TCPProbes) == 0 {
		return all
	}
	return append(all,
		requirement{
			"destination NAT in nftables", "CONFIG_NFT_NAT", "nft_nat", nftables.TableFamilyINet,
			func(c *nftables.Conn, t *nftables.Table) {
				c.AddRule(&nftables.Rule{Table: t, Chain: base(c, t), Exprs: newRule(isTCP(), dnatPort4(1)).exprs})
			},
		},
		requirement{"connection tracking in nftables", "CONFIG_NFT_CT", "nft_ct", nftables.TableFamilyINet,
			alone(isInvalid())},
		requirement{"resets in nftables of family inet", "CONFIG_NFT_REJECT_INET",
			"nft_reject_inet", nftables.TableFamilyINet, alone(isTCP(), rejectWithReset())},
	)
}

// explain adds to err what is missing and what the user can do. It tries each requirement of o in turn.
func (k kernel) explain(err error, o *Options) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: needs the capability NET_ADMIN in the effective set: in a pod, a container with "+
			"securityContext {runAsUser: 0, capabilities: {add: [NET_ADMIN]}}; elsewhere, root", err)
	}
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("%w: too many excluded ports and TCP probes for the socket buffers of a user namespace: exclude fewer, "+
			"or raise net.core.rmem_max and net.core.wmem_max on the node", err)
	}
	for _, r := range requirements(o) {
		trial := k.transaction(func(c *nftables.Conn) {
			t := &nftables.Table{Name: trialTable, Family: r.family}
			c.AddTable(t)
			r.try(c, t)
			c.DelTable(t)
		})
		if trial != nil {
			return fmt.Errorf("%w: the kernel lacks %s (%s): load the module on the node (modprobe %s), or use a kernel that has it",
				err, r.what, r.option, r.module)
		}
	}
	return err
}
