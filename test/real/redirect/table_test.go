package redirect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/redirect"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/must"
)

// table is the table that redirect.Install creates.
func table() *nftables.Table {
	return &nftables.Table{Name: redirect.TableName, Family: nftables.TableFamilyINet}
}

// change changes the kernel's tables in the namespace.
func change(t *testing.T, n *redirecttest.Namespace, commands func(*nftables.Conn)) {
	t.Helper()
	must.Do(t, n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		commands(c)
		return c.Flush()
	}))
}

// differences returns the result of Check.
func differences(t *testing.T, n *redirecttest.Namespace, o redirect.Options) (differences []string) {
	t.Helper()
	must.Do(t, n.Do(func() (err error) {
		differences, err = redirect.Check(o)
		return err
	}))
	return differences
}

func TestCheck(t *testing.T) {
	output := &nftables.Chain{Name: "output", Table: table()}
	drop := []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	tests := map[string]struct {
		change func(*nftables.Conn)
		want   []string
	}{
		"nothing": {nil, nil},
		"no table": {
			func(c *nftables.Conn) { c.DelTable(table()) },
			[]string{"table inet sonde is missing"},
		},
		"no rules": {
			func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Name: "inbound", Table: table()}) },
			[]string{
				"chain inbound: missing rule: tcp dport 9000 return",
				"chain inbound: missing rule: tcp dport 9800 return",
				"chain inbound: missing rule: meta l4proto tcp redirect to :15006",
			},
		},
		"a rule more": {
			func(c *nftables.Conn) { c.InsertRule(&nftables.Rule{Table: table(), Chain: output, Exprs: drop}) },
			[]string{"chain output: unexpected rule: [ counter {Bytes:0 Packets:0} ] [ drop ]"},
		},
		"another order": {
			func(c *nftables.Conn) {
				rules, err := c.GetRules(table(), output)
				if err != nil || len(rules) < 2 {
					panic(fmt.Sprintf("%d rules, %v", len(rules), err))
				}
				c.FlushChain(output)
				for _, r := range append(rules[1:], rules[0]) {
					c.AddRule(&nftables.Rule{Table: table(), Chain: output, Exprs: r.Exprs})
				}
			},
			[]string{"chain output: the rules are in the wrong order"},
		},
		"a chain more": {
			func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Name: "other", Table: table()}) },
			[]string{"chain other is unknown"},
		},
		"another priority": {
			func(c *nftables.Conn) {
				prerouting := &nftables.Chain{
					Name: "prerouting", Table: table(), Type: nftables.ChainTypeNAT,
					Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATSource,
				}
				c.DelChain(prerouting)
				c.AddChain(prerouting)
				c.AddRule(&nftables.Rule{Table: table(), Chain: prerouting, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "inbound"}}})
			},
			[]string{"chain prerouting has a wrong type, hook, priority or policy"},
		},
		"another type": {
			func(c *nftables.Conn) {
				filter := &nftables.Chain{
					Name: "prerouting", Table: table(), Type: nftables.ChainTypeFilter,
					Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
				}
				c.DelChain(filter)
				c.AddChain(filter)
			},
			[]string{"chain prerouting has a wrong type, hook, priority or policy", "chain prerouting: missing rule: jump inbound"},
		},
		"a chain less": {
			func(c *nftables.Conn) {
				c.DelChain(&nftables.Chain{Name: "prerouting", Table: table()})
			},
			[]string{"chain prerouting is missing"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNamespace(t)
			must.Do(t, n.Do(func() error { return redirect.Install(defaults()) }))
			if tc.change != nil {
				change(t, n, tc.change)
			}
			if diff := cmp.Diff(tc.want, differences(t, n, defaults())); diff != "" {
				t.Errorf("Check(): -want +got:\n%s", diff)
			}
			must.Do(t, n.Do(func() error { return redirect.Install(defaults()) }))
			if got := differences(t, n, defaults()); len(got) > 0 {
				t.Errorf("Check() after Install() = %q", got)
			}
		})
	}
}

// described returns the rules of each chain.
func described(o redirect.Options) map[string][]string {
	chains, chain := map[string][]string{}, ""
	for line := range strings.Lines(redirect.Describe(o)) {
		text, isRule := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\t\t")
		switch name, isChain := strings.CutPrefix(text, "\tchain "); {
		case isChain:
			chain = strings.TrimSuffix(name, " {")
		case isRule && !strings.HasPrefix(text, "type "):
			chains[chain] = append(chains[chain], text)
		}
	}
	return chains
}

// TestCheckEachRule deletes each rule of each table in the kernel: Check reports exactly that rule.
func TestCheckEachRule(t *testing.T) {
	for name, o := range tables() {
		t.Run(name, func(t *testing.T) {
			n := newNamespace(t)
			for chain, rules := range described(o) {
				for index, rule := range rules {
					must.Do(t, n.Do(func() error { return redirect.Install(o) }))
					from := &nftables.Chain{Name: chain, Table: table()}
					change(t, n, func(c *nftables.Conn) {
						rules, err := c.GetRules(table(), from)
						must.Do(t, err)
						must.Do(t, c.DelRule(rules[index]))
					})
					want := []string{"chain " + chain + ": missing rule: " + rule}
					if diff := cmp.Diff(want, differences(t, n, o)); diff != "" {
						t.Errorf("Check(): -want +got:\n%s", diff)
					}
				}
			}
		})
	}
}

// TestCheckMany has more tables, chains or rules than a check reads, as a container with NET_ADMIN can create.
func TestCheckMany(t *testing.T) {
	const many, expressions = 2500, 100
	large := make([]expr.Any, expressions)
	for i := range large {
		large[i] = &expr.Counter{}
	}
	other := &nftables.Table{Name: "other", Family: nftables.TableFamilyINet}
	output := &nftables.Chain{Name: "output", Table: table()}
	tests := map[string]struct {
		count int
		add   func(c *nftables.Conn, i int)
	}{
		"tables": {many, func(c *nftables.Conn, i int) {
			c.AddTable(&nftables.Table{Name: fmt.Sprintf("other-%d", i), Family: nftables.TableFamilyINet})
		}},
		"chains": {many, func(c *nftables.Conn, i int) {
			c.AddTable(other)
			c.AddChain(&nftables.Chain{Name: fmt.Sprintf("chain-%d", i), Table: other})
		}},
		"rules": {many, func(c *nftables.Conn, _ int) {
			c.AddRule(&nftables.Rule{Table: table(), Chain: output, Exprs: large[:1]})
		}},
		"large rules": {many / 3, func(c *nftables.Conn, _ int) {
			c.AddRule(&nftables.Rule{Table: table(), Chain: output, Exprs: large})
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNamespace(t)
			must.Do(t, n.Do(func() error { return redirect.Install(defaults()) }))
			for batch := range slices.Chunk(make([]int, tc.count), 20) { // the library's socket has a small buffer
				change(t, n, func(c *nftables.Conn) {
					for range batch {
						tc.count--
						tc.add(c, tc.count)
					}
				})
			}
			err := n.Do(func() error {
				_, err := redirect.Check(defaults())
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "too many tables, chains or rules") {
				t.Errorf("Check() = %v", err)
			}
		})
	}
}

// TestCheckDormant has a table that is complete but disabled, as by "nft add table inet sonde { flags dormant; }".
func TestCheckDormant(t *testing.T) {
	n := newNamespace(t)
	must.Do(t, n.Do(func() error { return redirect.Install(defaults()) }))
	must.Do(t, n.Do(func() error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_TABLE_NAME, Data: []byte(redirect.TableName + "\x00")},
			{Type: unix.NFTA_TABLE_FLAGS, Data: []byte{0, 0, 0, 1}},
		})
		if err != nil {
			return err
		}
		message := func(kind int, family byte, id byte, data []byte, flags netlink.HeaderFlags) netlink.Message {
			return netlink.Message{
				Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags},
				Data:   append([]byte{family, 0, 0, id}, data...),
			}
		}
		const table = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
		if _, err := c.SendMessages([]netlink.Message{
			message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFNL_SUBSYS_NFTABLES, nil, 0),
			message(table, unix.NFPROTO_INET, 0, attributes, netlink.Acknowledge),
			message(unix.NFNL_MSG_BATCH_END, 0, unix.NFNL_SUBSYS_NFTABLES, nil, 0),
		}); err != nil {
			return err
		}
		_, err = c.Receive()
		return err
	}))
	want := []string{"table inet sonde has flags, such as dormant, which disables it"}
	if diff := cmp.Diff(want, differences(t, n, defaults())); diff != "" {
		t.Errorf("Check(): -want +got:\n%s", diff)
	}
}

// TestOnlyOurs installs over an older table of ours, and does not change other tables, whatever their names.
func TestOnlyOurs(t *testing.T) {
	n := newNamespace(t)
	others := []*nftables.Table{
		{Name: "nat", Family: nftables.TableFamilyINet},
		{Name: redirect.TableName, Family: nftables.TableFamilyIPv4},
	}
	change(t, n, func(c *nftables.Conn) {
		for _, other := range others {
			c.AddTable(other)
		}
	})
	older := defaults()
	older.ExcludeInboundPorts, older.InboundPort, older.Families = []int{9000, 9001}, 25006, redirect.IPv4
	must.Do(t, n.Do(func() error { return redirect.Install(older) }))
	want := []string{
		"chain inbound: missing rule: tcp dport 9800 return",
		"chain inbound: missing rule: meta l4proto tcp redirect to :15006",
		"chain inbound: unexpected rule: tcp dport 9001 return",
		"chain inbound: unexpected rule: meta l4proto tcp redirect to :25006",
		"chain prerouting: unexpected rule: meta nfproto != ipv4 return",
		"chain output: unexpected rule: meta nfproto != ipv4 return",
	}
	if diff := cmp.Diff(want, differences(t, n, defaults())); diff != "" {
		t.Errorf("Check() of an older table: -want +got:\n%s", diff)
	}
	for range 2 {
		must.Do(t, n.Do(func() error { return redirect.Install(defaults()) }))
		if got := differences(t, n, defaults()); len(got) > 0 {
			t.Errorf("Check() = %q", got)
		}
	}
	for _, want := range []bool{true, false} {
		must.Do(t, n.Do(func() error {
			removed, err := redirect.Uninstall()
			if removed != want {
				t.Errorf("Uninstall() = %v, want %v", removed, want)
			}
			return err
		}))
	}
	must.Do(t, n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		left, err := c.ListTables()
		if len(left) != len(others) {
			t.Errorf("%d tables are left, want %d of others", len(left), len(others))
		}
		return err
	}))
}

// TestWithoutCapability removes NET_ADMIN from the thread.
func TestWithoutCapability(t *testing.T) {
	n := newNamespace(t)
	must.Do(t, n.Do(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			return err
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		return unix.Capset(&header, &data[0])
	}))
	for name, call := range map[string]func() error{
		"Install":   func() error { return redirect.Install(defaults()) },
		"Uninstall": func() error { _, err := redirect.Uninstall(); return err },
		"Check":     func() error { _, err := redirect.Check(defaults()); return err },
	} {
		err := n.Do(call)
		if err == nil || !strings.Contains(err.Error(), "needs the capability NET_ADMIN") {
			t.Errorf("%s() = %v, want an error that names the capability", name, err)
		}
	}
}
