package controlplane

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/redirect/redirecttest"
)

// hostVariable is set in a network namespace of the test's own.
const hostVariable = "SONDE_TEST_HOST"

// TestPortBlockedForOneFamily drops what comes to the port for agents over IPv4, and then over IPv6, on a host with both.
func TestPortBlockedForOneFamily(t *testing.T) {
	if os.Getenv(hostVariable) == "" {
		again := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), hostVariable+"=1")
		again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := again.CombinedOutput()
		if os.Geteuid() != 0 {
			redirecttest.NotHere(t, "only root can make a network namespace")
		}
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("on a host of its own: %v\n%s", err, out)
		}
		return
	}
	hostWithBothFamilies(t)
	o := local(t)
	o.BindAddress = DefaultBindAddress
	r := run(t, o)
	data, err := os.ReadFile(filepath.Join(o.StateDir, addressesFile))
	if err != nil {
		t.Fatal(err)
	}
	var addresses map[string]netip.AddrPort
	if err := json.Unmarshal(data, &addresses); err != nil {
		t.Fatal(err)
	}
	port := addresses["agents"].Port()
	for family, address := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "127.0.0.1:", nftables.TableFamilyIPv6: "[::1]:"} {
		mend := drop(t, family, port)
		await(t, "a readiness that fails", func() bool {
			code, body := r.get("/readyz?verbose")
			return code == http.StatusServiceUnavailable && strings.Contains(body, "[-]xds failed: connect as an agent: dial tcp "+address)
		})
		mend()
		await(t, "its readiness", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	}
}

// hostWithBothFamilies gives the network namespace addresses that others could reach.
func hostWithBothFamilies(t *testing.T) {
	t.Helper()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "eth0"
	link := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth1"}
	err := redirecttest.LoopbackUp()
	if err == nil {
		err = netlink.LinkAdd(link)
	}
	for _, prefix := range []string{"10.0.0.1/24", "fd00::1/64"} {
		address, parseErr := netlink.ParseAddr(prefix)
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		address.Flags = unix.IFA_F_NODAD
		if err == nil {
			err = netlink.AddrAdd(link, address)
		}
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// drop has packets to a port of TCP dropped, until mend is called.
func drop(t *testing.T, family nftables.TableFamily, port uint16) (mend func()) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Family: family, Name: "block"})
	chain := c.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}
