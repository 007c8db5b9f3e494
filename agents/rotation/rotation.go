// Package rotation rotates the CAs of meshes and the serving CA. A step ends when each proxy has completed it and each
// replica has loaded it.
package rotation

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin/lookup"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/replicas"
)

// Sessions tells which proxies take part.
type Sessions interface {
	// Connected reports whether the proxy's agent has a session.
	Connected(id mesh.ID) bool
	// Silent reports whether a forced rotation skips the proxy.
	Silent(id mesh.ID) bool
	// TakesServingCA reports whether the proxy's agent has a session, and accepts the control plane's CAs.
	TakesServingCA(id mesh.ID) bool
	// WakeMesh makes the sessions of a mesh send pending messages.
	WakeMesh(meshName string)
}

// Options of Rotations. All are required but ServingCA and ServingWaits.
type Options struct {
	// Authority keeps the rotations of meshes, the proxies with a valid certificate, and their reports.
	Authority *identity.Authority
	// ServingCA keeps its own rotation. If nil, Serving must not be called.
	ServingCA *serving.Certificate
	View      lookup.View
	Sessions  Sessions
	// Leads reports whether this replica advances rotations.
	Leads func() bool
	// Replicas returns what the other replicas have loaded. Advanced is called after this replica has loaded another step.
	Replicas func() []replicas.Loaded
	Advanced func()
	// ServingWaits describe the clients other than proxies for which a step of the serving CA waits.
	ServingWaits []func(context.Context, serving.Rotation) []string
	Logger       *slog.Logger
	Now          func() time.Time
}

// Rotations has no state of its own: the CAs have the state, which replicas share.
type Rotations struct{ o Options }

// New returns Rotations.
func New(o Options) *Rotations { return &Rotations{o} }

// Mesh returns the rotation of a mesh's CA.
func (t *Rotations) Mesh(name string) Rotation { return Rotation{&t.o, name, meshCA{&t.o, name}} }

// Serving returns the rotation of the serving CA.
func (t *Rotations) Serving() Rotation { return Rotation{&t.o, "", servingCA{&t.o}} }

// Rotation is the rotation of one CA.
type Rotation struct {
	o    *Options
	mesh string // empty for the serving CA, which wakes all sessions itself
	of   rotated
}

// rotated is the part of a rotation that depends on the CA.
type rotated interface {
	progress() (progress, error)
	// start starts a rotation, or continues the current one.
	start(ctx context.Context, force, proceed bool) error
	// others describes what a step waits for besides proxies and replicas.
	others(ctx context.Context, p progress) []string
	// advance starts the step after p, unless p has ended already, and reports whether it started it.
	advance(ctx context.Context, p progress) (bool, error)
	failed(ctx context.Context, err error)
	// loaded returns what another replica has loaded, nil if it has not reported that.
	loaded(of *peerv1.Replica) *peerv1.Authority
	// shown returns a proxy's name with the fields that depend on the CA.
	shown(p proxy) *adminv1.Waiting
}

// progress of the current step.
type progress struct {
	ca.Progress
	// held says that the step ends only when the operator proceeds.
	held bool
	// waiting are the proxies that have not completed the step, sorted. known is false while the proxies are unknown.
	waiting []proxy
	known   bool
	// serving is the rotation of the serving CA.
	serving serving.Rotation
}

// proxy is a proxy with the expiry of its certificate.
type proxy struct {
	mesh, name string
	expires    time.Time
}

func (p proxy) id() mesh.ID { return mesh.MakeID(p.mesh, p.name) }

// Advance advances the rotation until a step has to wait. After an error, the next report or recheck retries.
func (t Rotation) Advance(ctx context.Context) {
	for t.o.Leads() {
		advanced, err := t.advanceStep(ctx)
		if err != nil {
			t.of.failed(ctx, err)
		}
		if !advanced {
			return
		}
		t.o.Advanced()
		t.o.Sessions.WakeMesh(t.mesh)
	}
}

func (t Rotation) advanceStep(ctx context.Context) (bool, error) {
	p, err := t.of.progress()
	if err != nil || p.Step == ca.StepNone || p.held || !t.done(p) || len(t.of.others(ctx, p)) > 0 {
		return false, err
	}
	return t.of.advance(ctx, p)
}

// done reports whether the step waits for no proxy and no replica. A forced rotation skips silent proxies and
// disconnected replicas, once the proxies are known.
func (t Rotation) done(p progress) bool {
	return p.known &&
		!slices.ContainsFunc(p.waiting, func(w proxy) bool { return !p.Forced || !t.o.Sessions.Silent(w.id()) }) &&
		!slices.ContainsFunc(t.behind(p), func(r replicas.Loaded) bool { return !p.Forced || r.Unknown || !missing(r) })
}

// behind returns the other replicas that are disconnected or have not loaded the current step.
func (t Rotation) behind(p progress) []replicas.Loaded {
	here := Loaded(t.mesh, p.Progress)
	return slices.DeleteFunc(t.o.Replicas(), func(r replicas.Loaded) bool {
		return r.Lost.IsZero() && proto.Equal(t.of.loaded(r.State), here)
	})
}

// Loaded returns the message that reports a replica's progress. meshName is empty for the serving CA.
func Loaded(meshName string, p ca.Progress) *peerv1.Authority {
	return &peerv1.Authority{Mesh: meshName, BundleEpoch: p.Epoch, Step: string(p.Step), SigningCa: p.Signing}
}

// missing reports whether a replica is disconnected.
func missing(r replicas.Loaded) bool { return !r.Lost.IsZero() || r.State == nil }

// Rotate starts a rotation, or continues the current one, and returns its progress. With force it does not wait for
// silent proxies, in this step and the following ones. With proceed, the serving CA's rotation does not stop before the
// new CA signs.
func (t Rotation) Rotate(ctx context.Context, force, proceed bool) (*adminv1.Rotation, error) {
	if err := t.of.start(ctx, force, proceed); err != nil {
		return nil, err
	}
	t.o.Advanced()
	t.o.Sessions.WakeMesh(t.mesh)
	t.Advance(ctx)
	return t.Progress(ctx)
}

// Progress returns the progress of the rotation without changing it.
func (t Rotation) Progress(ctx context.Context) (*adminv1.Rotation, error) {
	p, err := t.of.progress()
	if err != nil {
		return nil, err
	}
	step, known := steps[p.Step]
	if !known {
		return nil, fmt.Errorf("unknown step %q of a rotation", p.Step)
	}
	out := &adminv1.Rotation{Step: step}
	for _, id := range p.serving.Missed {
		if meshName, name := mesh.SplitID(id); !t.o.Sessions.Connected(id) {
			out.Missed = append(out.Missed, t.shown(proxy{mesh: meshName, name: name}))
		}
	}
	if p.Step == ca.StepNone {
		return out, nil
	}
	for _, w := range p.waiting {
		out.Waiting = append(out.Waiting, t.shown(w))
	}
	for _, r := range t.behind(p) {
		out.Replicas = append(out.Replicas, &adminv1.WaitingReplica{Name: r.Replica, Missing: missing(r)})
	}
	out.Others = t.of.others(ctx, p)
	if !p.known {
		out.Others = append(out.Others, "the first view of the mesh, before which the proxies are unknown")
	}
	out.Paused = p.held && t.done(p) && len(out.GetOthers()) == 0
	return out, nil
}

func (t Rotation) shown(p proxy) *adminv1.Waiting {
	shown := t.of.shown(p)
	shown.Silent = !t.o.Sessions.Connected(p.id())
	if !p.expires.IsZero() {
		shown.CertificateExpires = timestamppb.New(p.expires)
	}
	return shown
}

var steps = map[ca.Step]adminv1.Rotation_Step{
	ca.StepNone: adminv1.Rotation_IDLE, ca.StepTrustBoth: adminv1.Rotation_TRUST_BOTH,
	ca.StepRenewLeaves: adminv1.Rotation_RENEW_LEAVES, ca.StepTrustNew: adminv1.Rotation_TRUST_NEW,
}
