package guard

import (
	"syscall"
	"time"
	"unsafe"
)

// accepted holds the client's address of an accepted connection. syscall.Accept4 would allocate it each time.
type accepted struct {
	from syscall.RawSockaddrAny
	size uint32
}

// accept accepts a connection. The error is 0 on success.
func (a *accepted) accept(listener int) (fd int, err syscall.Errno) {
	a.size = syscall.SizeofSockaddrAny
	r, _, err := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(listener),
		uintptr(unsafe.Pointer(&a.from)), uintptr(unsafe.Pointer(&a.size)), //nolint:gosec // size matches from
		syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0, 0)
	return int(r), err
}

// remote is the address of a client.
type remote struct {
	size byte // of the IP address
	ip   [16]byte
	port [2]byte
}

// Sizes of IP addresses, in bytes.
const (
	net4 = 4
	net6 = 16
)

// maxAddress is the maximum number of bytes that append adds.
const maxAddress = 1 + net6 + 2

func (r remote) append(b []byte) []byte {
	return append(append(append(b, r.size), r.ip[:r.size]...), r.port[:]...)
}

// remote returns the client's address.
func (a *accepted) remote() remote {
	r := remote{size: net4}
	switch a.from.Addr.Family {
	case syscall.AF_INET:
		from := (*syscall.RawSockaddrInet4)(unsafe.Pointer(&a.from)) //nolint:gosec // its family was checked
		copy(r.ip[:], from.Addr[:])
		r.port = *(*[2]byte)(unsafe.Pointer(&from.Port)) //nolint:gosec // a port has two bytes, in network byte order
	case syscall.AF_INET6:
		from := (*syscall.RawSockaddrInet6)(unsafe.Pointer(&a.from)) //nolint:gosec // its family was checked
		r.size, r.ip = net6, from.Addr
		r.port = *(*[2]byte)(unsafe.Pointer(&from.Port)) //nolint:gosec // a port has two bytes, in network byte order
	}
	return r
}

// timeSinceData returns how long ago the client last sent data: its request may have waited in the listen queue. It
// returns 0 if the kernel does not report it.
func timeSinceData(fd int) time.Duration {
	var info syscall.TCPInfo
	size := uint32(unsafe.Sizeof(info))
	_, _, err := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // size matches info
	if err != 0 {
		return 0
	}
	return min(time.Duration(info.Last_data_recv)*time.Millisecond, time.Minute)
}
