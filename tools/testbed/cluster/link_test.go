package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLinkRefused shows errors for nodes that cannot be disconnected.
func TestLinkRefused(t *testing.T) {
	c := newCluster(t)
	if err := c.describe(description{Nodes: 2, IPFamily: Dual, Complete: true}); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(context.Context, int, bool) error{"SetLink": c.SetLink, "SetAPIServerLink": c.SetAPIServerLink} {
		if err := set(t.Context(), 1, false); err == nil || !strings.Contains(err.Error(), "node 1 has the control plane: cut off another, of 2 to 2") {
			t.Errorf("%s(1): error = %v", name, err)
		}
		if err := set(t.Context(), 3, false); err == nil || !strings.Contains(err.Error(), "nodes 1 to 2") {
			t.Errorf("%s(3): error = %v", name, err)
		}
	}
}

// TestAPIServerRules applies the rules in its own network namespace with the address of the API server: new and open
// connections to it fail until the link is up again; another port works. Each state is set twice, since tests may not
// know the previous state.
func TestAPIServerRules(t *testing.T) {
	families, err := Dual.families()
	if err != nil {
		t.Fatal(err)
	}
	ownNetwork(t)
	run(t, "link set lo up\naddr add 10.99.0.1/32 dev lo\naddr add fd99::1/128 dev lo nodad\n", "ip", "-batch", "-")
	for _, port := range []string{"6443", "10250"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("", port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // nothing was written
		go echo(l)      // ends when the listener is closed
	}
	api := []string{"10.99.0.1:6443", "[fd99::1]:6443"}
	open := map[string]net.Conn{}
	for _, address := range api {
		open[address] = dialed(t, address)
		defer open[address].Close() //nolint:errcheck // nothing was written
	}
	for _, up := range []bool{false, false, true, true, false} {
		run(t, apiServerRules(families, up), "nft", "-f", "-")
		for _, address := range api {
			conn, err := dial(address, up)
			if (err == nil) != up {
				t.Errorf("link up %t: dial %s: error = %v", up, address, err)
			}
			if err == nil {
				_ = conn.Close()
			}
			if !up && answers(open[address]) {
				t.Errorf("link up %t: an open connection with %s goes on", up, address)
			}
		}
		if conn, err := dial("10.99.0.1:10250", true); err != nil {
			t.Errorf("link up %t: another port: %v", up, err)
		} else {
			_ = conn.Close()
		}
	}
}

// ownNetwork moves this thread to a new network namespace.
func ownNetwork(t *testing.T) {
	t.Helper()
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			notHere(t, err)
		}
	}
	runtime.LockOSThread() // never unlocked, so that the thread ends with the test
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		notHere(t, fmt.Errorf("make a network namespace, which takes root: %w", err))
	}
}

// notHere skips a test that this machine cannot run. If .ci/run has found network namespaces, no test may be skipped.
func notHere(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("SONDE_TEST_REDIRECTION") == "required" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// run runs a program in the network namespace of this thread.
func run(t *testing.T, stdin, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", program, args, err, out)
	}
}

// dial connects in the network namespace of this thread: a dialer with one address starts no goroutine. If the link
// should be down, it uses a short timeout.
func dial(address string, up bool) (net.Conn, error) {
	timeout := 300 * time.Millisecond
	if up {
		timeout = 10 * time.Second
	}
	return net.DialTimeout("tcp", address, timeout)
}

// dialed returns a connection as soon as there is a route: the kernel adds an IPv6 address before its route.
func dialed(t *testing.T, address string) net.Conn {
	t.Helper()
	for {
		conn, err := dial(address, true)
		if err == nil {
			return conn
		}
		if !errors.Is(err, syscall.ENETUNREACH) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func answers(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
	_, errWrite := c.Write([]byte("a"))
	_, errRead := c.Read(make([]byte, 1))
	return errWrite == nil && errRead == nil
}

func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close() //nolint:errcheck // the client is gone
			for buffer := make([]byte, 1); ; {
				if _, err := c.Read(buffer); err != nil {
					return
				}
				if _, err := c.Write(buffer); err != nil {
					return
				}
			}
		}()
	}
}
