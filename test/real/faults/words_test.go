package faults

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// says runs a program, and returns its output and whether it succeeded.
func says(t *testing.T, env []string, program string, args ...string) (text string, ok bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err == nil
}

// TestPrograms checks the output of the programs for bad flags and variables, before anything runs.
func TestPrograms(t *testing.T) {
	t.Parallel()
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	agent := []string{"run", "--cp-address=127.0.0.1:1", "--ca-cert-file=" + nowhere, "--name=a-1", "--dataplane-token-file=" + nowhere}
	config := filepath.Join(t.TempDir(), "agent.yaml")
	must.Do(t, os.WriteFile(config, []byte("drainTime: soon\ncalled: a-1\n"), 0o600))
	const envoy = `set --envoy-path to an Envoy 1.38 to 1.40; in Sonde's source tree "make envoys" downloads them`
	tests := map[string]struct {
		program string
		env     []string
		args    []string
		ok      bool
		want    string // a regular expression for the whole output
	}{
		"version of sonde-cp":     {program: programs.ControlPlane, args: []string{"--version"}, ok: true, want: `sonde-cp version \S+\ncommit: \S+\nsupported Envoys: 1.38 to 1.40\n`},
		"version of sonde-dp":     {program: programs.Agent, args: []string{"version"}, ok: true, want: `sonde-dp version \S+\ncommit: \S+\nsupported Envoys: 1.38 to 1.40\n`},
		"version of sondectl":     {program: programs.Ctl, args: []string{"version"}, ok: true, want: `sondectl version \S+\ncommit: \S+\nsupported Envoys: 1.38 to 1.40\n`},
		"no Envoy anywhere":       {program: programs.Agent, env: []string{"PATH=/nowhere"}, args: agent, want: `sonde-dp: --envoy-path: no envoy beside this program or on PATH: ` + envoy + `\n`},
		"no Envoy of that name":   {program: programs.Agent, args: append(agent, "--envoy-path="+nowhere), want: `sonde-dp: --envoy-path: "` + nowhere + `": file not found: ` + envoy + `\n`},
		"it is no Envoy":          {program: programs.Agent, args: append(agent, "--envoy-path=/bin/true"), want: `sonde-dp: --envoy-path: "/bin/true": get version of /bin/true: not an Envoy binary\n`},
		"an address with http":    {program: programs.Agent, args: []string{"run", "--cp-address=http://cp:5678"}, want: `sonde-dp: --cp-address: "http://cp:5678": must not be http: the control plane speaks TLS: write cp:5678\n`},
		"an address without port": {program: programs.Agent, env: []string{"SONDE_DP_CP_ADDRESS=cp"}, args: []string{"run"}, want: `sonde-dp: SONDE_DP_CP_ADDRESS: "cp": must be host:port, with a port from 1 to 65535: the one for agents and ADS has port 5678, or the one set by --agents-port of sonde-cp\n`},
		"all values of an agent": {
			program: programs.Agent, env: []string{"SONDE_DP_CONCURRENCY=many"}, args: append(agent, "--config="+config, "--log-level=loud"),
			want: `sonde-dp: --log-level: "loud": must be debug, info, warn or error\nSONDE_DP_CONCURRENCY: "many": must be a whole number\n` +
				config + `, line 1: drainTime: "soon": must be a duration such as 30s, 5m or 1h30m\n` + config + `, line 2: called: is an unknown field: known here are .*\n`,
		},
		"a value out of range, in the environment": {program: programs.Agent, env: []string{"SONDE_DP_CONCURRENCY=0x500"}, args: agent, want: `sonde-dp: SONDE_DP_CONCURRENCY: "1280": must be a number from 1 to 1024, or 0 to follow the CPU limit\n`},
		"an unknown variable":                      {program: programs.ControlPlane, env: []string{"SONDE_CP_STOER=dir:/x"}, args: []string{"--store=dir:/x", "--trust-domain=X"}, want: `\{.*"level":"WARN","msg":"ignoring unknown environment variables","variables":\["SONDE_CP_STOER: did you mean SONDE_CP_STORE\?"\]\}\nsonde-cp: --trust-domain: "X": must be .*\n`},
		"the control plane's port for pods": {
			program: programs.ControlPlane, args: []string{"--store=kubernetes", "--control-plane-address=https://cp:5681/"},
			want: `sonde-cp: --control-plane-address: "cp:5681": it is the control plane's port for the admin API: the one for agents and ADS has port 5678, or the one set by --agents-port of sonde-cp\n`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := says(t, tc.env, tc.program, tc.args...)
			if ok != tc.ok || !regexp.MustCompile("^"+tc.want+"$").MatchString(got) {
				t.Errorf("it prints (success: %t)\n%s\nwant\n%s", ok, got, tc.want)
			}
		})
	}
}

// TestOtherPortsOfTheControlPlane checks the errors of agents and sondectl that use a wrong port, or a name that does
// not resolve.
func TestOtherPortsOfTheControlPlane(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	const agents, admin = "the one for agents and ADS has port 5678, or the one set by --agents-port of sonde-cp", "the admin API has port 5681, or the one set by --admin-port of sonde-cp"
	const unknown = "no-such-host.invalid:5678"
	for address, want := range map[string]string{
		m.Admin:  m.Admin + " is the control plane's port for the admin API: " + agents,
		m.Health: m.Health + " does not speak TLS, as the control plane's port for health and metrics: " + agents,
		unknown:  "no control plane at " + unknown + `: the name \"no-such-host.invalid\" does not resolve: `,
	} {
		name, _, _ := strings.Cut(strings.NewReplacer(m.Admin, "admin", m.Health, "health").Replace(address), ".")
		p := must.Prepare(t, m, harness.ProxyOptions{Name: name, Service: "a", AgentArgs: []string{"--cp-address=https://" + address + "/"}})
		must.Do(t, p.SetToken("none"))
		must.Do(t, p.RunAgent())
		must.Log(t, p.Agent, `"msg":"failed to join, retrying"`, `"err":"join: `+want)
	}
	for address, want := range map[string]string{
		m.Agents: m.Agents + " is the control plane's port for agents and ADS: " + admin,
		m.Health: m.Health + " does not speak TLS, as the control plane's port for health and metrics: " + admin,
	} {
		args := append([]string{"get", "meshes"}, m.CtlFlags()...)
		got, ok := says(t, nil, programs.Ctl, append(args, "--address="+address)...)
		if diff := cmp.Diff("sondectl: get meshes: "+want+"\n", got); ok || diff != "" {
			t.Errorf("sondectl at %s (-want +got):\n%s", address, diff)
		}
	}
}

// TestAgentWithAConfigurationFile runs an agent with all its options in a file and variables, without a flag.
func TestAgentWithAConfigurationFile(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	p := must.Prepare(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"})
	must.Do(t, p.Declare())
	must.Do(t, p.MakeToken(t.Context()))
	config := filepath.Join(t.TempDir(), "agent.yaml")
	must.Do(t, os.WriteFile(config, fmt.Appendf(nil, "cpAddress: https://%s\ncaCertFile: %s\nname: other\nadminAddr: 127.0.0.1:0\nworkDir: %s\nenvoyPath: %s\ndrainTime: 1m30s\n",
		m.Agents, filepath.Join(m.StateDir(), "serving-ca.crt"), p.Dir(), programs.Envoy), 0o600))
	cmd := exec.CommandContext(t.Context(), programs.Agent, "run")
	cmd.Env = append(os.Environ(), "SONDE_DP_CONFIG="+config, "SONDE_DP_NAME=a-1", "SONDE_DP_DATAPLANE_TOKEN_FILE="+filepath.Join(m.Dir, "a-1.token"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must.Do(t, cmd.Start())
	defer func() {
		if t.Failed() {
			_ = cmd.Cancel()
			t.Logf("%v: the agent logs\n%s", cmd.Wait(), out.String())
		}
	}()
	synced(t, p)
	must.Do(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, out.String())
	}
	for _, want := range []string{`"msg":"metrics and health","mesh":"default","proxy":"a-1","address":"127.0.0.1:`, `"msg":"drain begins","mesh":"default","proxy":"a-1","limit":"1m30s"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, out.String())
		}
	}
}

// TestFreePorts starts a control plane on ports that the kernel chooses, with an empty directory.
func TestFreePorts(t *testing.T) {
	t.Parallel()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must.Do(t, err)
	cmd := exec.CommandContext(t.Context(), programs.ControlPlane, "--store=dir:"+t.TempDir(), "--state-dir="+filepath.Join(t.TempDir(), "state"),
		"--bind-address=127.0.0.1", "--agents-port=0", "--admin-port=0", "--health-port=0", "--shutdown-delay=1500ms")
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	must.Do(t, cmd.Start())
	wants := []string{
		`"msg":"starting control plane","agents":"127\.0\.0\.1:[1-9]\d*","admin":"127\.0\.0\.1:[1-9]\d*","health":"127\.0\.0\.1:[1-9]\d*"`,
		`"level":"INFO","msg":"store read","directory":"[^"]+","files":0,"objects":0\}`,
		`"level":"WARN","msg":"object file has a problem","file":"[^"]+","err":"no Mesh, Dataplane, Service or MeshService found: `,
	}
	must.Poll(t, "the control plane to have read its store", func(context.Context) error {
		text := read(t, log.Name())
		for _, want := range wants {
			if !regexp.MustCompile(want).MatchString(text) {
				return fmt.Errorf("no line %s in\n%s", want, text)
			}
		}
		return nil
	})
	health := regexp.MustCompile(`"health":"([^"]+)"`).FindStringSubmatch(read(t, log.Name()))[1]
	must.Poll(t, "the control plane to be ready", func(ctx context.Context) error {
		_, err := harness.Get(ctx, http.DefaultClient, "http://"+health+"/readyz")
		return err
	})
	if _, err := harness.Get(t.Context(), http.DefaultClient, "http://"+health+"/"); !strings.Contains(fmt.Sprint(err), "this is a port for health and metrics, with /livez, /readyz and /metrics") {
		t.Errorf("the health port returns %v", err)
	}
	must.Do(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, read(t, log.Name()))
	}
	if want := `"msg":"draining control plane","delay":"1.5s"`; !strings.Contains(read(t, log.Name()), want) {
		t.Errorf("no %s in\n%s", want, read(t, log.Name()))
	}
	must.Do(t, log.Close())
}

// TestLogsAreInWords stops and restarts a control plane, and checks that no log contains gRPC's own
// error texts.
func TestLogsAreInWords(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	p := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"})[0]
	must.Log(t, m.ControlPlane, `"msg":"store read"`, `"files":1,"objects":1}`)
	must.Log(t, m.ControlPlane, `"msg":"object applied","kind":"Dataplane","mesh":"default","name":"a-1","change":"added"}`)
	must.Log(t, m.ControlPlane, `"msg":"proxy connected","mesh":"default","proxy":"a-1"`)
	must.Do(t, m.ControlPlane.Terminate(t.Context()))
	must.Log(t, p.Agent, `"msg":"session with the control plane ended, envoy keeps its configuration"`, `"err":"no control plane at `+m.Agents)
	must.Do(t, m.StartControlPlane(t.Context()))
	synced(t, p)
	must.Do(t, p.Agent.Terminate(t.Context()))
	logs, err := m.LogFiles()
	must.Do(t, err)
	for name, log := range logs {
		for line := range strings.Lines(log) {
			if strings.Contains(line, "rpc error") || strings.Contains(line, "desc = ") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}
