package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
)

// plane is the control plane: one process after the other, on the same ports and with the same state.
type plane struct {
	s              *soak
	program        string
	args           []string
	agents, health string
	log            *os.File
	generation     atomic.Int64 // number of processes so far
	up             atomic.Bool  // a process runs and has not been told to end
	cmd            *exec.Cmd
	ended          chan error
	client         http.Client
}

func newPlane(s *soak, program, store, state, log string) (*plane, error) {
	p := &plane{s: s, program: program, client: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	at := func(i int) string { return net.JoinHostPort("127.0.0.1", ports[i]) }
	p.agents, p.health = at(0), at(2)
	p.args = []string{
		"--store=dir:" + store, "--state-dir=" + state, "--bind-address=127.0.0.1",
		"--agents-port=" + ports[0], "--admin-port=" + ports[1], "--health-port=" + ports[2],
	}
	p.log, err = os.Create(log)
	return p, err
}

// freePorts returns ports below those that the kernel uses for outgoing connections. A client that connects to one of the
// kernel's ports while nobody listens may connect to itself.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range 1000 {
		port := strconv.Itoa(4000 + rand.IntN(6000))
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			continue
		}
		defer l.Close() //nolint:errcheck // only checks that the port is free
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("find free ports: none below 10000")
}

// start starts the process, and does not wait until it serves.
func (p *plane) start(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.program, p.args...)
	cmd.Stderr = p.log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}
	ended := make(chan error, 1)
	p.cmd, p.ended = cmd, ended
	p.generation.Add(1)
	p.up.Store(true)
	go func() {
		err := cmd.Wait()
		if p.up.Load() && ctx.Err() == nil {
			p.s.wrong("the control plane ends by itself: %v; it says: %s", err, p.logged())
		}
		ended <- err
	}()
	return nil
}

// kill ends the process at once.
func (p *plane) kill() error {
	if !p.up.Swap(false) {
		return nil
	}
	err := p.cmd.Process.Kill()
	_ = p.wait() // it was killed
	return err
}

// wait waits for the end of the process and returns its error.
func (p *plane) wait() error { return <-p.ended }

// endWithin is how long a process may take to end when it is told to.
const endWithin = 20 * time.Second

// terminate tells the process to end, which it must do in time and without an error.
func (p *plane) terminate() error {
	if !p.up.Swap(false) {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(fmt.Errorf("end the control plane: %w", err), p.wait())
	}
	timer := time.NewTimer(endWithin)
	defer timer.Stop()
	select {
	case err := <-p.ended:
		if err != nil {
			return fmt.Errorf("the control plane ends: %w; it says: %s", err, p.logged())
		}
		return nil
	case <-timer.C:
		err := p.cmd.Process.Kill()
		_ = p.wait() // it was killed
		return errors.Join(fmt.Errorf("the control plane has not ended within %s of being told", endWithin), err)
	}
}

// bad are words that must not be in the log.
var bad = []string{"panic:", "fatal error:", "resource generation failed", "DATA RACE"}

// close checks what all processes have logged.
func (p *plane) close() error {
	err := p.log.Close()
	data, readErr := os.ReadFile(p.log.Name())
	for _, words := range bad {
		if i := bytes.Index(data, []byte(words)); i >= 0 {
			err = errors.Join(err, fmt.Errorf("the control plane says: %s", data[i:min(len(data), i+1000)]))
		}
	}
	return errors.Join(err, readErr)
}

// logged returns the end of the log.
func (p *plane) logged() string {
	data, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// ready waits until the control plane has read its store.
func (p *plane) ready(ctx context.Context) error {
	return harness.Poll(ctx, time.Minute, "sonde-cp", func(ctx context.Context) error { return sondecp.Ready(ctx, p.health) })
}

// metrics are those of the process, by name and labels.
func (p *plane) metrics(ctx context.Context) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.health+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	return harness.ParseMetrics(response.Body)
}
