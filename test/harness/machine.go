package harness

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
	"slices"
	"strings"
	"sync"
	"time"
)

// Options of a Machine. The zero value is usable.
type Options struct {
	Programs Programs
	// MeshYAML is the Mesh in the store at the start. Default MeshYAML("STRICT").
	MeshYAML string
	// Prepare is called before the control plane starts. Optional.
	Prepare func(m *Machine) error
	// ControlPlaneArgs are added to the control plane's arguments.
	ControlPlaneArgs []string
	// Progress is called with what the machine waits for. Optional.
	Progress func(string)
}

// MeshYAML returns a Mesh named default with mTLS in mode STRICT or PERMISSIVE, or without mTLS if mode is
// "".
func MeshYAML(mode string) string {
	if mode == "" {
		return "type: Mesh\nname: default\n"
	}
	return fmt.Sprintf(`type: Mesh
name: default
mtls:
  enabledBackend: ca
  backends:
    - name: ca
      type: builtin
      mode: %s
`, mode)
}

// Machine is a mesh on one machine: a control plane with a file store, and its proxies. Several goroutines may add
// proxies and applications at the same time.
type Machine struct {
	// Dir is the directory of all files: store, state and logs. Close removes it.
	Dir string
	// ControlPlane is the current control plane, or the last if none runs.
	ControlPlane *Process
	// Agents, Admin and Health are addresses of the control plane; they stay the same after a
	// restart.
	Agents, Admin, Health string

	options Options
	ports   *ports
	spawner *spawner
	http    *http.Client

	mu        sync.Mutex
	processes []*Process
}

// Start makes a machine, starts its control plane and waits until the control plane is ready. The caller must close
// the machine.
func Start(ctx context.Context, o Options) (*Machine, error) {
	if o.MeshYAML == "" {
		o.MeshYAML = MeshYAML("STRICT")
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	// Envoy rejects socket paths over 107 bytes; a test's own directory could exceed that.
	dir, err := os.MkdirTemp("", "sonde-")
	if err != nil {
		return nil, err
	}
	p, err := newPorts()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	m := &Machine{
		Dir:     dir,
		options: o,
		ports:   p,
		spawner: newSpawner(),
		http:    &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second},
	}
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Machine) start(ctx context.Context) error {
	for _, directory := range []string{m.StoreDir(), m.logs()} {
		if err := os.Mkdir(directory, 0o755); err != nil {
			return err
		}
	}
	for _, a := range []*string{&m.Agents, &m.Admin, &m.Health} {
		var err error
		if *a, err = m.ports.takeAddress(); err != nil {
			return err
		}
	}
	if err := m.Put("mesh.yaml", m.options.MeshYAML); err != nil {
		return err
	}
	if m.options.Prepare != nil {
		if err := m.options.Prepare(m); err != nil {
			return err
		}
	}
	return m.StartControlPlane(ctx)
}

// Use sets the programs that the machine starts from now on, for example the programs of another release. Running
// programs continue.
func (m *Machine) Use(p Programs) { m.options.Programs = p }

// StoreDir is the directory of YAML files that the control plane reads.
func (m *Machine) StoreDir() string { return filepath.Join(m.Dir, "store") }

// StateDir is the state directory of the control plane.
func (m *Machine) StateDir() string { return filepath.Join(m.Dir, "state") }

func (m *Machine) logs() string { return filepath.Join(m.Dir, "logs") }

// StartControlPlane starts the control plane, or restarts it after a kill, and waits until it is ready.
func (m *Machine) StartControlPlane(ctx context.Context) error {
	m.options.Progress("waiting for the control plane")
	if err := m.LaunchControlPlane(); err != nil {
		return err
	}
	return m.ControlPlaneReady(ctx)
}

// LaunchControlPlane starts the control plane without waiting. Use ControlPlaneReady to wait.
func (m *Machine) LaunchControlPlane() (err error) {
	args := append([]string{
		"--store=dir:" + m.StoreDir(), "--state-dir=" + m.StateDir(), "--bind-address=127.0.0.1",
		"--agents-port=" + portOf(m.Agents), "--admin-port=" + portOf(m.Admin), "--health-port=" + portOf(m.Health),
	}, m.options.ControlPlaneArgs...)
	m.ControlPlane, err = m.run("sonde-cp", nil, m.options.Programs.ControlPlane, args...)
	return err
}

// ControlPlaneReady waits until the control plane has read its store.
func (m *Machine) ControlPlaneReady(ctx context.Context) error {
	return m.wait(ctx, m.ControlPlane, "http://"+m.Health+"/readyz")
}

// run starts a program, which ends with the machine. It adds env to the environment.
func (m *Machine) run(name string, env []string, path string, args ...string) (*Process, error) {
	log := filepath.Join(m.logs(), strings.ReplaceAll(name, " ", "-")+".log")
	p, err := m.spawner.startProcess(name, log, m.Dir, env, path, args...)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes = append(m.processes, p)
	return p, nil
}

// started returns all processes, running or ended, in the order of their start.
func (m *Machine) started() []*Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.processes)
}

// wait waits until url returns 200, or the newly started process p ends.
func (m *Machine) wait(ctx context.Context, p *Process, url string) error {
	err := Poll(ctx, p.Name, func(ctx context.Context) error {
		if !p.Running() {
			return fmt.Errorf("%w: %w", errHopeless, p.err)
		}
		_, err := m.Get(ctx, url)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n--- the end of %s\n%s", err, p.Log, p.tail(15))
	}
	return nil
}

// Get returns the body of a URL on this machine, like the function Get.
func (m *Machine) Get(ctx context.Context, url string) (string, error) {
	return Get(ctx, m.http, url)
}

// Get returns the body if the status is 200. For any other status, it returns a *StatusError.
func Get(ctx context.Context, client *http.Client, url string) (string, error) {
	return do(ctx, client, http.MethodGet, url)
}

func do(ctx context.Context, client *http.Client, method, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	if err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", url, err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", &StatusError{URL: url, Code: answer.StatusCode, Body: strings.TrimSpace(string(body))}
	}
	return string(body), nil
}

// StatusError is an HTTP response with a status other than 200.
type StatusError struct {
	URL  string
	Code int
	Body string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s answers %d: %.200s", e.URL, e.Code, e.Body)
}

// Put writes a file of the store atomically, by rename.
func (m *Machine) Put(file, yaml string) error {
	// The store ignores files with such a name.
	unfinished := filepath.Join(m.StoreDir(), "."+file+".new")
	if err := os.WriteFile(unfinished, []byte(yaml), 0o600); err != nil {
		return err
	}
	return os.Rename(unfinished, filepath.Join(m.StoreDir(), file))
}

// Remove removes a file of the store.
func (m *Machine) Remove(file string) error {
	return os.Remove(filepath.Join(m.StoreDir(), file))
}

// CtlFlags returns the flags with which sondectl connects to the control plane.
func (m *Machine) CtlFlags() []string {
	return []string{
		"--address=" + m.Admin,
		"--ca-cert-file=" + filepath.Join(m.StateDir(), "serving-ca.crt"),
		"--token-file=" + filepath.Join(m.StateDir(), "admin-token"),
	}
}

// Ctl runs sondectl against the control plane and returns its stdout, even if sondectl fails.
func (m *Machine) Ctl(ctx context.Context, args ...string) (string, error) {
	stdout, _, err := m.CtlBoth(ctx, args...)
	return stdout, err
}

// CtlBoth is like Ctl, and also returns stderr, where sondectl reports problems of the store.
func (m *Machine) CtlBoth(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, m.options.Programs.Ctl, append(args, m.CtlFlags()...)...)
	cmd.Dir = m.Dir
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // the race detector would sleep for 1 s at the exit
	cmd.WaitDelay = time.Second
	var out, outErr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &outErr
	if err := cmd.Run(); err != nil {
		return out.String(), outErr.String(),
			fmt.Errorf("sondectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(outErr.String()))
	}
	return out.String(), outErr.String(), nil
}

// StartApp starts the application of test/app without a sidecar, and waits until it listens. protocol is http (which
// includes http2), grpc, tcp or banner.
func (m *Machine) StartApp(ctx context.Context, name, protocol, at string) (*Process, error) {
	return m.StartAppWith(ctx, name, protocol, at)
}

// StartAppWith is like StartApp, with more arguments for the application.
func (m *Machine) StartAppWith(ctx context.Context, name, protocol, at string, args ...string) (*Process, error) {
	if protocol == "http2" {
		protocol = "http"
	}
	p, err := m.run(name+" app", nil, m.options.Programs.App,
		append([]string{"--name=" + name, "--" + protocol + "=" + at}, args...)...)
	if err != nil {
		return nil, err
	}
	return p, Poll(ctx, p.Name, func(ctx context.Context) error {
		if !p.Running() {
			return fmt.Errorf("%w: %w", errHopeless, p.err)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// FreeAddress returns a free address 127.0.0.1:port. It returns each address only once.
func (m *Machine) FreeAddress() (string, error) { return m.ports.takeAddress() }

// Logs returns the last lines of each log, to diagnose a failure.
func (m *Machine) Logs(lines int) string {
	var text strings.Builder
	seen := map[string]bool{}
	for _, p := range m.started() {
		if !seen[p.Log] {
			seen[p.Log] = true
			fmt.Fprintf(&text, "--- %s\n%s\n", filepath.Base(p.Log), p.tail(lines))
		}
	}
	return text.String()
}

// LogFiles returns the logs of all programs, by file name.
func (m *Machine) LogFiles() (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(m.logs(), "*"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, errors.New("there are no logs")
	}
	logs := map[string]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		logs[filepath.Base(path)] = string(data)
	}
	return logs, nil
}

// Close ends all processes and removes all files. Agents are killed before Envoys, so that none restarts its Envoy.
func (m *Machine) Close() error {
	for _, p := range m.started() {
		p.Kill()
	}
	m.spawner.close()
	m.http.CloseIdleConnections()
	// An Envoy ends a moment after its agent, and may write into its directory until then.
	gone := Poll(context.Background(), "every process to end", func(context.Context) error {
		pids, err := below(m.Dir)
		if err == nil && len(pids) > 0 {
			err = fmt.Errorf("processes %v run", pids)
		}
		return err
	})
	return errors.Join(gone, m.ports.close(), os.RemoveAll(m.Dir))
}
