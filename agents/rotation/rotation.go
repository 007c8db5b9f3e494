// Package rotation rotates the CAs of meshes: a step is over when each proxy with a session has done its part.
package rotation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/peers"
)

// Sessions knows which proxies take part.
type Sessions interface {
	// Connected reports whether the proxy's agent has a session.
	Connected(id mesh.ID) bool
	// Silent reports whether a forced rotation skips the proxy.
	Silent(id mesh.ID) bool
	// WakeMesh makes the sessions of a mesh send what is due.
	WakeMesh(meshName string)
}

// Options of Rotations. All are required.
type Options struct {
	// Authority keeps the rotations.
	Authority *identity.Authority
	View      func() *meshview.View
	Sessions  Sessions
	// Leads reports whether this replica advances rotations.
	Leads func() bool
	// Replicas returns what the other replicas have loaded. Advanced is called once this one has loaded another step.
	Replicas func() []peers.Loaded
	Advanced func()
	Logger   *slog.Logger
}

// Rotations has no state but that of the authority, which replicas share.
type Rotations struct{ o Options }

// New returns Rotations.
func New(o Options) *Rotations { return &Rotations{o} }

// Advance advances the rotation of a mesh as long as no proxy has to be waited for, and wakes the sessions. After an error,
// the next report or recheck tries again.
func (t *Rotations) Advance(ctx context.Context, meshName string) {
	for {
		advanced, err := t.advanceStep(ctx, meshName)
		if err != nil {
			t.o.Logger.ErrorContext(ctx, "CA rotation failed", "mesh", meshName, "err", err)
		}
		if !advanced {
			return
		}
		t.o.Advanced()
		t.o.Sessions.WakeMesh(meshName)
	}
}

func (t *Rotations) advanceStep(ctx context.Context, meshName string) (bool, error) {
	if !t.o.Leads() {
		return false, nil
	}
	r, err := t.o.Authority.Rotation(meshName)
	if err != nil || r.Step == identity.StepNone {
		return false, err
	}
	behind, err := t.behind(meshName)
	if err != nil {
		return false, err
	}
	if blockedByReplicas(behind, r.Forced) {
		return false, nil
	}
	silent := map[string]bool{}
	for _, w := range r.Waiting {
		if !r.Forced || !t.o.Sessions.Silent(mesh.MakeID(meshName, w.Dataplane)) {
			return false, nil
		}
		silent[w.Dataplane] = true
	}
	return t.o.Authority.AdvanceRotation(ctx, meshName, silent)
}

// behind returns the other replicas that have not loaded the step of a mesh's rotation, or have not said so.
func (t *Rotations) behind(meshName string) ([]peers.Loaded, error) {
	here, err := t.o.Authority.Loaded(meshName)
	if err != nil {
		return nil, err
	}
	want := &peerv1.Authority{Mesh: meshName, BundleEpoch: here.Epoch, Step: string(here.Step), SigningCa: here.SigningCA}
	return notLoaded(t.o.Replicas(), want, func(of *peerv1.Replica) *peerv1.Authority {
		for _, a := range of.GetAuthorities() {
			if a.GetMesh() == meshName {
				return a
			}
		}
		return nil
	}), nil
}

// notLoaded returns the replicas that have not loaded what is wanted, or are not heard.
func notLoaded(replicas []peers.Loaded, want *peerv1.Authority, of func(*peerv1.Replica) *peerv1.Authority) []peers.Loaded {
	return slices.DeleteFunc(replicas, func(r peers.Loaded) bool { return r.Lost.IsZero() && proto.Equal(of(r.State), want) })
}

// mayBeSkipped reports whether a forced rotation does not wait for a replica: one that is not heard.
func mayBeSkipped(r peers.Loaded) bool { return !r.Lost.IsZero() || r.State == nil }

func waitingReplicas(behind []peers.Loaded) []*adminv1.WaitingReplica {
	var all []*adminv1.WaitingReplica
	for _, r := range behind {
		all = append(all, &adminv1.WaitingReplica{Name: r.Replica, Missing: mayBeSkipped(r)})
	}
	return all
}

func blockedByReplicas(behind []peers.Loaded, forced bool) bool {
	return slices.ContainsFunc(behind, func(r peers.Loaded) bool { return !forced || !mayBeSkipped(r) })
}

// Rotate starts a rotation of a mesh's CA, or continues the current one, and returns its progress. With force it does not
// wait for silent proxies, in this step and the following ones.
func (t *Rotations) Rotate(ctx context.Context, meshName string, force bool) (*adminv1.Rotation, error) {
	var backend *mesh.Backend // nil has the defaults
	if m := t.o.View().Mesh(meshName); m != nil {
		backend = m.Spec.Backend()
	}
	if err := t.o.Authority.Ensure(ctx, meshName, backend.CAValidity()); err != nil {
		return nil, err
	}
	if err := t.o.Authority.StartRotation(ctx, meshName, backend.CAValidity()); err != nil {
		return nil, err
	}
	if force {
		if err := t.o.Authority.ForceRotation(ctx, meshName); err != nil {
			return nil, err
		}
	}
	t.o.Advanced()
	t.o.Sessions.WakeMesh(meshName)
	t.Advance(ctx, meshName)
	return t.Rotation(ctx, meshName)
}

// Rotation returns the progress of a rotation, and changes nothing.
func (t *Rotations) Rotation(_ context.Context, meshName string) (*adminv1.Rotation, error) {
	r, err := t.o.Authority.Rotation(meshName)
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
	if r.Step != identity.StepNone {
		behind, err := t.behind(meshName)
		if err != nil {
			return nil, err
		}
		out.Replicas = waitingReplicas(behind)
	}
	for _, w := range r.Waiting {
		out.Waiting = append(out.Waiting, &adminv1.Waiting{
			Name:               w.Dataplane,
			Silent:             !t.o.Sessions.Connected(mesh.MakeID(meshName, w.Dataplane)),
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
