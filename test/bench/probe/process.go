package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/sondedp"
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

// process is a subject, the client or the application: an agent, or this program in a role.
type process struct {
	*rig.Process
	address string
	agent   *sondedp.Agent
}

// startSubject starts a role that prints the port at which it listens.
func (b *bench) startSubject(ctx context.Context, role string, env ...string) (*process, error) {
	p, err := rig.StartRole(ctx, b.directory, role, env, "--app="+b.app.String())
	if err != nil {
		return nil, err
	}
	port, err := p.Line()
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return &process{Process: p, address: net.JoinHostPort(ip, port)}, nil
}

// startAgent starts `sonde-dp probes` with a probe table.
func startAgent(ctx context.Context, program string, table mesh.ProbeTable) (*process, error) {
	env, err := table.Encode()
	if err != nil {
		return nil, err
	}
	l, _, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	agent, err := sondedp.Start(program, netip.MustParseAddrPort(l.Addr().String()), slog.LevelError, env)
	if err != nil {
		return nil, err
	}
	return &process{address: agent.Address, agent: agent}, nil
}

func (p *process) stop() error {
	if p.agent != nil {
		return p.agent.Stop()
	}
	return p.Stop()
}

// pids returns the ids of the process and of its worker.
func (p *process) pids() ([]int, error) {
	if p.agent == nil {
		return []int{p.PID()}, nil
	}
	worker, err := p.agent.Worker()
	return []int{p.agent.Guard(), worker}, err
}

// cpu is the CPU time of all threads of all its processes, in nanoseconds.
func (p *process) cpu() (float64, error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	spent, err := proc.CPU(pids...)
	return float64(spent.Ran), err
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
	if err := p.Tell("allocations"); err != nil {
		return 0, 0, err
	}
	line, err := p.Line()
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
