package worker

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// channelToGuard sends a message to the guard. It is nil before Listen.
var channelToGuard atomic.Pointer[func(message []byte) error]

// Kept is a program that outlives the worker.
type Kept struct {
	// Path of the program, and its arguments without the path.
	Path string
	Args []string
	// Env is its environment.
	Env []string
	// Dir is its working directory.
	Dir string
	// Record is the file in Dir to which the program's process record (wire.RecordOf) is written before it runs.
	Record string
	// Output is the file descriptor of the program's output.
	Output int
}

// StartKept starts a program as a child of the guard: it keeps running when this worker dies, and is killed when the
// guard ends. Call TellKept after it.
func StartKept(k Kept) (pid int, err error) {
	if !role().Worker {
		return 0, errors.New("start a program that outlives the agent: this process has no guard")
	}
	null, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer func() { _ = syscall.Close(null) }()
	program := wire.Program()
	pid, err = syscall.ForkExec(program, append([]string{program, k.Record, k.Path}, k.Args...), &syscall.ProcAttr{ //nolint:gosec // this program
		Dir:   k.Dir,
		Env:   wire.WithRole(k.Env, wire.Keep+strconv.Itoa(os.Getppid())),
		Files: []uintptr{uintptr(null), uintptr(k.Output), uintptr(k.Output)},
		Sys: &syscall.SysProcAttr{
			Setpgid:    true, // Ctrl-C in a terminal is for the guard
			Cloneflags: syscall.CLONE_PARENT,
		},
	})
	if err != nil {
		return 0, os.NewSyscallError("fork/exec", err)
	}
	return pid, nil
}

// TellKept tells the guard the PID of its child that StartKept has started, in this worker or an earlier one. Call it
// after Listen.
func TellKept(pid int) error {
	send := channelToGuard.Load()
	if send == nil {
		return errors.New("report process to the guard: the virtual port is not open")
	}
	if err := (*send)(wire.Header{Kind: wire.Kept, ID: uint32(pid)}.Append(nil)); err != nil {
		return fmt.Errorf("report process to the guard: %w", err)
	}
	return nil
}
