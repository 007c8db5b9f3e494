package restarts

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/controlplane"
	"github.com/sonde-mesh/sonde/dpagent/held"
	"github.com/sonde-mesh/sonde/dpagent/identity"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/session"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

// service is the address of the control plane: each connection reaches one of its replicas.
const service = "10.96.0.1:5678"

// agent is one process of the agent of a pod: the parts of the real agent that restarts depend on.
type agent struct {
	pod      *pod
	liveness *held.Liveness
	stop     context.CancelFunc
	done     chan struct{}
}

// startAgent starts the process. It resumes from the stored state of an earlier process.
func (p *pod) startAgent(ctx context.Context) {
	p.agents++
	a := &agent{pod: p, done: make(chan struct{})}
	log := p.sim.log("agent of " + p.name)
	registry := prometheus.NewRegistry()
	a.liveness = held.New(held.Options{Keep: p.keep, Logger: log, Registerer: registry})
	if kept := p.takeKept(); kept != nil {
		a.liveness.Told(kept)
	}
	ctx, a.stop = context.WithCancel(ctx)
	who := identity.New(&virtualplane.Files{}, mesh.DefaultMesh, p.proxy())
	client := &controlplane.Client{
		Address: service, Roots: func() (*x509.CertPool, error) { return p.sim.roots, nil }, Certificate: who.Certificate,
		Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			host := p.sim.anyReady()
			if host == "" {
				return nil, errors.New("no replica is ready")
			}
			return p.sim.network.DialFrom(p.host)(ctx, "tcp", host+virtualplane.AgentsPort)
		},
	}
	process := fmt.Sprint(p.uid, "-", p.agents)
	liveness := connections{a.liveness, p}
	s := session.New(session.Options{
		Opener: client, Identity: who, Renew: func() {}, Inbounds: func(error) {}, Endpoints: func(error) {}, Outbounds: func(error) {}, Probes: func(*agentv1.Probes) {},
		ServiceProbes: func(*agentv1.ServiceProbes) {}, Drain: func(mesh.Drain) {}, Query: func(*agentv1.Query) {},
		Reports: []session.Report{session.LivenessReport(liveness)}, Restarts: liveness.Told, Connected: liveness.Connected,
		Version: func() *agentv1.Version { return &agentv1.Version{Sonde: "dev"} }, Logger: log, Registerer: registry,
		Instance: process, Started: time.Now(), Duplicate: func(string) {}, Refused: func(error) {},
	})
	p.sim.mu.Lock()
	p.agent, p.lost = a, time.Now() // it has no session yet
	p.sim.mu.Unlock()
	go func() {
		defer close(a.done)
		if a.join(ctx, client, who, process) {
			_ = s.Run(ctx)
		}
	}()
}

// stopAgent kills the process.
func (p *pod) stopAgent() {
	p.sim.mu.Lock()
	a := p.agent
	p.agent = nil
	p.sim.mu.Unlock()
	if a == nil {
		return
	}
	p.sim.network.Reset(p.host)
	a.stop()
	<-a.done
	p.sim.network.Reset(p.host)
}

// join retries until it succeeds, and returns false if ctx ends first.
func (a *agent) join(ctx context.Context, client *controlplane.Client, who *identity.Identity, process string) bool {
	var backoff retry.Backoff
	for {
		request, err := identity.NewRequest()
		if err == nil {
			var answer *agentv1.JoinResponse
			answer, err = client.Join(ctx, nil, &agentv1.JoinRequest{
				Mesh: mesh.DefaultMesh, Name: a.pod.proxy(), Token: a.pod.proxy() + " " + a.pod.uid, Csr: request.CSR, Instance: process, ControlPlaneAddress: service,
			})
			if err == nil {
				err = who.Accept(request, answer.GetIdentity())
			}
		}
		if err == nil {
			return true
		}
		a.pod.sim.Detail("%s has not joined: %v", a.pod.name, err)
		if run.Sleep(ctx, backoff.Next()) != nil {
			return false
		}
	}
}

// answer is the agent's response to the kubelet.
type answer int

const (
	success answer = iota
	failure
	errored // the kubelet discards it
)

// check answers the kubelet, as package probe does. The caller holds mu.
func (p *pod) check(c *container) answer {
	switch {
	case p.agent == nil:
		return errored // the guard's answer until another agent runs
	case !c.failing():
		p.agent.liveness.Passed(c.probe)
		c.checked = true
		return success
	case p.agent.liveness.Failed(c.probe, "503"):
		c.checked = true
		return errored
	}
	c.checked = true
	return failure
}

// connections records when the agent loses its session.
type connections struct {
	*held.Liveness
	pod *pod
}

// Connected records it, too.
func (c connections) Connected(is bool) {
	c.pod.sim.Detail("%s has a session: %v", c.pod.name, is)
	c.pod.sim.mu.Lock()
	switch {
	case is:
		c.pod.lost, c.pod.connected = time.Time{}, time.Now()
	case c.pod.lost.IsZero():
		c.pod.lost = time.Now()
	}
	c.pod.sim.mu.Unlock()
	c.Liveness.Connected(is)
}

// Told records it, too.
func (c connections) Told(m *agentv1.Restarts) {
	c.pod.sim.Detail("%s is told %v", c.pod.name, m)
	c.Liveness.Told(m)
}

// Report implements session.Liveness.
func (c connections) Report() *agentv1.Liveness {
	m := c.Liveness.Report()
	c.pod.sim.Detail("%s says %v", c.pod.name, m)
	return m
}
