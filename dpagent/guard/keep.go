package guard

import (
	"os"
	"runtime"
	"strconv"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// becomeKept executes the program that a worker started with worker.StartKept, so that it is killed when the guard
// ends. It only returns on failure, with the exit code. Only a child of the guard can arrange this: with Go's
// SysProcAttr the program would be killed with the worker. os.Args has the file for the record, the program, and the
// program's arguments.
func becomeKept(guard string) int {
	fail := func(what string, err error) int {
		newLogger().write("ERROR", "failed to start program", "step", what, "err", err.Error())
		return 127
	}
	const file, program = 1, 2
	runtime.LockOSThread() // the signal is tied to a thread
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL),
		0); err != 0 {
		return fail("prctl", err)
	}
	if strconv.Itoa(os.Getppid()) != guard {
		return 1 // the guard has already ended
	}
	record, err := wire.RecordOf(os.Getpid())
	if err == nil {
		err = os.WriteFile(os.Args[file], []byte(record), 0o600) //nolint:gosec // the worker names it
	}
	if err != nil {
		return fail("record", err)
	}
	env := wire.WithRole(os.Environ(), "")
	return fail(os.Args[program], syscall.Exec(os.Args[program], os.Args[program:], env[:len(env)-1])) //nolint:gosec // from the operator
}
