package schedule

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

// From linux/seccomp.h, linux/prctl.h and linux/bpf_common.h; package syscall lacks them.
const (
	prSetNoNewPrivs   = 38
	seccompModeFilter = 2
	seccompRetErrno   = 0x00050000
	seccompRetAllow   = 0x7fff0000
)

// withoutWatch forbids inotify for the calling goroutine's thread, which ends together with the goroutine. A goroutine that
// waits for events of the system would stop the time of the bubble. Without inotify store.Dir scans its directory from time to
// time, as on any system without free watches.
func withoutWatch() error {
	runtime.LockOSThread()
	filter := []syscall.SockFilter{
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: 0}, // the number of the call
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: syscall.SYS_INOTIFY_INIT1, Jf: 1},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: seccompRetErrno | uint32(syscall.EMFILE)},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: seccompRetAllow},
	}
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("give up new privileges: %w", errno)
	}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, syscall.PR_SET_SECCOMP, seccompModeFilter, uintptr(unsafe.Pointer(&program)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("forbid inotify: %w", errno)
	}
	return nil
}
