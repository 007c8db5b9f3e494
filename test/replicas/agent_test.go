package replicas

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/observed"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/controlplane"
	"github.com/sonde-mesh/sonde/dpagent/identity"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
	"github.com/sonde-mesh/sonde/dpagent/session"
	"github.com/sonde-mesh/sonde/dpagent/verdicts"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

// service is the address of the control plane: each connection reaches one of its replicas.
const service = "10.96.0.1:5678"

// agent is one proxy: the parts of the real agent that communicate with the control plane. Its process may end and
// restart with the same files.
type agent struct {
	sim        *simulation
	name, host string
	old        bool // of a release without epochs and without session numbers
	epochs     bool
	caFile     string
	files      *virtualplane.Files
	identity   *identity.Identity
	session    *session.Session
	readiness  *session.Readiness
	verdicts   *verdicts.History
	starts     int
	stop       context.CancelFunc // nil while it does not run
	done       chan struct{}
	envoy      *replica // replica of its ADS stream, or nil

	mu       sync.Mutex
	serving  bool      // whether its application serves
	position int       // position of its bundle
	told     string    // CA of the certificate last reported in the current session
	toldAt   time.Time // and when
	asked    time.Time // when the control plane requested a renewal in the current session
	askedFor string    // and which CA signed then
	unready  error     // why its endpoints are not ready, as the control plane has told the agent
}

func (a *agent) id() mesh.ID { return mesh.MakeID(mesh.DefaultMesh, a.name) }

// start starts the process, which first joins.
func (a *agent) start(ctx context.Context) {
	a.starts++
	a.sim.Note("agent of %s starts, old %v", a.name, a.old)
	ctx, a.stop = context.WithCancel(ctx)
	a.done = make(chan struct{})
	log := virtualplane.Log(func(line string) { a.sim.Detail("agent of %s: %s", a.name, line) })
	registry := prometheus.NewRegistry()
	a.identity = identity.New(a.files, mesh.DefaultMesh, a.name)
	servingCA := identity.NewServingCA(identity.ServingCAOptions{Files: a.files, Given: a.caFile, ControlPlane: service, Logger: log, Registerer: registry})
	client := &controlplane.Client{Address: service, Roots: servingCA.Roots, Certificate: a.identity.Certificate, Dial: a.dial}
	a.readiness, a.verdicts = session.NewReadiness(), verdicts.New(nil)
	var renewer *identity.Renewer
	process := fmt.Sprint("process-", a.starts)
	options := session.Options{
		Opener: opener{a, client}, Identity: trusting{a}, ServingCA: servingCA, Renew: func() { renewer.Now() }, Inbounds: func(error) {}, Endpoints: a.setEndpoints, Outbounds: func(error) {},
		Probes: func(*agentv1.Probes) {}, Drain: func(mesh.Drain) {}, Query: func(*agentv1.Query) {},
		ServiceProbes: func(*agentv1.ServiceProbes) {
			a.report()
			a.readiness.All() // as the real agent does
		},
		Reports: []session.Report{a.readiness.Report(), session.VerdictsReport(a.verdicts)},
		Version: func() *agentv1.Version { return &agentv1.Version{Sonde: "dev"} }, Logger: log, Registerer: registry,
		Instance: process, Started: time.Now(), Duplicate: func(string) {}, Refused: func(error) {},
	}
	if a.old {
		options.ServingCA = nil
	}
	sess := session.New(options)
	a.session = sess
	renewer = identity.NewRenewer(a.identity, identity.RenewerOptions{
		Ask: func(ctx context.Context, csr []byte) (*agentv1.Identity, error) {
			return a.renew(ctx, client, process, csr)
		},
		Renewed: func() { a.check(); sess.Changed() }, Logger: log, Registerer: registry,
	})
	_, err := a.identity.Stored() // restores its epoch, even if the certificate has expired
	a.sim.Detail("%s has kept a certificate: %v", a.name, err)
	go func() {
		defer close(a.done)
		if !a.join(ctx, client, process) {
			return
		}
		var running sync.WaitGroup
		running.Go(func() { _ = sess.Run(ctx) })
		running.Go(func() { _ = renewer.Run(ctx) })
		running.Wait()
	}()
}

// report reports whether the application accepts traffic.
func (a *agent) report() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, to := range []serviceprobe.Reporter{a.readiness, a.verdicts} {
		to.Set(a.inbound(), serviceprobe.State{Ready: a.serving, Reason: "refused"})
	}
}

func (a *agent) setEndpoints(unready error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unready = unready
}

func (a *agent) setServing(serving bool) {
	a.sim.Note("the application of %s serves: %v", a.name, serving)
	a.mu.Lock()
	a.serving = serving
	a.mu.Unlock()
	if a.running() {
		a.report()
	}
}

// connectEnvoy opens the ADS stream of an Envoy, which accepts its listeners if the replica has them.
func (a *agent) connectEnvoy(r *replica) {
	if _, p := r.Pipeline.Builder.View().Proxy(a.id()); p == nil {
		return
	}
	a.sim.Note("Envoy of %s takes its listeners from %s", a.name, r.name)
	a.envoy = r
	r.Agents.ObserveListeners(a.id(), observed.Listeners{Accepted: []netip.AddrPort{a.inbound()}, Since: time.Now()})
}

func (a *agent) running() bool { return a.stop != nil }

// kill ends the process.
func (a *agent) kill() {
	a.sim.Note("agent of %s ends", a.name)
	a.sim.network.Reset(a.host)
	a.stop()
	<-a.done
	a.stop = nil
	a.sim.network.Reset(a.host)
}

func (a *agent) dial(ctx context.Context, _ string) (net.Conn, error) {
	host := a.sim.anyReady()
	if host == "" {
		return nil, errors.New("no replica is ready")
	}
	return a.sim.network.DialFrom(a.host)(ctx, "tcp", host+virtualplane.AgentsPort)
}

// join retries until it succeeds, and returns false if ctx ends first.
func (a *agent) join(ctx context.Context, client *controlplane.Client, process string) bool {
	var backoff retry.Backoff
	for {
		request, err := identity.NewRequest()
		if err == nil {
			var answer *agentv1.JoinResponse
			if answer, err = a.callJoin(ctx, client, process, request.CSR); err == nil {
				err = a.identity.Accept(request, a.received(answer.GetIdentity()))
			}
		}
		if err == nil {
			a.check()
			return true
		}
		a.sim.Detail("%s has not joined: %v", a.name, err)
		if run.Sleep(ctx, backoff.Next()) != nil {
			return false
		}
	}
}

func (a *agent) callJoin(ctx context.Context, client *controlplane.Client, process string, csr []byte) (*agentv1.JoinResponse, error) {
	r := &agentv1.JoinRequest{
		Mesh: mesh.DefaultMesh, Name: a.name, Token: a.name, Csr: csr, Instance: process, ControlPlaneAddress: service,
	}
	if !a.old {
		r.Features = []string{agentv1.FeatureServingCA}
	}
	return client.Join(ctx, nil, r)
}

// renew joins again once the certificate has expired, as the agent does.
func (a *agent) renew(ctx context.Context, client *controlplane.Client, process string, csr []byte) (*agentv1.Identity, error) {
	if a.identity.Valid(time.Now()) == nil {
		answer, err := client.Renew(ctx, &agentv1.RenewRequest{Csr: csr})
		if err == nil || !slices.Contains([]codes.Code{codes.Unauthenticated, codes.PermissionDenied}, status.Code(err)) {
			return a.received(answer.GetIdentity()), err
		}
	}
	answer, err := a.callJoin(ctx, client, process, csr)
	return a.received(answer.GetIdentity()), err
}

// received returns the part of a response that an agent reads.
func (a *agent) received(i *agentv1.Identity) *agentv1.Identity {
	if !a.epochs && i.GetBundle() != nil {
		i.Bundle.Epoch = 0
	}
	return i
}

const goesBack = "goes back to an older bundle:"

// check is called when the agent may have received another bundle.
func (a *agent) check() {
	use := a.identity.InUse()
	at := a.sim.bundles.position(use.GetBundleId())
	a.mu.Lock()
	before := a.position
	a.position = at
	a.mu.Unlock()
	a.sim.Note("%s has bundle %d and a leaf of CA %.6s", a.name, at, use.GetLeafCa())
	if at < before && !a.old {
		a.sim.Wrong("%s %s from %d to %d", a.name, goesBack, before, at)
	}
}

// trusting checks each bundle that the session installs.
type trusting struct{ *agent }

// InUse implements session.Identity.
func (t trusting) InUse() *agentv1.InUse {
	use := t.identity.InUse()
	if !t.epochs {
		use.BundleEpoch = 0
	}
	return use
}

// Trust implements session.Identity.
func (t trusting) Trust(b *agentv1.Bundle) error {
	if !t.epochs {
		b.Epoch = 0
	}
	err := t.identity.Trust(b)
	t.check()
	return err
}

// opener watches the messages of the session.
type opener struct {
	agent  *agent
	client *controlplane.Client
}

// Session implements session.Opener.
func (o opener) Session(ctx context.Context, use func(agentv1.AgentService_SessionClient, <-chan struct{}) error) error {
	err := o.client.Session(ctx, func(stream agentv1.AgentService_SessionClient, goAway <-chan struct{}) error {
		o.agent.tell("")
		return use(watchedStream{stream, o.agent}, goAway)
	})
	o.agent.sim.Detail("session of %s ends: %v", o.agent.name, err)
	return err
}

type watchedStream struct {
	agentv1.AgentService_SessionClient
	agent *agent
}

// Send implements agentv1.AgentService_SessionClient.
func (w watchedStream) Send(m *agentv1.AgentMessage) error {
	if w.agent.old {
		if h := m.GetHello(); h != nil {
			h.Session = nil
		}
	}
	use := m.GetInUse()
	if h := m.GetHello(); h != nil {
		use = h.GetInUse()
	}
	err := w.AgentService_SessionClient.Send(m)
	if use != nil {
		w.agent.tell(use.GetLeafCa())
	}
	return err
}

func (a *agent) tell(ca string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ca == "" { // a new session starts
		a.askedFor = ""
	}
	a.told, a.toldAt = ca, time.Now()
}

// crossing is how long a message may take that was sent before its sender knew that it is unneeded.
const crossing = 2 * time.Second

// Recv implements agentv1.AgentService_SessionClient.
func (w watchedStream) Recv() (*agentv1.ControlMessage, error) {
	m, err := w.AgentService_SessionClient.Recv()
	if m.GetRenewNow() != nil {
		w.agent.askedToRenew()
	}
	return m, err
}

// askedToRenew checks that the renewal has a reason.
func (a *agent) askedToRenew() {
	a.mu.Lock()
	signs := a.sim.bundles.signing()
	told, since, again := a.told, time.Since(a.toldAt), a.askedFor == signs && time.Since(a.asked) < crossing
	a.asked, a.askedFor = time.Now(), signs
	a.mu.Unlock()
	a.sim.Note("%s is asked to renew", a.name)
	if again {
		a.sim.Wrong("%s is asked to renew again and again", a.name)
	}
	if !a.old && told == signs && since > crossing && !a.sim.wasCut() {
		a.sim.Wrong("%s is asked to renew a leaf of the CA that signs, which it had said %s ago", a.name, since)
	}
}
