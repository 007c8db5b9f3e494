package redirect

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/redirect/redirecttest"
)

// change makes a change to the kernel's tables in the namespace.
func change(t *testing.T, n *redirecttest.Namespace, commands func(*nftables.Conn)) {
	t.Helper()
	must(t, n.Do(func() error { return newKernel().transaction(commands) }))
}

// differences returns what Check says.
func differences(t *testing.T, n *redirecttest.Namespace, o Options) (differences []string) {
	t.Helper()
	must(t, n.Do(func() (err error) {
		differences, err = Check(o)
		return err
	}))
	return differences
}

func TestCheck(t *testing.T) {
	output := &nftables.Chain{Name: chainOutput, Table: table()}
	drop := []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	tests := map[string]struct {
		change func(*nftables.Conn)
		want   []string
	}{
		"nothing": {nil, nil},
		"no table": {
			func(c *nftables.Conn) { c.DelTable(table()) },
			[]string{"there is no table inet sonde"},
		},
		"no rules": {
			func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Name: chainInbound, Table: table()}) },
			[]string{
				"chain inbound: this rule is missing: tcp dport 9000 return",
				"chain inbound: this rule is missing: tcp dport 9800 return",
				"chain inbound: this rule is missing: meta l4proto tcp redirect to :15006",
			},
		},
		"a rule more": {
			func(c *nftables.Conn) { c.InsertRule(&nftables.Rule{Table: table(), Chain: output, Exprs: drop}) },
			[]string{"chain output: this rule should not be there: [ counter {Bytes:0 Packets:0} ] [ drop ]"},
		},
		"another order": {
			func(c *nftables.Conn) {
				rules := newTable(new(defaults()))[2].rules
				c.FlushChain(output)
				for _, r := range append(rules[1:], rules[0]) {
					c.AddRule(&nftables.Rule{Table: table(), Chain: output, Exprs: r.exprs})
				}
			},
			[]string{"chain output: the rules have another order"},
		},
		"a chain more": {
			func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Name: "other", Table: table()}) },
			[]string{"chain other is not ours"},
		},
		"another priority": {
			func(c *nftables.Conn) {
				prerouting := &nftables.Chain{
					Name: chainPrerouting, Table: table(), Type: nftables.ChainTypeNAT,
					Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATSource,
				}
				c.DelChain(prerouting)
				c.AddChain(prerouting)
				c.AddRule(&nftables.Rule{Table: table(), Chain: prerouting, Exprs: verdict(expr.VerdictJump, chainInbound).exprs})
			},
			[]string{"chain prerouting has another type, hook, priority or policy"},
		},
		"another type": {
			func(c *nftables.Conn) {
				filter := &nftables.Chain{
					Name: chainPrerouting, Table: table(), Type: nftables.ChainTypeFilter,
					Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
				}
				c.DelChain(filter)
				c.AddChain(filter)
			},
			[]string{"chain prerouting has another type, hook, priority or policy", "chain prerouting: this rule is missing: jump inbound"},
		},
		"a chain less": {
			func(c *nftables.Conn) {
				c.DelChain(&nftables.Chain{Name: chainPrerouting, Table: table()})
			},
			[]string{"chain prerouting is missing"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := redirecttest.New(t)
			must(t, n.Do(func() error { return Install(defaults()) }))
			if tc.change != nil {
				change(t, n, tc.change)
			}
			if diff := cmp.Diff(tc.want, differences(t, n, defaults())); diff != "" {
				t.Errorf("Check(): -want +got:\n%s", diff)
			}
			must(t, n.Do(func() error { return Install(defaults()) }))
			if got := differences(t, n, defaults()); len(got) > 0 {
				t.Errorf("Check() after Install() = %q", got)
			}
		})
	}
}

// TestCheckEachRule takes each rule of each table out of the kernel: that one is missed, and no other.
func TestCheckEachRule(t *testing.T) {
	for name, o := range tables() {
		t.Run(name, func(t *testing.T) {
			n := redirecttest.New(t)
			for _, chain := range newTable(&o) {
				for index, r := range chain.rules {
					must(t, n.Do(func() error { return Install(o) }))
					from := &nftables.Chain{Name: chain.name, Table: table()}
					change(t, n, func(c *nftables.Conn) {
						rules, err := c.GetRules(table(), from)
						must(t, err)
						must(t, c.DelRule(rules[index]))
					})
					want := []string{"chain " + chain.name + ": this rule is missing: " + r.text}
					if diff := cmp.Diff(want, differences(t, n, o)); diff != "" {
						t.Errorf("Check(): -want +got:\n%s", diff)
					}
				}
			}
		})
	}
}

// TestCheckDormant has a table that is complete and switched off, as "nft add table inet sonde { flags dormant; }" does.
func TestCheckDormant(t *testing.T) {
	n := redirecttest.New(t)
	must(t, n.Do(func() error { return Install(defaults()) }))
	must(t, n.Do(func() error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_TABLE_NAME, Data: []byte(TableName + "\x00")},
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
	want := []string{"table inet sonde has flags, such as dormant, which switches it off"}
	if diff := cmp.Diff(want, differences(t, n, defaults())); diff != "" {
		t.Errorf("Check(): -want +got:\n%s", diff)
	}
}

// TestTextOf recognises each rule that we can write.
func TestTextOf(t *testing.T) {
	for name, o := range tables() {
		for _, c := range newTable(&o) {
			for _, r := range c.rules {
				if got := textOf(r.exprs); got != r.text {
					t.Errorf("%s: textOf(%s) = %s", name, r.text, got)
				}
			}
		}
	}
}

// TestOnlyOurs installs over an older table of ours, and leaves those of others alone, whatever they are named.
func TestOnlyOurs(t *testing.T) {
	n := redirecttest.New(t)
	others := []*nftables.Table{
		{Name: "nat", Family: nftables.TableFamilyINet},
		{Name: TableName, Family: nftables.TableFamilyIPv4},
	}
	change(t, n, func(c *nftables.Conn) {
		for _, other := range others {
			c.AddTable(other)
		}
	})
	older := defaults()
	older.ExcludeInboundPorts, older.InboundPort, older.Families = []int{9000, 9001}, 25006, IPv4
	must(t, n.Do(func() error { return Install(older) }))
	want := []string{
		"chain inbound: this rule is missing: tcp dport 9800 return",
		"chain inbound: this rule is missing: meta l4proto tcp redirect to :15006",
		"chain inbound: this rule should not be there: tcp dport 9001 return",
		"chain inbound: this rule should not be there: meta l4proto tcp redirect to :25006",
		"chain prerouting: this rule should not be there: meta nfproto != ipv4 return",
		"chain output: this rule should not be there: meta nfproto != ipv4 return",
	}
	if diff := cmp.Diff(want, differences(t, n, defaults())); diff != "" {
		t.Errorf("Check() of an older table: -want +got:\n%s", diff)
	}
	for range 2 {
		must(t, n.Do(func() error { return Install(defaults()) }))
		if got := differences(t, n, defaults()); len(got) > 0 {
			t.Errorf("Check() = %q", got)
		}
	}
	for _, want := range []bool{true, false} {
		must(t, n.Do(func() error {
			removed, err := Uninstall()
			if removed != want {
				t.Errorf("Uninstall() = %v, want %v", removed, want)
			}
			return err
		}))
	}
	must(t, n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		left, err := c.ListTables()
		if len(left) != len(others) {
			t.Errorf("%d tables are left, want those of others: %d", len(left), len(others))
		}
		return err
	}))
}

// TestWithoutCapability takes NET_ADMIN away from the thread.
func TestWithoutCapability(t *testing.T) {
	n := redirecttest.New(t)
	must(t, n.Do(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			return err
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		return unix.Capset(&header, &data[0])
	}))
	for name, call := range map[string]func() error{
		"Install":   func() error { return Install(defaults()) },
		"Uninstall": func() error { _, err := Uninstall(); return err },
		"Check":     func() error { _, err := Check(defaults()); return err },
	} {
		err := n.Do(call)
		if err == nil || !strings.Contains(err.Error(), "this takes the capability NET_ADMIN") {
			t.Errorf("%s() = %v, want an error that names the capability", name, err)
		}
	}
}

// lacking is a kernel that refuses all messages that hold a text.
func lacking(text string, family byte, errno syscall.Errno) kernel {
	return kernel{options: []nftables.ConnOption{nftables.WithTestDial(func(requests []netlink.Message) ([]netlink.Message, error) {
		var answers []netlink.Message
		for _, r := range requests {
			const begin, end = unix.NFNL_MSG_BATCH_BEGIN, unix.NFNL_MSG_BATCH_END
			if r.Header.Type == begin || r.Header.Type == end {
				continue
			}
			number := 0
			if r.Data[0] == family || (text != "" && strings.Contains(string(r.Data), text)) {
				number = int(errno)
			}
			answer, err := nltest.Error(number, []netlink.Message{r})
			if err != nil {
				return nil, err
			}
			answers = append(answers, answer...)
		}
		return answers, nil
	})}}
}

func TestKernelLacks(t *testing.T) {
	const none = 0xff
	tests := map[string]struct {
		kernel kernel
		want   []string
	}{
		"nf_tables":     {lacking(TableName, none, syscall.EINVAL), []string{"the kernel lacks nftables (CONFIG_NF_TABLES)", "modprobe nf_tables"}},
		"the family":    {lacking("", unix.NFPROTO_INET, syscall.EOPNOTSUPP), []string{"the kernel lacks nftables of family inet", "CONFIG_NF_TABLES_INET"}},
		"NAT":           {lacking("nat\x00", none, syscall.ENOENT), []string{"the kernel lacks NAT in nftables of family inet (Linux 5.2)", "modprobe nft_chain_nat"}},
		"redirection":   {lacking("redir\x00", none, syscall.ENOENT), []string{"write table inet sonde", "no such file", "the kernel lacks redirection", "modprobe nft_redir"}},
		"NAT of probes": {lacking("\x01\x00nat\x00", none, syscall.ENOENT), []string{"the kernel lacks destination NAT in nftables (CONFIG_NFT_NAT)", "modprobe nft_nat"}},
		"tracking":      {lacking("ct\x00", none, syscall.ENOENT), []string{"the kernel lacks connection tracking in nftables (CONFIG_NFT_CT)", "modprobe nft_ct"}},
		"resets":        {lacking("reject\x00", none, syscall.ENOENT), []string{"the kernel lacks resets in nftables of family inet", "modprobe nft_reject_inet"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.kernel.install(withProbes(TCPProbe{9001, 6853}))
			if err == nil {
				t.Fatal("Install() = nil")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Install() = %v, want it to say %q", err, want)
				}
			}
		})
	}
}

// TestUnknownRefusal has an error for which the kernel gives no reason that we know: nothing is guessed.
func TestUnknownRefusal(t *testing.T) {
	err := lacking("lo\x00", 0xff, syscall.ENOSPC).install(defaults())
	if !errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "lacks") {
		t.Errorf("Install() = %v, want the error of the kernel alone", err)
	}
}

// TestNoNetlink is a kernel, or a sandbox that acts as one, without netlink for netfilter.
func TestNoNetlink(t *testing.T) {
	k := kernel{options: []nftables.ConnOption{nftables.WithSockOptions(func(*netlink.Conn) error { return syscall.EPROTONOSUPPORT })}}
	err := k.install(defaults())
	if !errors.Is(err, syscall.EPROTONOSUPPORT) || !strings.Contains(err.Error(), "the kernel lacks nftables (CONFIG_NF_TABLES)") {
		t.Errorf("Install() = %v", err)
	}
}

// TestSmallBuffers has more rules than fit into the buffers that the kernel allows to user namespaces by default.
func TestSmallBuffers(t *testing.T) {
	o := defaults()
	for port := 1; port <= 500; port++ {
		o.ExcludeInboundPorts = append(o.ExcludeInboundPorts, port)
	}
	n := redirecttest.New(t)
	for name, set := range map[string]func(*netlink.Conn, int) error{
		"sending":   (*netlink.Conn).SetWriteBuffer,
		"receiving": (*netlink.Conn).SetReadBuffer,
	} {
		small := nftables.WithSockOptions(setLimits, func(c *netlink.Conn) error { return set(c, 32<<10) })
		err := n.Do(func() error { return kernel{options: []nftables.ConnOption{small}}.install(o) })
		if err == nil || !strings.Contains(err.Error(), "too many excluded ports") {
			t.Errorf("%s: Install() = %v", name, err)
		}
	}
}
