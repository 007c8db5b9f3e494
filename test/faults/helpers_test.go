package faults

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

const (
	// limit bounds each wait for what takes far less on a machine that is not busy.
	limit = 30 * time.Second
	// pause between two calls of one caller of a load.
	pause = 10 * time.Millisecond
)

// newMesh starts a control plane with a mesh in STRICT mode. certLife is that of proxies' certificates, 0 the default.
func newMesh(t *testing.T, certLife time.Duration) *harness.Machine {
	t.Helper()
	yaml := harness.MeshYAML("STRICT")
	if certLife > 0 {
		yaml += fmt.Sprintf("      dpCert: {rotation: {expiration: %s}}\n", certLife)
	}
	return start(t, harness.Options{Programs: programs, MeshYAML: yaml})
}

func start(t *testing.T, o harness.Options) *harness.Machine {
	t.Helper()
	m := harness.New(t, o)
	t.Cleanup(func() { // before the machine is closed
		for name, log := range logs(t, m) {
			if strings.Contains(log, "WARNING: DATA RACE") {
				t.Errorf("a race is in the log %s:\n%s", name, log[strings.Index(log, "WARNING: DATA RACE"):])
			}
		}
	})
	return m
}

// logs are those of all programs of a machine, by file.
func logs(t *testing.T, m *harness.Machine) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(m.Dir, "logs", "*"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("find logs: %v, %v", paths, err)
	}
	all := map[string]string{}
	for _, path := range paths {
		all[filepath.Base(path)] = read(t, path)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// must is for steps that a test cannot go on without.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, m *harness.Machine, options ...harness.ProxyOptions) []*harness.Proxy {
	t.Helper()
	proxies, err := m.Add(t.Context(), options...)
	must(t, err)
	return proxies
}

func prepare(t *testing.T, m *harness.Machine, o harness.ProxyOptions) *harness.Proxy {
	t.Helper()
	p, err := m.Prepare(o)
	must(t, err)
	return p
}

func poll(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	must(t, harness.Poll(t.Context(), limit, what, check))
}

// synced waits until agent and Envoy of each proxy are connected, and Envoy has all that it should have.
func synced(t *testing.T, proxies ...*harness.Proxy) {
	t.Helper()
	for _, p := range proxies {
		poll(t, p.Name+" to have everything", p.Synced)
	}
}

// endpoints waits until the cluster of a service has those endpoints and no others in the Envoy of p.
func endpoints(t *testing.T, p *harness.Proxy, service string, want ...*harness.Proxy) {
	t.Helper()
	poll(t, "the endpoints of "+service+" in "+p.Name, func(ctx context.Context) error {
		got, err := p.Endpoints(ctx, service)
		if err != nil {
			return err
		}
		for _, w := range want {
			if _, ok := got[w.Inbound]; !ok {
				return fmt.Errorf("%s is not among %v", w.Name, got)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("it has %v, want %d", got, len(want))
		}
		return nil
	})
}

// httpCallers call a service as p does: with a new connection for each call, and with one that is kept.
func httpCallers(p *harness.Proxy, service string) []harness.Caller {
	url := "http://" + p.Outbounds[service] + "/"
	return []harness.Caller{harness.NewHTTPCaller(url, false, false), harness.NewHTTPCaller(url, true, false)}
}

func tcpCallers(p *harness.Proxy, service string) []harness.Caller {
	return []harness.Caller{harness.NewTCPCaller(p.Outbounds[service], false), harness.NewTCPCaller(p.Outbounds[service], true)}
}

func startLoad(t *testing.T, callers ...harness.Caller) *harness.Load {
	t.Helper()
	load := harness.StartLoad(t.Context(), pause, callers...)
	t.Cleanup(func() { load.Stop() })
	return load
}

// more waits until a load has made that many calls more, so that what was done before is in use.
func more(t *testing.T, load *harness.Load, calls int) {
	t.Helper()
	enough := load.Report().Calls + calls
	poll(t, "calls of the load", func(context.Context) error {
		if r := load.Report(); r.Calls < enough {
			return fmt.Errorf("it has made %d of %d", r.Calls, enough)
		}
		return nil
	})
}

// reaches waits until an instance answers calls of a load.
func reaches(t *testing.T, load *harness.Load, instance string) {
	t.Helper()
	before := load.Report().Instances[instance]
	poll(t, instance+" to answer", func(context.Context) error {
		if r := load.Report(); r.Instances[instance] == before {
			return errors.New(r.String())
		}
		return nil
	})
}

// held stops a load and complains unless there were calls, and all of them good.
func held(t *testing.T, load *harness.Load) {
	t.Helper()
	r := load.Stop()
	t.Logf("load: %s", r)
	if r.Failed > 0 || r.Calls == 0 {
		t.Errorf("want calls, and none that fails: %s", r)
	}
}

// metrics are those of the control plane, by name and labels.
func metrics(t *testing.T, m *harness.Machine) map[string]float64 {
	t.Helper()
	text, err := m.Get(t.Context(), "http://"+m.Health+"/metrics")
	must(t, err)
	all := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewBufferString(text)); lines.Scan(); {
		name, value, ok := cutLast(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		if all[name], err = strconv.ParseFloat(value, 64); err != nil {
			t.Fatalf("read metric %q: %v", lines.Text(), err)
		}
	}
	return all
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// logged waits until a program's log has a text.
func logged(t *testing.T, p *harness.Process, text string) {
	t.Helper()
	poll(t, strconv.Quote(text)+" in the log of "+p.Name, func(context.Context) error {
		data, err := os.ReadFile(p.Log)
		if err == nil && !strings.Contains(string(data), text) {
			err = errors.New("it is not there")
		}
		return err
	})
}

// statusOf is the answer over HTTP that an error is about; its Code is 0 if it is about none.
func statusOf(err error) *harness.StatusError {
	if status, ok := errors.AsType[*harness.StatusError](err); ok {
		return status
	}
	return &harness.StatusError{}
}

// kill ends a process that this one did not start, as kill -9 does.
func kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// terminate asks a process to end, and does not wait.
func terminate(p *harness.Process) error { return syscall.Kill(p.PID(), syscall.SIGTERM) }
