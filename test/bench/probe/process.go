package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/harness"
)

// entryOf returns entry n of a probe table.
func entryOf(n int, kind string, port int) mesh.Probe {
	p := mesh.Probe{ID: strconv.Itoa(n)}
	switch kind {
	case kindHTTP:
		p.HTTPGet = &mesh.HTTPGetProbe{Port: int32(port), Path: "/" + p.ID}
	case kindTCP:
		p.TCPSocket = &mesh.TCPSocketProbe{Port: int32(port)}
	case kindGRPC:
		p.GRPC = &mesh.GRPCProbe{Port: int32(port)}
	}
	return p
}

// tableOf returns a probe table with each entries of each kind, one kind after the other.
func tableOf(kinds []string, each int, app ports) mesh.ProbeTable {
	var table mesh.ProbeTable
	for _, kind := range kinds {
		for range each {
			table = append(table, entryOf(len(table), kind, app.of(kind)))
		}
	}
	return table
}

// process is a subject, the client or the application.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	address string
	guarded bool
}

// start runs this program in a role, and returns the first line that it prints; the client prints none.
func start(ctx context.Context, role string, app ports, env ...string) (*process, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, "--role="+role, "--app="+app.String())}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	p.out = bufio.NewReader(out)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, "", err
	}
	if role == "client" {
		return p, "", nil
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("start %s: %w", role, err), p.stop())
	}
	return p, strings.TrimSpace(line), nil
}

// startSubject starts a role that listens, and prints its port.
func startSubject(ctx context.Context, role string, app ports, env ...string) (*process, error) {
	p, port, err := start(ctx, role, app, env...)
	if err != nil {
		return nil, err
	}
	p.address = net.JoinHostPort(ip, port)
	return p, nil
}

// startAgent starts `sonde-dp probes` with a probe table.
func startAgent(ctx context.Context, program string, table mesh.ProbeTable) (*process, error) {
	env, err := table.Encode()
	if err != nil {
		return nil, err
	}
	l, port, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	p := &process{address: at(port), guarded: true, cmd: exec.CommandContext(ctx, program, "probes", "--virtual-probes-port="+strconv.Itoa(port), "--log-level=error")}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), mesh.EnvInstanceIP + "=" + ip, mesh.EnvProbeTable + "=" + env}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	err = harness.Poll(ctx, 20*time.Second, "sonde-dp probes", func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", p.address)
		if err != nil {
			return err
		}
		return c.Close()
	})
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && (p.guarded || exit.Sys().(syscall.WaitStatus).Signaled()) {
		return nil
	}
	return err
}

// pids returns the ids of the process and of its worker.
func (p *process) pids() ([]int, error) {
	pids := []int{p.cmd.Process.Pid}
	if !p.guarded {
		return pids, nil
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pids[0]))
	if err != nil {
		return nil, err
	}
	for word := range strings.FieldsSeq(string(children)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("parse the children of %d: %w", pids[0], err)
		}
		pids = append(pids, pid)
	}
	if len(pids) != 2 {
		return nil, fmt.Errorf("processes %v: want a guard and a worker", pids)
	}
	return pids, nil
}

// cpu is the CPU time of all threads of all its processes, in nanoseconds.
func (p *process) cpu() (float64, error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, pid := range pids {
		spent, err := proc.CPU(pid)
		if err != nil {
			return 0, err
		}
		total += float64(spent)
	}
	return total, nil
}

// memory in MiB: RssAnon is the sum of guard and worker, VmRSS that of the larger one.
type memory struct{ RssAnon, VmRSS float64 }

func (p *process) memory() (memory, error) {
	pids, err := p.pids()
	if err != nil {
		return memory{}, err
	}
	var m memory
	for _, pid := range pids {
		one, err := proc.MemoryOf(pid)
		if err != nil {
			return memory{}, err
		}
		m.RssAnon += one.RssAnon / (1 << 20)
		m.VmRSS = max(m.VmRSS, one.VmRSS/(1<<20))
	}
	return m, nil
}

// highest returns the most memory that the process uses within 2 s.
func (p *process) highest(ctx context.Context) (memory, error) {
	var most memory
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for range 20 {
		m, err := p.memory()
		if err != nil {
			return memory{}, err
		}
		most = memory{max(most.RssAnon, m.RssAnon), max(most.VmRSS, m.VmRSS)}
		select {
		case <-ctx.Done():
			return memory{}, ctx.Err()
		case <-ticker.C:
		}
	}
	return most, nil
}

// allocations returns the number and the bytes of all allocations since the start of a role.
func (p *process) allocations() (n, size float64, err error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return 0, 0, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(line, &n, &size)
	return n, size, err
}

// timeWait counts the connections to a port of the application that are in TIME_WAIT.
func timeWait(port int) (int, error) {
	data, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	n := 0
	remote := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "06" && strings.HasSuffix(f[2], remote) {
			n++
		}
	}
	return n, nil
}
