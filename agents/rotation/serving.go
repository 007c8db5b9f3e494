package rotation

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/peers"
)

// ServingSessions knows which proxies take part in the rotation of the serving CA.
type ServingSessions interface {
	Sessions
	// TakesServingCA reports whether the proxy's agent has a session, and takes the control plane's CAs.
	TakesServingCA(id mesh.ID) bool
}

// ServingOptions are the options of Serving. All are required but Waits.
type ServingOptions struct {
	// CA keeps the rotation.
	CA *serving.Certificate
	// Authority knows which proxies have a valid certificate, and what they have reported.
	Authority *identity.Authority
	View      func() *meshview.View
	Sessions  ServingSessions
	// Leads, Replicas and Advanced are those of Options.
	Leads    func() bool
	Replicas func() []peers.Loaded
	Advanced func()
	// Waits return what else is not done in the current step, in words: by other replicas, or for clients that are no proxies.
	Waits  []func(context.Context, serving.Rotation) []string
	Logger *slog.Logger
	Now    func() time.Time
}

// Serving rotates the serving CA. It has no state but that of the CA, which replicas share.
type Serving struct{ o ServingOptions }

// NewServing returns a Serving.
func NewServing(o ServingOptions) *Serving { return &Serving{o} }

// Advance advances the rotation as long as nothing has to be waited for. After an error, the next recheck tries again.
func (s *Serving) Advance(ctx context.Context) {
	if !s.o.Leads() {
		return
	}
	for {
		r := s.o.CA.Rotation()
		s.forget(ctx, r)
		if r.Step == ca.StepNone || !s.complete(ctx, r) {
			return
		}
		var missed []string
		if r.Step == ca.StepTrustBoth {
			missed = s.missing(r)
		}
		advanced, err := s.o.CA.AdvanceRotation(ctx, r, missed)
		if err != nil {
			s.o.Logger.ErrorContext(ctx, "serving CA rotation failed", "err", err)
		}
		if !advanced || err != nil {
			return
		}
		s.o.Advanced()
	}
}

// complete reports whether the current step is done.
func (s *Serving) complete(ctx context.Context, r serving.Rotation) bool {
	if r.Step == ca.StepTrustBoth && !r.Proceed {
		return false
	}
	waiting, known := s.waiting(r)
	if !known {
		return false
	}
	return !s.blocked(r, waiting) && !blockedByReplicas(s.behind(), r.Forced) && len(s.others(ctx, r)) == 0
}

// behind returns the other replicas that have not loaded the current step, or have not said so.
func (s *Serving) behind() []peers.Loaded {
	return notLoaded(s.o.Replicas(), ServingLoaded(s.o.CA), (*peerv1.Replica).GetServingCa)
}

// ServingLoaded returns what a replica has loaded of the serving CA.
func ServingLoaded(c *serving.Certificate) *peerv1.Authority {
	r := c.Rotation()
	return &peerv1.Authority{BundleEpoch: r.Epoch, Step: string(r.Step), SigningCa: r.Signing}
}

// blocked reports whether one of the proxies has to be waited for.
func (s *Serving) blocked(r serving.Rotation, all []waiting) bool {
	return slices.ContainsFunc(all, func(w waiting) bool { return !r.Forced || !s.o.Sessions.Silent(w.id) })
}

// others returns what else is not done.
func (s *Serving) others(ctx context.Context, r serving.Rotation) []string {
	var others []string
	if r.CopiesErr != nil {
		others = append(others, r.CopiesErr.Error())
	}
	for _, wait := range s.o.Waits {
		others = append(others, wait(ctx, r)...)
	}
	return others
}

// waiting is a proxy that the rotation waits for.
type waiting struct {
	id      mesh.ID
	expires time.Time
}

// waiting returns the proxies with a valid certificate whose agents have not reported what is to be trusted, sorted, and false while it is not
// known which proxies there are. Once both CAs are trusted, proxies have nothing to do for the new one to sign.
func (s *Serving) waiting(r serving.Rotation) (all []waiting, known bool) {
	if r.Step == ca.StepRenewLeaves {
		return nil, true
	}
	for _, meshName := range s.o.Authority.Meshes() {
		holders, known := s.o.Authority.Holders(meshName, r.Since)
		if !known {
			return nil, false
		}
		for _, h := range holders {
			if h.ServingCA != r.Trusted && s.o.Now().Before(h.Expires) {
				all = append(all, waiting{mesh.MakeID(meshName, h.Dataplane), h.Expires})
			}
		}
	}
	slices.SortFunc(all, func(x, y waiting) int { return strings.Compare(x.id, y.id) })
	return all, true
}

// missing returns the proxies with a Dataplane that have not reported what is to be trusted, sorted.
func (s *Serving) missing(r serving.Rotation) []string {
	var missing []string
	v := s.o.View()
	for _, meshName := range s.o.Authority.Meshes() {
		holders, _ := s.o.Authority.Holders(meshName, r.Since)
		for _, h := range holders {
			id := mesh.MakeID(meshName, h.Dataplane)
			if _, p := v.Proxy(id); p != nil && h.ServingCA != r.Trusted {
				missing = append(missing, id)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// forget forgets proxies that have come back after they were missed, or are gone.
func (s *Serving) forget(ctx context.Context, r serving.Rotation) {
	if len(r.Missed) == 0 || s.o.View() == nil {
		return
	}
	missing := s.missing(r)
	var back []string
	for _, id := range r.Missed {
		if _, away := slices.BinarySearch(missing, id); !away || s.o.Sessions.Connected(id) {
			back = append(back, id)
		}
	}
	if len(back) == 0 {
		return
	}
	if err := s.o.CA.Forget(ctx, back); err != nil {
		s.o.Logger.ErrorContext(ctx, "proxies that the serving CA rotation has missed are kept although they are back", "err", err)
	}
}

// Rotate starts a rotation, or continues the current one, and returns its progress. With force it does not wait for silent proxies, in this
// step and the following ones. With proceed it does not stop before the new CA signs.
func (s *Serving) Rotate(ctx context.Context, force, proceed bool) (*adminv1.Rotation, error) {
	if err := s.o.CA.StartRotation(ctx); err != nil {
		return nil, err
	}
	if force {
		if err := s.o.CA.ForceRotation(ctx); err != nil {
			return nil, err
		}
	}
	if proceed {
		if err := s.o.CA.ProceedRotation(ctx); err != nil {
			return nil, err
		}
	}
	s.o.Advanced()
	s.Advance(ctx)
	return s.Rotation(ctx)
}

// Rotation returns the progress of the rotation, and changes nothing.
func (s *Serving) Rotation(ctx context.Context) (*adminv1.Rotation, error) {
	r := s.o.CA.Rotation()
	step, err := stepOf(r.Step)
	if err != nil {
		return nil, err
	}
	out := &adminv1.Rotation{Step: step}
	for _, id := range r.Missed {
		if !s.o.Sessions.Connected(id) {
			meshName, name := mesh.SplitID(id)
			out.Missed = append(out.Missed, &adminv1.Waiting{Mesh: meshName, Name: name, Silent: true})
		}
	}
	if r.Step == ca.StepNone {
		return out, nil
	}
	waiting, known := s.waiting(r)
	for _, w := range waiting {
		meshName, name := mesh.SplitID(w.id)
		connected := s.o.Sessions.Connected(w.id)
		out.Waiting = append(out.Waiting, &adminv1.Waiting{
			Mesh: meshName, Name: name, Silent: !connected, CertificateExpires: timestamppb.New(w.expires),
			Outdated: connected && !s.o.Sessions.TakesServingCA(w.id),
		})
	}
	behind := s.behind()
	out.Others, out.Replicas = s.others(ctx, r), waitingReplicas(behind)
	if !known {
		out.Others = append(out.Others, "the first view: which proxies there are is not known yet")
	}
	out.Paused = r.Step == ca.StepTrustBoth && !r.Proceed && !s.blocked(r, waiting) && !blockedByReplicas(behind, r.Forced) && len(out.GetOthers()) == 0
	return out, nil
}
