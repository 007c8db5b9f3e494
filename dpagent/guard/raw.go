package guard

import (
	"syscall"
	"unsafe"
)

// The system calls of each request bypass Go's scheduler. None of them blocks, and through the scheduler each would
// wake the runtime's monitor thread, which took a third of the guard's CPU time.

// read returns 0 bytes on an error, and at the end of the input.
func read(fd int, b []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))) //nolint:gosec // b has this length
	return done(n, err)
}

// write sends b, which must not be empty. It does not raise SIGPIPE.
func write(fd int, b []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), //nolint:gosec // b has this length
		syscall.MSG_NOSIGNAL, 0, 0)
	return done(n, err)
}

func done(n uintptr, err syscall.Errno) (int, syscall.Errno) {
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

// closeSocket closes a socket and ignores errors.
func closeSocket(fd int) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0)
}

// epollWait returns the pending events, without waiting.
func epollWait(epoll int, happened []syscall.EpollEvent) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(happened))), uintptr(len(happened)), //nolint:gosec // happened has this length
		0, 0, 0)
	return done(n, err)
}

// epollControl changes which events are watched. op is one of syscall.EPOLL_CTL_*.
func epollControl(epoll, op, fd, id int, what uint32) syscall.Errno {
	e := syscall.EpollEvent{Events: what, Fd: int32(id)}
	_, _, err := syscall.RawSyscall6(syscall.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0) //nolint:gosec // the kernel copies it
	return err
}
