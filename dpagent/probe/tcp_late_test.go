package probe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// checkVariable has the address that a process of this test asks by TCP, and that is all it does.
const checkVariable = "SONDE_TEST_TCP_CHECK"

// tcpCheck asks once, and says before that it begins.
func tcpCheck(address string) string {
	check, err := probe.NewTCPCheck(netip.MustParseAddrPort(address), hangs, nil)
	if err != nil {
		return err.Error()
	}
	_, _ = fmt.Fprintln(os.Stdout, "begins")
	err = check(context.Background())
	return fmt.Sprintf("late: %t, %v", errors.Is(err, probe.ErrLate), err)
}

// TestTCPCheckOfAProcessThatWasStopped has a check run into its timeout: that is the application's fault, unless the process was stopped meanwhile.
func TestTCPCheckOfAProcessThatWasStopped(t *testing.T) {
	t.Parallel()
	address := hanging(t)
	for name, tc := range map[string]struct {
		stop bool
		want string
	}{
		"it was": {true, "late: true, the agent was too busy to check: dial tcp " + address + ": i/o timeout"},
		"it was not, or other processes had its processors": {false, "late: false, dial tcp " + address + ": i/o timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var is string
			for range tries {
				if is = asks(t, address, tc.stop); is == tc.want {
					return
				}
			}
			t.Errorf("it says %q, want %q", is, tc.want)
		})
	}
}

// hanging returns an address whose server has no place for connections, and accepts none.
func hanging(t *testing.T) string {
	t.Helper()
	l := listen(t, localhost.String())
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var full error
	err = raw.Control(func(fd uintptr) { full = syscall.Listen(int(fd), 0) })
	if err = errors.Join(err, full); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(conn.Close(), l.Close()) })
	return l.Addr().String()
}

// asks has another process ask, and stops it for most of its time. It returns the last line that it writes.
func asks(t *testing.T, address string, stop bool) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), checkVariable+"="+address)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begins := make([]byte, len("begins\n"))
	if _, err := out.Read(begins); err != nil {
		t.Fatal(err)
	}
	if stop {
		<-time.After(hangs / 4) // it waits for the server
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		<-time.After(hangs)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	var rest bytes.Buffer
	_, _ = rest.ReadFrom(out) // until it ends
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(rest.String())
}
