package mesh

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestListenError(t *testing.T) {
	address := FieldError{Field: "--bind-address", Value: "9.9.9.9", Allowed: AllowedOwnAddress}
	port := FieldError{Field: "--port", Value: "80"}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"another machine's": {syscall.EADDRNOTAVAIL, `--bind-address: "9.9.9.9": must be an IP address of this machine, or * for all: listen tcp 9.9.9.9:80: bind: cannot assign requested address`},
		"no IPv6":           {syscall.EAFNOSUPPORT, `--bind-address: "9.9.9.9": must be an IP address of this machine, or * for all: listen tcp 9.9.9.9:80: bind: address family not supported by protocol`},
		"taken":             {syscall.EADDRINUSE, `--port: "80": listen tcp 9.9.9.9:80: bind: address already in use`},
		"privileged":        {syscall.EACCES, `--port: "80": listen tcp 9.9.9.9:80: bind: permission denied`},
	} {
		t.Run(name, func(t *testing.T) {
			listen := &net.OpError{Op: "listen", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(9, 9, 9, 9), Port: 80}, Err: os.NewSyscallError("bind", tc.err)}
			got := ListenError(address, port, fmt.Errorf("%w", listen))
			if got.Error() != tc.want || !errors.Is(got, tc.err) {
				t.Errorf("ListenError() = %v, want %s", got, tc.want)
			}
		})
	}
}
