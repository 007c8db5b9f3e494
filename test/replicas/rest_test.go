package replicas

import (
	"context"
	"crypto/x509"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// quiet is long enough for everything that waits: for a disconnected replica, a cut connection, or a rotation.
const quiet = 6 * time.Minute

// checkTrust checks that the Envoys of all proxies accept each other. Envoys of earlier releases may have a bundle
// before the last one.
func (s *simulation) checkTrust() {
	synctest.Wait()
	for _, a := range s.agents {
		leaf := a.leaf()
		if leaf == nil || !time.Now().Before(leaf.NotAfter) {
			continue
		}
		for _, b := range s.agents {
			at := b.bundle()
			if at < 0 || b.old {
				continue
			}
			_, err := leaf.Verify(x509.VerifyOptions{Roots: s.bundles.pool(at), CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			if err != nil {
				s.Wrong("%s with bundle %d refuses the leaf of %s: %v", b.name, at, a.name, err)
			}
		}
	}
}

// rest repairs everything, and checks that all replicas have the same state, and that all proxies have the
// newest configuration.
func (s *simulation) rest(ctx context.Context) {
	s.Note("everything is mended")
	for l := range maps.Clone(s.cuts) {
		s.setCut(l[0], l[1], false)
	}
	for len(s.names()) < 2 {
		s.startReplica(ctx)
	}
	for _, r := range s.replicas {
		r.api.SetCut(false)
		r.leads.Store(false)
	}
	s.elect(s.anyReplica())
	for _, a := range s.agents {
		if !a.running() {
			a.start(ctx)
		}
	}
	time.Sleep(quiet)
	s.connectEnvoys()
	s.put(s.dataplane(s.anyAgent())) // no later change could replace it if it gets stuck
	time.Sleep(quiet)
	synctest.Wait()
	s.Note("at rest")
	s.checkTrust()
	if s.bundles.rotating() {
		s.Wrong("the rotation does not end: %v", s.waits(ctx))
	}
	s.checkServing(ctx)
	for _, a := range s.agents {
		if at := a.bundle(); at != s.bundles.newest() {
			s.Wrong("%s has bundle %d, and %d is the newest", a.name, at, s.bundles.newest())
		}
		if use := a.identity.InUse(); use.GetLeafCa() != s.bundles.signing() {
			s.Wrong("%s has a leaf of CA %s, and %s signs", a.name, use.GetLeafCa(), s.bundles.signing())
		}
	}
	names := s.names()
	s.checkVerdicts(names)
	for _, a := range s.agents {
		for _, name := range names {
			r := s.replicas[name]
			_, p := r.Pipeline.Builder.View().Proxy(a.id())
			s.Note("%s knows of %s: %+v, tags %v, and has heard %v", name, a.name, p.Observed, p.Dataplane.Spec.Networking.Inbound[0].Tags, r.Peers.Heard(a.id()))
		}
		first := s.versions(names[0], a)
		if len(first) == 0 {
			s.Wrong("%s serves %s nothing", names[0], a.name)
		}
		for _, name := range names[1:] {
			if diff := cmp.Diff(first, s.versions(name, a)); diff != "" {
				s.Wrong("what %s gets (-%s +%s):\n%s", a.name, names[0], name, diff)
			}
		}
	}
}

// checkVerdicts checks that all replicas have the current verdict of each application, as its agent's current session
// has reported it.
func (s *simulation) checkVerdicts(names []string) {
	for _, a := range s.agents {
		a.mu.Lock()
		want := map[bool]string{true: "success", false: "failure"}[a.serving]
		a.mu.Unlock()
		for _, name := range names {
			probes := s.replicas[name].Agents.Verdicts(a.id()).GetProbes()
			if len(probes) != 1 || len(probes[0].GetChanges()) == 0 || probes[0].GetChanges()[len(probes[0].GetChanges())-1].GetVerdict() != want {
				s.Wrong("%s has verdicts %v of %s, want %s", name, probes, a.name, want)
			}
		}
	}
}

// checkServing checks that a rotation of the serving CA has ended, unless agents are too old for it.
func (s *simulation) checkServing(ctx context.Context) {
	if slices.ContainsFunc(s.agents, func(a *agent) bool { return a.old }) {
		return
	}
	for name, r := range s.replicas {
		if rotation, err := r.Agents.Rotations().Serving().Progress(ctx); err != nil || rotation.GetStep() != adminv1.Rotation_IDLE {
			s.Wrong("the rotation of the serving CA does not end at %s: %v %v", name, rotation, err)
		}
	}
}

// waits returns what a rotation waits for.
func (s *simulation) waits(ctx context.Context) []any {
	var all []any
	for _, name := range s.names() {
		r := s.replicas[name]
		rotation, err := r.Agents.Rotations().Mesh("default").Progress(ctx)
		all = append(all, name, r.leads.Load(), rotation, err, r.Peers.Check())
	}
	return all
}

// versions returns the versions of all resources that a replica serves to a proxy.
func (s *simulation) versions(replica string, a *agent) map[resource.Name]string {
	t := s.replicas[replica].Pipeline.Translator
	t.Attach(a.id(), resource.Metadata{})
	defer t.Detach(a.id())
	desired, _ := t.Resources(a.id())
	all := map[resource.Name]string{}
	for _, kind := range resource.Types() {
		for _, r := range desired.Of(kind) {
			all[r.Key()] = r.Version
		}
	}
	return all
}

// leaf returns nil before the agent has joined.
func (a *agent) leaf() *x509.Certificate {
	if a.identity == nil {
		return nil
	}
	return a.identity.Leaf()
}

// bundle returns the position of the bundle in use, or -1 before the agent has joined.
func (a *agent) bundle() int {
	if a.leaf() == nil {
		return -1
	}
	return a.sim.bundles.position(a.identity.InUse().GetBundleId())
}
