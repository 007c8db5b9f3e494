package session

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Limits of one session.
const (
	maxMessage   = 16 << 10 // bytes
	maxLiveness  = 32 << 10 // bytes: more than the largest valid message
	maxPlaintext = 48 << 10 // bytes: more than the largest valid message
	maxVerdicts  = 32 << 10 // bytes: as above
	maxFeatures  = 32
	// maxGrant is the maximum length of a grant's name, as of any Kubernetes object.
	maxGrant = 253
	// messageRate, per second, is much more than an agent sends. Beyond it, the session reads messages more slowly.
	messageRate  = 5
	messageBurst = 20
	// drainPollInterval is how often confirmDrain checks whether the view has a recorded drain.
	drainPollInterval = 10 * time.Millisecond
	// outboxSize has room for a Query, a Ping, a Duplicate and an AskPlaintext.
	outboxSize = 4
)

// features of every control plane; offered adds the optional ones.
var features = []string{
	agentv1.FeatureInbounds, agentv1.FeatureProbeFailures, agentv1.FeaturePerPortProbes, agentv1.FeatureDrainState,
	agentv1.FeatureServiceProbes,
	agentv1.FeatureEnvoyState, agentv1.FeatureEndpoints, agentv1.FeaturePlaintext, agentv1.FeatureOutbounds,
	agentv1.FeatureRefusals, agentv1.FeatureVerdicts,
}

var errReplaced = status.Error(codes.Aborted,
	"a newer session of this proxy, or a newer proxy of its name, has taken over")

// session is the session of one agent. Only its handler uses the fields, except those guarded by Sessions.mu.
type session struct {
	peer  identity.Peer
	since time.Time
	// order tells which of the sessions with several replicas is the newest.
	order facts.Order
	// drained says that the session began while the proxy drained.
	drained bool
	// turn is shared by all successive sessions of a proxy, so that no message of an old session takes effect after one of
	// the new session, see inTurn.
	turn *sync.Mutex
	// wake is set when there may be something to send: the rotation of the mesh has advanced, or the workload of the
	// Dataplane has changed. replaced is closed when a newer session or another proxy of the same name takes over.
	wake     run.Signal
	replaced chan struct{}
	// outbox has messages from other goroutines.
	outbox chan *agentv1.ControlMessage
	rival  rival
	// replace closes replaced, once.
	replace func()

	stream agentv1.AgentService_SessionServer
	// The last pushed messages, so that none is pushed twice. pushed has the states, by feature.
	pushedBundle, pushedRenewal, pushedServingCA push
	// renewAsked is the time of pushedRenewal.
	renewAsked time.Time
	pushed     map[string]*agentv1.ControlMessage
	// toldProbes and toldOld say that a warning was logged that the agent is too old for per-port probes, or for
	// serviceProbe.
	toldProbes bool
	toldOld    bool
	// unreached ticks while Envoy's listeners may be incomplete, and disconnected replicas may know them. Otherwise it is
	// nil.
	unreached *time.Ticker
	// liveness has the agent's liveness report until it is processed.
	liveness latest[agentv1.ReportedLiveness]
	// plaintext has the agent's counts until they are processed.
	plaintext latest[*agentv1.Plaintext]
	// verdicts has the agent's verdicts of probes until they are processed.
	verdicts latest[reportedVerdicts]
	// plaintextAsked is open while a caller waits for the agent's current counts.
	plaintextAsked question
	// drainPoll ticks while the view lacks a recorded drain, otherwise it is nil.
	drainPoll *time.Ticker

	// Guarded by Sessions.mu:
	version  *agentv1.Version
	features []string
	inUse    *agentv1.InUse
	// envoyDown is why Envoy is not running, "" if it is, or if the agent is too old to report it.
	envoyDown string
	// refusals are Envoy's refusals in the last minute, refused the texts that were passed to CallsRefused.
	refusals []*agentv1.Refusal
	refused  map[string]bool
	// askAgain says that ServiceProbes must be sent even if they have not changed.
	askAgain bool
}

// push has the ID of the pushed content, and what the agent had reported before.
type push struct{ what, report string }

// send puts a message into the outbox, and returns false if the outbox is full.
func (sess *session) send(m *agentv1.ControlMessage) bool {
	select {
	case sess.outbox <- m:
		return true
	default:
		return false
	}
}

func (s *Sessions) newSession(
	caller identity.Peer, hello *agentv1.Hello, stream agentv1.AgentService_SessionServer,
) *session {
	now := s.o.Now()
	sess := &session{
		peer:     caller,
		since:    now,
		order:    s.order(caller.ID(), hello, now),
		drained:  hello.GetDraining(),
		wake:     run.NewSignal(),
		replaced: make(chan struct{}),
		outbox:   make(chan *agentv1.ControlMessage, outboxSize),
		rival:    rival{process: hello.GetInstance()},
		stream:   stream,
		pushed:   map[string]*agentv1.ControlMessage{},
		version:  shortVersion(hello.GetVersion()),
		features: hello.GetFeatures(),
		refused:  map[string]bool{},
	}
	sess.replace = sync.OnceFunc(func() { close(sess.replaced) })
	return sess
}

// has reports whether the agent has a feature. Features do not change.
func (sess *session) has(feature string) bool { return slices.Contains(sess.features, feature) }

// Session implements agentv1.AgentServiceServer.
func (s *Sessions) Session(stream agentv1.AgentService_SessionServer) error {
	caller, err := s.caller(stream.Context())
	if err != nil {
		return err
	}
	if !s.beginSession() {
		return errStopping
	}
	defer s.running.Done()
	messages := s.receive(stream)
	hello, err := s.awaitHello(stream.Context(), messages)
	if err != nil {
		return ended(err)
	}
	sess := s.newSession(caller, hello, stream)
	if err := s.CheckDuplicate(stream.Context(), caller.ID(), hello.GetInstance(),
		call.Address(stream.Context())); err != nil {
		s.o.Duplicate(stream.Context(), caller.Subject, hello.GetInstance(), err)
		return err
	}
	goesOn, err := s.openSession(sess)
	if err != nil {
		return err
	}
	defer s.closeSession(sess)
	s.Heard(caller.ID()) // a newer session may have opened elsewhere meanwhile
	// Check again now that the session is open: from now on, a changed view ends it.
	if err := call.CheckInstance(s.o.View(), caller.Subject); err != nil {
		return err
	}
	log := s.o.Logger.With("mesh", caller.Mesh, "proxy", caller.Dataplane)
	log.Log(stream.Context(), levelOf(goesOn), "agent connected", "version", sess.version.GetSonde(),
		"envoyVersion", sess.version.GetEnvoy(),
		"draining", hello.GetDraining())
	err = s.serve(sess, hello, messages)
	log.Log(stream.Context(), levelOf(sess.moves()), "agent disconnected", "reason", whyEnded(err))
	return err
}

// levelOf returns the log level of a session's begin or end: agents move now and then, which needs no attention.
func levelOf(moves bool) slog.Level {
	if moves {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// moves reports whether the agent was asked to reconnect because its connection had reached its maximum age.
func (sess *session) moves() bool { return mtls.Aged(sess.stream.Context()) }

// offered returns the features of this control plane.
func (s *Sessions) offered() []string {
	if s.o.Restarts == nil {
		return features
	}
	return append(slices.Clone(features), agentv1.FeatureRestartGrants)
}

// serve runs a session after its Hello.
func (s *Sessions) serve(sess *session, hello *agentv1.Hello, messages <-chan received) error {
	defer sess.stopDrainPoll()
	defer sess.stopAskingListeners()
	if !hello.GetDraining() {
		s.o.Observed.StartAgain(sess.stream.Context(), sess.peer.ID(), sess.order)
	}
	if err := s.setDraining(sess, hello.GetDraining()); err != nil {
		return err
	}
	welcome := &agentv1.Welcome{Version: &agentv1.Version{Sonde: s.o.Version}, Features: s.offered()}
	if err := sess.stream.Send(
		&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	if err := s.report(sess, hello.GetInUse()); err != nil {
		return err
	}
	err := s.converse(sess, messages)
	s.takeNewestLiveness(sess) // the last report
	s.takeNewestPlaintext(sess)
	s.takeNewestVerdicts(sess)
	return err
}

// converse handles received messages, and sends pending ones, until the session ends.
func (s *Sessions) converse(sess *session, messages <-chan received) error {
	for {
		var over bool
		var err error
		select {
		case <-sess.stream.Context().Done():
			return status.FromContextError(sess.stream.Context().Err()).Err()
		case <-s.stopping:
			return errStopping
		case <-sess.replaced:
			return errReplaced
		case <-sess.wake:
			err = s.push(sess)
		case m := <-sess.outbox:
			err = sess.stream.Send(m)
		case <-sess.drainTick():
			err = s.confirmDrain(sess)
		case <-sess.listenersTick():
			s.askListeners(sess)
		case <-sess.liveness.tick():
			s.takeNewestLiveness(sess)
		case <-sess.plaintext.tick():
			s.takeNewestPlaintext(sess)
		case <-sess.verdicts.tick():
			s.takeNewestVerdicts(sess)
		case r := <-messages:
			over, err = s.take(sess, r)
		}
		if over || err != nil {
			return err
		}
	}
}

// take handles a received message, and reports whether the session is over, and why.
func (s *Sessions) take(sess *session, r received) (over bool, err error) {
	if r.err != nil {
		return true, ended(r.err)
	}
	err = s.handle(sess, r.message)
	return err != nil, err
}

func (s *Sessions) handle(sess *session, message *agentv1.AgentMessage) error {
	if most := mostBytes(message); proto.Size(message) > most {
		return status.Errorf(codes.InvalidArgument, "a message of more than %d bytes", most)
	}
	if message.GetMessage() != nil && agentv1.HasUnknownFields(message) {
		s.metrics.unknownFields.Inc()
	}
	switch m := message.GetMessage().(type) {
	case *agentv1.AgentMessage_Draining:
		return s.setDraining(sess, true)
	case *agentv1.AgentMessage_InUse:
		return s.report(sess, m.InUse)
	case *agentv1.AgentMessage_Version:
		s.setVersion(sess, m.Version)
		return nil
	case *agentv1.AgentMessage_Pong:
		sess.rival.pong.answer()
		return nil
	case *agentv1.AgentMessage_Hello:
		return status.Error(codes.InvalidArgument, "a session may have only one Hello")
	default:
		return s.handleReport(sess, message)
	}
}

// handleReport handles a report about the pod, its applications or its Envoy.
func (s *Sessions) handleReport(sess *session, message *agentv1.AgentMessage) error {
	switch m := message.GetMessage().(type) {
	case *agentv1.AgentMessage_ProbeFailures:
		return s.probesFailed(sess, m.ProbeFailures)
	case *agentv1.AgentMessage_Readiness:
		return s.readinessChanged(sess, m.Readiness)
	case *agentv1.AgentMessage_Liveness:
		return s.livenessChanged(sess, m.Liveness)
	case *agentv1.AgentMessage_Plaintext:
		return s.plaintextCounted(sess, m.Plaintext)
	case *agentv1.AgentMessage_Verdicts:
		return s.verdictsChanged(sess, m.Verdicts)
	case *agentv1.AgentMessage_EnvoyState:
		s.envoyChanged(sess, m.EnvoyState)
		return nil
	case *agentv1.AgentMessage_Refusals:
		return s.callsRefused(sess, m.Refusals)
	default:
		s.metrics.unknown.Inc()
		return nil
	}
}

// mostBytes returns the maximum size of a message in bytes.
func mostBytes(message *agentv1.AgentMessage) int {
	switch {
	case message.GetLiveness() != nil:
		return maxLiveness
	case message.GetPlaintext() != nil:
		return maxPlaintext
	case message.GetVerdicts() != nil:
		return maxVerdicts
	}
	return maxMessage
}

func (s *Sessions) setVersion(sess *session, v *agentv1.Version) {
	v = shortVersion(v)
	s.mu.Lock()
	sess.version = v
	s.mu.Unlock()
	s.o.Peers.Changed(sess.peer.ID())
	s.o.Logger.InfoContext(sess.stream.Context(), "versions of a proxy changed", "mesh", sess.peer.Mesh,
		"proxy", sess.peer.Dataplane,
		"version", v.GetSonde(), "envoyVersion", v.GetEnvoy())
}

func shortVersion(v *agentv1.Version) *agentv1.Version {
	return &agentv1.Version{Sonde: call.Shorten(v.GetSonde()), Envoy: call.Shorten(v.GetEnvoy())}
}
