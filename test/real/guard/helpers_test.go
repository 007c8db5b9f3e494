package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// files is the limit of file descriptors, so that a flood needs few connections.
const files = 200

// guarded is a guard with its workers.
type guarded struct {
	t       testing.TB
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the guard has ended
	logs    *logtest.Buffer
	address string
	grpc    string // address of the gRPC probe patient
	short   string // address of the gRPC probe with a timeout of two seconds
	hooks   string
}

func startGuard(t testing.TB, role string) *guarded {
	t.Helper()
	return startAt(t, role, freeAddress(t))
}

func startAt(t testing.TB, role, address string) *guarded {
	t.Helper()
	g := &guarded{t: t, ended: make(chan struct{}), logs: &logtest.Buffer{}, address: address, grpc: freeAddress(t), short: freeAddress(t), hooks: filepath.Join(t.TempDir(), "hooks")}
	g.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", fmt.Sprintf("ulimit -n %d && exec %s", files, os.Args[0]))
	g.cmd.Env = append(os.Environ(), roleEnv+"="+role, addressEnv+"="+g.address, grpcEnv+"="+g.grpc, shortEnv+"="+g.short, hooksEnv+"="+g.hooks)
	g.cmd.Stderr = g.logs
	g.start()
	return g
}

func (g *guarded) start() {
	g.t.Helper()
	g.cmd.WaitDelay = 5 * time.Second
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	go func() {
		_ = g.cmd.Wait() // the process state has the exit code
		close(g.ended)
	}()
	g.t.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		<-g.ended
		if g.t.Failed() {
			g.t.Log(g.logs)
		}
	})
}

// exitCode waits for the end, and returns the exit code.
func (g *guarded) exitCode() int {
	g.t.Helper()
	select {
	case <-g.ended:
	case <-wait.Context(g.t).Done():
		g.t.Fatal("the guard does not end")
	}
	return g.cmd.ProcessState.ExitCode()
}

// workers returns the running children.
func (g *guarded) workers() []int { return children(g.cmd.Process.Pid) }

func children(pid int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(pid) && fields[0] != "Z" {
			pids = append(pids, child)
		}
	}
	return pids
}

// worker waits for a running worker.
func (g *guarded) worker() (pid int) {
	g.t.Helper()
	wait.Until(g.t, "", func() error {
		pids := g.workers()
		if len(pids) != 1 {
			return fmt.Errorf("workers: %v", pids)
		}
		pid = pids[0]
		return nil
	})
	return pid
}

// kill ends the worker as kill -9 does.
func (g *guarded) kill() {
	g.t.Helper()
	worker := g.worker()
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		g.t.Fatal(err)
	}
	wait.Until(g.t, "", func() error {
		if slices.Contains(g.workers(), worker) {
			return errors.New("the worker lives")
		}
		return nil
	})
}

// waitReady waits until a worker responds.
func (g *guarded) waitReady() {
	g.t.Helper()
	wait.Until(g.t, "", func() error {
		if v, text := g.probe(patient, "/ok"); v != success {
			return fmt.Errorf("%s: %s", v, text)
		}
		return nil
	})
}

type verdict string

const (
	success verdict = "Success"
	failure verdict = "Failure"
	errored verdict = "Errored"
)

// probe makes a probe and returns the verdict, as the kubelet does.
func (g *guarded) probe(id, path string) (verdict, string) {
	return probe(g.t.Context(), g.address, id, path)
}

func newClient() *http.Client {
	dialer := &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
		})
	}}
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: dialer.DialContext},
	}
}

func probe(ctx context.Context, address, id, path string) (verdict, string) {
	client := newClient()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return "", err.Error()
	}
	request.Header.Set("User-Agent", "kube-probe/1.36")
	if id != "" {
		request.Header.Set("Sonde-Probe", id)
	}
	answer, err := client.Do(request)
	if err != nil {
		return failure, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 10<<10))
	switch {
	case err != nil:
		return errored, string(body) + ": " + err.Error()
	case answer.StatusCode >= http.StatusBadRequest:
		return failure, answer.Status
	}
	return success, string(body)
}

func (g *guarded) logged(pattern string) {
	g.t.Helper()
	re := regexp.MustCompile(pattern)
	wait.Until(g.t, "", func() error {
		if !re.MatchString(g.logs.String()) {
			return fmt.Errorf("nothing like %q is logged", pattern)
		}
		return nil
	})
}

// refused returns an error unless the port is closed.
func refused(ctx context.Context, address string) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		return errors.Join(errors.New("the port is open"), c.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}
