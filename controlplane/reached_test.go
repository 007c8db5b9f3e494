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
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/redirect/redirecttest"
)

// hostVariable is set in a network namespace of the test's own.
const hostVariable = "SONDE_TEST_HOST"

// TestPortBlockedForOneFamily drops what comes to the port for agents over IPv4, and then over IPv6, on a host with both.
func TestPortBlockedForOneFamily(t *testing.T) {
	t.Parallel()
	if os.Getenv(hostVariable) == "" {
		if os.Geteuid() != 0 {
			redirecttest.NotHere(t, "only root can make a network namespace")
		}
		again := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), hostVariable+"=1")
		again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := again.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("on a host of its own: %v\n%s", err, out)
		}
		return
	}
	own, other := redirecttest.Own(t), redirecttest.New(t)
	if err := own.Do(redirecttest.LoopbackUp); err != nil {
		t.Fatal(err)
	}
	redirecttest.Join(t, own, other, [2][]string{{"10.0.0.1/24", "fd00::1/64"}, {"10.0.0.2/24", "fd00::2/64"}})
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
			return code == http.StatusServiceUnavailable && strings.Contains(body, "[-]xds failed: ") && strings.Contains(body, "connect as an agent: dial tcp "+address)
		})
		mend()
		await(t, "its readiness", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
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
