package agents

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
)

// Run rechecks rotations and records regularly until ctx ends. Then it ends all sessions, and waits for their handlers.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.o.recheck)
	defer ticker.Stop()
	for {
		s.o.Loop.Begin()
		s.recheck(ctx)
		s.o.Loop.End()
		select {
		case <-ctx.Done():
			s.mu.Lock()
			s.stopped = true
			s.mu.Unlock()
			close(s.stopping)
			s.running.Wait()
			return nil
		case <-ticker.C:
		}
	}
}

// recheck forgets what has expired, and advances rotations that waited for it.
func (s *Server) recheck(ctx context.Context) {
	s.issues.sweep()
	s.refusals.sweep()
	s.waiting.forget(s.o.Now())
	s.forgetEnded()
	if err := s.sweep(); err != nil {
		s.o.Logger.ErrorContext(ctx, "expired certificate records not removed", "err", err)
	}
	if err := errors.Join(s.forgetDrains(), s.forgetDrained()); err != nil {
		s.o.Logger.ErrorContext(ctx, "drain records not removed", "err", err)
	}
	if err := s.forgetApplications(); err != nil {
		s.o.Logger.ErrorContext(ctx, "records of applications not removed", "err", err)
	}
	for _, name := range s.o.Authority.Meshes() {
		s.o.Loop.Beat() // each of them may wait for the storage
		s.advance(ctx, name)
	}
}

// forgetEnded forgets ends of sessions that are older than silentAfter, except of proxies with a Dataplane: people are
// shown since when these are lost.
func (s *Server) forgetEnded() {
	v := s.o.View()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.ended {
		if _, p := v.Proxy(id); p == nil && s.o.Now().Sub(t) >= s.o.silentAfter {
			delete(s.ended, id)
		}
	}
}

// advance advances the rotation of a mesh as long as no proxy has to be waited for, and wakes the sessions. After an error,
// the next report or recheck tries again.
func (s *Server) advance(ctx context.Context, meshName string) {
	for {
		advanced, err := s.advanceStep(ctx, meshName)
		if err != nil {
			s.o.Logger.ErrorContext(ctx, "CA rotation failed", "mesh", meshName, "err", err)
		}
		if !advanced {
			return
		}
		s.wakeSessions(meshName)
	}
}

func (s *Server) advanceStep(ctx context.Context, meshName string) (bool, error) {
	r, err := s.o.Authority.Rotation(meshName)
	if err != nil || r.Step == identity.StepNone {
		return false, err
	}
	silent := map[string]bool{}
	for _, w := range r.Waiting {
		if !r.Forced || !s.silent(mesh.MakeID(meshName, w.Dataplane)) {
			return false, nil
		}
		silent[w.Dataplane] = true
	}
	return s.o.Authority.AdvanceRotation(ctx, meshName, silent)
}

// Rotate starts a rotation of a mesh's CA, or continues the current one, and returns its progress. With force it does not
// wait for silent proxies, in this step and the following ones.
func (s *Server) Rotate(ctx context.Context, meshName string, force bool) (*adminv1.Rotation, error) {
	var backend *mesh.Backend // nil has the defaults
	if m := s.o.View().Mesh(meshName); m != nil {
		backend = m.Spec.Backend()
	}
	if err := s.o.Authority.Ensure(ctx, meshName, backend.CAValidity()); err != nil {
		return nil, err
	}
	if err := s.o.Authority.StartRotation(ctx, meshName, backend.CAValidity()); err != nil {
		return nil, err
	}
	if force {
		if err := s.o.Authority.ForceRotation(ctx, meshName); err != nil {
			return nil, err
		}
	}
	s.wakeSessions(meshName)
	s.advance(ctx, meshName)
	return s.Rotation(ctx, meshName)
}

// Rotation returns the progress of a rotation, and changes nothing.
func (s *Server) Rotation(_ context.Context, meshName string) (*adminv1.Rotation, error) {
	r, err := s.o.Authority.Rotation(meshName)
	if errors.Is(err, identity.ErrCANotFound) {
		return &adminv1.Rotation{Step: adminv1.Rotation_IDLE}, nil
	}
	if err != nil {
		return nil, err
	}
	step, err := stepOf(r.Step)
	if err != nil {
		return nil, err
	}
	out := &adminv1.Rotation{Step: step}
	for _, w := range r.Waiting {
		out.Waiting = append(out.Waiting, &adminv1.Waiting{
			Name:               w.Dataplane,
			Silent:             !s.connected(mesh.MakeID(meshName, w.Dataplane)),
			CertificateExpires: timestamppb.New(w.Expires),
		})
	}
	return out, nil
}

func stepOf(s identity.Step) (adminv1.Rotation_Step, error) {
	switch s {
	case identity.StepNone:
		return adminv1.Rotation_IDLE, nil
	case identity.StepTrustBoth:
		return adminv1.Rotation_TRUST_BOTH, nil
	case identity.StepRenewLeaves:
		return adminv1.Rotation_RENEW_LEAVES, nil
	case identity.StepTrustNew:
		return adminv1.Rotation_TRUST_NEW, nil
	}
	return 0, fmt.Errorf("step %q of a rotation is not known", s)
}
