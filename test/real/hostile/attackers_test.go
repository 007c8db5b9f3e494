package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// attackersVariable holds the aims for the attackers' process.
const attackersVariable = "SONDE_TEST_ATTACKERS"

// aims is the configuration of attackers.
type aims struct {
	Agents, Admin, Health string
	// StateDir is the state directory of the attacking members' identities, if any.
	StateDir string
	// Webhook is the address of the webhook. If set, only the webhook is attacked.
	Webhook string
	// Attacks has the names of the attacks. Default: all.
	Attacks []string
}

// attacks returns all possible attacks.
func (a aims) attacks() []attack {
	if a.Webhook != "" {
		return webhookAttacks(a.Webhook)
	}
	return slices.Concat(controlPlaneAttacks(), healthAttacks(), adsAttacks())
}

func (x *target) aims(attacks ...string) aims {
	return aims{Agents: x.Agents, Admin: x.Admin, Health: x.Health, StateDir: x.StateDir(), Attacks: attacks}
}

func soakName(n int) string { return fmt.Sprint("proxy-", n) }

func hostileName(n int) string { return fmt.Sprint("hostile-", n) }

func subject(name string) identity.Subject {
	return identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: name, Path: mesh.WorkloadPath("web")}
}

// prepareMesh writes the state and the Dataplanes of proxies and attackers.
func prepareMesh(m *harness.Machine) error {
	joined := map[mesh.ID]string{}
	for n := range soakProxies {
		joined[mesh.MakeID(mesh.DefaultMesh, soakName(n))] = "web"
	}
	for n := range hostileMembers {
		joined[mesh.MakeID(mesh.DefaultMesh, hostileName(n))] = "web"
	}
	if err := errors.Join(sondecp.MakeState(m.StateDir(), mesh.DefaultMesh), sondecp.Join(m.StateDir(), joined), putBackend(m, 0)); err != nil {
		return err
	}
	var all strings.Builder
	for id := range joined {
		_, name := mesh.SplitID(id)
		fmt.Fprintf(&all, `---
type: Dataplane
mesh: default
name: %s
labels: {kuma.io/workload: web}
networking:
  address: 192.168.0.1
  inbound: [{port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
  outbound: [{port: 5432, tags: {kuma.io/service: backend}}]
`, name)
	}
	return m.Put("proxies.yaml", all.String())
}

// putBackend changes the service that all proxies call.
func putBackend(m *harness.Machine, n int) error {
	return m.Put("backend.yaml", fmt.Sprintf("type: Service\nmesh: default\nname: backend\nprotocol: tcp\nendpoints: [{address: 192.168.1.%d, port: 80}]\n", 1+n%200))
}

// startAttackers starts a process that runs attacks at once, until the caller calls stop.
func startAttackers(t *testing.T, a aims) (stop func()) {
	t.Helper()
	text, err := json.Marshal(a)
	must.Do(t, err)
	self, err := os.Executable()
	must.Do(t, err)
	command := exec.CommandContext(t.Context(), self)
	command.Env = append(os.Environ(), attackersVariable+"="+string(text))
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	stdin, err := command.StdinPipe()
	must.Do(t, err)
	must.Do(t, command.Start())
	return func() {
		must.Do(t, stdin.Close())
		must.Do(t, command.Wait())
	}
}

// attackers is the main function of the attackers' process. It ends with its standard input.
func attackers(text string) error {
	var a aims
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	x := &target{Machine: &harness.Machine{Agents: a.Agents, Admin: a.Admin, Health: a.Health}}
	if a.StateDir != "" {
		if err := x.identify(a.StateDir); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, attack := range a.attacks() {
		if len(a.Attacks) > 0 && !slices.Contains(a.Attacks, attack.name) {
			continue
		}
		running.Go(func() { attack.run(ctx, x) })
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	cancel()
	running.Wait()
	return err
}

// identify creates the identities of attacking members from the state of the control plane.
func (x *target) identify(stateDir string) error {
	id, err := sondecp.OpenIdentity(stateDir)
	if err != nil {
		return err
	}
	trust, err := sondecp.TrustOnly(id.Serving)
	if err != nil {
		return err
	}
	x.roots = trust.RootCAs
	for n := range hostileMembers {
		certificate, err := sondecp.Issue(id.Authority, subject(hostileName(n)))
		if err != nil {
			return err
		}
		x.hostile = append(x.hostile, certificate)
	}
	return nil
}
