package controlplanetest

import (
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// Session implements agentv1.AgentServiceServer.
func (cp *ControlPlane) Session(stream agentv1.AgentService_SessionServer) error {
	if err := cp.authenticate(stream.Context()); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- cp.receive(stream) }()
	welcome := &agentv1.Welcome{Features: cp.State().Features}
	if err := stream.Send(&agentv1.ControlMessage{
		Message: &agentv1.ControlMessage_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	for {
		select {
		case err := <-received:
			return err
		case m := <-cp.Send:
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// receive passes messages on until the stream breaks, and returns why.
func (cp *ControlPlane) receive(stream agentv1.AgentService_SessionServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetDraining() != nil {
			cp.Send <- &agentv1.ControlMessage{
				Message: &agentv1.ControlMessage_DrainRecorded{DrainRecorded: &agentv1.DrainRecorded{}}}
		}
		select {
		case cp.got <- m:
		case <-stream.Context().Done(): // no message is expected any longer
			return stream.Context().Err()
		}
	}
}

// Expect returns the first wanted message of an agent, and drops earlier ones.
func (cp *ControlPlane) Expect(wanted func(*agentv1.AgentMessage) bool) *agentv1.AgentMessage {
	cp.t.Helper()
	ended := wait.Context(cp.t).Done()
	for {
		select {
		case m := <-cp.got:
			if wanted(m) {
				return m
			}
		case <-ended:
			cp.t.Fatal("the agent has not sent the expected message")
		}
	}
}

// ExpectHello returns the first message of the next session.
func (cp *ControlPlane) ExpectHello() *agentv1.Hello {
	cp.t.Helper()
	return cp.Expect(func(m *agentv1.AgentMessage) bool { return m.GetHello() != nil }).GetHello()
}

// SendBundle sends the CAs of the mesh.
func (cp *ControlPlane) SendBundle(b *agentv1.Bundle) {
	cp.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Bundle{Bundle: b}}
}

// SendServingCA sends the CAs of the control plane.
func (cp *ControlPlane) SendServingCA(b *agentv1.Bundle) {
	cp.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_ServingCa{ServingCa: b}}
}

// SendRenewNow requests a renewal.
func (cp *ControlPlane) SendRenewNow() {
	cp.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_RenewNow{RenewNow: &agentv1.RenewNow{}}}
}

// SendDrainState sends why the proxy should get no new traffic.
func (cp *ControlPlane) SendDrainState(d *agentv1.DrainState) {
	cp.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainState{DrainState: d}}
}

// SendProbes sends the probes of a written Dataplane.
func (cp *ControlPlane) SendProbes(p *agentv1.Probes) {
	cp.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Probes{Probes: p}}
}

// SendServiceProbes sends the probes of the applications.
func (cp *ControlPlane) SendServiceProbes(p ...*agentv1.ServiceProbe) {
	cp.Send <- &agentv1.ControlMessage{
		Message: &agentv1.ControlMessage_ServiceProbes{ServiceProbes: &agentv1.ServiceProbes{Probes: p}}}
}
