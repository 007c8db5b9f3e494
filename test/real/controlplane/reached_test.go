// Package controlplane_test runs a control plane on real sockets.
package controlplane_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// hostVariable is set in the test's own network namespace.
const hostVariable = "SONDE_TEST_HOST"

// TestPortBlockedForOneFamily drops packets to the agents' port over IPv4, and then over IPv6, on a host with both.
func TestPortBlockedForOneFamily(t *testing.T) {
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
	addresses := run(t)
	await := func(code int, texts ...string) {
		t.Helper()
		wait.Until(t, "readyz", func() error { return answers("http://"+addresses["health"].String()+"/readyz?verbose", code, texts...) })
	}
	await(http.StatusOK)
	for family, address := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "127.0.0.1:", nftables.TableFamilyIPv6: "[::1]:"} {
		mend := drop(t, family, addresses["agents"].Port())
		await(http.StatusServiceUnavailable, "[-]xds failed: ", "connect as an agent: dial tcp "+address)
		mend()
		await(http.StatusOK)
	}
}

// run starts a control plane on free ports of all addresses until the test ends, and returns their
// addresses.
func run(t *testing.T) map[string]netip.AddrPort {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	cp, err := controlplane.New(controlplane.Options{Store: "dir:" + t.TempDir(), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cp.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	var addresses map[string]netip.AddrPort
	wait.Until(t, "the addresses", func() error {
		data, err := os.ReadFile(filepath.Join(state, "addresses.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &addresses)
	})
	return addresses
}

// answers returns an error unless a page has this status and contains these texts.
func answers(url string, code int, texts ...string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	for _, text := range texts {
		if !strings.Contains(string(body), text) {
			code = 0
		}
	}
	if response.StatusCode != code {
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	return nil
}

// drop drops packets to a TCP port until the caller calls mend.
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
