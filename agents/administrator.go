package agents

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// loadDrained restores which proxies an administrator had drained before the restart.
func (s *Server) loadDrained() error {
	ids, err := s.drained.all()
	for _, id := range ids {
		reason, readErr := s.drained.data(id)
		err = errors.Join(err, readErr)
		s.observeDrained(id, drainedText(string(reason)))
	}
	return err
}

func drainedText(reason string) string {
	return mesh.DrainText("dataplane", strings.TrimSuffix(reason, "\n"))
}

func (s *Server) observeDrained(id mesh.ID, text string) {
	s.Observe(id, func(o *mesh.Observation) { o.Administrator = text })
	s.wakeSession(id)
}

// SetDrained keeps new traffic from a proxy, for a reason for people, or lets it have new traffic again if reason is nil. It returns why the
// proxy was drained before, "" if it was not. Errors are those of the admin API: NOT_FOUND, FAILED_PRECONDITION (a pod, or nothing is kept here).
func (s *Server) SetDrained(ctx context.Context, id mesh.ID, reason *string) (before string, err error) {
	v := s.o.View()
	if v == nil {
		return "", status.Error(codes.Unavailable, "the control plane has not read its store yet: try again")
	}
	meshName, name := mesh.SplitID(id)
	_, p := v.Proxy(id)
	switch {
	case p == nil:
		return "", status.Errorf(codes.NotFound, "there is no dataplane %q in mesh %q", name, meshName)
	case p.Dataplane.IsPod():
		return "", status.Errorf(codes.FailedPrecondition, "dataplane %q is that of a pod: drain pod/NAME with a kubeconfig", name)
	case s.o.Storage == nil:
		return "", status.Error(codes.FailedPrecondition, "this control plane keeps no drains: on Kubernetes, drain nodes and pods")
	}
	s.drainedLock.Lock()
	defer s.drainedLock.Unlock()
	before = s.observed.of(id).Administrator
	log := s.o.Logger.With("mesh", meshName, "proxy", name)
	if reason == nil {
		if err := s.drained.remove(id); err != nil {
			return "", internal(ctx, log, "forget the drain", err)
		}
		s.observeDrained(id, "")
		log.InfoContext(ctx, "an administrator drains the proxy no more")
		return before, nil
	}
	kept := strings.ToValidUTF8((*reason)[:min(len(*reason), mesh.MaxDrainReason)], "")
	if err := s.drained.writeData(id, []byte(kept+"\n")); err != nil {
		return "", internal(ctx, log, "write the drain", err)
	}
	s.observeDrained(id, drainedText(kept))
	log.InfoContext(ctx, "an administrator drains the proxy", "reason", kept)
	return before, nil
}

// forgetDrained removes the drains of proxies that will not connect again, see forgetDrains.
func (s *Server) forgetDrained() error {
	v := s.o.View()
	if v == nil {
		return nil
	}
	s.drainedLock.Lock()
	defer s.drainedLock.Unlock()
	for _, id := range s.observed.which(func(o mesh.Observation) bool { return o.Administrator != "" }) {
		if _, p := v.Proxy(id); p != nil || s.connected(id) || s.o.Authority.HasCertificate(id) {
			continue
		}
		if err := s.drained.remove(id); err != nil {
			return fmt.Errorf("forget the drain of %s: %w", id, err)
		}
		s.observeDrained(id, "")
	}
	return nil
}
