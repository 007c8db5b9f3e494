package probesecurity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// agent is a running `sonde-dp probes`.
type agent struct {
	t       testing.TB
	cmd     *exec.Cmd
	address string
	log     syncBuffer
	ended   chan struct{}
	err     error // valid after ended
}

// startAgent starts one for the table on a port of the pod, and waits until it listens.
func (p *pod) startAgent(port int, table mesh.ProbeTable) *agent {
	p.t.Helper()
	a := &agent{t: p.t, address: p.address(port), ended: make(chan struct{})}
	env, err := table.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	a.cmd = agentCommand(context.Background(), p.ip, port, env)
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	if err := a.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		a.err = a.cmd.Wait()
		close(a.ended)
	}()
	p.t.Cleanup(a.stop)
	for deadline := time.Now().Add(20 * time.Second); ; {
		c, err := net.Dial("tcp", a.address)
		if err == nil {
			_ = c.Close() // it listens
			return a
		}
		select {
		case <-a.ended:
			p.t.Fatalf("sonde-dp probes: %v", a.err)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatal("sonde-dp probes does not listen")
		}
	}
}

func agentCommand(ctx context.Context, ip netip.Addr, port int, table string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, agentProgram, "probes", "--virtual-probes-port="+strconv.Itoa(port))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), mesh.EnvInstanceIP + "=" + ip.String(), mesh.EnvProbeTable + "=" + table}
	return cmd
}

func (a *agent) stop() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // what is wrong shows below
	select {
	case <-a.ended:
	case <-time.After(20 * time.Second):
		_ = a.cmd.Process.Kill()
		<-a.ended
		a.err = errors.New("it does not end")
	}
	if a.err != nil {
		a.t.Errorf("sonde-dp probes: %v", a.err)
	}
	if strings.Contains(a.log.String(), "worker ended") {
		a.t.Error("the worker died")
	}
	if a.t.Failed() {
		log := a.log.String()
		a.t.Logf("the end of the agent's log:\n%s", log[max(0, len(log)-4000):])
	}
}

// guard returns the id of the guard.
func (a *agent) guard() int { return a.cmd.Process.Pid }

// processes returns the ids of the guard and its worker.
func (a *agent) processes() []int {
	a.t.Helper()
	guard := a.guard()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", guard, guard))
	if err != nil {
		a.t.Fatal(err)
	}
	pids := []int{guard}
	for field := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			a.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if len(pids) != 2 {
		a.t.Fatalf("processes = %v, want a guard and a worker", pids)
	}
	return pids
}

// callLimit is far more than any answer here needs.
const callLimit = 10 * time.Second

// call sends bytes on a connection of its own and returns all that comes back until the end.
func (a *agent) call(request string) string {
	a.t.Helper()
	answer, err := a.try(request)
	if err != nil {
		a.t.Errorf("call with %.200q: %v", request, err)
	}
	return answer
}

func (a *agent) try(request string) (string, error) {
	c, err := net.Dial("tcp", a.address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // all is read
	if err := c.SetDeadline(time.Now().Add(callLimit)); err != nil {
		return "", err
	}
	_, writeErr := io.WriteString(c, request) // the agent may answer and close before it has all
	answer, err := io.ReadAll(c)
	if errors.Is(err, syscall.ECONNRESET) {
		err = nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.Join(err, writeErr)
	}
	return string(answer), err
}

// probe asks as the kubelet does, and returns the whole answer.
func (a *agent) probe(path, id string) string {
	a.t.Helper()
	return a.call(a.request(path, id))
}

func (a *agent) request(path, id string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n", path, a.address)
	if id != "" {
		fmt.Fprintf(&b, "%s: %s\r\n", mesh.ProbeHeader, id)
	}
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n"
}

// statusOf returns that of an answer, "" if it is none.
func statusOf(answer string) string {
	line, _, _ := strings.Cut(answer, "\r\n")
	version, rest, _ := strings.Cut(line, " ")
	if !strings.HasPrefix(version, "HTTP/1.") || len(rest) < 3 {
		return ""
	}
	return rest[:3]
}

// syncBuffer is a buffer for a process's output, read while that runs.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
