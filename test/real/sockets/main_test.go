package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if address, ok := os.LookupEnv(checkVariable); ok {
		_, _ = fmt.Fprintln(os.Stdout, tcpCheck(address))
		return
	}
	goleak.VerifyTestMain(m)
}

// States of a connection in the kernel's table.
const (
	established = 1
	connecting  = 2
	listening   = 10
)

// entry is a line of the kernel's table of TCP sockets.
type entry struct {
	local, remote string // ADDRESS:PORT in hexadecimal digits
	state         int
	inode         string
}

// table returns the kernel's table of IPv4 TCP sockets.
func table(t *testing.T) (all []entry) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		state, err := strconv.ParseUint(f[3], 16, 8)
		if err != nil {
			continue // the header
		}
		all = append(all, entry{local: f[1], remote: f[2], state: int(state), inode: f[9]})
	}
	return all
}

// inTable returns the form of 127.0.0.1:port in the table.
func inTable(at netip.AddrPort) string { return fmt.Sprintf("0100007F:%04X", at.Port()) }

// descriptor returns the file descriptor of a socket of this process.
func descriptor(inode string) (int, error) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); err == nil && to == "socket:["+inode+"]" {
			return strconv.Atoi(f.Name())
		}
	}
	return 0, fmt.Errorf("no descriptor of socket %s", inode)
}

// control calls ask with the file descriptor of a connection or listener.
func control(of any, ask func(fd int) error) error {
	raw, err := of.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var answer error
	err = raw.Control(func(fd uintptr) { answer = ask(int(fd)) })
	return errors.Join(err, answer)
}

func listen(t *testing.T) (net.Listener, netip.AddrPort) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, l.Addr().(*net.TCPAddr).AddrPort()
}

// full returns the address of a listener with a full backlog, where new connections wait.
func full(t *testing.T) netip.AddrPort {
	t.Helper()
	l, at := listen(t)
	if err := control(l, func(fd int) error { return unix.Listen(fd, 0) }); err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return at
}

// waiting returns the sockets that wait for a connection to an address.
func waiting(t *testing.T, at netip.AddrPort) (all []entry) {
	t.Helper()
	for _, e := range table(t) {
		if e.state == connecting && e.remote == inTable(at) {
			all = append(all, e)
		}
	}
	return all
}
