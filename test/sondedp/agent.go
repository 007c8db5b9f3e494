// Package sondedp runs the real `sonde-dp probes`, with guard and worker, for tests.
package sondedp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// limit bounds each wait for the program. It is much longer than needed on an idle machine.
const limit = time.Minute

// Agent is a running `sonde-dp probes`.
type Agent struct {
	// Address is the address of the virtual port.
	Address string
	// Ended is closed after the guard has ended; then Err has the result.
	Ended chan struct{}
	Err   error

	cmd *exec.Cmd
	log logtest.Buffer
}

// Command returns the command that answers the probes of a table, passed in the environment, at an address. It logs
// from a level on.
func Command(
	ctx context.Context, program string, at netip.AddrPort, level slog.Level, table string, env ...string,
) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, "probes",
		"--virtual-probes-port="+strconv.Itoa(int(at.Port())), "--log-level="+level.String())
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		mesh.EnvInstanceIP + "=" + at.Addr().String(), mesh.EnvProbeTable + "=" + table,
	}, env...)
	return cmd
}

// Start runs that command, and returns when it listens. The caller must stop it.
func Start(program string, at netip.AddrPort, level slog.Level, table string, env ...string) (*Agent, error) {
	// Stop, Kill or a test's own signal ends it.
	return Run(Command(context.Background(), program, at, level, table, env...), at.String())
}

// Run runs a program like `sonde-dp probes`, and returns when it listens on an address. The caller must stop it.
func Run(cmd *exec.Cmd, address string) (*Agent, error) {
	a := &Agent{Address: address, Ended: make(chan struct{}), cmd: cmd}
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		a.Err = a.cmd.Wait()
		close(a.Ended)
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-a.Ended:
			cancel() // it will never listen
		case <-ctx.Done():
		}
	}()
	err := harness.Poll(ctx, "sonde-dp probes to listen", func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.Address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return nil, errors.Join(err, a.Stop())
	}
	return a, nil
}

// Signal sends a signal to the guard.
func (a *Agent) Signal(s os.Signal) error { return a.cmd.Process.Signal(s) }

// Kill ends the guard as kill -9 does, and its worker with it.
func (a *Agent) Kill() {
	_ = a.cmd.Process.Kill() // it may have ended
	<-a.Ended
}

// Stop terminates the guard, which must end in time and without an error.
func (a *Agent) Stop() error {
	_ = a.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-a.Ended:
	case <-time.After(limit):
		a.Kill()
		return fmt.Errorf("sonde-dp probes does not end\n%s", a.Log())
	}
	if a.Err != nil {
		return fmt.Errorf("sonde-dp probes: %w\n%s", a.Err, a.Log())
	}
	return nil
}

// Log returns the log so far.
func (a *Agent) Log() string {
	return a.log.String()
}

// Guard returns the process id of the guard.
func (a *Agent) Guard() int { return a.cmd.Process.Pid }

// Worker returns the process id of the guard's worker, or an error.
func (a *Agent) Worker() (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", a.Guard()))
	if err != nil {
		return 0, err
	}
	children := strings.Fields(string(data))
	if len(children) != 1 {
		return 0, fmt.Errorf("the guard has the children %v, want its worker", children)
	}
	return strconv.Atoi(children[0])
}
