// Package session keeps the agent's session with the control plane.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/identity"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// stableAfter is how long a session must last before the retry delay returns to its minimum.
const stableAfter = 10 * time.Second

// features of every agent.
var features = []string{
	agentv1.FeatureQueries, agentv1.FeatureServiceProbes, agentv1.FeatureProbePorts, agentv1.FeaturePong,
	agentv1.FeatureEndpoints, agentv1.FeatureOutbounds, agentv1.FeatureVerdicts,
}

// Opener opens a session and closes it when use returns. *controlplane.Client implements it.
type Opener interface {
	// goAway is closed when the control plane asks the agent to open another session, since this one ends soon.
	Session(ctx context.Context, use func(stream agentv1.AgentService_SessionClient, goAway <-chan struct{}) error) error
}

// Identity is the identity of the proxy. *identity.Identity implements it.
type Identity interface {
	InUse() *agentv1.InUse
	Trust(*agentv1.Bundle) error
}

// ServingCA has the CAs that verify the control plane. *identity.ServingCA implements it.
type ServingCA interface {
	InUse() (id string, epoch int64)
	Take(*agentv1.Bundle) error
}

// Options of a Session.
type Options struct {
	// Opener opens sessions with the control plane. Required.
	Opener Opener
	// Identity of the proxy. Required.
	Identity Identity
	// ServingCA receives the control plane's CAs. Default: not supported, since this agent's Envoy would not use them.
	ServingCA ServingCA
	// Renew asks for a new certificate and returns at once. Required.
	Renew func()
	// Inbounds is called with the control plane's report on the proxy's inbounds: nil if Envoy has accepted all, or the
	// control plane is too old to report it. It must return at once. Required.
	Inbounds func(error)
	// Endpoints is called with the control plane's report on the proxy's endpoints: nil if other proxies know that they
	// are ready, or the control plane is too old to report it. It must return at once. Required.
	Endpoints func(error)
	// Outbounds is called with the control plane's report on the listeners for outbound calls: nil if Envoy has accepted
	// all, or the control plane is too old to report it. It must return at once. Required.
	Outbounds func(error)
	// Probes is called with the control plane's probes of a written Dataplane: empty if the control plane is too old to
	// send them. It must return at once. Required.
	Probes func(*agentv1.Probes)
	// ServiceProbes is called with the control plane's probes of the applications: empty if the control plane is too old
	// to send them. It must return at once. Required.
	ServiceProbes func(*agentv1.ServiceProbes)
	// Drain is called with the reason why the proxy should get no new traffic. It is called with an empty reason if the
	// control plane is too old to send one, since such a control plane could not withdraw the reason of an earlier one. It
	// must return at once. Required.
	Drain func(mesh.Drain)
	// Query is called with a query for Envoy. It must return at once, and later call the control plane's API with the
	// answer. Required.
	Query func(*agentv1.Query)
	// Instance distinguishes this process from other agents of its proxy, and Started is its start time. Required.
	Instance string
	Started  time.Time
	// Duplicate is called with the address of another agent of this proxy that was rejected; Refused with the error if
	// this one was rejected as a duplicate, and with nil once the session is open. They must return at once. Required.
	Duplicate func(address string)
	Refused   func(error)
	// Reports are sent to a control plane that supports them.
	Reports []Report
	// Plaintext returns the traffic so far that STRICT would reject. Default: nothing is counted.
	Plaintext func() *agentv1.Plaintext
	// Restarts is called with the control plane's state of guarded liveness probes: nil if the control plane is too old to
	// send it. Connected is called with whether a session is open. They must return at once. Default: no probe is guarded.
	Restarts  func(*agentv1.Restarts)
	Connected func(connected bool)
	// Version returns the versions of the agent and of its Envoy. Required.
	Version func() *agentv1.Version
	// Logger to use. Required.
	Logger *slog.Logger
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
	// Loop monitors the handling of each message. Default: none.
	Loop *heartbeat.Loop
}

// Session is the session with the control plane, reopened whenever it breaks. It is safe for concurrent use.
type Session struct {
	o Options

	changed     run.Signal                   // the identity has changed: report it
	upgraded    run.Signal                   // a version has changed: report it
	asked       chan *agentv1.ControlMessage // a Ping or an AskPlaintext was received: answer it
	drain       chan struct{}                // closed when the drain begins
	startDrain  func()                       // closes drain
	recorded    chan struct{}                // closed when the control plane has recorded the drain
	setRecorded func()                       // closes recorded

	count int64 // sessions that Run has begun
	moved bool  // the last session ended because the control plane asked for another one; only for Run

	connected prometheus.Gauge
	sessions  prometheus.Counter
	// Counts of messages of unknown types, of unknown features, and of messages with unknown fields.
	unknown, unknownFeatures, unknownFields prometheus.Counter
}

// New returns a session that is not open yet.
func New(o Options) *Session {
	s := &Session{
		o:        o,
		changed:  run.NewSignal(),
		upgraded: run.NewSignal(),
		asked:    make(chan *agentv1.ControlMessage, maxAsked),
		drain:    make(chan struct{}),
		recorded: make(chan struct{}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_dpagent_session_connected", Help: "1 while a session with the control plane is open.",
		}),
		sessions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_session_opened_total", Help: "Sessions that the control plane accepted.",
		}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_session_unknown_messages_total",
			Help: "Messages of the control plane of a type unknown to this agent version.",
		}),
		unknownFeatures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_session_unknown_features_total",
			Help: "Features announced by the control plane at the beginning of a session and unknown to this agent version.",
		}),
		unknownFields: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_session_unknown_fields_total",
			Help: "Messages of the control plane with unknown fields, which are ignored.",
		}),
	}
	s.startDrain = sync.OnceFunc(func() { close(s.drain) })
	s.setRecorded = sync.OnceFunc(func() { close(s.recorded) })
	o.Registerer.MustRegister(s.connected, s.sessions, s.unknown, s.unknownFeatures, s.unknownFields)
	return s
}

// Changed makes the session report the identity in use. It returns at once.
func (s *Session) Changed() { s.changed.Set() }

// Upgraded makes the session report the versions. It returns at once.
func (s *Session) Upgraded() { s.upgraded.Set() }

// Drain reports to the control plane that the proxy drains, now and in each later Hello. It waits until the control
// plane has recorded the drain or ctx ends.
func (s *Session) Drain(ctx context.Context) error {
	s.startDrain()
	select {
	case <-s.recorded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("report drain to the control plane: %w", ctx.Err())
	}
}

// Run keeps a session open until ctx ends.
func (s *Session) Run(ctx context.Context) error {
	var backoff retry.Backoff
	report := retry.Reporter{Logger: s.o.Logger}
	for {
		welcomed, began := false, time.Now()
		moves := false
		err := s.o.Opener.Session(ctx, func(stream agentv1.AgentService_SessionClient, goAway <-chan struct{}) (err error) {
			defer s.setConnected(false)
			moves, err = s.runStream(ctx, stream, goAway, func() {
				welcomed = true
				s.o.Refused(nil)
				s.setConnected(true)
				s.sessions.Inc()
				report.Succeeded()
			})
			return err
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		stable := welcomed && time.Since(began) >= stableAfter
		if stable {
			backoff.Reset()
		}
		if s.moved = moves && stable; s.moved {
			s.o.Logger.Debug("the control plane asks for another session")
			continue
		}
		switch status.Code(err) {
		case codes.Unauthenticated, codes.PermissionDenied:
			s.o.Renew() // the certificate has expired, or its CA is no longer trusted
		case codes.AlreadyExists:
			s.o.Refused(err)
		}
		report.Failed(ctx, slog.LevelWarn, "session with the control plane ended, envoy keeps its configuration", err)
		if err := run.Sleep(ctx, backoff.Next()); err != nil {
			return err
		}
	}
}

// runStream runs one stream until it breaks, and returns why. moves means that the stream ended because the control
// plane asked for another session.
func (s *Session) runStream(
	ctx context.Context, stream agentv1.AgentService_SessionClient, goAway <-chan struct{}, welcomed func(),
) (moves bool, err error) {
	s.count++
	hello := &agentv1.Hello{
		Version: s.o.Version(), Features: s.features(), InUse: s.inUse(), Instance: s.o.Instance,
		Session: &agentv1.SessionNumber{Started: timestamppb.New(s.o.Started), Count: s.count},
	}
	drain := s.drain
	select {
	case <-drain:
		hello.Draining, drain = true, nil
	default:
	}
	if err := stream.Send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: hello}}); err != nil {
		return false, streamError(stream, err)
	}
	received, features := make(chan error, 1), make(chan []string, 1)
	go func() {
		received <- s.receive(stream, func(has []string) {
			welcomed()
			select {
			case features <- has:
			default: // the control plane sent Welcome twice
			}
		})
	}()
	err = s.report(ctx, stream, goAway, drain, received, features)
	select {
	case <-goAway:
		return errors.Is(err, io.EOF), err
	default:
		return false, err
	}
}

// report sends due reports until the stream breaks or the control plane asks for another session, and returns why it
// ended. drain is closed when the drain begins, and nil if Hello has already reported it.
func (s *Session) report(
	ctx context.Context, stream agentv1.AgentService_SessionClient, goAway, drain <-chan struct{}, received <-chan error,
	features <-chan []string,
) error {
	reporters := reporters{due: make(chan *Report), drain: drain}
	defer reporters.group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		var message *agentv1.AgentMessage
		select {
		case err := <-received:
			return err
		case <-goAway:
			_ = stream.CloseSend() // if the stream is broken, receive returns why
			return <-received      // by then, everything sent has arrived
		case <-s.changed:
			message = &agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: s.inUse()}}
		case <-s.upgraded:
			message = &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Version{Version: s.o.Version()}}
		case question := <-s.asked:
			message = s.answer(question)
		case has := <-features:
			features = nil
			reporters.begin(ctx, s.o.Reports, has)
			continue
		case report := <-reporters.due:
			message = report.Message()
		case <-drain:
			message = &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Draining{Draining: &agentv1.Draining{}}}
			drain = nil
		}
		_ = stream.Send(message) // if the stream is broken, receive returns why
	}
}

func (s *Session) setConnected(connected bool) {
	if s.o.Connected != nil {
		s.o.Connected(connected)
	}
	if connected {
		s.connected.Set(1)
	} else {
		s.connected.Set(0)
	}
}

func (s *Session) tellRestarts(m *agentv1.Restarts) {
	if s.o.Restarts != nil {
		s.o.Restarts(m)
	}
}

func inboundsError(m *agentv1.Inbounds) error {
	if m.GetAccepted() {
		return nil
	}
	return errors.New(m.GetReason())
}

func endpointsError(m *agentv1.Endpoints) error {
	if m.GetReady() {
		return nil
	}
	return errors.New(m.GetReason())
}

func outboundsError(m *agentv1.Outbounds) error {
	if m.GetAccepted() {
		return nil
	}
	return errors.New(m.GetReason())
}

// streamError returns why the stream broke: after a failed Send only Recv returns the reason.
func streamError(stream agentv1.AgentService_SessionClient, err error) error {
	if errors.Is(err, io.EOF) {
		_, err = stream.Recv()
	}
	return err
}

// receive handles messages of the control plane until the stream breaks, and returns why.
func (s *Session) receive(stream agentv1.AgentService_SessionClient, welcomed func(features []string)) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		s.o.Loop.Begin()
		s.handle(message, welcomed)
		s.o.Loop.End()
	}
}

// countUnknown counts unknown parts of a message, which a newer control plane may send.
func (s *Session) countUnknown(message *agentv1.ControlMessage) {
	if message.GetMessage() == nil {
		return // the whole message is counted
	}
	if agentv1.HasUnknownFields(message) {
		s.unknownFields.Inc()
	}
	s.unknownFeatures.Add(float64(agentv1.UnknownFeatures(message.GetWelcome().GetFeatures())))
}

// handle handles one message of the control plane.
func (s *Session) handle(message *agentv1.ControlMessage, welcomed func(features []string)) {
	s.countUnknown(message)
	switch m := message.GetMessage().(type) {
	case *agentv1.ControlMessage_Welcome:
		s.logOpen(m.Welcome)
		s.forget(m.Welcome.GetFeatures())
		welcomed(m.Welcome.GetFeatures())
	case *agentv1.ControlMessage_Inbounds:
		s.o.Inbounds(inboundsError(m.Inbounds))
	case *agentv1.ControlMessage_Endpoints:
		s.o.Endpoints(endpointsError(m.Endpoints))
	case *agentv1.ControlMessage_Outbounds:
		s.o.Outbounds(outboundsError(m.Outbounds))
	case *agentv1.ControlMessage_Probes:
		s.o.Probes(m.Probes)
	case *agentv1.ControlMessage_ServiceProbes:
		s.o.ServiceProbes(m.ServiceProbes)
	case *agentv1.ControlMessage_Restarts:
		s.tellRestarts(m.Restarts)
	case *agentv1.ControlMessage_DrainState:
		s.o.Drain(drainOf(m.DrainState))
	case *agentv1.ControlMessage_Bundle:
		s.trust(m.Bundle)
	case *agentv1.ControlMessage_ServingCa:
		s.takeServingCA(m.ServingCa)
	case *agentv1.ControlMessage_RenewNow:
		s.o.Logger.Info("renewing certificate, the control plane requested it")
		s.o.Renew()
	case *agentv1.ControlMessage_Query, *agentv1.ControlMessage_Ping, *agentv1.ControlMessage_AskPlaintext:
		s.ask(message)
	case *agentv1.ControlMessage_Duplicate:
		s.o.Duplicate(m.Duplicate.GetAddress())
	case *agentv1.ControlMessage_DrainRecorded:
		s.setRecorded()
	default:
		s.unknown.Inc()
	}
}

// logOpen logs that a session is open, at a lower level if it replaces a session at the control plane's request.
func (s *Session) logOpen(m *agentv1.Welcome) {
	level := slog.LevelInfo
	if s.moved {
		level = slog.LevelDebug
	}
	s.o.Logger.Log(context.Background(), level, "session open", "version", m.GetVersion().GetSonde())
}

func (s *Session) trust(b *agentv1.Bundle) {
	err := s.o.Identity.Trust(b)
	if errors.Is(err, identity.ErrOlderBundle) {
		s.o.Logger.Warn("ignoring bundle of a control plane replica that has missed the last change", "err", err)
		return
	}
	if err != nil {
		s.o.Logger.Error("failed to update trust bundle, keeping the old one", "err", err)
		s.o.Renew() // the response will have a matching certificate and bundle
		return
	}
	s.o.Logger.Info("updated trust bundle", "bundle", b.GetId())
	s.Changed()
}

// forget resets the state from messages that the current control plane is too old to send.
func (s *Session) forget(features []string) {
	if !slices.Contains(features, agentv1.FeatureInbounds) {
		s.o.Inbounds(nil)
	}
	if !slices.Contains(features, agentv1.FeatureEndpoints) {
		s.o.Endpoints(nil)
	}
	if !slices.Contains(features, agentv1.FeatureOutbounds) {
		s.o.Outbounds(nil)
	}
	if !slices.Contains(features, agentv1.FeaturePerPortProbes) {
		s.o.Probes(nil)
	}
	if !slices.Contains(features, agentv1.FeatureServiceProbes) {
		s.o.ServiceProbes(nil)
	}
	if !slices.Contains(features, agentv1.FeatureDrainState) {
		s.o.Drain(mesh.Drain{})
	}
	if !slices.Contains(features, agentv1.FeatureRestartGrants) {
		s.tellRestarts(nil)
	}
}

func drainOf(m *agentv1.DrainState) mesh.Drain {
	return mesh.Drain{
		Terminating: m.GetTerminating(), Node: m.GetNode(), Administrator: m.GetAdministrator(), ServesOn: m.GetServesOn(),
	}
}
