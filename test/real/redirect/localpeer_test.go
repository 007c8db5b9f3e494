package redirect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/localpeer"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// ownAddress returns an address of this machine other than loopback.
func ownAddress(t *testing.T) netip.Addr {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if prefix, ok := a.(*net.IPNet); ok && prefix.IP.IsGlobalUnicast() {
			found, _ := netip.AddrFromSlice(prefix.IP)
			return found.Unmap()
		}
	}
	redirecttest.NotHere(t, "this machine has the loopback address alone")
	return netip.Addr{}
}

// TestReasonsAtOwnAddress requests a page at an external address of this machine, from this machine.
func TestReasonsAtOwnAddress(t *testing.T) {
	slowtest.Skip(t, "a real socket")
	if os.Getuid() != 0 {
		redirecttest.NotHere(t, "this needs root, who is never Envoy's user")
	}
	r := health.New(health.Options{OwnAddress: localpeer.Is})
	r.Add(health.Readyz, health.Check{Name: "state", Run: func(context.Context) error { return errors.New("the directory /var/lib/x is gone") }})
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- health.Serve(ctx, listener, health.Page(r, health.Readyz), health.Limits{}) }()
	at := netip.AddrPortFrom(ownAddress(t), listener.Addr().(*net.TCPAddr).AddrPort().Port())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + at.String() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if want := "[-]state failed: the directory /var/lib/x is gone\n"; string(body) != want {
		t.Errorf("body = %q, want %q", body, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestCallerIsOfThisHost has real connections between separate machines, one of which rewrites
// addresses.
func TestCallerIsOfThisHost(t *testing.T) {
	tests := map[string]struct {
		to     string
		caller redirecttest.Caller
		remote bool // from the other machine
		snat   bool // its address is rewritten to the address of the machine that it calls
		want   bool
	}{
		"root":                               {to: "10.9.0.1", want: true},
		"root, IPv6":                         {to: "fd09::1", want: true},
		"a user":                             {to: "10.9.0.1", caller: redirecttest.Caller{User: 1000}, want: true},
		"a user, IPv6":                       {to: "fd09::1", caller: redirecttest.Caller{User: 1000}, want: true},
		"Envoy, for another caller":          {to: "10.9.0.1", caller: redirecttest.Caller{User: mesh.SidecarUser}},
		"Envoy, IPv6":                        {to: "fd09::1", caller: redirecttest.Caller{User: mesh.SidecarUser}},
		"another machine":                    {to: "10.9.0.1", remote: true},
		"another machine, IPv6":              {to: "fd09::1", remote: true},
		"another machine, behind SNAT":       {to: "10.9.0.1", remote: true, snat: true},
		"another machine, behind SNAT, IPv6": {to: "fd09::1", remote: true, snat: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			here, there := newNamespace(t), newNamespace(t)
			redirecttest.Join(t, here, there, [2][]string{{"10.9.0.1/24", "fd09::1/64"}, {"10.9.0.2/24", "fd09::2/64"}})
			if tc.snat {
				rewriteSources(t, here)
			}
			got := make(chan bool, 1)
			here.Serve(t, 80, func(conn net.Conn) {
				request := httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody)
				request.RemoteAddr = conn.RemoteAddr().String()
				request = request.WithContext(context.WithValue(request.Context(), http.LocalAddrContextKey, conn.LocalAddr()))
				from, to := conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr)
				if own := !tc.remote || tc.snat; own != from.IP.Equal(to.IP) {
					t.Errorf("connection from %s to %s, want equal addresses: %v", from, to, own)
				}
				_ = here.Do(func() error {
					got <- localpeer.Is(request)
					return nil
				})
			})
			from := here
			if tc.remote {
				from = there
			}
			conn := connect(t, from, tc.caller, tc.to)
			if got := <-got; got != tc.want {
				t.Errorf("Is() = %v, want %v", got, tc.want)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// connect connects once the kernel has enabled the new addresses: an IPv6 address is unusable at first.
func connect(t *testing.T, from *redirecttest.Namespace, caller redirecttest.Caller, to string) (conn net.Conn) {
	t.Helper()
	wait.Until(t, "", func() (err error) {
		conn, err = from.Dial(caller, netip.AddrPortFrom(netip.MustParseAddr(to), 80))
		return err
	})
	return conn
}

// rewriteSources rewrites the source of all connections that reach a machine to the machine's own
// address.
func rewriteSources(t *testing.T, at *redirecttest.Namespace) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		redirecttest.NotHere(t, "this needs nft")
	}
	const rules = `table inet test {
	chain input {
		type nat hook input priority 100
		iifname "eth0" ip saddr 10.9.0.2 tcp dport 80 snat ip to 10.9.0.1
		iifname "eth0" ip6 saddr fd09::2 tcp dport 80 snat ip6 to fd09::1
	}
}
`
	err := at.Do(func() error {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = errors.Join(err, errors.New(string(out)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
