package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/admin/lists"
	"github.com/sonde-mesh/sonde/admin/lookup"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/identity/token"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/since"
	"github.com/sonde-mesh/sonde/store"
)

// TestServer runs the commands that call the control plane. Each script has its own admin server, with a view from the
// script's mesh/ and fake streams, agents and rotations.
func TestServer(t *testing.T) {
	runScripts(t, "testdata/server", startServer)
}

// startServer serves the admin API with a real authority, and sets FLAGS, DOWN (an address without a listener) and
// OTHER_CA.
func startServer(env *testscript.Env) error {
	ctx := context.Background()
	state, err := store.OpenState(filepath.Join(env.WorkDir, "state"))
	if err != nil {
		return err
	}
	other, err := store.OpenState(filepath.Join(env.WorkDir, "other"))
	if err != nil {
		return err
	}
	if _, err := serving.Open(ctx, serving.Options{Storage: other.Secrets()}); err != nil {
		return err
	}
	options, err := options(ctx, env.WorkDir, state)
	if err != nil {
		return err
	}
	n := virtual.NewNetwork()
	stop, err := serveAdmin(n, options)
	if err != nil {
		return err
	}
	env.Defer(func() {
		if err := stop(); err != nil {
			panic(err) // the script has ended, so it cannot fail any more
		}
	})
	env.Values[networkKey{}] = n
	env.Setenv("DOWN", "127.0.0.1:1")
	env.Setenv("AT", "--address="+adminAt)
	env.Setenv("CA", "--ca-cert-file="+filepath.Join(env.WorkDir, "state", "serving-ca.crt"))
	env.Setenv("OTHER_CA", "--ca-cert-file="+filepath.Join(env.WorkDir, "other", "serving-ca.crt"))
	env.Setenv("TOKEN", "--token-file="+filepath.Join(env.WorkDir, "state", "admin-token"))
	return os.WriteFile(filepath.Join(env.WorkDir, "wrong-token"), []byte("wrong"), 0o600)
}

// adminAt is the address of the admin API.
const adminAt = "127.0.0.1:5681"

// serveAdmin serves the admin API until stop is called.
func serveAdmin(n *virtual.Network, o admin.Options) (stop func() error, err error) {
	server, err := admin.NewServer(o)
	if err != nil {
		return nil, err
	}
	l, err := n.Listen(context.Background(), "tcp", adminAt)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

func options(ctx context.Context, dir string, state *store.State) (admin.Options, error) {
	authority, err := identity.New(ctx, identity.Options{Secrets: state.Secrets(), Records: state})
	if err != nil {
		return admin.Options{}, err
	}
	certificate, err := serving.Open(ctx, serving.Options{Storage: state.Secrets()})
	if err != nil {
		return admin.Options{}, err
	}
	tokens, err := token.Open(ctx, token.Options{Storage: state.Secrets()})
	if err != nil {
		return admin.Options{}, err
	}
	adminToken, err := token.OpenAdmin(ctx, state.Secrets())
	if err != nil {
		return admin.Options{}, err
	}
	documents, problems, err := store.Read(filepath.Join(dir, "mesh"), nil, "")
	if err != nil {
		return admin.Options{}, err
	}
	builder := meshview.NewBuilder(meshview.Options{Sources: []string{"files"}, RequireJoin: true})
	for _, d := range documents {
		builder.Set("files", d.Object)
		if m, ok := d.Object.(*mesh.Mesh); ok {
			if err := authority.Ensure(ctx, m.Name, 0); err != nil {
				return admin.Options{}, err
			}
		}
	}
	builder.Synced("files")
	for id, o := range map[mesh.ID]mesh.Observation{
		"default/web-1": {Joined: true, Path: "/workload/web"},
		"default/web-2": {Joined: true, Draining: true},
		"default/web-3": {Joined: true, Path: "/workload/api"},
		"shop/web-2":    {Joined: true},
	} {
		builder.Observe(id, o)
	}
	change, _ := builder.Build()
	translator := generator.NewTranslator(generator.TranslatorOptions{})
	if _, err := translator.Apply(change); err != nil {
		return admin.Options{}, err
	}
	view := func() *meshview.View { return change.After }
	return admin.Options{
		TLS:         certificate.TLS(),
		BearerToken: adminToken,
		View:        view,
		Lists: &lists.Answers{
			View: view, Problems: func() []*adminv1.Problem { return storeProblems(dir, problems) }, Streams: madeUpStreams,
			Missing: func() []string { return nil }, Agents: madeUpAgents{}, Since: since.New(), CAExpires: authority.CAExpires,
		},
		Rotations: &steps{view: view},
		Strict:    adminv1.UnimplementedAdminServiceServer{},
		Resources: func(proxy mesh.ID, kind adminv1.Kind) ([]*anypb.Any, bool) {
			desired, ok := translator.Resources(proxy)
			var all []*anypb.Any
			for _, r := range resourcesOf(desired, kind) {
				all = append(all, r.Body)
			}
			return all, ok
		},
		Bootstrap: func(p *meshview.Proxy) ([]byte, error) {
			return fmt.Appendf(nil, `{"node":{"id":%q}}`, p.ID()), nil
		},
		Query: func(_ context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error {
			if proxy != "default/web-1" {
				return status.Errorf(codes.FailedPrecondition, "the agent of %s has no session with this replica of the control plane", proxy)
			}
			if view == mesh.ViewLogging {
				return take([]byte("\x1b[31mred\ttab\u009b1m\xff\u202e\n"))
			}
			if text, err := os.ReadFile(filepath.Join(dir, "envoy", string(view))); err == nil {
				return take(text)
			}
			return errors.Join(take([]byte("the first of ")), take([]byte(view+"\n")))
		},
		Token:    tokens.Issue,
		Drain:    (&drains{reasons: map[mesh.ID]string{}}).set,
		Restarts: madeUpRestarts{},
		Freeze:   madeUpFreeze{},
		Health:   madeUpHealth{},
		Logger:   slog.New(slog.DiscardHandler),
	}, nil
}

func storeProblems(dir string, problems []store.Problem) []*adminv1.Problem {
	var all []*adminv1.Problem
	for _, p := range problems {
		all = append(all, &adminv1.Problem{
			File: strings.TrimPrefix(p.File, dir+"/"), Document: uint32(p.Document), Line: uint32(p.Line),
			Warning: p.Severity == store.Warning, Text: p.Err.Error(),
		})
	}
	return all
}

func madeUpStreams(context.Context) (streams map[mesh.ID][]*adminv1.Stream, missing []string) {
	since := timestamppb.New(time.Now().Add(-5*time.Minute - 30*time.Second))
	return map[mesh.ID][]*adminv1.Stream{
		"default/web-1": {{ConnectedSince: since, Delta: true, Types: []*adminv1.TypeStatus{
			{Kind: "clusters", Synced: true},
			{Kind: "listeners", Nacks: []*adminv1.Nack{{Resource: "inbound:10.0.0.1:80", Version: "abc", Reason: "cannot bind:\n\x1b[31mAddress already in use"}}},
		}}},
		"default/gone": {{ConnectedSince: since, Replica: "sonde-cp-b"}},
	}, []string{"sonde-cp-c"}
}

type madeUpAgents struct{}

func (madeUpAgents) Unresponsive(context.Context, string) (map[mesh.ID]bool, []string) {
	return nil, nil
}
func (madeUpAgents) Verdicts(mesh.ID) *adminv1.Verdicts                 { return nil }
func (madeUpAgents) NotServing(mesh.ID) map[netip.AddrPort]string       { return nil }
func (madeUpAgents) RefusedListeners(mesh.ID) map[netip.AddrPort]string { return nil }

func (madeUpAgents) Agents() map[mesh.ID]*adminv1.Agent {
	return map[mesh.ID]*adminv1.Agent{"default/web-1": {
		Version: "0.1.0", EnvoyVersion: "1.40.0", CertificateExpires: timestamppb.New(time.Now().Add(23*time.Hour + 29*time.Minute)),
	}}
}

func (madeUpAgents) States() map[mesh.ID]*adminv1.AgentState {
	since := timestamppb.New(time.Now().Add(-3*time.Minute - 30*time.Second))
	return map[mesh.ID]*adminv1.AgentState{
		"default/early": {
			Phase: adminv1.AgentState_WAITING, Since: since, Refusal: `dataplane "early" of mesh "default" is not known (yet)`,
		},
		"default/web-1": {Phase: adminv1.AgentState_CONNECTED, Since: since},
		"default/web-2": {Phase: adminv1.AgentState_STOPPED, Since: since},
		"default/web-3": {
			Phase: adminv1.AgentState_CONNECTED, Since: since, Refusal: `the token is for workload "api", the Dataplane has workload "web"`,
		},
		"default/web-4": {Phase: adminv1.AgentState_NEVER_JOINED},
		"shop/web-2":    {Phase: adminv1.AgentState_LOST, Since: since},
	}
}

type madeUpHealth struct{}

func (madeUpHealth) Results(_ context.Context, group health.Group) []health.Result {
	at, took := time.Now().Add(-5500*time.Millisecond), 12*time.Microsecond
	changed, reason := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), errors.New("pods: not read yet:\nforbidden")
	if group == health.Livez {
		return []health.Result{{Group: group, Name: "loop-view", At: at, Took: took, Changes: []health.Change{{At: changed}}}}
	}
	return []health.Result{
		{Group: group, Name: "synced", Err: reason, At: at, Took: took, Changes: []health.Change{{At: changed}, {At: changed.Add(time.Second), Err: reason}}},
		{Group: group, Name: "store", Err: errors.New("unreachable for 5s"), Informational: true},
	}
}

// drains stores the reasons of drains.
type drains struct {
	mu      sync.Mutex
	reasons map[mesh.ID]string
}

func (d *drains) set(_ context.Context, p *meshview.Proxy, reason *string) (before string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before = d.reasons[p.ID()]
	if reason == nil {
		delete(d.reasons, p.ID())
	} else {
		d.reasons[p.ID()] = mesh.DrainText("dataplane", *reason)
	}
	return before, nil
}

// steps are admin.Rotations that advance each time their state is read.
type steps struct {
	view          lookup.View
	mu            sync.Mutex
	next, serving adminv1.Rotation_Step
}

func (s *steps) RotateCA(ctx context.Context, r *adminv1.RotateCARequest) (*adminv1.Rotation, error) {
	if _, err := s.view.Mesh(ctx, r.GetMesh()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = adminv1.Rotation_TRUST_BOTH
	if r.GetForce() {
		s.next = adminv1.Rotation_IDLE
	}
	return s.now(), nil
}

func (s *steps) GetRotation(context.Context, *adminv1.GetRotationRequest) (*adminv1.Rotation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next++; s.next > adminv1.Rotation_TRUST_NEW {
		s.next = adminv1.Rotation_IDLE
	}
	return s.now(), nil
}

// RotateServingCA pauses in the first step until a request to continue.
func (s *steps) RotateServingCA(_ context.Context, r *adminv1.RotateServingCARequest) (*adminv1.Rotation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = adminv1.Rotation_TRUST_BOTH
	if r.GetProceed() {
		s.serving = adminv1.Rotation_RENEW_LEAVES
	}
	return s.servingNow(), nil
}

func (s *steps) GetServingRotation(context.Context, *adminv1.GetServingRotationRequest) (*adminv1.Rotation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.servingNow()
	switch s.serving {
	case adminv1.Rotation_TRUST_BOTH:
		r = &adminv1.Rotation{Step: s.serving, Paused: true}
	case adminv1.Rotation_RENEW_LEAVES:
		s.serving = adminv1.Rotation_TRUST_NEW
	default:
		s.serving = adminv1.Rotation_IDLE
	}
	return r, nil
}

func (s *steps) servingNow() *adminv1.Rotation {
	r := &adminv1.Rotation{Step: s.serving}
	switch s.serving {
	case adminv1.Rotation_TRUST_BOTH:
		r.Waiting = []*adminv1.Waiting{
			{Mesh: "default", Name: "web-1", Outdated: true},
			{Mesh: "shop", Name: "web-2", Silent: true, CertificateExpires: timestamppb.New(time.Now().Add(23*time.Hour + 29*time.Minute))},
		}
		r.Others = []string{"caBundle of the webhook configurations\ndoes not have the CAs"}
	case adminv1.Rotation_RENEW_LEAVES, adminv1.Rotation_TRUST_NEW:
		r.Missed = []*adminv1.Waiting{{Mesh: "shop", Name: "web-2", Silent: true}}
	default:
		r.Step = adminv1.Rotation_IDLE
	}
	return r
}

func (s *steps) now() *adminv1.Rotation {
	r := &adminv1.Rotation{Step: s.next}
	if s.next != adminv1.Rotation_IDLE {
		r.Waiting = []*adminv1.Waiting{
			{Name: "web-1"},
			{Name: "web-2", Silent: true, CertificateExpires: timestamppb.New(time.Now().Add(23*time.Hour + 29*time.Minute))},
		}
	}
	return r
}
