// Command testcpu runs test programs for go test -exec, and logs the CPU time of each test and its child processes. A
// package that takes more than three times its budget fails. It converts CPU times to a machine of fixed speed, so that
// the load of the machine does not matter. It ignores wall time, which depends more on the machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	// budget of a package.
	budget = 10 * time.Second
	// tolerated is the number of budgets that a package may take.
	tolerated = 3
)

const usage = `usage: testcpu [-log=FILE] [-root=DIR] PROGRAM [ARGUMENT...]
       testcpu -summary=FILE

The first form runs a test program, as for go test -exec. The second prints the packages over their budget, the most
expensive packages and the sum.
`

func main() {
	runtime.LockOSThread() // Pdeathsig depends on the thread that starts the process
	code, err := run(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		code = 2
	case err != nil:
		fmt.Fprintln(os.Stderr, "testcpu:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(args []string, stdout, stderr io.Writer) (int, error) {
	flags := flag.NewFlagSet("testcpu", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	log := flags.String("log", os.Getenv("TESTCPU_LOG"), "`file` to append the CPU time of the package to (default: $TESTCPU_LOG)")
	root := flags.String("root", os.Getenv("TESTCPU_ROOT"), "`directory` that packages are named from (default: $TESTCPU_ROOT, else they have their whole path)")
	ofFile := flags.String("summary", "", "`file` of -log to print a summary of")
	if err := flags.Parse(args); err != nil {
		return 2, err
	}
	if *ofFile != "" {
		entries, err := read(*ofFile)
		if err == nil {
			_, err = io.WriteString(stdout, summary(entries))
		}
		return 0, err
	}
	if *log == "" || flags.NArg() == 0 {
		flags.Usage()
		return 2, errors.New("a log and a program are required")
	}
	directory, err := os.Getwd() // go test runs tests in the package's directory
	if err != nil {
		return 1, err
	}
	e := entry{directory: directory, slowness: 1}
	if *root != "" {
		if relative, err := filepath.Rel(*root, directory); err == nil {
			e.directory = filepath.ToSlash(relative)
		}
	}
	var code int
	end := startSamples()
	code, e.took, err = execute(flags.Args())
	samples, errSample := end()
	if err := errors.Join(err, errSample); err != nil {
		return max(code, 1), err
	}
	if e.over(1) {
		e.slowness = mean(samples)
	}
	if err := e.append(*log); err != nil {
		return max(code, 1), err
	}
	if err := e.judge(); err != nil && code == 0 {
		return 1, err
	}
	return code, nil
}

// execute runs a program and forwards signals, since go test sends SIGQUIT after its timeout. It returns the exit code;
// for a signal, 128 plus its number.
func execute(args []string) (code int, took time.Duration, err error) {
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // ended by signals
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // the program may have ended
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return 0, took, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), took, nil
	}
	return cmd.ProcessState.ExitCode(), took, nil
}
