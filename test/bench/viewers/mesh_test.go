package viewers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/internal/testing/storetest"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const perService = 20

func proxyName(i int) string   { return fmt.Sprintf("web-7c5b9d6f4-%05d", i) }
func serviceName(i int) string { return fmt.Sprintf("service-%03d", i/perService) }

func dataplane(i int) *mesh.Dataplane {
	d := &mesh.Dataplane{
		Meta: mesh.Meta{Name: proxyName(i), Labels: map[string]string{mesh.LabelWorkload: serviceName(i)}},
		Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
			Address:  fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250),
			Inbound:  []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: serviceName(i), mesh.TagProtocol: string(mesh.ProtocolHTTP)}}},
			Outbound: []mesh.Outbound{{Port: 10001, Tags: mesh.Tags{mesh.TagService: serviceName(0)}}, {Port: 10002, Tags: mesh.Tags{mesh.TagService: serviceName(i)}}},
		}},
	}
	d.SetDefaults()
	return d
}

// fleet is a control plane with connected agents and Envoys.
type fleet struct {
	*testing.B
	machine *harness.Machine
	change  []chan *agentv1.Verdicts // by agent
	shown   *shown
	ended   atomic.Pointer[error] // why an agent or Envoy was disconnected
}

// newFleet returns when all agents have reported, and all Envoys have their configuration.
func newFleet(b *testing.B, proxies int) *fleet {
	b.Helper()
	f := &fleet{B: b}
	program, err := harness.BuildInto(b.Context(), b.TempDir(), "cmd/sonde-cp")
	f.must(err)
	f.machine = harness.New(b, harness.Options{Programs: harness.Programs{ControlPlane: program}, Prepare: func(m *harness.Machine) error {
		joined := map[mesh.ID]string{}
		for i := range proxies {
			joined[mesh.MakeID(mesh.DefaultMesh, proxyName(i))] = serviceName(i)
			data, err := storetest.Encode(dataplane(i))
			if err == nil {
				err = m.Put(proxyName(i)+".yaml", string(data))
			}
			if err != nil {
				return err
			}
		}
		return errors.Join(sondecp.MakeState(m.StateDir(), mesh.DefaultMesh), sondecp.Join(m.StateDir(), joined))
	}})
	id, err := sondecp.OpenIdentity(f.machine.StateDir())
	f.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var running, starting sync.WaitGroup
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	catalog := adsclient.NewCatalog()
	for i := range proxies {
		config, err := id.ClientTLS(identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: proxyName(i), Path: mesh.WorkloadPath(serviceName(i))})
		f.must(err)
		change := make(chan *agentv1.Verdicts, 1)
		f.change = append(f.change, change)
		starting.Add(2)
		running.Go(func() {
			f.record(ctx, f.agent(ctx, credentials.NewTLS(config), change, starting.Done))
		})
		running.Go(func() {
			state := adsclient.NewState(catalog)
			settled := settled{state, sync.OnceFunc(starting.Done)}
			f.record(ctx, adsclient.Run(ctx, adsclient.Options{
				Address: f.machine.Agents, TLS: config, Node: mesh.MakeID(mesh.DefaultMesh, proxyName(i)), State: state, Observer: settled,
			}))
		})
		if i%50 == 0 { // as many at once as the control plane serves without a queue
			f.must(run.Sleep(ctx, 200*time.Millisecond))
		}
	}
	f.await(&starting)
	return f
}

func (f *fleet) await(starting *sync.WaitGroup) {
	f.Helper()
	done := make(chan struct{})
	go func() {
		starting.Wait()
		close(done)
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Second):
			if err := f.ended.Load(); err != nil {
				f.Fatal(*err)
			}
		}
	}
}

func (f *fleet) record(ctx context.Context, err error) {
	if ctx.Err() == nil {
		f.ended.Store(&err)
	}
}

func (f *fleet) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// settled waits for the configuration of an Envoy.
type settled struct {
	state *adsclient.State
	done  func()
}

func (settled) Connected()                             {}
func (settled) Resource(resource.Type, []byte, []byte) {}
func (s settled) Acked() {
	if s.state.Settled() {
		s.done()
	}
}

// agent keeps a session until ctx ends. It reports the verdicts of three probes, and others when they change.
func (f *fleet) agent(ctx context.Context, tls credentials.TransportCredentials, change <-chan *agentv1.Verdicts, reported func()) error {
	conn, err := grpc.NewClient(f.machine.Agents, grpc.WithTransportCredentials(tls), grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := agentv1.NewAgentServiceClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	hello := &agentv1.Hello{
		Version: &agentv1.Version{Sonde: "dev", Envoy: "1.40.0"}, Features: []string{agentv1.FeaturePong, agentv1.FeatureVerdicts}, Instance: "JRSDQ4ZCMXQ6QGHUXBCVJUFLKQ",
		Session: &agentv1.SessionNumber{Started: timestamppb.Now(), Count: 1},
	}
	err = errors.Join(stream.Send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: hello}}),
		stream.Send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Verdicts{Verdicts: verdicts("")}}))
	if err != nil {
		return err
	}
	reported()
	pings, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			if m.GetPing() != nil {
				pings <- struct{}{}
			}
		}
	}()
	for {
		m := &agentv1.AgentMessage{}
		select {
		case err := <-failed:
			return err
		case <-pings:
			m.Message = &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}
		case v := <-change:
			m.Message = &agentv1.AgentMessage_Verdicts{Verdicts: v}
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

// verdicts are of three probes that have changed before. The readiness probe fails if a reason is given.
func verdicts(reason string) *agentv1.Verdicts {
	v := &agentv1.Verdicts{}
	for _, probe := range []string{"startup", "liveness", "readiness"} {
		p := &agentv1.ProbeVerdicts{Container: "app", Probe: probe, Total: 3}
		for i, is := range []agentv1.VerdictChange_Verdict{agentv1.VerdictChange_SUCCESS, agentv1.VerdictChange_FAILURE, agentv1.VerdictChange_SUCCESS} {
			p.Changes = append(p.Changes, &agentv1.VerdictChange{Verdict: is, Ago: durationpb.New(time.Duration(3-i) * time.Hour)})
		}
		if reason != "" && probe == "readiness" {
			p.Total, p.Reason = 4, reason
			p.Changes = append(p.Changes, &agentv1.VerdictChange{Verdict: agentv1.VerdictChange_FAILURE, Ago: durationpb.New(0)})
		}
		v.Probes = append(v.Probes, p)
	}
	return v
}
