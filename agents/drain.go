package agents

import (
	"fmt"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// loadDraining restores what was known about drains before the restart.
func (s *Server) loadDraining() error {
	ids, err := s.drains.all()
	for _, id := range ids {
		s.observeDraining(id, true)
	}
	return err
}

// setDraining records in the storage whether the proxy drains, and then passes it to the view's builder. confirmDrain
// confirms a drain once the view has it.
func (s *Server) setDraining(sess *session, draining bool) error {
	id := sess.peer.ID()
	err := s.inTurn(sess, func() error {
		if s.observed.of(id).Draining == draining {
			return nil
		}
		log := s.o.Logger.With("mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane)
		if err := s.writeDraining(id, draining); err != nil {
			return internal(sess.stream.Context(), log, "write drain", err)
		}
		log.InfoContext(sess.stream.Context(), "proxy drains", "draining", draining)
		return nil
	})
	if err == nil && draining && sess.drainPoll == nil {
		sess.drainPoll = time.NewTicker(drainPollInterval)
	}
	return err
}

func (s *Server) writeDraining(id mesh.ID, draining bool) error {
	var err error
	if draining {
		err = s.drains.write(id, s.o.Now())
	} else {
		err = s.drains.remove(id)
	}
	if err != nil {
		return err
	}
	s.observeDraining(id, draining)
	return nil
}

func (s *Server) observeDraining(id mesh.ID, draining bool) {
	s.Observe(id, func(o *mesh.Observation) { o.Draining = draining })
}

// confirmDrain tells the agent that its drain is recorded, once the current view has it. A proxy without a Dataplane has no
// endpoint that could get traffic. Before the first view nothing can be confirmed.
func (s *Server) confirmDrain(sess *session) error {
	v := s.o.View()
	if v == nil {
		return nil
	}
	if _, p := v.Proxy(sess.peer.ID()); p != nil && !p.Observed.Draining {
		return nil
	}
	sess.stopDrainPoll()
	return sess.stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainRecorded{DrainRecorded: &agentv1.DrainRecorded{}}})
}

func (sess *session) drainTick() <-chan time.Time {
	if sess.drainPoll == nil {
		return nil
	}
	return sess.drainPoll.C
}

func (sess *session) stopDrainPoll() {
	if sess.drainPoll != nil {
		sess.drainPoll.Stop()
		sess.drainPoll = nil
	}
}

// forgetDrains removes the files of proxies that will not connect again: they have no Dataplane, no session and no valid
// certificate.
func (s *Server) forgetDrains() error {
	v := s.o.View()
	if v == nil {
		return nil
	}
	for _, id := range s.observed.which(func(o mesh.Observation) bool { return o.Draining }) {
		if _, p := v.Proxy(id); p != nil || s.o.Authority.HasCertificate(id) {
			continue
		}
		if err := s.forgetDrain(id); err != nil {
			return fmt.Errorf("forget the drain of %s: %w", id, err)
		}
	}
	return nil
}

// forgetDrain removes the file of a proxy without a session. It holds mu meanwhile, so that no session opens in between.
func (s *Server) forgetDrain(id mesh.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[id] != nil {
		return nil
	}
	if err := s.drains.remove(id); err != nil {
		return err
	}
	s.observeDraining(id, false)
	return nil
}
