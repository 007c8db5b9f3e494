package rotation

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/replicas"
)

// fakeCA advances to StepNone.
type fakeCA struct {
	p        progress
	other    []string
	err      error
	failures int
}

func (f *fakeCA) progress() (progress, error)                 { return f.p, nil }
func (f *fakeCA) start(context.Context, bool, bool) error     { return nil }
func (f *fakeCA) others(context.Context, progress) []string   { return f.other }
func (f *fakeCA) failed(context.Context, error)               { f.failures++ }
func (f *fakeCA) loaded(of *peerv1.Replica) *peerv1.Authority { return of.GetServingCa() }
func (f *fakeCA) shown(p proxy) *adminv1.Waiting              { return &adminv1.Waiting{Name: p.name} }
func (f *fakeCA) advance(context.Context, progress) (_ bool, _ error) {
	if f.err != nil {
		return false, f.err
	}
	f.p.Step = ca.StepNone
	return true, nil
}

// fakeSessions has the proxies with a session. All other proxies are silent.
type fakeSessions struct {
	Sessions
	connected map[mesh.ID]bool
	woken     []string
}

func (f *fakeSessions) Connected(id mesh.ID) bool { return f.connected[id] }
func (f *fakeSessions) Silent(id mesh.ID) bool    { return !f.connected[id] }
func (f *fakeSessions) WakeMesh(meshName string)  { f.woken = append(f.woken, meshName) }

func TestAdvance(t *testing.T) {
	here := ca.Progress{Epoch: 7, Step: ca.StepTrustBoth, Signing: "a"}
	loaded := Loaded("", here)
	replica := func(a *peerv1.Authority, lost bool) []replicas.Loaded {
		r := replicas.Loaded{Replica: "cp-1", State: &peerv1.Replica{ServingCa: a}}
		if lost {
			r.Lost = time.Unix(1_900_000_000, 0)
		}
		return []replicas.Loaded{r}
	}
	silent, connected := proxy{mesh: "default", name: "silent"}, proxy{mesh: "default", name: "connected"}
	waitsFor := func(names ...string) *adminv1.Rotation {
		r := &adminv1.Rotation{Step: adminv1.Rotation_TRUST_BOTH}
		for _, name := range names {
			r.Waiting = append(r.Waiting, &adminv1.Waiting{Name: name, Silent: name == silent.name})
		}
		return r
	}
	behind := func(missing bool) *adminv1.Rotation {
		r := waitsFor()
		r.Replicas = []*adminv1.WaitingReplica{{Name: "cp-1", Missing: missing}}
		return r
	}
	forced := func(f *fakeCA) { f.p.Forced = true }
	late := &peerv1.Authority{BundleEpoch: 6}
	slow := func(f *fakeCA) { f.p.waiting = []proxy{connected} }
	tests := map[string]struct {
		edit     func(*fakeCA)
		replicas []replicas.Loaded
		follows  bool
		// want is the progress afterwards; nil means that the rotation has advanced.
		want *adminv1.Rotation
	}{
		"all done":               {replicas: replica(loaded, false)},
		"another replica leads":  {follows: true, want: waitsFor()},
		"proxy not done":         {edit: slow, want: waitsFor("connected")},
		"silent proxy":           {edit: func(f *fakeCA) { f.p.waiting = []proxy{silent} }, want: waitsFor("silent")},
		"silent proxy, forced":   {edit: func(f *fakeCA) { f.p.waiting, f.p.Forced = []proxy{silent}, true }},
		"slow proxy, forced":     {edit: func(f *fakeCA) { slow(f); forced(f) }, want: waitsFor("connected")},
		"replica behind":         {replicas: replica(late, false), want: behind(false)},
		"replica behind, forced": {edit: forced, replicas: replica(late, false), want: behind(false)},
		"replica says nothing":   {replicas: replica(nil, false), want: behind(false)},
		"replica lost":           {replicas: replica(loaded, true), want: behind(true)},
		"replica lost, forced":   {edit: forced, replicas: replica(loaded, true)},
		"replica new, forced":    {edit: forced, replicas: []replicas.Loaded{{Replica: "cp-1"}}},
		"replicas not known, forced": {
			edit: forced, replicas: []replicas.Loaded{{Replica: "cp-1", Unknown: true}}, want: behind(true),
		},
		"operator has to go on": {
			edit: func(f *fakeCA) { f.p.held = true },
			want: &adminv1.Rotation{Step: adminv1.Rotation_TRUST_BOTH, Paused: true},
		},
		"operator has to go on, later": {
			edit: func(f *fakeCA) { f.p.held, f.p.waiting = true, []proxy{connected} },
			want: waitsFor("connected"),
		},
		"something else": {
			edit: func(f *fakeCA) { f.p.held, f.other = true, []string{"caBundle"} },
			want: &adminv1.Rotation{Step: adminv1.Rotation_TRUST_BOTH, Others: []string{"caBundle"}},
		},
		"something else, forced": {
			edit: func(f *fakeCA) { f.p.Forced, f.other = true, []string{"caBundle"} },
			want: &adminv1.Rotation{Step: adminv1.Rotation_TRUST_BOTH, Others: []string{"caBundle"}},
		},
		"proxies not known, forced": {
			edit: func(f *fakeCA) { f.p.known, f.p.Forced = false, true },
			want: &adminv1.Rotation{
				Step: adminv1.Rotation_TRUST_BOTH, Others: []string{"the first view of the mesh, before which the proxies are unknown"},
			},
		},
		"storage fails": {edit: func(f *fakeCA) { f.err = errors.New("disk full") }, want: waitsFor()},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fakeCA{p: progress{Progress: here, known: true}}
			if tc.edit != nil {
				tc.edit(f)
			}
			sessions := &fakeSessions{connected: map[mesh.ID]bool{connected.id(): true}}
			told := 0
			r := Rotation{of: f, o: &Options{
				Sessions: sessions, Leads: func() bool { return !tc.follows }, Replicas: func() []replicas.Loaded { return slices.Clone(tc.replicas) },
				Advanced: func() { told++ }, Logger: slog.New(slog.DiscardHandler),
			}}
			r.Advance(t.Context())
			advanced := 0
			if tc.want == nil {
				advanced, tc.want = 1, &adminv1.Rotation{Step: adminv1.Rotation_IDLE}
			}
			if told != advanced || len(sessions.woken) != advanced {
				t.Errorf("informed replicas %d times, woke %q, want %d times", told, sessions.woken, advanced)
			}
			if (f.failures > 0) != (f.err != nil) {
				t.Errorf("%d errors are logged", f.failures)
			}
			got, err := r.Progress(t.Context())
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" || err != nil {
				t.Errorf("Progress() = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
