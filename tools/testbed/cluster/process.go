package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// Every process of a cluster has these variables, and so have its children, except the processes in containers.
const (
	markState   = "SONDE_TESTBED="
	markProcess = "SONDE_TESTBED_PROCESS="
)

// stopTimeout is how long a process may take to end when it is killed.
const stopTimeout = 20 * time.Second

// process is a program of the cluster, as it is written into the state directory to be started again.
type process struct {
	Name string `json:"name"`
	// Node is the node in whose namespaces it runs.
	Node int `json:"node"`
	// Command has the absolute path of the program first.
	Command []string `json:"command"`
}

func (p process) program() string { return filepath.Base(p.Command[0]) }

// started is a process that this one has started.
type started struct {
	name string
	log  string
	// ended is closed when it has ended.
	ended <-chan struct{}
}

// start starts a process in its node's namespaces, which outlives this one, and records how. Its log is appended to.
func (c *Cluster) start(p process, binaries string) (*started, error) {
	if err := c.writeJSON(c.path("processes", p.Name+".json"), p); err != nil {
		return nil, err
	}
	path := c.path("logs", p.Name+".log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	command := machine.Enter(c.namespace(p.Node), c.namespaces(p.Node), p.Command...)
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it outlives this command
	// Nothing else of this environment: the proxy of a user's shell would be used for the nodes' addresses.
	cmd.Env = []string{
		"PATH=" + binaries + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", markState + c.state, markProcess + p.Name,
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	ended := make(chan struct{})
	go func() { // ends with the process, or with this program
		_ = cmd.Wait()
		close(ended)
	}()
	return &started{name: p.Name, log: path, ended: ended}, nil
}

// wait waits until check returns nil. It fails if the process ends first, with the end of its log, or if ctx ends
// first, with the last error of check.
func (s *started) wait(ctx context.Context, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("%s has ended; its log %s ends with:\n%s", s.name, s.log, tail(s.log))
		default:
		}
		if pauseError := machine.Pause(ctx); pauseError != nil {
			return fmt.Errorf("wait for %s (log: %s): %w: %w", s.name, s.log, pauseError, err)
		}
	}
}

// tail returns the last lines of a log.
func tail(path string) string {
	const lines = 8
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// recorded returns a process that was started, by its name. An unknown name is an error that lists the known ones.
func (c *Cluster) recorded(name string) (process, error) {
	var p process
	text, err := os.ReadFile(c.path("processes", name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("there is no process %q: choose of %s", name, strings.Join(c.processNames(), ", "))
	}
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(text, &p)
}

func (c *Cluster) processNames() []string {
	files, _ := filepath.Glob(c.path("processes", "*.json")) // the pattern is right
	names := make([]string, 0, len(files))
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	slices.Sort(names)
	return names
}

// pids returns the process ids of a process, without those that it has started.
func (c *Cluster) pids(p process) ([]int, error) {
	found, err := machine.Marked(markState+c.state, markProcess+p.Name)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range found {
		if f.Program == p.program() {
			pids = append(pids, f.PID)
		}
	}
	return pids, nil
}

// Stop kills a process, such as apiserver or kubelet2, as in a crash: an API server takes a minute to stop gracefully.
// Containers keep running. Stop returns when the process has ended; nil if it does not run.
func (c *Cluster) Stop(ctx context.Context, name string) error {
	if _, err := c.complete(); err != nil {
		return err
	}
	p, err := c.recorded(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return machine.KillAll(ctx, func() ([]int, error) { return c.pids(p) })
}

// Start starts a stopped process, and does nothing if it runs. It waits until an API server or a containerd answers,
// and does not wait for other processes.
func (c *Cluster) Start(ctx context.Context, name string) error {
	d, err := c.complete()
	if err != nil {
		return err
	}
	p, err := c.recorded(name)
	if err != nil {
		return err
	}
	if pids, err := c.pids(p); err != nil || len(pids) > 0 {
		return err
	}
	s, err := c.start(p, d.Binaries)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	switch p.program() {
	case "kube-apiserver":
		return s.wait(ctx, c.apiReady)
	case "containerd":
		return s.wait(ctx, func(ctx context.Context) error { return c.containerdReady(ctx, d.Binaries, p.Node) })
	}
	return nil
}
