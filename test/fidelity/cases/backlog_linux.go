package cases

import (
	"errors"
	"net"
	"syscall"
)

// listenSmall creates a listener whose connections accept 4 KiB, and no more until that is read.
func listenSmall(address string) (net.Listener, error) {
	l, err := ListenSoon(address)
	if err != nil {
		return nil, err
	}
	return l, control(l.(*net.TCPListener), func(fd int) error {
		return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
	})
}

// shorten makes the backlog of a listener as short as possible.
func shorten(l *net.TCPListener) error {
	return control(l, func(fd int) error { return syscall.Listen(fd, 0) })
}

func control(l *net.TCPListener, f func(fd int) error) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	outer := raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(outer, inner)
}
