package fidelity_test

import (
	"net"
	"syscall"
)

// shorten makes the queue of a listener as short as it can be.
func shorten(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = syscall.Listen(int(fd), 0) }); err != nil {
		return err
	}
	return inner
}
