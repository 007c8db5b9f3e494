package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/execwire"
)

// execGrace is how long after the command's timeout the helper's answer may still arrive.
const execGrace = 2 * time.Second

// Longest returns how long a check of a probe may take.
func Longest(p mesh.Probe) time.Duration {
	timeout := time.Duration(p.TimeoutSeconds) * time.Second
	if p.Exec != nil {
		timeout += execGrace
	}
	return timeout
}

// execProber has the helper in a container run the command that the kubelet would run there.
// Source: kubernetes pkg/probe/exec/exec.go.
type execProber struct {
	dial     Dial
	address  string
	timeout  time.Duration
	patience time.Duration // how long the helper may be silent before its checks fail

	mu     sync.Mutex
	silent time.Time // since when the helper has been silent; zero if it answers
}

func newExecProber(p mesh.Probe, timeout time.Duration, dial Dial) *execProber {
	if dial == nil {
		dial = DialHelper
	}
	return &execProber{
		dial: dial, timeout: timeout,
		address:  filepath.Join(mesh.ExecSocketsDir, p.Container, execwire.Socket),
		patience: time.Duration(p.FailureThreshold) * time.Duration(p.PeriodSeconds) * time.Second,
	}
}

func (a *execProber) probe(ctx context.Context, _ asker) result {
	answer, err := a.ask(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		a.silent = time.Time{}
		return judgeExec(answer, a.timeout)
	case ctx.Err() != nil:
		return ending
	case IsAgentFault(err) && !errors.Is(err, fs.ErrPermission): // the container creates the socket, with its permissions
		return failureOf(err)
	case a.silent.IsZero():
		a.silent = time.Now()
	}
	// Only a restart of the container starts the helper again.
	r := result{verdict: errored, class: Silent, reason: "the helper in the container does not answer: " + reason(err)}
	if time.Since(a.silent) >= a.patience {
		r.verdict = failure
	}
	return r
}

// DialHelper connects to a socket that a container has made. A symlink in its place would lead to another container's
// helper, or to Envoy, so it is not followed.
func DialHelper(ctx context.Context, network, path string) (net.Conn, error) {
	file, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it cannot be written to
	switch info, err := file.Stat(); {
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, &fs.PathError{Op: "dial", Path: path, Err: errors.New("not a socket")}
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		failed.Addr = &net.UnixAddr{Name: path, Net: network} // the path that users know
	}
	return conn, err
}

// ask makes the helper run the command, and returns its answer.
func (a *execProber) ask(ctx context.Context) (execwire.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout+execGrace)
	defer cancel()
	conn, err := a.dial(ctx, "unix", a.address)
	if err != nil {
		return execwire.Answer{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // Read ends, and so does the command
	defer func() { _ = conn.Close() }()
	answer, err := execwire.Read(conn)
	return answer, cmp.Or(ctx.Err(), err)
}

// judgeExec returns the kubelet's verdict on the result of a command. The kubelet discards a check whose command the
// runtime cannot start.
func judgeExec(a execwire.Answer, timeout time.Duration) result {
	switch {
	case a.Outcome == execwire.NotStarted:
		return result{verdict: errored, class: Failed, reason: "the command cannot be started: " + a.Err().Error()}
	case a.Outcome == execwire.TimedOut:
		return result{verdict: failure, class: Timeout, reason: fmt.Sprintf("the command timed out after %s", timeout)}
	case a.Code != 0:
		return result{verdict: failure, class: Failed, reason: fmt.Sprintf("the command ended with exit code %d", a.Code)}
	}
	return result{verdict: success}
}
