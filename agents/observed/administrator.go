package observed

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/meshview"
)

// loadDrained restores which proxies an administrator had drained before the restart. A proxy with an unreadable record
// stays drained, without its reason.
func (s *State) loadDrained() error {
	ids, err := s.drained.All()
	for _, id := range ids {
		reason, err := s.drained.Read(id)
		if err != nil {
			meshName, name := mesh.SplitID(id)
			s.o.Logger.Error("failed to read the reason of a drain", "mesh", meshName, "proxy", name, "err", err)
		}
		s.observeAdministrator(id, drainedText(string(reason)))
	}
	return err
}

func drainedText(reason string) string {
	return mesh.DrainText("dataplane", strings.TrimSuffix(cut.Text(reason, mesh.MaxDrainReason), "\n"))
}

// observeAdministrator adds the reason why an administrator drains a proxy to its Observation, "" for no drain.
func (s *State) observeAdministrator(id mesh.ID, text string) {
	s.facts.Update(id, func(o *facts.Own) { o.Administrator = text })
}

// SetDrained stops new traffic to a proxy, and stores reason for display; a nil reason ends the drain. It returns the
// previous reason, "" if the proxy was not drained. The error is FAILED_PRECONDITION for pods, and on Kubernetes.
func (s *State) SetDrained(ctx context.Context, p *meshview.Proxy, reason *string) (before string, err error) {
	id, meshName, name := p.ID(), p.Dataplane.Mesh, p.Dataplane.Name
	switch {
	case p.Dataplane.IsPod():
		return "", status.Errorf(codes.FailedPrecondition, "dataplane %q belongs to a pod: drain pod/NAME with a kubeconfig",
			name)
	case s.o.Storage == nil:
		return "", status.Error(codes.FailedPrecondition,
			"this control plane keeps no drains: on Kubernetes, drain nodes and pods")
	}
	s.drainedLock.Lock()
	defer s.drainedLock.Unlock()
	before = s.Of(id).Administrator
	log := s.o.Logger.With("mesh", meshName, "proxy", name)
	if reason == nil {
		if err := s.drained.Remove(id); err != nil {
			return "", call.Internal(ctx, log, "remove the drain record", err)
		}
		s.observeAdministrator(id, "")
		log.InfoContext(ctx, "administrator ended the drain of a proxy")
		return before, nil
	}
	kept := cut.Text(*reason, mesh.MaxDrainReason)
	if err := s.drained.Write(id, []byte(kept+"\n")); err != nil {
		return "", call.Internal(ctx, log, "write the drain record", err)
	}
	s.observeAdministrator(id, drainedText(kept))
	log.InfoContext(ctx, "administrator drains a proxy", "reason", kept)
	return before, nil
}

// forgetDrained removes the drain records of removed proxies.
func (s *State) forgetDrained(gone func(mesh.ID) bool) error {
	s.drainedLock.Lock()
	defer s.drainedLock.Unlock()
	for _, id := range s.facts.Which(func(o facts.Own) bool { return o.Administrator != "" }) {
		if !gone(id) {
			continue
		}
		if err := s.drained.Remove(id); err != nil {
			return fmt.Errorf("remove the drain record of %s: %w", id, err)
		}
		s.observeAdministrator(id, "")
	}
	return nil
}
